//! A gateway for tests: one message at a time, framed by hand, so that the wire itself is tested.

use std::net::SocketAddr;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::Request;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use maitre_grpc::ext_proc::{
    BodySendMode, CommonResponse, HeaderMap, HeaderValue, HttpBody, HttpHeaders, Instruction, Metadata,
    NewBody, PROCESS, ProcessingRequest, ProcessingResponse, ProtocolConfiguration, Shown,
};
use maitre_grpc::structure::{Kind, Struct};
use prost::Message;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::Stream as FrameStream;

use crate::fixture::within;

/// The messages of a call, as they are sent.
pub(super) struct Messages(mpsc::Receiver<Bytes>);

impl FrameStream for Messages {
    type Item = Result<Frame<Bytes>, std::convert::Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|it| it.map(|it| Ok(Frame::data(it))))
    }
}

pub(crate) struct Gateway {
    sender: SendRequest<StreamBody<Messages>>,
    _driver: JoinSet<()>,
}

/// One exchange.
pub(crate) struct Stream {
    messages: mpsc::Sender<Bytes>,
    modes: Option<ProtocolConfiguration>,
    answers: Incoming,
    buffer: BytesMut,
    /// `grpc-status` and `grpc-message`, once it has ended.
    status: Option<String>,
}

/// A message with its length, as gRPC sends it.
pub(crate) fn frame(message: &impl Message) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(message.encoded_len() as u32);
    message.encode(&mut bytes).unwrap();
    bytes.freeze()
}

impl Gateway {
    pub(crate) async fn connect(addr: SocketAddr) -> Gateway {
        let tcp = within(TcpStream::connect(addr)).await.unwrap();
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tcp)).await.unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        Gateway { sender, _driver: driver }
    }

    pub(crate) async fn open(&self) -> Stream {
        self.open_in(BodySendMode::FullDuplexStreamed, BodySendMode::FullDuplexStreamed).await
    }

    pub(crate) async fn open_in(&self, request: BodySendMode, response: BodySendMode) -> Stream {
        let (messages, receiver) = mpsc::channel(4);
        let call = Request::post(format!("http://picker{PROCESS}"));
        let call = call.header("content-type", "application/grpc").header("te", "trailers");
        let call = call.body(StreamBody::new(Messages(receiver))).unwrap();
        let answer = within(self.sender.clone().send_request(call)).await.unwrap();
        assert_eq!(answer.status(), 200);
        let modes =
            ProtocolConfiguration { request_body_mode: request as i32, response_body_mode: response as i32 };
        let (answers, buffer) = (answer.into_body(), BytesMut::new());
        Stream { messages, modes: Some(modes), answers, buffer, status: None }
    }
}

fn headers(rows: &[(&str, &str)]) -> HeaderMap {
    let row = |&(key, value): &(&str, &str)| HeaderValue {
        key: key.to_owned(),
        value: String::new(),
        raw_value: Bytes::copy_from_slice(value.as_bytes()),
    };
    HeaderMap { headers: rows.iter().map(row).collect() }
}

/// `subset` and `served` as a gateway would say them.
fn metadata(rows: &[(&str, &str)]) -> Option<Metadata> {
    let mut metadata = Metadata::default();
    for &(name, value) in rows {
        let (namespace, key, value) = match name {
            "subset" => {
                let texts = Kind::texts(value.split(','));
                ("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", texts)
            }
            "served" => ("envoy.lb", "x-gateway-destination-endpoint-served", Kind::Text(value.to_owned())),
            _ => panic!("{name}"),
        };
        metadata.filter_metadata.insert(namespace.to_owned(), Struct::of(key, value));
    }
    (!metadata.filter_metadata.is_empty()).then_some(metadata)
}

/// The value that a header is set to.
pub(crate) fn set_header(response: &CommonResponse, name: &str) -> String {
    let set = &response.header_mutation.as_ref().unwrap().set_headers;
    let found = set.iter().filter_map(|it| it.header.as_ref()).find(|it| it.key == name);
    String::from_utf8(found.map(|it| it.bytes().to_vec()).unwrap_or_default()).unwrap()
}

impl Stream {
    async fn show(&mut self, shown: Shown, metadata_context: Option<Metadata>) {
        let message = ProcessingRequest {
            shown: Some(shown),
            metadata_context,
            protocol_config: self.modes.take(),
            ..ProcessingRequest::default()
        };
        within(self.messages.send(frame(&message))).await.unwrap();
    }

