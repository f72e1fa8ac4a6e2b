//! Conversations split at any byte, and malformed input.

use super::*;

use proptest::prelude::*;

use crate::frame::put_message;

const LIMITS: ZmtpLimits = ZmtpLimits { message_bytes_max: 1000, frames_max: 3 };

/// What a caller learns from a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Conversation {
    messages: Vec<Vec<Vec<u8>>>,
    replies: Vec<u8>,
    error: Option<ZmtpError>,
    /// The largest buffer that `next` asked for.
    wait_bytes_max: usize,
}

/// Feeds the pieces one after another, as a socket would deliver them.
fn hear<'a>(ours: Role, pieces: impl IntoIterator<Item = &'a [u8]>) -> Conversation {
    let mut peer = ZmtpPeer::new(ours, LIMITS);
    let (mut heard, mut buffer, mut message) = (Conversation::default(), Vec::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            match peer.next(&buffer) {
                Ok(Next::Wait { bytes }) => {
                    assert!(bytes > buffer.len(), "waits for what is there");
                    heard.wait_bytes_max = heard.wait_bytes_max.max(bytes);
                    break;
                }
                Ok(Next::Handled { bytes, reply }) => {
                    buffer.drain(..bytes);
                    heard.replies.extend(reply);
                }
                Ok(Next::Frame { head_bytes, body_bytes, is_last }) => {
                    buffer.drain(..head_bytes);
                    message.push(buffer.drain(..body_bytes).collect());
                    if is_last {
                        heard.messages.push(std::mem::take(&mut message));
                    }
                }
                Err(error) => {
                    heard.error = Some(error);
                    return heard;
                }
            }
        }
    }
    heard
}

fn greeting() -> Vec<u8> {
    [greeting::OPENING.as_slice(), &greeting::REST].concat()
}

/// Everything that a socket of this type sends before the first message.
fn opening(role: Role) -> Vec<u8> {
    let mut out = greeting();
    command::put_ready(role, &mut out);
    out
}

fn hear_all(ours: Role, bytes: &[u8]) -> Conversation {
    hear(ours, [bytes])
}

/// A publisher's opening, followed by this.
fn from_publisher(rest: &[u8]) -> Vec<u8> {
    [&opening(Role::Pub), rest].concat()
}

#[track_caller]
fn check_error(bytes: &[u8], expected: ZmtpError) {
    assert_eq!(hear_all(Role::Sub, bytes).error, Some(expected));
}

#[test]
fn every_pair_of_sockets_we_have_shakes_hands() {
    for (ours, theirs) in [(Role::Sub, Role::Pub), (Role::Dealer, Role::Router)] {
        assert_eq!(hear_all(ours, &opening(theirs)).error, None, "{ours} hears {theirs}");
        assert_eq!(hear_all(theirs, &opening(ours)).error, None, "{theirs} hears {ours}");
    }
    let mut peer = ZmtpPeer::new(Role::Sub, LIMITS);
    let bytes = opening(Role::Pub);
    let ours = opening(Role::Sub);
    assert_eq!(peer.next(&bytes), Ok(Next::Handled { bytes: 12, reply: ours[12..64].to_vec() }));
    assert_eq!(peer.next(&bytes[12..]), Ok(Next::Handled { bytes: 52, reply: ours[64..].to_vec() }));
    assert!(!peer.is_ready());
    assert!(peer.next(&bytes[64..]).is_ok());
    assert!(peer.is_ready());
}

#[test]
fn a_socket_of_the_wrong_kind_is_named() {
    for theirs in [Role::Sub, Role::Dealer, Role::Router] {
        let expected = ZmtpError::SocketType { ours: Role::Sub, theirs: theirs.name().to_owned() };
        check_error(&opening(theirs), expected);
    }
}

#[test]
fn a_peer_that_refuses_is_heard() {
    let bytes = [&greeting(), b"\x04\x09\x05ERROR\x02no".as_slice()].concat();
    check_error(&bytes, ZmtpError::Refused("no".to_owned()));
    check_error(&from_publisher(b"\x04\x09\x05ERROR\x02no"), ZmtpError::Refused("no".to_owned()));
}

#[test]
fn a_pong_repeats_the_context_of_the_ping() {
    let bytes = from_publisher(b"\x04\x0a\x04PING\0\x0actx\x00\x01x");
    let heard = hear_all(Role::Sub, &bytes);
    assert!(heard.replies.ends_with(b"\x04\x08\x04PONGctx"));
    assert_eq!(heard.messages, [[b"x"]]);
}

#[test]
fn a_command_may_stand_between_the_frames_of_a_message() {
    let heard = hear_all(Role::Sub, &from_publisher(b"\x01\x01a\x04\x05\x04PONG\x00\x01b"));
    assert_eq!(heard.messages, [[b"a", b"b"]]);
}

