//! Round trips over any split of the bytes; malformed bytes cause no panic.

use std::net::Ipv4Addr;

use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any};
use proptest::{prop_assert, prop_assert_eq, proptest};

use super::*;

fn hello() -> Hello {
    let you = Ipv4Addr::LOCALHOST.into();
    Hello { name: "a".to_owned(), instance: 7, advertise: None, port: 7946, you }
}

#[test]
fn a_preamble_is_recognised_from_its_first_byte() {
    let all = preamble();
    (0..PREAMBLE).for_each(|cut| assert_eq!(version(&all[..cut]), Ok(None), "{cut}"));
    assert_eq!(version(&all), Ok(Some(VERSION)));
    let mut other = all;
    other[PREAMBLE - 1] = 9;
    assert_eq!(version(&other), Ok(Some(9)));
    for stranger in [&b"G"[..], b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", b"maitre\n", b"\0"] {
        assert_eq!(version(stranger), Err(NotARouter), "{stranger:?}");
    }
}

#[test]
fn a_verdict_is_one_byte_and_no_other() {
    DialVerdict::ALL.into_iter().for_each(|it| assert_eq!(DialVerdict::decode(&it.encode()), Ok(it)));
    for bad in [&[][..], &[4], &[0, 0]] {
        assert!(DialVerdict::decode(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn a_hello_without_a_name_or_with_a_tail_is_rejected() {
    assert!(Hello::decode(&Hello { name: String::new(), ..hello() }.encode()).is_err());
    let mut longer = hello().encode();
    longer.push(0);
    assert!(Hello::decode(&longer).is_err());
    assert!(Hello::decode(&Hello { name: "a\nb".to_owned(), ..hello() }.encode()).is_err());
}

#[test]
fn a_record_must_hold_something() {
    assert_eq!(record(17_u16.to_be_bytes()), Ok(17));
    assert_eq!(record(u16::MAX.to_be_bytes()), Ok(RECORD_MAX));
    (0..=16_u16).for_each(|it| assert!(record(it.to_be_bytes()).is_err(), "{it}"));
}

#[test]
fn an_invalid_frame_is_rejected_by_its_header() {
    assert_eq!(frame(&[]), Ok(None));
    assert!(frame(&[3]).is_err());
    assert!(frame(&[0, 0, 0, 0, 1]).is_err(), "a beat holds nothing");
    let length = |it: usize| (it as u32).to_be_bytes();
    for (kind, max) in [(1, GOSSIP_MAX), (2, FRAME_MAX)] {
        let start = |it| [&[kind][..], &length(it)].concat();
        assert_eq!(frame(&start(max)), Ok(None));
        assert!(frame(&start(max + 1)).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hellos_survive(
        name in "[a-z0-9:.-]{1,128}",
        numbers in any::<(u64, u16)>(),
        advertise in proptest::option::of("[a-z0-9:.]{1,200}"),
        you in any::<IpAddr>(),
    ) {
        let hello = Hello { name, instance: numbers.0, advertise, port: numbers.1, you: you.to_canonical() };
        let bytes = hello.encode();
        prop_assert_eq!(Hello::decode(&bytes), Ok(hello));
        (0..bytes.len()).for_each(|cut| assert!(Hello::decode(&bytes[..cut]).is_err(), "{cut}"));
    }

    #[test]
    fn frames_come_out_as_they_went_in(bodies in vec((0..3_usize, vec(any::<u8>(), 0..300)), 0..20), step in 1..64_usize) {
        let mut written = Vec::new();
        let bodies: Vec<(MeshFrameKind, Vec<u8>)> = bodies.into_iter().map(|(kind, body)| match MeshFrameKind::ALL[kind] {
            MeshFrameKind::Heartbeat => (MeshFrameKind::Heartbeat, Vec::new()),
            kind => (kind, body),
        }).collect();
        bodies.iter().for_each(|(kind, body)| put_frame(&mut written, *kind, body));
        let (mut queued, mut found) = (Vec::new(), Vec::new());
        for piece in written.chunks(step) {
            queued.extend(piece);
            while let Some((kind, length)) = frame(&queued).unwrap() {
                found.push((kind, queued[HEADER..HEADER + length].to_vec()));
                queued.drain(..HEADER + length);
            }
        }
        prop_assert_eq!(found, bodies);
        prop_assert!(queued.is_empty());
    }

    #[test]
    fn any_bytes_are_decoded_or_rejected(bytes in vec(any::<u8>(), 0..400)) {
        let _ = version(&bytes);
        let _ = Hello::decode(&bytes);
        let _ = DialVerdict::decode(&bytes);
        if let Ok(Some((_, length))) = frame(&bytes) {
            prop_assert!(HEADER + length <= bytes.len());
        }
    }
}