    /// Shows the head of a request, with metadata.
    pub(crate) async fn head(&mut self, method: &str, path: &str, extra: &[(&str, &str)], end: bool) {
        let rows = [(":method", method), (":path", path), (":authority", "a"), ("x-request-id", "7")];
        let shown = HttpHeaders { headers: Some(headers(&rows)), end_of_stream: end };
        self.show(Shown::RequestHeaders(shown), metadata(extra)).await;
    }

    pub(crate) async fn body(&mut self, body: &[u8], end_of_stream: bool) {
        let body = Bytes::copy_from_slice(body);
        self.show(Shown::RequestBody(HttpBody { body, end_of_stream }), None).await;
    }

    /// The next answer; none if there is none.
    pub(crate) async fn answer(&mut self) -> Option<ProcessingResponse> {
        while self.buffer.len() < 5 || self.buffer.len() < 5 + length(&self.buffer) {
            match within(self.answers.frame()).await {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.buffer.extend_from_slice(&data),
                    Err(frame) => {
                        let trailers = frame.into_trailers().unwrap();
                        let value = |name| trailers.get(name).map_or("", |it| it.to_str().unwrap());
                        self.status = Some(format!("{} {}", value("grpc-status"), value("grpc-message")));
                    }
                },
                _ => return None,
            }
        }
        let length = length(&self.buffer);
        self.buffer.advance(5);
        Some(ProcessingResponse::decode(self.buffer.split_to(length)).unwrap())
    }

    /// Whether the picker has ended the stream, without an error.
    pub(crate) async fn ended(&mut self) -> bool {
        self.answer().await.is_none() && self.status.as_deref().is_some_and(|it| it.starts_with('0'))
    }

    /// The status and the message with which the picker ends the stream.
    pub(crate) async fn failure(&mut self) -> String {
        assert!(self.answer().await.is_none());
        self.status.clone().unwrap()
    }

    /// Where the request should go, as header and metadata both say.
    pub(crate) async fn destinations(&mut self) -> Vec<String> {
        let answer = self.answer().await.expect("an answer to the head");
        let Some(Instruction::RequestHeaders(part)) = answer.answer else { panic!("{answer:?}") };
        let common = part.response.unwrap();
        assert!(common.clear_route_cache);
        let header = set_header(&common, "x-gateway-destination-endpoint");
        let metadata = answer.dynamic_metadata.unwrap();
        let Some(Kind::Struct(lb)) = metadata.get("envoy.lb") else { panic!("{metadata:?}") };
        assert_eq!(lb.get("x-gateway-destination-endpoint"), Some(&Kind::Text(header.clone())));
        header.split(',').map(str::to_owned).collect()
    }

    /// The request's body, as the worker would get it.
    pub(crate) async fn echoed_request(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let answer = self.answer().await.expect("a piece of the body");
            let Some(Instruction::RequestBody(part)) = answer.answer else { panic!("{answer:?}") };
            let (piece, is_last) = streamed(part.response.unwrap());
            body.extend_from_slice(&piece);
            if is_last {
                return body;
            }
        }
    }

    /// Shows the head of a response, with metadata; returns the answer to it.
    pub(crate) async fn response(
        &mut self,
        status: &str,
        kind: &str,
        extra: &[(&str, &str)],
    ) -> CommonResponse {
        let shown = HttpHeaders {
            headers: Some(headers(&[(":status", status), ("content-type", kind)])),
            end_of_stream: false,
        };
        self.show(Shown::ResponseHeaders(shown), metadata(extra)).await;
        let answer = self.answer().await.expect("an answer to the head of the response");
        let Some(Instruction::ResponseHeaders(part)) = answer.answer else { panic!("{answer:?}") };
        part.response.unwrap()
    }

    /// Shows a piece of a response; returns what comes back.
    pub(crate) async fn response_body(&mut self, body: &[u8], end_of_stream: bool) -> Option<Vec<u8>> {
        let body = Bytes::copy_from_slice(body);
        self.show(Shown::ResponseBody(HttpBody { body, end_of_stream }), None).await;
        let Some(Instruction::ResponseBody(part)) = self.answer().await?.answer else { return None };
        let (piece, is_last) = streamed(part.response?);
        assert_eq!(is_last, end_of_stream);
        Some(piece.to_vec())
    }
}

fn length(buffer: &[u8]) -> usize {
    buffer.get(1..5).map_or(0, |it| it.iter().fold(0, |sum, &byte| sum << 8 | usize::from(byte)))
}

fn streamed(common: CommonResponse) -> (Bytes, bool) {
    match common.body_mutation.and_then(|it| it.new_body) {
        Some(NewBody::Streamed(piece)) => (piece.body, piece.end_of_stream),
        other => panic!("{other:?}"),
    }
}
