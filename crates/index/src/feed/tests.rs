//! Scripted histories of a subscription, then random ones.

use std::collections::BTreeMap;

use maitre_base::Rng;
use proptest::prelude::*;

use super::*;

/// Runs a script against a feed and returns its actions.
///
/// Inputs: `up`, `down`, `gone`, `tick` (at the deadline); `5` a live message, `5b` one of process b, `5!` an
/// undecodable one; `quiet`; `replay:5,6` the answer to the latest replay request, `stale:5` to the one
/// before; `fail`; `complete`. Outputs: `ask5`, `clear`, `lose` to doubt what was reported, `+5` for applied.
struct Script {
    feed: Feed<String>,
    now: Instant,
    id: u64,
    done: Vec<String>,
}

impl Script {
    fn run(replay: Replay, script: &str) -> Script {
        let mut run = Script { feed: Feed::new(replay), now: Instant::ZERO, id: 0, done: Vec::new() };
        script.split_whitespace().for_each(|word| run.step(word));
        run
    }

    fn step(&mut self, word: &str) {
        let input = match word.split_once(':') {
            Some(("replay", list)) => Input::Replayed { id: self.id, batches: batches(list) },
            Some(("stale", list)) => Input::Replayed { id: self.id - 1, batches: batches(list) },
            _ => match word {
                "up" => Input::Connected,
                "down" => Input::Disconnected,
                "gone" => Input::Gone,
                "fail" => Input::ReplayFailed { id: self.id },
                "quiet" => Input::Quiet,
                "complete" => Input::Complete,
                "tick" => {
                    self.now = self.feed.deadline().expect("something is waited for");
                    Input::Tick
                }
                _ => Input::Batch(batch(word)),
            },
        };
        self.feed.on(self.now, input);
        while let Some(action) = self.feed.next_action(self.now) {
            match action {
                Action::Clear => self.done.push("clear".into()),
                Action::Doubt => self.done.push("lose".into()),
                Action::AskReplay { id, from } => {
                    self.id = id;
                    self.done.push(format!("ask{from}"));
                }
                Action::Apply(batch) if batch.payload.ends_with('!') => {
                    self.feed.on(self.now, Input::Undecodable { seq: batch.seq });
                }
                Action::Apply(batch) => self.done.push(format!("+{}", batch.payload)),
            }
        }
    }
}

fn batches(list: &str) -> Vec<Numbered<String>> {
    list.split(',').filter(|it| !it.is_empty()).map(batch).collect()
}

fn batch(word: &str) -> Numbered<String> {
    let digits = word.trim_end_matches(|it: char| !it.is_ascii_digit());
    Numbered::new(digits.parse().expect("a number"), word.into())
}

#[track_caller]
fn check(script: &str, expected: &str, trust: Trust) -> Counts {
    check_with(Replay::Offered, script, expected, trust)
}

#[track_caller]
fn check_with(replay: Replay, script: &str, expected: &str, trust: Trust) -> Counts {
    let run = Script::run(replay, script);
    assert_eq!(run.done.join(" "), expected, "script: {script}");
    assert_eq!(run.feed.trust(), trust, "script: {script}");
    run.feed.counts()
}

#[test]
fn the_first_connection_replays_from_the_first_message() {
    check("", "", Trust::None);
    check("up", "ask0", Trust::None);
    check("up replay: 0 1", "ask0 +0 +1", Trust::Fresh);
    check("up replay:0,1,2 3", "ask0 +0 +1 +2 +3", Trust::Fresh);
    check("up 2 3 replay:0,1,2 4", "ask0 +0 +1 +2 +3 +4", Trust::Fresh);
}