#[test]
fn a_frame_of_64_gib_is_refused_by_its_head() {
    let head = b"\x02\0\0\0\x10\0\0\0\0";
    let error = ZmtpError::FrameTooLarge { bytes: 64 << 30, bytes_max: 1000 };
    check_error(&from_publisher(head), error.clone());
    // Not one byte more is requested before that.
    for length in 0..head.len() {
        let heard = hear_all(Role::Sub, &from_publisher(&head[..length]));
        assert_eq!(heard.error, None);
        assert!(heard.wait_bytes_max <= opening(Role::Pub).len() + head.len());
    }
    let everything = b"\x02\xff\xff\xff\xff\xff\xff\xff\xff";
    check_error(&from_publisher(everything), ZmtpError::FrameTooLarge { bytes: u64::MAX, bytes_max: 1000 });
}

#[test]
fn a_command_has_a_limit_of_its_own() {
    let error = ZmtpError::FrameTooLarge { bytes: 1 << 24, bytes_max: COMMAND_BYTES_MAX };
    check_error(&from_publisher(b"\x06\0\0\0\0\x01\0\0\0"), error.clone());
    check_error(&[&greeting(), b"\x06\0\0\0\0\x01\0\0\0".as_slice()].concat(), error);
}

#[test]
fn small_frames_may_not_add_up_to_a_large_message() {
    let mut bytes = from_publisher(b"");
    put_message(&[[0; 600].as_slice(), &[0; 600]], &mut bytes);
    check_error(&bytes, ZmtpError::MessageTooLarge { bytes_max: 1000 });
    // Limits apply per message, not to consecutive messages together.
    let mut bytes = from_publisher(b"");
    put_message(&[[0; 600]], &mut bytes);
    put_message(&[[0; 600]], &mut bytes);
    assert_eq!(hear_all(Role::Sub, &bytes).error, None);
}

#[test]
fn a_message_without_end_is_cut_short() {
    let bytes = from_publisher(&b"\x01\0".repeat(4));
    check_error(&bytes, ZmtpError::TooManyFrames { frames_max: 3 });
}

#[test]
fn nothing_but_ready_follows_a_greeting() {
    let bytes = [&greeting(), b"\x00\x01x".as_slice()].concat();
    check_error(&bytes, ZmtpError::Malformed("a message comes before READY"));
    let bytes = [&greeting(), b"\x04\x07\x04PING\0\0".as_slice()].concat();
    check_error(&bytes, ZmtpError::Malformed("another command comes before READY"));
}

fn messages() -> impl Strategy<Value = Vec<Vec<Vec<u8>>>> {
    let frame = prop::collection::vec(any::<u8>(), 0..320);
    prop::collection::vec(prop::collection::vec(frame, 1..=3), 0..6)
}

/// A well-formed conversation with interspersed pings.
fn conversation(messages: &[Vec<Vec<u8>>]) -> Vec<u8> {
    let mut bytes = from_publisher(b"");
    for message in messages {
        bytes.extend(b"\x04\x07\x04PING\0\0");
        put_message(message, &mut bytes);
    }
    bytes
}

proptest! {
    #[test]
    fn chunk_boundaries_make_no_difference(messages in messages(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..40)) {
        let bytes = conversation(&messages);
        let mut cuts: Vec<usize> = cuts.iter().map(|it| it.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let heard = hear(Role::Sub, cuts.windows(2).map(|it| &bytes[it[0]..it[1]]));
        prop_assert_eq!(&heard.messages, &messages);
        prop_assert_eq!(heard.error, None);
        let pongs = b"\x04\x05\x04PONG".repeat(messages.len());
        prop_assert_eq!(&heard.replies, &[&opening(Role::Sub)[12..], &pongs].concat());
        let byte_by_byte = hear(Role::Sub, bytes.chunks(1));
        prop_assert_eq!(byte_by_byte.messages, messages);
    }

    #[test]
    fn noise_is_an_error_or_silence_and_never_asks_for_more_than_the_limits(
        noise in prop::collection::vec(any::<u8>(), 0..400),
        after in 0..3usize,
    ) {
        let before = [Vec::new(), greeting(), from_publisher(b"")];
        let bytes = [before[after].as_slice(), &noise].concat();
        let heard = hear(Role::Sub, bytes.chunks(7));
        prop_assert!(heard.wait_bytes_max <= frame::HEAD_BYTES_MAX + COMMAND_BYTES_MAX.max(LIMITS.message_bytes_max));
    }

    #[test]
    fn a_conversation_with_one_bad_byte_is_survived(messages in messages(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = conversation(&messages);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let whole = hear(Role::Sub, [bytes.as_slice()]);
        let pieces = hear(Role::Sub, bytes.chunks(5));
        prop_assert_eq!(whole.messages, pieces.messages);
        prop_assert_eq!(whole.error, pieces.error);
    }
}
