//! Long prompts of lower classes stay together, so that higher classes find workers with short steps.

use super::*;

fn job(request: u64) -> Arrival<'static> {
    Arrival { size: Size::Tokens(9_000), ..batch(request) }
}

impl Harness {
    /// Workers that decode so many chats each, and ten jobs that come upon them. Two seconds later no job has its first
    /// token.
    fn with_jobs(workers: u32, chats: u32) -> Harness {
        let mut harness = Harness::with_queue(workers, BrainSettings::default()).learn();
        for request in 1_000..1_000 + u64::from(workers * chats) {
            harness.step(Come(chat(request)));
            harness.now = harness.now + FIRST_TOKEN;
            harness.step(First(request));
        }
        (1..=10).for_each(|it| drop(harness.step(Come(job(it)))));
        (0..40).for_each(|_| drop(harness.step(After(50))));
        harness
    }

    /// The jobs at workers, in order of their numbers.
    fn placed_jobs(&self) -> Vec<(u64, WorkerId)> {
        (1..=10).filter_map(|it| Some((it, self.brain.pending.get(&it)?.worker()?))).collect()
    }
}

/// Two workers that decode chats. At the first no request waits for its first token, at the second these do.
fn with_waiting_chats() -> (Harness, Vec<u64>) {
    let mut harness = Harness::with_queue(2, BrainSettings::default()).learn();
    for request in 1_000..1_008 {
        harness.step(Come(chat(request)));
        harness.now = harness.now + FIRST_TOKEN;
        harness.step(First(request));
    }
    (100..106).for_each(|it| drop(harness.step(Come(chat(it)))));
    let worker_of = |harness: &Harness, it: u64| harness.brain.pending.get(&it).and_then(|it| it.worker());
    let (first, second): (Vec<u64>, Vec<u64>) =
        (100..106).partition(|&it| worker_of(&harness, it) == Some(WorkerId(0)));
    first.into_iter().for_each(|it| drop(harness.step(First(it))));
    assert!(second.len() > 1, "{second:?}");
    (harness, second)
}

/// The other worker gets all chats while the job is prefilled. With two workers, its queue was the chats' p99.
#[test]
fn a_long_prompt_waits_until_the_other_workers_can_take_what_comes() {
    let (mut harness, second) = with_waiting_chats();
    harness.step(Come(job(1)));
    assert_eq!(harness.placed_jobs(), [], "the first worker is clear, but the second has a queue");
    second[1..].iter().for_each(|&it| drop(harness.step(First(it))));
    harness.step(After(50));
    assert_eq!(harness.placed_jobs(), [(1, WorkerId(0))]);
}

#[test]
fn a_long_prompt_looks_at_other_workers_for_a_while_only() {
    let (mut harness, _) = with_waiting_chats();
    harness.step(Come(job(1)));
    (0..9).for_each(|_| drop(harness.step(After(50))));
    assert_eq!(harness.placed_jobs(), []);
    harness.step(After(50));
    assert_eq!(harness.placed_jobs(), [(1, WorkerId(0))]);
}

#[test]
fn long_prompts_take_every_worker_soon_after_higher_classes_have_ended() {
    let mut harness = Harness::with_jobs(4, 40);
    assert_eq!(harness.placed_jobs().len(), 1);
    (1_000..1_160).for_each(|it| drop(harness.step(End(it))));
    (0..20).for_each(|_| drop(harness.step(After(50))));
    assert_eq!(harness.placed_jobs().len(), 4);
}

/// Issue 16: on two workers, each had a long prompt in its steps, and every chat waited for one.
#[test]
fn long_prompts_of_a_lower_class_take_no_more_workers_than_higher_classes_leave() {
    let table = [(1, 4, 1), (2, 4, 1), (4, 4, 2), (4, 40, 1), (8, 4, 5), (8, 40, 2), (2, 0, 2), (4, 0, 4)];
    for (workers, chats, expected) in table {
        let placed = Harness::with_jobs(workers, chats).placed_jobs();
        assert_eq!(placed.len(), expected, "{workers} workers with {chats} chats each: {placed:?}");
    }
}

#[test]
fn the_next_long_prompt_goes_once_one_is_prefilled_or_has_left() {
    for end in [First, Leave, End] {
        let mut harness = Harness::with_jobs(2, 4);
        assert_eq!(harness.placed_jobs().len(), 1);
        harness.step(end(1));
        (0..10).for_each(|_| drop(harness.step(After(50))));
        let prefilling = harness.placed_jobs().into_iter().filter(|it| it.0 != 1).count();
        assert_eq!(prefilling, 1, "one more, not all of them");
    }
}

/// They take whichever worker disturbs nobody. A reservation would bind them to one.
#[test]
fn a_long_prompt_of_a_lower_class_waits_for_any_worker() {
    let harness = Harness::with_jobs(2, 4);
    assert_eq!((harness.reserved(0), harness.reserved(1)), ((0, 0), (0, 0)));
    assert_eq!(harness.waiting(), 9);
}

#[test]
fn short_prompts_of_a_lower_class_and_all_prompts_of_the_highest_go_at_once() {
    let mut harness = Harness::with_jobs(2, 4);
    let long_chat = Arrival { size: Size::Tokens(9_000), ..chat(100) };
    assert!(harness.summary_of(Come(long_chat)).starts_with("100@"));
}

/// Higher classes leave more than one worker and less than two. Two all the time made the chats' p99 1.6 times as long.
#[test]
fn a_long_prompt_begins_shortly_before_another_ends_where_one_took_its_time_before() {
    const TICKS_EACH: u32 = 20;
    let mut harness = Harness::with_jobs(4, 40);
    let (mut ages, mut begun_beside) = (BTreeMap::new(), Vec::new());
    for _ in 0..10 * TICKS_EACH {
        let placed = harness.placed_jobs().into_iter().map(|it| it.0);
        let new: Vec<u64> = placed.filter(|it| !ages.contains_key(it)).collect();
        for job in new {
            begun_beside.push(ages.values().copied().filter(|&it| it < TICKS_EACH).collect::<Vec<u32>>());
            ages.insert(job, 0);
        }
        for (job, age) in &mut ages {
            *age += 1;
            if *age == TICKS_EACH {
                harness.step(First(*job));
            }
        }
        harness.step(After(50));
    }
    assert_eq!(begun_beside.len(), 10);
    let (unknown, known) = begun_beside.split_at(4);
    assert!(unknown.iter().all(Vec::is_empty), "no worker has prefilled one before: {unknown:?}");
    assert!(known.iter().filter(|it| !it.is_empty()).count() >= 2, "{known:?}");
    for beside in known {
        assert!(beside.len() <= 1 && beside.iter().all(|&it| it >= TICKS_EACH / 2), "{known:?}");
    }
}
