//! Envoy's external processing (`envoy.service.ext_proc.v3`). A proxy opens one stream for each HTTP exchange, shows
//! the exchange on it as it passes, and does what the replies say. Gateways ask an endpoint picker in this way
//! (Gateway API Inference Extension).

use std::collections::HashMap;

use bytes::Bytes;

use crate::structure::Struct;

pub const SERVICE: &str = "envoy.service.ext_proc.v3.ExternalProcessor";
pub const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

/// What the proxy shows: a part of the request or of the response.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ProcessingRequest {
    #[prost(oneof = "Shown", tags = "2, 3, 4, 5, 6, 7")]
    pub shown: Option<Shown>,
    #[prost(message, optional, tag = "8")]
    pub metadata_context: Option<Metadata>,
    /// The proxy does not wait for responses, and ignores them.
    #[prost(bool, tag = "10")]
    pub observability_mode: bool,
    /// Only in the first message.
    #[prost(message, optional, tag = "11")]
    pub protocol_config: Option<ProtocolConfiguration>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Shown {
    #[prost(message, tag = "2")]
    RequestHeaders(HttpHeaders),
    #[prost(message, tag = "3")]
    ResponseHeaders(HttpHeaders),
    #[prost(message, tag = "4")]
    RequestBody(HttpBody),
    #[prost(message, tag = "5")]
    ResponseBody(HttpBody),
    #[prost(message, tag = "6")]
    RequestTrailers(HttpTrailers),
    #[prost(message, tag = "7")]
    ResponseTrailers(HttpTrailers),
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ProtocolConfiguration {
    #[prost(enumeration = "BodySendMode", tag = "1")]
    pub request_body_mode: i32,
    #[prost(enumeration = "BodySendMode", tag = "2")]
    pub response_body_mode: i32,
}

/// How the proxy shows bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum BodySendMode {
    None = 0,
    Streamed = 1,
    Buffered = 2,
    BufferedPartial = 3,
    /// The proxy passes on what it receives back, and nothing else.
    FullDuplexStreamed = 4,
    Grpc = 5,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct HttpHeaders {
    #[prost(message, optional, tag = "1")]
    pub headers: Option<HeaderMap>,
    #[prost(bool, tag = "3")]
    pub end_of_stream: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct HttpBody {
    #[prost(bytes = "bytes", tag = "1")]
    pub body: Bytes,
    #[prost(bool, tag = "2")]
    pub end_of_stream: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct HttpTrailers {
    #[prost(message, optional, tag = "1")]
    pub trailers: Option<HeaderMap>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct HeaderMap {
    #[prost(message, repeated, tag = "1")]
    pub headers: Vec<HeaderValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct HeaderValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
    /// Which of the two is set depends on the proxy and its version.
    #[prost(bytes = "bytes", tag = "3")]
    pub raw_value: Bytes,
}

impl HeaderValue {
    pub fn bytes(&self) -> &[u8] {
        if self.raw_value.is_empty() { self.value.as_bytes() } else { &self.raw_value }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Metadata {
    #[prost(map = "string, message", tag = "1")]
    pub filter_metadata: HashMap<String, Struct>,
}

/// What the proxy must do with the part that it has shown.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ProcessingResponse {
    #[prost(oneof = "Instruction", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub answer: Option<Instruction>,
    #[prost(message, optional, tag = "8")]
    pub dynamic_metadata: Option<Struct>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Instruction {
    #[prost(message, tag = "1")]
    RequestHeaders(PartResponse),
    #[prost(message, tag = "2")]
    ResponseHeaders(PartResponse),
    #[prost(message, tag = "3")]
    RequestBody(PartResponse),
    #[prost(message, tag = "4")]
    ResponseBody(PartResponse),
    #[prost(message, tag = "5")]
    RequestTrailers(TrailersResponse),
    #[prost(message, tag = "6")]
    ResponseTrailers(TrailersResponse),
    #[prost(message, tag = "7")]
    Immediate(ImmediateResponse),
}

/// `HeadersResponse` and `BodyResponse`, which have the same field.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PartResponse {
    #[prost(message, optional, tag = "1")]
    pub response: Option<CommonResponse>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct CommonResponse {
    #[prost(message, optional, tag = "2")]
    pub header_mutation: Option<HeaderMutation>,
    #[prost(message, optional, tag = "3")]
    pub body_mutation: Option<BodyMutation>,
    /// Choose the route again: the headers have changed.
    #[prost(bool, tag = "5")]
    pub clear_route_cache: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct TrailersResponse {
    #[prost(message, optional, tag = "1")]
    pub header_mutation: Option<HeaderMutation>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct HeaderMutation {
    #[prost(message, repeated, tag = "1")]
    pub set_headers: Vec<HeaderValueOption>,
    #[prost(string, repeated, tag = "2")]
    pub remove_headers: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct HeaderValueOption {
    #[prost(message, optional, tag = "1")]
    pub header: Option<HeaderValue>,
    #[prost(enumeration = "AppendAction", tag = "3")]
    pub append_action: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum AppendAction {
    AppendIfExistsOrAdd = 0,
    AddIfAbsent = 1,
    OverwriteIfExistsOrAdd = 2,
    OverwriteIfExists = 3,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct BodyMutation {
    #[prost(oneof = "NewBody", tags = "1, 2, 3")]
    pub new_body: Option<NewBody>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum NewBody {
    #[prost(bytes = "bytes", tag = "1")]
    Whole(Bytes),
    #[prost(bool, tag = "2")]
    Cleared(bool),
    #[prost(message, tag = "3")]
    Streamed(StreamedBody),
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct StreamedBody {
    #[prost(bytes = "bytes", tag = "1")]
    pub body: Bytes,
    #[prost(bool, tag = "2")]
    pub end_of_stream: bool,
}

/// The response to the client; nothing goes to a server.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ImmediateResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<HttpStatus>,
    #[prost(message, optional, tag = "2")]
    pub headers: Option<HeaderMutation>,
    #[prost(bytes = "bytes", tag = "3")]
    pub body: Bytes,
    /// For the proxy's log.
    #[prost(string, tag = "5")]
    pub details: String,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct HttpStatus {
    /// The number of a status, in Envoy's enumeration.
    #[prost(int32, tag = "1")]
    pub code: i32,
}

impl HeaderMutation {
    /// Adds a header, or replaces all headers of this name.
    pub fn set(&mut self, name: &str, value: Bytes) {
        let header = HeaderValue { key: name.to_owned(), value: String::new(), raw_value: value };
        let append_action = AppendAction::OverwriteIfExistsOrAdd as i32;
        self.set_headers.push(HeaderValueOption { header: Some(header), append_action });
    }
}

impl CommonResponse {
    /// These bytes of a body, in full-duplex mode.
    pub fn streamed(body: Bytes, end_of_stream: bool) -> CommonResponse {
        let new_body = Some(NewBody::Streamed(StreamedBody { body, end_of_stream }));
        CommonResponse { body_mutation: Some(BodyMutation { new_body }), ..CommonResponse::default() }
    }
}

impl From<CommonResponse> for PartResponse {
    fn from(response: CommonResponse) -> PartResponse {
        PartResponse { response: Some(response) }
    }
}

impl From<Instruction> for ProcessingResponse {
    fn from(answer: Instruction) -> ProcessingResponse {
        ProcessingResponse { answer: Some(answer), dynamic_metadata: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;

    /// The expected bytes are written out by hand: a round trip would pass even with a wrong field number on both
    /// sides.
    #[test]
    fn the_first_message_of_a_proxy_is_read_without_fields_that_are_not_known() {
        let bytes: &[u8] = &[
            0x12, 0x17, // 2: request_headers
            0x0a, 0x13, // 1: headers
            0x0a, 0x11, // 1: a header
            0x0a, 0x07, b':', b'm', b'e', b't', b'h', b'o', b'd', // 1: key
            0x1a, 0x04, b'P', b'O', b'S', b'T', // 3: raw value
            0x20, 0x05, // 4: unknown
            0x18, 0x00, // 3: end_of_stream
            0x5a, 0x04, 0x08, 0x04, 0x10, 0x04, // 11: protocol_config, both modes full duplex
            0x62, 0x01, b'x', // 12: unknown
        ];
        let read = ProcessingRequest::decode(bytes).unwrap();
        let Some(Shown::RequestHeaders(shown)) = &read.shown else { panic!("{read:?}") };
        let headers = &shown.headers.as_ref().unwrap().headers;
        assert_eq!((headers[0].key.as_str(), headers[0].bytes()), (":method", &b"POST"[..]));
        let config = read.protocol_config.unwrap();
        assert_eq!(config.request_body_mode(), BodySendMode::FullDuplexStreamed);
    }

    #[test]
    fn a_piece_of_a_body_has_the_numbers_that_proxies_expect() {
        let part = CommonResponse::streamed(Bytes::from_static(b"hi"), true);
        let answer: ProcessingResponse = Instruction::RequestBody(part.into()).into();
        let expected = [0x1a, 12, 0x0a, 10, 0x1a, 8, 0x1a, 6, 0x0a, 2, b'h', b'i', 0x10, 1];
        assert_eq!(answer.encode_to_vec(), expected);
    }

    #[test]
    fn a_refusal_has_the_numbers_that_proxies_expect() {
        let status = Some(HttpStatus { code: 429 });
        let immediate =
            ImmediateResponse { status, body: Bytes::from_static(b"{}"), ..ImmediateResponse::default() };
        let answer: ProcessingResponse = Instruction::Immediate(immediate).into();
        assert_eq!(answer.encode_to_vec(), [0x3a, 9, 0x0a, 3, 0x08, 0xad, 3, 0x1a, 2, b'{', b'}']);
    }
}
