//! Foreign bytes from a worker: no panic, and the same result for all cuts and all orders of calls.

use super::*;
use maitre_testkit::fuzz::{Dice, fuzz};

/// What a client would get.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    NoHead,
    Broken,
    /// Status, body, whether that is all of it, and the bytes after it.
    Response(u16, Vec<u8>, bool, Vec<u8>),
}

fn read(pieces: &[&[u8]], mut ask: impl FnMut() -> bool) -> Outcome {
    let (mut buffer, mut interim) = (BytesMut::new(), 0);
    let mut response: Option<(u16, BodyReader)> = None;
    let (mut bytes, mut is_whole) = (Vec::new(), false);
    for piece in pieces {
        buffer.extend_from_slice(piece);
        if response.is_none() {
            response = match head::parse(&mut buffer, &Method::POST, &mut interim) {
                Err(_) => return Outcome::Broken,
                Ok(found) => found.map(|(head, body)| (head.status.as_u16(), body)),
            };
        }
        let Some((_, body)) = &mut response else { continue };
        loop {
            if ask() {
                is_whole |= body.is_complete(&mut buffer);
            }
            match body.next(&mut buffer) {
                Err(_) => return Outcome::Broken,
                Ok(Piece::Data(data)) => bytes.extend_from_slice(&data),
                Ok(Piece::More) => break,
                Ok(Piece::End) => {
                    is_whole = true;
                    break;
                }
            }
        }
    }
    match response {
        None => Outcome::NoHead,
        Some((status, _)) => Outcome::Response(status, bytes, is_whole, buffer.to_vec()),
    }
}

#[test]
fn fuzz_worker_response() {
    let seeds: [&[u8]; 5] = [
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n1;a=b\r\n!\r\n0\r\nx-t: 1\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhelloHTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.0 404 Not Found\r\n\r\nuntil the end",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n2\r\nokgarbage\r\n0\r\n\r\n",
    ];
    fuzz(env!("CARGO_MANIFEST_DIR"), "worker-response", &seeds, |input, dice| {
        let pieces = dice.cut(input);
        let mut asks = Dice::new(dice.below(1_000) as u64);
        assert_eq!(read(&pieces, || asks.below(2) == 0), read(&[input], || false));
    });
}
