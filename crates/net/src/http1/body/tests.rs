//! A body is read whole however the reads cut it; malformed framing is an error.

use super::*;
use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

/// Feeds the wire bytes in these cuts. The body and the bytes after it, or none if there was an error or no end.
fn read(mut reader: BodyReader, wire: &[u8], cuts: &[usize]) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut buffer = BytesMut::new();
    let mut whole = Vec::new();
    let mut rest = wire;
    let mut cuts = cuts.iter().cycle();
    loop {
        match reader.next(&mut buffer).ok()? {
            Piece::Data(data) => {
                assert!(!data.is_empty());
                whole.extend_from_slice(&data);
            }
            Piece::End => {
                assert!(reader.is_complete(&mut buffer));
                return Some((whole, [&buffer[..], rest].concat()));
            }
            Piece::More if rest.is_empty() => return None,
            Piece::More => {
                let (piece, left) = rest.split_at((1 + cuts.next().copied().unwrap_or(0)).min(rest.len()));
                buffer.extend_from_slice(piece);
                rest = left;
            }
        }
    }
}

#[track_caller]
fn check(wire: &str, expected: Option<(&str, &str)>) {
    let expected = expected.map(|(body, left)| (body.as_bytes().to_vec(), left.as_bytes().to_vec()));
    for cuts in [&[0][..], &[1, 2, 0], &[1_000_000]] {
        assert_eq!(read(BodyReader::chunked(), wire.as_bytes(), cuts), expected, "{wire:?} cut by {cuts:?}");
    }
}

#[test]
fn chunks_are_joined_and_the_bytes_after_them_are_left() {
    check("5\r\nhello\r\n1;x=\"y\"\r\n!\r\n0\r\n\r\nHTTP", Some(("hello!", "HTTP")));
    check("0\r\n\r\n", Some(("", "")));
    check("5 ;x\r\nhello\r\n0\t\r\n\r\n", Some(("hello", "")));
    check("00a\r\n0123456789\r\n0\r\nexpires: x\r\nmore: y\r\n\r\n", Some(("0123456789", "")));
}

#[test]
fn malformed_chunks_are_an_error() {
    for wire in [
        "hello\r\n",
        "\r\n",
        "-1\r\n",
        "0x5\r\nhello\r\n",
        "5\nhello\n",
        "5\r\nhello!\r\n",
        "fffffffffffffffff\r\n",
        "5\r\nhello\r\n0\r\nbare\n\r\n",
        "5\rx\r\nhello\r\n0\r\n\r\n",
        "5;a\rb\r\nhello\r\n0\r\n\r\n",
        "5 x\r\nhello\r\n0\r\n\r\n",
        "5\r\nhello\r\n0 / HTTP/1.0\r\n\r\n",
        "5\r\nhello\r\n0\r\nno header\r\n\r\n",
    ] {
        check(wire, None);
    }
    let trailers = format!("0\r\n{}\r\n", "a: b\r\n".repeat(100));
    check(&trailers, None);
    check(&"1".repeat(5_000), None);
    // Read as far as any limit, this would be a size of zero: the end.
    check(&format!("{}5\r\nhello\r\n0\r\n\r\n", "0".repeat(2_000)), None);
}

#[test]
fn a_truncated_body_does_not_end() {
    check("5\r\nhel", None);
    check("5\r\nhello\r\n0\r\n", None);
}

#[test]
fn a_body_of_known_length_is_complete_without_another_read() {
    let mut reader = BodyReader::length(3);
    let mut buffer = BytesMut::from(&b"abcd"[..]);
    assert_eq!(reader.next(&mut buffer).ok(), Some(Piece::Data(Bytes::from_static(b"abc"))));
    assert!(reader.is_complete(&mut buffer));
    assert_eq!(&buffer[..], b"d");
}

#[test]
fn the_end_mark_right_after_the_last_chunk_completes_the_body() {
    let mut reader = BodyReader::chunked();
    let mut buffer = BytesMut::from(&b"1\r\nx\r\n0\r\n\r\n"[..]);
    assert!(!reader.is_complete(&mut buffer));
    assert_eq!(reader.next(&mut buffer).ok(), Some(Piece::Data(Bytes::from_static(b"x"))));
    assert!(reader.is_complete(&mut buffer) && buffer.is_empty());
}

proptest! {
    #[test]
    fn any_body_in_any_chunks_and_any_cuts_is_read_whole(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 0..12),
        cuts in prop::collection::vec(0usize..50, 1..20),
    ) {
        let mut wire = Vec::new();
        for chunk in &chunks {
            wire.extend_from_slice(format!("{:X}\r\n", chunk.len()).as_bytes());
            wire.extend_from_slice(chunk);
            wire.extend_from_slice(b"\r\n");
        }
        wire.extend_from_slice(b"0\r\n\r\nnext");
        let whole = read(BodyReader::chunked(), &wire, &cuts);
        prop_assert_eq!(whole, Some((chunks.concat(), b"next".to_vec())));
    }

    #[test]
    fn random_bytes_are_an_error_or_wait_and_never_panic(
        wire in prop::collection::vec(any::<u8>(), 0..400), cuts in prop::collection::vec(0usize..50, 1..20),
    ) {
        let read = read(BodyReader::chunked(), &wire, &cuts);
        prop_assert!(read.is_none_or(|(body, _)| body.len() < wire.len()));
    }
}

/// Asking for completeness first must not hide the bytes that are wrong.
#[test]
fn garbage_after_a_chunk_is_an_error_for_every_caller() {
    for garbage in ["2\r\nokgarbage\r\n0\r\n\r\n", "2\r\nok\r\nzz\r\n0\r\n\r\n", "2\r\nok\r\n\n0\r\n\r\n"] {
        let (mut body, mut buffer) = (BodyReader::chunked(), BytesMut::from(garbage));
        assert_eq!(body.next(&mut buffer).unwrap(), Piece::Data(Bytes::from_static(b"ok")), "{garbage:?}");
        assert!(!body.is_complete(&mut buffer), "{garbage:?}");
        assert!((0..3).all(|_| body.next(&mut buffer).is_err()), "{garbage:?}");
        assert!(!body.is_complete(&mut buffer), "{garbage:?}");
    }
}