#[test]
fn a_quiet_feed_requests_a_replay_to_check_for_losses() {
    check("up replay:0,1 quiet", "ask0 +0 +1 ask1", Trust::Fresh);
    check("up replay:0,1 quiet replay:1 2", "ask0 +0 +1 ask1 +2", Trust::Fresh);
    check("up replay:0,1 quiet replay:1,2,3 3 4", "ask0 +0 +1 ask1 +2 +3 +4", Trust::Fresh);
    check("up replay:0,1 quiet 3 replay:1,2,3", "ask0 +0 +1 ask1 +2 +3", Trust::Fresh);
    // Requests without an answer lose nothing, however many there are.
    check(
        "up replay:0 quiet fail quiet fail quiet fail quiet fail quiet tick 1",
        "ask0 +0 ask0 ask0 ask0 ask0 ask0 +1",
        Trust::Fresh,
    );
    // Another process, behind a connection that did not break.
    check("up replay:0,1 quiet replay: replay:0b", "ask0 +0 +1 ask1 clear ask0 +0b", Trust::Fresh);
    check("up replay: quiet replay:0,1", "ask0 ask0 +0 +1", Trust::Fresh);
    check("up quiet", "ask0", Trust::None);
    check_with(Replay::Absent, "up 0 quiet", "+0", Trust::Fresh);
}

#[test]
fn a_replay_without_the_first_messages_leaves_trust_cold() {
    check("up replay:7,8 9", "ask0 +7 +8 +9", Trust::Cold);
}

#[test]
fn without_replay_live_messages_are_applied_as_they_come() {
    check_with(Replay::Absent, "up", "", Trust::Cold);
    check_with(Replay::Absent, "up 0 1", "+0 +1", Trust::Fresh);
    check_with(Replay::Absent, "up 7 8", "+7 +8", Trust::Cold);
    check_with(Replay::Absent, "up 7 9 10", "+7 lose +9 +10", Trust::Cold);
    check_with(Replay::Absent, "up 7 8 down", "+7 +8", Trust::Suspect);
    check_with(Replay::Absent, "up 7 8 down up 9", "+7 +8 clear +9", Trust::Cold);
    check_with(Replay::Absent, "up 7 8 down up 0b 1b", "+7 +8 clear +0b +1b", Trust::Fresh);
    check_with(Replay::Absent, "up 7 8 0b 1b", "+7 +8 clear +0b +1b", Trust::Fresh);
    check_with(Replay::Absent, "up 0 1! 2", "+0 lose +2", Trust::Cold);
    check_with(Replay::Absent, "up down up 0", "+0", Trust::Fresh);
}

#[test]
fn reconnecting_to_the_same_process_continues_where_it_stopped() {
    check("up replay: 0 1 down", "ask0 +0 +1", Trust::Suspect);
    check("up replay: 0 1 down up", "ask0 +0 +1 ask1", Trust::Suspect);
    check("up replay: 0 1 down up replay:1 2", "ask0 +0 +1 ask1 +2", Trust::Fresh);
    check("up replay: 0 1 down up 4 replay:1,2,3 5", "ask0 +0 +1 ask1 +2 +3 +4 +5", Trust::Fresh);
}

#[test]
fn a_new_process_is_recognised_by_its_bytes_even_if_the_numbers_fit() {
    let counts = check(
        "up replay: 0 1 down up 3b replay:1b,2b,3b replay:0b,1b,2b,3b 4b",
        "ask0 +0 +1 ask1 clear ask0 +0b +1b +2b +3b +4b",
        Trust::Fresh,
    );
    assert_eq!((counts.restarts, counts.duplicates, counts.gaps), (1, 1, 0));
    check("up replay: 0 1 down up replay: replay:0b 1b", "ask0 +0 +1 ask1 clear ask0 +0b +1b", Trust::Fresh);
}

#[test]
fn a_replay_that_starts_after_our_position_clears_everything() {
    check("up replay: 0 1 down up replay:5,6 7", "ask0 +0 +1 ask1 clear +5 +6 +7", Trust::Cold);
    check("up replay: 0 1 4 replay:3,4 5", "ask0 +0 +1 ask1 lose +3 +4 +5", Trust::Cold);
}

#[test]
fn a_cold_feed_starts_over_when_it_reconnects() {
    check("up replay:7,8 down up replay:0,1", "ask0 +7 +8 clear ask0 +0 +1", Trust::Fresh);
}

