//! A peer that holds the key and talks nonsense: its connection ends, with one line, and nothing else does.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::handshake::Shaken;
use super::wire::{Kind, Verdict, put_frame};
use super::*;
use crate::Incoming;

const LIMIT: Duration = Duration::from_secs(30);

struct Rogue {
    line: Transport,
    listen: SocketAddr,
    card: Card,
    _task: JoinSet<()>,
}

impl Rogue {
    /// A router, and the card of one that will dial it.
    async fn new() -> Rogue {
        let key = Key::new(b"key");
        let psk = key.derive("mesh");
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let settings = Settings { listen, advertise: None, peers: Vec::new(), name: "a".to_owned(), key };
        let (line, listen, run) = join(settings).await.unwrap();
        let mut task = JoinSet::new();
        task.spawn(run);
        let card = Card { psk, name: "rogue".to_owned(), instance: 1, advertise: None, port: 1 };
        Rogue { line, listen, card, _task: task }
    }

    async fn dial(&self) -> Shaken {
        let shaken = self.card.dial(self.listen).await.unwrap();
        let (shaken, verdict) = self.card.introduce(shaken).await.unwrap();
        assert_eq!(verdict, Verdict::Welcome);
        shaken
    }

    async fn refused(&mut self, times: u64) {
        let is_so = |it: &Status| it.refused == times && it.peers.is_empty();
        let found = timeout(LIMIT, self.line.status.wait_for(is_so)).await.map(drop);
        found.unwrap_or_else(|_| panic!("{:?}", self.line.status.borrow()));
    }
}

/// Waits until the other end hangs up.
async fn is_hung_up(shaken: &mut Shaken) {
    let mut heard = Vec::new();
    let _ = timeout(LIMIT, shaken.stream.read_to_end(&mut heard)).await.expect("it hangs up");
}

#[tokio::test]
async fn nonsense_of_one_who_holds_the_key_ends_its_connection_and_nothing_else() {
    let mut rogue = Rogue::new().await;
    let mut bad_gossip = Vec::new();
    put_frame(&mut bad_gossip, Kind::Gossip, b"no message about members");
    let cases = [vec![9], vec![2, 0xFF, 0xFF, 0xFF, 0xFF], vec![0, 0, 0, 0, 1], bad_gossip];
    for (number, words) in cases.iter().enumerate() {
        let mut shaken = rogue.dial().await;
        shaken.say(words).await.unwrap();
        is_hung_up(&mut shaken).await;
        rogue.refused(number as u64 + 1).await;
    }
    for raw in
        [&[0, 5, 1, 2, 3, 4, 5][..], &[0, 20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]
    {
        let mut shaken = rogue.dial().await;
        shaken.stream.write_all(raw).await.unwrap();
        is_hung_up(&mut shaken).await;
    }
    rogue.refused(6).await;
    let mut shaken = rogue.dial().await;
    let mut frame = Vec::new();
    put_frame(&mut frame, Kind::Data, b"sense");
    // In pieces, as a network may deliver it.
    for byte in frame {
        shaken.say(&[byte]).await.unwrap();
    }
    let heard = async {
        loop {
            if let Some(Incoming::Frame(frame)) = rogue.line.incoming.recv().await {
                return frame;
            }
        }
    };
    assert_eq!(timeout(LIMIT, heard).await.unwrap(), "sense");
}

#[tokio::test]
async fn a_record_said_again_ends_the_connection() {
    let mut rogue = Rogue::new().await;
    let mut shaken = rogue.dial().await;
    let (mut frame, mut sealed) = (Vec::new(), Vec::new());
    put_frame(&mut frame, Kind::Data, b"once");
    shaken.sealing.seal(&frame, &mut sealed).unwrap();
    shaken.stream.write_all(&sealed).await.unwrap();
    shaken.stream.write_all(&sealed).await.unwrap();
    is_hung_up(&mut shaken).await;
    rogue.refused(1).await;
    let mut frames = 0;
    while let Ok(incoming) = rogue.line.incoming.try_recv() {
        frames += usize::from(matches!(incoming, Incoming::Frame(_)));
    }
    assert_eq!(frames, 1);
}

#[tokio::test]
async fn a_connection_that_falls_silent_is_given_up() {
    let mut rogue = Rogue::new().await;
    let _shaken = rogue.dial().await;
    let connected = timeout(LIMIT, rogue.line.status.wait_for(|it| it.peers == ["rogue"])).await.map(drop);
    connected.expect("it is connected");
    rogue.refused(0).await;
}

#[tokio::test]
async fn there_are_only_so_many_connections() {
    let mut rogue = Rogue::new().await;
    let mut held = Vec::new();
    for number in 0..64 {
        rogue.card.name = format!("rogue {number}");
        held.push(rogue.dial().await);
        let mut beat = Vec::new();
        put_frame(&mut beat, Kind::Beat, &[]);
        for shaken in &mut held {
            shaken.say(&beat).await.unwrap();
        }
    }
    rogue.card.name = "one too many".to_owned();
    let shaken = rogue.card.dial(rogue.listen).await.unwrap();
    assert_eq!(rogue.card.introduce(shaken).await.unwrap().1, Verdict::Full);
}

/// Frames by their numbers, until one comes.
async fn read_until(shaken: &mut Shaken, last: u32) -> Vec<u32> {
    let (mut plain, mut numbers) = (Vec::new(), Vec::new());
    while numbers.last() != Some(&last) {
        let mut length = [0; wire::LENGTH];
        shaken.stream.read_exact(&mut length).await.unwrap();
        let mut record = vec![0; wire::record(length).unwrap()];
        shaken.stream.read_exact(&mut record).await.unwrap();
        shaken.opening.open(&record, &mut plain).unwrap();
        while let Some((kind, length)) = wire::frame(&plain).unwrap() {
            if kind == Kind::Data {
                numbers.push(u32::from_be_bytes(*plain[wire::HEADER..].first_chunk().unwrap()));
            }
            plain.drain(..wire::HEADER + length);
        }
    }
    numbers
}

#[tokio::test]
async fn the_oldest_makes_way_for_one_who_does_not_read() {
    let mut rogue = Rogue::new().await;
    let mut shaken = rogue.dial().await;
    let (mut beat, mut said) = (Vec::new(), 0);
    put_frame(&mut beat, Kind::Beat, &[]);
    while rogue.line.status.borrow().dropped == 0 {
        let mut frame = vec![0; 64 * 1024];
        frame[..4].copy_from_slice(&u32::to_be_bytes(said));
        rogue.line.outgoing.send(crate::Outgoing::Frame(frame.into())).await.unwrap();
        said += 1;
        // It speaks, as one who is well.
        shaken.say(&beat).await.unwrap();
        assert!(said < 10_000, "nothing is dropped");
    }
    let numbers = timeout(LIMIT, read_until(&mut shaken, said - 1)).await.expect("the newest comes");
    assert!(numbers.windows(2).all(|it| it[0] < it[1]), "{numbers:?}");
    let missed = said as usize - numbers.len();
    assert!(missed > 0 && numbers[0] == 0, "{missed} missed of {said}");
    let counted =
        timeout(LIMIT, rogue.line.status.wait_for(|it| it.dropped == missed as u64)).await.map(drop);
    counted.expect("all are counted");
}
