//! Replays of the simulated publisher, in both shapes, and of hand-made ones that lie.

use super::*;

use crate::subscribe::peers::{LOOPBACK, opening, place, prompt, publisher};

use maitre_sim::events::ReplayShape;
use maitre_sim::events::disturbance::Disturbance;
use maitre_sim::http::Host;
use maitre_zmtp::{Role, frame};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

const PATIENT: Bound = Bound::within(Duration::from_secs(30));
/// For answers that never come.
const IMPATIENT: Bound = Bound::within(Duration::from_millis(100));

async fn prompt_each(host: &Host, numbers: std::ops::Range<u64>) {
    for number in numbers {
        prompt(host, number).await;
    }
}

async fn ask(host: &Host, from: u64, bound: Bound) -> Result<Vec<u64>, ReplayError> {
    let batches = replay(place(host.events().unwrap().replay.unwrap()), from, bound).await?;
    assert!(batches.iter().all(|it| it.payload[0] == 0x93));
    Ok(batches.into_iter().map(|it| it.sequence).collect())
}

#[tokio::test]
async fn a_replay_is_everything_from_a_number_on_in_either_shape() {
    for shape in [ReplayShape::WithTopic, ReplayShape::WithoutTopic] {
        let host = publisher(|it| {
            it.replay_shape = shape;
            it.topic = "kv@a".to_owned();
        })
        .await;
        assert_eq!(ask(&host, 0, PATIENT).await.unwrap(), [0; 0]);
        prompt_each(&host, 0..5).await;
        assert_eq!(ask(&host, 0, PATIENT).await.unwrap(), [0, 1, 2, 3, 4]);
        assert_eq!(ask(&host, 3, PATIENT).await.unwrap(), [3, 4]);
        assert_eq!(ask(&host, 9, PATIENT).await.unwrap(), [0; 0]);
    }
}

#[tokio::test]
async fn messages_that_left_the_buffer_are_missing_at_the_front() {
    let host = publisher(|it| it.buffer_steps = 2).await;
    prompt_each(&host, 0..5).await;
    assert_eq!(ask(&host, 1, PATIENT).await.unwrap(), [3, 4]);
    let host = publisher(|it| it.buffer_bytes_max = 0).await;
    prompt_each(&host, 0..2).await;
    assert_eq!(ask(&host, 0, PATIENT).await.unwrap(), [0; 0]);
}

#[tokio::test]
async fn messages_lost_by_the_stream_are_in_the_replay() {
    let host = publisher(|_| {}).await;
    host.handle().disturb(Disturbance::Drop { batches: 1 });
    host.handle().disturb(Disturbance::Truncate { batches: 1 });
    prompt_each(&host, 0..3).await;
    assert_eq!(ask(&host, 0, PATIENT).await.unwrap(), [0, 1, 2]);
}

#[tokio::test]
async fn a_replay_without_its_end_mark_fails() {
    let host = publisher(|_| {}).await;
    prompt_each(&host, 0..5).await;
    host.handle().disturb(Disturbance::CutReplay { messages: 3 });
    let cut = ask(&host, 0, IMPATIENT).await;
    assert!(matches!(cut, Err(ReplayError::TimedOut { batches: 3, .. })), "{cut:?}");
    assert_eq!(ask(&host, 0, PATIENT).await.unwrap().len(), 5);
    host.handle().disturb(Disturbance::MuteReplay);
    let mute = ask(&host, 0, IMPATIENT).await;
    assert!(matches!(mute, Err(ReplayError::TimedOut { batches: 0, .. })), "{mute:?}");
    host.handle().clear_disturbances();
    assert_eq!(ask(&host, 0, PATIENT).await.unwrap().len(), 5);
}

#[tokio::test]
async fn a_replay_is_bounded() {
    let host = publisher(|_| {}).await;
    prompt_each(&host, 0..5).await;
    let few = ask(&host, 0, Bound { batches_max: 4, ..PATIENT }).await;
    assert!(matches!(few, Err(ReplayError::TooManyBatches(4))), "{few:?}");
    let small = ask(&host, 0, Bound { bytes_max: 1000, ..PATIENT }).await;
    assert!(matches!(small, Err(ReplayError::TooManyBytes(1000))), "{small:?}");
}

/// The result of a replay from number 5 on, answered with these bytes and a closed connection.
async fn replay_of(answer: &[u8]) -> Result<Vec<u64>, ReplayError> {
    let listener = TcpListener::bind(LOOPBACK).await.unwrap();
    let place = place(listener.local_addr().unwrap());
    let answer = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&[&opening(Role::Router), answer].concat()).await.unwrap();
        stream.shutdown().await.unwrap();
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    };
    let (batches, ()) = tokio::join!(replay(place, 5, PATIENT), answer);
    Ok(batches?.into_iter().map(|it| it.sequence).collect())
}

fn message(frames: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::put_message(frames, &mut bytes);
    bytes
}

/// Batches of these numbers, and the end mark.
fn batches(numbers: &[u64]) -> Vec<u8> {
    let batch = |it: &u64| message(&[b"", &it.to_be_bytes(), b"x"]);
    let mut bytes: Vec<u8> = numbers.iter().flat_map(batch).collect();
    bytes.extend(message(&[b"", &[0xff; 8], b""]));
    bytes
}

#[tokio::test]
async fn numbers_must_follow_each_other() {
    assert_eq!(replay_of(&batches(&[5, 6])).await.unwrap(), [5, 6]);
    assert_eq!(replay_of(&batches(&[8])).await.unwrap(), [8]);
    let gap = replay_of(&batches(&[6, 8])).await;
    assert!(matches!(gap, Err(ReplayError::Gap { expected: 7, found: 8 })), "{gap:?}");
    let double = replay_of(&batches(&[5, 5])).await;
    assert!(matches!(double, Err(ReplayError::Gap { expected: 6, found: 5 })), "{double:?}");
    let unasked = replay_of(&batches(&[4])).await;
    assert!(matches!(unasked, Err(ReplayError::Unasked { from: 5, found: 4 })), "{unasked:?}");
}

#[tokio::test]
async fn a_connection_that_ends_before_the_end_mark_fails() {
    let whole = batches(&[5, 6]);
    for length in [0, whole.len() - 14, whole.len() - 1] {
        let cut = replay_of(&whole[..length]).await;
        assert!(matches!(cut, Err(ReplayError::Socket(SocketError::Closed))), "{length}: {cut:?}");
    }
}

#[tokio::test]
async fn replies_of_another_shape_are_refused() {
    let number = 5u64.to_be_bytes();
    let shapes: [&[&[u8]]; 5] = [
        &[b""],
        &[&number, b"x"],
        &[b"x", &number, b"x"],
        &[b"", b"five", b"x"],
        &[b"", b"", b"", &number, b"x"],
    ];
    for shape in shapes {
        let misshapen = replay_of(&message(shape)).await;
        assert!(matches!(misshapen, Err(ReplayError::Misshapen { .. })), "{shape:?}: {misshapen:?}");
    }
}

#[tokio::test]
async fn large_topics_count_too() {
    let number = 5u64.to_be_bytes();
    let answer = message(&[b"", &[b't'; 2000], &number, b"x"]);
    let listener = TcpListener::bind(LOOPBACK).await.unwrap();
    let place = place(listener.local_addr().unwrap());
    let peer = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.write_all(&[opening(Role::Router), answer].concat()).await;
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    };
    let bound = Bound { bytes_max: 1000, ..PATIENT };
    let (large, ()) = tokio::join!(replay(place, 5, bound), peer);
    assert!(matches!(large, Err(ReplayError::TooManyBytes(1000))), "{large:?}");
}