#[test]
fn a_cold_feed_is_fresh_once_what_it_missed_no_longer_matters() {
    check("up replay:7,8 complete", "ask0 +7 +8", Trust::Fresh);
    check_with(Replay::Absent, "up 7 complete 8", "+7 +8", Trust::Fresh);
    // From then on the feed is as good as one that received everything: what it knows outlives a broken connection.
    check("up replay:7,8 complete down", "ask0 +7 +8", Trust::Suspect);
    check("up replay:7,8 complete down up replay:8,9 10", "ask0 +7 +8 ask8 +9 +10", Trust::Fresh);
    check("up replay:7,8 complete 10 replay:8,9,10", "ask0 +7 +8 ask8 +9 +10", Trust::Fresh);
    check("up replay:7,8 complete quiet fail", "ask0 +7 +8 ask8", Trust::Fresh);
    // A message missed later, or one of another process, matters again.
    check("up replay:7,8 complete 11 replay:10,11", "ask0 +7 +8 ask8 lose +10 +11", Trust::Cold);
    check("up replay:7,8 complete 11 replay:10,11 complete", "ask0 +7 +8 ask8 lose +10 +11", Trust::Fresh);
    check(
        "up replay:7,8 complete down up replay:8b replay:4b,5b",
        "ask0 +7 +8 ask8 clear ask0 +4b +5b",
        Trust::Cold,
    );
    check_with(Replay::Absent, "up 7 complete 9", "+7 lose +9", Trust::Cold);
    check_with(Replay::Absent, "up 7 complete 8!", "+7 lose", Trust::Cold);
    check("up replay:7 complete 8! replay:7,8 9", "ask0 +7 ask7 +8 +9", Trust::Fresh);
    // Before the first message, `complete` means nothing.
    check("complete up complete replay:7", "ask0 +7", Trust::Cold);
    check("up replay:7 gone complete up replay:7", "ask0 +7 clear ask0 +7", Trust::Cold);
}

#[test]
fn a_gap_is_filled_and_nothing_is_applied_twice() {
    let counts = check("up replay: 0 1 4 5 replay:1,2,3,4 6", "ask0 +0 +1 ask1 +2 +3 +4 +5 +6", Trust::Fresh);
    assert_eq!((counts.gaps, counts.replays, counts.duplicates, counts.batches), (1, 2, 1, 7));
    check("up replay: 0 1 4", "ask0 +0 +1 ask1", Trust::Suspect);
    check("up replay: 2", "ask0 ask0", Trust::None);
}

#[test]
fn duplicates_and_late_messages_are_skipped() {
    let counts = check("up replay: 0 1 1 0 2", "ask0 +0 +1 +2", Trust::Fresh);
    assert_eq!(counts.duplicates, 2);
    check("up replay: 0 2 1 replay:0,1,2 3", "ask0 +0 ask0 +1 +2 +3", Trust::Fresh);
}

#[test]
fn a_lower_number_means_a_new_process() {
    check("up replay: 0 1 0b replay:0b,1b 2b", "ask0 +0 +1 clear ask0 +0b +1b +2b", Trust::Fresh);
    // This message was held since before the answer. It belongs to the dead process, which shows only when the feed
    // examines it.
    check("up 0 replay:0b,1b replay:0b,1b 2b", "ask0 +0b +1b clear ask0 +0b +1b +2b", Trust::Fresh);
}

#[test]
fn failed_replays_are_retried_then_the_feed_continues_without() {
    check("up fail tick replay:0,1", "ask0 ask0 +0 +1", Trust::Fresh);
    check("up tick tick replay:0,1", "ask0 ask0 +0 +1", Trust::Fresh);
    check("up replay:0,2 tick replay:0,1", "ask0 ask0 +0 +1", Trust::Fresh);
    check("up replay: 0 2 fail tick fail", "ask0 +0 ask0 ask0", Trust::Suspect);
    let counts = check(
        "up replay: 0 2 3 fail tick fail tick fail tick fail 4",
        "ask0 +0 ask0 ask0 ask0 ask0 lose +2 +3 +4",
        Trust::Cold,
    );
    assert_eq!((counts.replays, counts.failed_replays, counts.clears), (5, 4, 1));
    // From here on a gap gets one attempt, until a replay works again.
    check(
        "up fail tick fail tick fail tick fail 4 6 fail 7 9 replay:7,8,9 11 fail",
        "ask0 ask0 ask0 ask0 clear +4 ask4 lose +6 +7 ask7 +8 +9 ask9",
        Trust::Suspect,
    );
}

