//! The id of a response on `/v1/responses`, by which a later request continues it.

use memchr::memmem;

/// What begins the id of a response, in every engine.
const PREFIX: &[u8] = b"resp_";

/// The longest id. Chosen: those of engines have 37 bytes, and those made of a client's request id more.
const ID_BYTES_MAX: usize = 256;

/// The id in the beginning of a response, in one piece or as a stream: that of the first object which has one.
pub fn find(beginning: &[u8]) -> Option<&str> {
    let mut rest = beginning;
    while let Some(at) = memmem::find(rest, b"\"id\"") {
        rest = &rest[at + 4..];
        let value = rest.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        let Some(id) = value.strip_prefix(b"\"").filter(|it| it.starts_with(PREFIX)) else { continue };
        let end = id.iter().take(ID_BYTES_MAX).position(|&it| it == b'"' || it == b'\\')?;
        return std::str::from_utf8(&id[..end]).ok();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_found_in_whole_responses_and_in_streams() {
        for (text, expected) in [
            (r#"{"id":"resp_1a","object":"response"}"#, Some("resp_1a")),
            (r#"{"background":false, "id" : "resp_2", "output":[{"id":"msg_1"}]}"#, Some("resp_2")),
            (
                "event: response.created\ndata: {\"response\":{\"id\":\"resp_3\",\"output\":[]},\"type\":\"response.created\"}",
                Some("resp_3"),
            ),
            (r#"{"id":"msg_1","response":{"id":"resp_4"}}"#, Some("resp_4")),
            (r#"{"id":"resp_5"#, None),
            (r#"{"id"}"#, None),
            ("", None),
        ] {
            assert_eq!(find(text.as_bytes()), expected, "{text}");
        }
        let long = format!("{{\"id\":\"resp_{}\"}}", "a".repeat(ID_BYTES_MAX));
        assert_eq!(find(long.as_bytes()), None);
    }
}
