//! The publisher without sockets: what is kept, sent and lost.

use super::*;
use crate::kv::Medium;

fn publisher(change: impl FnOnce(&mut PublisherConfig)) -> Publisher {
    let addr = SocketAddr::from(([127, 0, 0, 1], 5557));
    let mut config = PublisherConfig::new(addr);
    change(&mut config);
    let model = PublishedModel { block_tokens: 16, adapters: Vec::new() };
    Publisher::new(config, Addrs { stream: addr, replay: None }, model, Arc::default())
}

/// A subscriber to these topics whose messages are not read.
fn subscribe(publisher: &Publisher, topics: &[&str]) -> mpsc::Receiver<Bytes> {
    let (queue, queued) = mpsc::channel(publisher.config.high_water_messages);
    let topics = topics.iter().map(|it| it.as_bytes().to_vec()).collect();
    publisher.state.lock().subscribers.push(Subscriber { id: 0, topics, queue });
    queued
}

fn publish(publisher: &Publisher, batches: u64) {
    for hash in 0..batches {
        publisher.publish(1.5, &[Change::Removed { hash, medium: Medium::Gpu }], 0);
    }
}

fn replayed(publisher: &Publisher, from: u64) -> Vec<u64> {
    publisher.answer_replay(from).unwrap().iter().map(|it| it.sequence).collect()
}

#[test]
fn steps_without_changes_are_not_published() {
    let publisher = publisher(|_| {});
    publisher.publish(1.5, &[], 0);
    assert_eq!(publisher.stats().batches, 0);
}

#[test]
fn the_ring_is_bounded_in_batches_and_in_bytes() {
    let few = publisher(|it| it.buffer_steps = 2);
    publish(&few, 5);
    assert_eq!(replayed(&few, 0), [3, 4, END]);
    assert_eq!(replayed(&few, 4), [4, END]);
    assert_eq!(replayed(&few, 5), [END]);
    let payload_bytes = few.answer_replay(4).unwrap()[0].payload.len();
    let small = publisher(|it| it.buffer_bytes_max = 3 * payload_bytes);
    publish(&small, 5);
    assert_eq!(replayed(&small, 0), [2, 3, 4, END]);
}

#[test]
fn a_slow_subscriber_loses_whole_messages_and_the_others_do_not() {
    let publisher = publisher(|it| it.high_water_messages = 2);
    let mut slow = subscribe(&publisher, &[""]);
    let mut fast = subscribe(&publisher, &[""]);
    for round in 0..3 {
        publish(&publisher, 1);
        assert!(fast.try_recv().is_ok(), "round {round}");
    }
    assert!(slow.try_recv().is_ok() && slow.try_recv().is_ok() && slow.try_recv().is_err());
    assert_eq!(publisher.stats().overflowed, 1);
}

#[test]
fn a_topic_covers_all_that_begin_with_it() {
    let publisher = publisher(|it| it.topic = "kv@a".to_owned());
    for (topics, expected) in [
        (vec![], 0),
        (vec![""], 1),
        (vec!["kv@"], 1),
        (vec!["kv@b"], 0),
        (vec!["x", "kv@a"], 1),
        (vec!["kv@ab"], 0),
    ] {
        let mut queued = subscribe(&publisher, &topics);
        publish(&publisher, 1);
        assert_eq!(usize::from(queued.try_recv().is_ok()), expected, "{topics:?}");
    }
}

#[test]
fn a_restart_starts_at_zero_without_replay_and_subscribers() {
    let publisher = publisher(|_| {});
    let mut queued = subscribe(&publisher, &[""]);
    publish(&publisher, 3);
    publisher.restart();
    assert_eq!(replayed(&publisher, 0), [END]);
    assert_eq!((publisher.stats().batches, publisher.stats().subscribers), (0, 0));
    publish(&publisher, 1);
    assert_eq!(replayed(&publisher, 0), [0, END]);
    assert_eq!(std::iter::from_fn(|| queued.try_recv().ok()).count(), 3, "nothing of the new life");
}

#[test]
fn a_batch_held_back_by_a_swap_is_lost_with_the_engine() {
    let publisher = publisher(|_| {});
    publisher.disturb(Disturbance::Swap { pairs: 1 });
    publish(&publisher, 1);
    publisher.restart();
    let mut queued = subscribe(&publisher, &[""]);
    publish(&publisher, 2);
    let numbers = std::iter::from_fn(|| queued.try_recv().ok()).map(|it| it[11]);
    assert_eq!(numbers.collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn lost_changes_leave_a_gap_in_the_numbers() {
    let publisher = publisher(|_| {});
    publisher.publish(1.5, &[Change::Cleared], 0);
    publisher.publish(1.5, &[Change::Cleared], 7);
    assert_eq!(replayed(&publisher, 0), [0, 2, END]);
}

#[test]
fn replies_have_the_topic_or_not() {
    let kept = Kept { sequence: 258, payload: Bytes::from_static(b"p") };
    let end = Kept { sequence: END, payload: Bytes::new() };
    let new = publisher(|it| it.topic = "kv".to_owned());
    assert_eq!(new.replay_message(&kept)[..], *b"\x01\0\x01\x02kv\x01\x08\0\0\0\0\0\0\x01\x02\0\x01p");
    assert_eq!(new.replay_message(&end)[..], *b"\x01\0\x01\0\x01\x08\xff\xff\xff\xff\xff\xff\xff\xff\0\0");
    let old = publisher(|it| it.replay_shape = ReplayShape::WithoutTopic);
    assert_eq!(old.replay_message(&kept)[..], *b"\x01\0\x01\x08\0\0\0\0\0\0\x01\x02\0\x01p");
    assert_eq!(old.replay_message(&end)[..], *b"\x01\0\x01\x08\xff\xff\xff\xff\xff\xff\xff\xff\0\0");
}