#[test]
fn repeated_replays_that_never_fill_the_gap_end() {
    check("up replay: 5 replay: replay: replay: 6", "ask0 ask0 ask0 ask0 clear +5 +6", Trust::Cold);
}

#[test]
fn replays_of_earlier_requests_are_ignored() {
    check("up down up stale:0,1 replay:", "ask0 ask0", Trust::Fresh);
    check("up down replay:0,1", "ask0", Trust::None);
    check("up replay: replay:0,1 fail", "ask0", Trust::Fresh);
    check("0 up replay: 0", "ask0 +0", Trust::Fresh);
}

#[test]
fn an_undecodable_message_is_replayed_once_only() {
    let counts =
        check("up replay: 0 1! 2 replay:0,1!,2 3 4! 5", "ask0 +0 ask0 lose +2 +3 lose +5", Trust::Cold);
    assert_eq!((counts.undecodable, counts.replays), (2, 2));
    // The live message was corrupted on the way: the replay has other bytes.
    check("up replay: 0 1! replay:0,1 2", "ask0 +0 ask0 +1 +2", Trust::Fresh);
    check("up replay: 0 1! replay:0,1 2 0 3", "ask0 +0 ask0 +1 +2 +3", Trust::Fresh);
    check("up replay:0,1!,2 3", "ask0 +0 lose +2 +3", Trust::Cold);
    check("up replay: 0! replay:0! 1", "ask0 ask0 lose +1", Trust::Cold);
    let endless = "1! 2! 3! 4! 5! 6!";
    let counts = check(
        &format!("up replay: 0! replay:0! {endless}"),
        &format!("ask0 ask0{}", " lose".repeat(7)),
        Trust::Cold,
    );
    assert_eq!(counts.replays, 2);
}

#[test]
fn held_messages_are_bounded() {
    let mut feed = Feed::new(Replay::Offered);
    feed.on(Instant::ZERO, Input::Connected);
    let past = HELD_MAX as u64 + 10;
    (0..past).for_each(|seq| feed.on(Instant::ZERO, Input::Batch(Numbered::new(seq, vec![]))));
    assert_eq!((feed.held.len(), feed.counts().dropped), (HELD_MAX, 10));
    feed.on(Instant::ZERO, Input::Connected);
    let large = HELD_BYTES_MAX / 4 + 1;
    (0..5).for_each(|seq| feed.on(Instant::ZERO, Input::Batch(Numbered::new(seq, vec![0; large]))));
    assert_eq!((feed.held.len(), feed.held_bytes), (3, 3 * large));
    feed.on(Instant::ZERO, Input::Disconnected);
    assert_eq!((feed.held.len(), feed.held_bytes), (0, 0));
}

#[test]
fn numbers_at_the_end_of_their_range_are_handled() {
    let last = u64::MAX;
    let script = format!("up {last} {last} 0 1 {last} 0");
    check_with(Replay::Absent, &script, &format!("+{last} clear +0 +1 lose +{last} clear +0"), Trust::Fresh);
    check(
        &format!("up replay:{last},0 tick replay:{last} 0"),
        &format!("ask0 ask0 +{last} clear ask0"),
        Trust::None,
    );
}

/// An engine and an unreliable connection to it.
struct Publisher {
    rng: Rng,
    lifetime: u8,
    log: Vec<Vec<u8>>,
    /// How many messages it remembers.
    ring: usize,
    truth: Cache,
    wire: VecDeque<Numbered<Vec<u8>>>,
    has_poison: bool,
}

/// Copies of each block, keyed by the process that stored it and a number.
type Cache = BTreeMap<(u8, u8), u32>;

const READABLE: u8 = 0;
const POISON: u8 = 1;
const STORE: u8 = 0;
const REMOVE: u8 = 1;
const CLEAR: u8 = 2;

