//! Percent-encoding and decoding of text in URLs.

/// Escapes every byte that is not unreserved; unreserved bytes mean the same in every part of a URL.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                escaped.push(char::from(byte))
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

/// The decoded text; none if a percent sign is not followed by two digits, or the bytes are not UTF-8.
pub(crate) fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut pieces = text.split('%');
    bytes.extend_from_slice(pieces.next()?.as_bytes());
    for piece in pieces {
        let digits = piece.get(..2).filter(|it| it.bytes().all(|it| it.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(&piece.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_text_is_decoded_again() {
        for text in ["", "app=vllm,tier in (gpu, big)", "100%", "ä\u{1F600}", "a%3Db"] {
            let escaped = escape(text);
            assert!(escaped.bytes().all(|it| it.is_ascii_alphanumeric() || b"%-._~".contains(&it)));
            assert_eq!(unescape(&escaped).as_deref(), Some(text));
        }
        assert_eq!(escape("app=vllm,tier=gpu"), "app%3Dvllm%2Ctier%3Dgpu");
    }

    #[test]
    fn a_lone_percent_sign_is_rejected() {
        for text in ["%", "%4", "a%zz", "%+1", "%ff", "%é1"] {
            assert_eq!(unescape(text), None, "{text}");
        }
    }
}
