//! Foreign bytes from a peer: no panic, and the same frames however the bytes are cut.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use maitre_testkit::fuzz::fuzz;
use maitre_zmtp::frame::put_message;
use maitre_zmtp::subscription::Subscription;
use maitre_zmtp::{Next, Role, ZmtpLimits, ZmtpPeer};

/// Frames with their last marks, and whether the stream ended in an error.
fn read(role: Role, pieces: &[&[u8]]) -> (Vec<(Vec<u8>, bool)>, bool) {
    let mut peer = ZmtpPeer::new(role, ZmtpLimits { message_bytes_max: 1_000, frames_max: 8 });
    let (mut buffer, mut frames) = (Vec::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            match peer.next(&buffer) {
                Err(_) => return (frames, true),
                Ok(Next::Wait { bytes }) => {
                    assert!(bytes > buffer.len() && bytes <= 1_100, "waits for {bytes} at {}", buffer.len());
                    break;
                }
                Ok(Next::Handled { bytes, reply }) => {
                    assert!(bytes > 0 && reply.len() < 1_000);
                    drop(buffer.drain(..bytes));
                }
                Ok(Next::Frame { head_bytes, body_bytes, is_last }) => {
                    if buffer.len() < head_bytes + body_bytes {
                        break;
                    }
                    frames.push((buffer[head_bytes..head_bytes + body_bytes].to_vec(), is_last));
                    drop(buffer.drain(..head_bytes + body_bytes));
                }
            }
        }
    }
    (frames, false)
}

#[test]
fn fuzz_zmtp() {
    let mut stream = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    stream.resize(64, 0);
    stream.extend_from_slice(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB");
    put_message(&[&b"kv-events"[..], &[0, 0, 0, 0, 0, 0, 0, 7], b"payload"], &mut stream);
    stream.extend_from_slice(b"\x04\x07\x04PING\0\0");
    fuzz(env!("CARGO_MANIFEST_DIR"), "zmtp", &[&stream], |input, dice| {
        for role in [Role::Sub, Role::Dealer] {
            assert_eq!(read(role, &dice.cut(input)), read(role, &[input]), "{role:?}");
        }
        let _ = Subscription::parse(input);
    });
}