fn apply(cache: &mut Cache, payload: &[u8]) {
    let (head, changes) = payload.split_at(10);
    for &[what, name] in changes.as_chunks::<2>().0 {
        let block = (head[1], name);
        match what {
            STORE => *cache.entry(block).or_default() += 1,
            REMOVE => match cache.get_mut(&block) {
                Some(copies) if *copies > 1 => *copies -= 1,
                _ => drop(cache.remove(&block)),
            },
            _ => cache.clear(),
        }
    }
}

impl Publisher {
    fn new(mut rng: Rng) -> Publisher {
        let ring = if rng.below(3) == 0 { 6 } else { usize::MAX };
        Publisher {
            rng,
            lifetime: 0,
            log: Vec::new(),
            ring,
            truth: Cache::new(),
            wire: VecDeque::new(),
            has_poison: false,
        }
    }

    fn restart(&mut self) {
        self.lifetime += 1;
        self.log.clear();
        self.truth.clear();
        self.wire.clear();
        self.has_poison = false;
    }

    fn publish(&mut self, may_poison: bool) -> Numbered<Vec<u8>> {
        let is_poison = may_poison && self.rng.below(40) == 0;
        self.has_poison |= is_poison;
        let mut payload = vec![if is_poison { POISON } else { READABLE }, self.lifetime];
        payload.extend_from_slice(&self.rng.next_u64().to_le_bytes());
        for _ in 0..self.rng.below(4) {
            let held = self.truth.keys().nth(self.rng.below(self.truth.len().max(1)));
            let change = match (self.rng.below(20), held) {
                (0, _) => [CLEAR, 0],
                (1..8, Some(&(_, name))) => [REMOVE, name],
                _ => [STORE, self.rng.below(12) as u8],
            };
            apply(&mut self.truth, &[&payload[..10], &change].concat());
            payload.extend_from_slice(&change);
        }
        self.log.push(payload.clone());
        Numbered::new(self.log.len() as u64 - 1, payload)
    }

    /// Publishes over a connection that drops, duplicates and reorders messages.
    fn publish_badly(&mut self) {
        let batch = self.publish(true);
        match self.rng.below(10) {
            0 | 1 => {}
            2 => self.wire.extend([batch.clone(), batch]),
            3 => {
                let at = self.wire.len().saturating_sub(1);
                self.wire.insert(at, batch);
            }
            _ => self.wire.push_back(batch),
        }
    }

    fn replay(&self, from: u64) -> Vec<Numbered<Vec<u8>>> {
        let first = self.log.len().saturating_sub(self.ring).max(from as usize);
        (first..self.log.len()).map(|seq| Numbered::new(seq as u64, self.log[seq].clone())).collect()
    }
}

/// The owner of a feed.
struct Subscriber {
    feed: Feed<Vec<u8>>,
    now: Instant,
    cache: Cache,
    question: Option<(u64, u64)>,
}

impl Subscriber {
    fn on(&mut self, input: Input<Vec<u8>>) {
        self.feed.on(self.now, input);
        for _ in 0..10_000 {
            match self.feed.next_action(self.now) {
                None => return,
                Some(Action::Clear | Action::Doubt) => self.cache.clear(),
                Some(Action::AskReplay { id, from }) => self.question = Some((id, from)),
                Some(Action::Apply(batch)) if batch.payload[0] == POISON => {
                    self.feed.on(self.now, Input::Undecodable { seq: batch.seq });
                }
                Some(Action::Apply(batch)) => apply(&mut self.cache, &batch.payload),
            }
        }
        panic!("no end of actions");
    }

    fn tick(&mut self, span: Duration) {
        self.now = self.now + span;
        self.on(Input::Tick);
    }

    /// Lets the publisher answer, sometimes wrongly.
    fn answer_badly(&mut self, publisher: &mut Publisher) {
        let Some((id, from)) = self.question.take() else { return };
        let mut batches = publisher.replay(from);
        match publisher.rng.below(8) {
            0 => self.on(Input::ReplayFailed { id }),
            1 => {}
            2 if batches.len() > 2 => {
                batches.remove(batches.len() / 2);
                self.on(Input::Replayed { id, batches });
            }
            _ => self.on(Input::Replayed { id, batches }),
        }
    }

    fn settle(&mut self, publisher: &mut Publisher) {
        while let Some(batch) = publisher.wire.pop_front() {
            self.on(Input::Batch(batch));
        }
        while self.question.is_some() || self.feed.deadline().is_some() {
            match self.question.take() {
                Some((id, from)) => self.on(Input::Replayed { id, batches: publisher.replay(from) }),
                None => self.tick(REPLAY_WAIT),
            }
        }
    }
}

/// A random history; then the faults stop, one message arrives, and answers are correct.
fn live_through(seed: u64, replay: Replay) -> (Subscriber, Publisher) {
    let mut publisher = Publisher::new(Rng::new(seed));
    let mut subscriber =
        Subscriber { feed: Feed::new(replay), now: Instant::ZERO, cache: Cache::new(), question: None };
    subscriber.on(Input::Connected);
    for _ in 0..publisher.rng.below(120) {
        match publisher.rng.below(24) {
            0 | 1 => {
                // A restart at any phase, noticed at once or only after the new process has published.
                publisher.restart();
                subscriber.on(Input::Disconnected);
                (0..publisher.rng.below(30)).for_each(|_| publisher.publish_badly());
                publisher.wire.clear();
                subscriber.on(Input::Connected);
            }
            2 => {
                subscriber.on(Input::Disconnected);
                publisher.publish_badly();
                publisher.wire.clear();
                subscriber.on(Input::Connected);
            }
            3..8 => subscriber.answer_badly(&mut publisher),
            8..10 => subscriber.tick(Duration::from_millis(300)),
            10..16 => {
                if let Some(batch) = publisher.wire.pop_front() {
                    subscriber.on(Input::Batch(batch));
                }
            }
            _ => publisher.publish_badly(),
        }
    }
    let last = publisher.publish(false);
    publisher.wire.push_back(last);
    subscriber.settle(&mut publisher);
    (subscriber, publisher)
}

fn is_part(cache: &Cache, truth: &Cache) -> bool {
    cache.iter().all(|(block, copies)| truth.get(block).is_some_and(|it| it >= copies))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn once_faults_stop_the_view_is_correct(seed: u64) {
        let (mut subscriber, mut publisher) = live_through(seed, Replay::Offered);
        prop_assert!(is_part(&subscriber.cache, &publisher.truth), "{:?}", subscriber.feed);
        if subscriber.feed.trust() == Trust::Fresh {
            prop_assert_eq!(&subscriber.cache, &publisher.truth);
        }
        // One more successful replay completes the view, unless the engine has forgotten messages or some
        // cannot be decoded.
        subscriber.on(Input::Disconnected);
        subscriber.on(Input::Connected);
        subscriber.settle(&mut publisher);
        prop_assert!(is_part(&subscriber.cache, &publisher.truth));
        if publisher.log.len() <= publisher.ring && !publisher.has_poison {
            prop_assert_eq!(subscriber.feed.trust(), Trust::Fresh);
            prop_assert_eq!(&subscriber.cache, &publisher.truth);
        }
    }

    #[test]
    fn without_replay_the_view_has_no_wrong_block(seed: u64) {
        let (subscriber, publisher) = live_through(seed, Replay::Absent);
        prop_assert!(is_part(&subscriber.cache, &publisher.truth));
        prop_assert_eq!(subscriber.feed.counts().replays, 0);
        if subscriber.feed.trust() == Trust::Fresh {
            prop_assert_eq!(&subscriber.cache, &publisher.truth);
        }
    }
}

#[test]
fn a_gone_process_is_cleared_and_the_next_is_replayed_from_its_start() {
    check("up replay:0,1 down gone", "ask0 +0 +1 clear", Trust::None);
    check("up replay:0,1 down gone gone up replay:0,1,2", "ask0 +0 +1 clear ask0 +0 +1 +2", Trust::Fresh);
    check("gone up replay:0", "ask0 +0", Trust::Fresh);
}
