//! A router of two models: each has its own rates, and its workers are compared with each other only.

use super::*;
use crate::fleet::mirror::FleetMirror;
use maitre_base::Rng;

/// What a worker takes for a prompt and for a step.
#[derive(Clone)]
struct Truth {
    prefill: PrefillFit,
    step: LinearFit,
    /// How many requests a step has.
    requests: std::ops::Range<usize>,
}

/// An 8B model that decodes for many, and a 70B model that decodes for few.
const SMALL: Truth = Truth {
    prefill: PrefillFit::new(0.02, 15e-6, 1.0 / 18_000.0),
    step: LinearFit { base: 5e-3, slope: 40e-6 },
    requests: 20..200,
};
const LARGE: Truth = Truth {
    prefill: PrefillFit::new(0.06, 100e-6, 1.0 / 85_000.0),
    step: LinearFit { base: 40e-3, slope: 200e-6 },
    requests: 1..20,
};

/// A fleet, the time, and the noise of its workers.
struct Scene {
    fleet: Fleet,
    now: Instant,
    rng: Rng,
}

impl Scene {
    /// One worker for each of these models.
    fn of(models: &[&str]) -> Scene {
        let mut scene = Scene { fleet: Fleet::default(), now: Instant::ZERO, rng: Rng::new(11) };
        for model in models {
            scene.join(&[model]);
        }
        scene
    }

    fn join(&mut self, names: &[&str]) -> WorkerId {
        let worker = self.fleet.add(&format!("http://127.0.0.1:{}", self.fleet.numbers()));
        self.fleet.see(self.now, worker, Evidence::ProbeAnswered);
        if !names.is_empty() {
            self.fleet.learn_models(worker, &cards(names));
        }
        worker
    }

    /// The worker answers one request, so many times slower than the truth.
    fn answer(&mut self, worker: u32, truth: &Truth, slowness: f64) {
        self.now = self.now + Duration::from_millis(50);
        let noise = |rng: &mut Rng| slowness * (0.95 + 0.1 * rng.unit());
        let held = Tokens(self.rng.below(100_000) as u64);
        let work = PrefillWork::after(held, Tokens(500 + self.rng.below(8_000) as u64));
        let took = truth.prefill.at(work) * noise(&mut self.rng);
        let span = truth.requests.end - truth.requests.start;
        let requests = (truth.requests.start + self.rng.below(span)) as f64;
        let step = Duration::from_secs_f64(truth.step.at(requests) * noise(&mut self.rng));
        let worker = WorkerId(worker);
        self.fleet.learn_first_token(self.now, worker, work, Duration::from_secs_f64(took));
        self.fleet.learn_step(self.now, worker, requests, step);
        self.fleet.learn_knee(worker, requests, 0.0, step);
        self.fleet.learn_length(worker, work, 100);
        self.fleet.settle(self.now, &mut Vec::new());
    }

    fn snapshot(&self, worker: u32) -> WorkerSnapshot {
        self.fleet.snapshot_of(self.now, WorkerId(worker)).unwrap()
    }

    /// The fits and the knee of a worker, and what it would be tried with.
    fn believed(&self, worker: u32) -> (PrefillFit, LinearFit, Knee, Option<(PrefillFit, LinearFit)>) {
        let it = self.snapshot(worker);
        (it.prefill, it.decode, it.knee, it.faded)
    }

    #[track_caller]
    fn check(&self, worker: u32, truth: &Truth) {
        let it = self.snapshot(worker);
        let rows = [
            ("a prompt", it.prefill.at(turn(0, 4_000)), truth.prefill.at(turn(0, 4_000))),
            ("a late turn", it.prefill.at(turn(90_000, 4_000)), truth.prefill.at(turn(90_000, 4_000))),
            ("a step", it.decode.at(truth.requests.end as f64), truth.step.at(truth.requests.end as f64)),
            ("a request of a step", it.decode.slope, truth.step.slope),
        ];
        for (what, found, expected) in rows {
            let off = found / expected - 1.0;
            assert!(off.abs() < 0.25, "worker {worker}, {what}: {found}, not {expected}");
        }
    }
}

fn turn(held: u64, tokens: u64) -> PrefillWork {
    PrefillWork::after(Tokens(held), Tokens(tokens))
}

#[test]
fn each_model_has_its_own_steps_and_attention() {
    let mut scene = Scene::of(&["small", "large", "small", "large"]);
    for _ in 0..800 {
        scene.answer(0, &SMALL, 1.0);
        scene.answer(1, &LARGE, 1.0);
    }
    // The other two have answered nothing.
    for worker in [0, 2] {
        scene.check(worker, &SMALL);
        scene.check(worker + 1, &LARGE);
    }
    let knees = [0, 1].map(|it| scene.snapshot(it).knee.requests);
    assert!(knees[1] > 1.3 * knees[0], "each has its own knee: {knees:?}");
}

#[test]
fn a_worker_of_a_second_model_does_not_disturb_the_first() {
    let mut scene = Scene::of(&["small", "small"]);
    (0..400).for_each(|it| scene.answer(it % 2, &SMALL, 1.0));
    let before = [0, 1].map(|it| scene.believed(it));
    scene.join(&["large"]);
    let later = scene.now;
    for _ in 0..400 {
        // At one moment, so that no rates fade.
        scene.now = later;
        scene.answer(2, &LARGE, 1.0);
    }
    scene.now = later;
    assert_eq!([0, 1].map(|it| scene.believed(it)), before);
    scene.check(2, &LARGE);
}

#[test]
fn a_slow_worker_is_compared_with_its_own_model() {
    let mut scene = Scene::of(&["small", "small", "large"]);
    for _ in 0..600 {
        scene.answer(0, &SMALL, 1.0);
        scene.answer(1, &SMALL, 3.0);
        scene.answer(2, &LARGE, 1.0);
    }
    let prompt = turn(0, 4_000);
    let times = |found: f64| found / SMALL.prefill.at(prompt);
    assert!((2.4..3.6).contains(&times(scene.snapshot(1).prefill.at(prompt))));
    // While it is idle, its rates fade to those of its model. Those lie between its own and the other worker's.
    for _ in 0..600 {
        scene.answer(0, &SMALL, 1.0);
        scene.answer(2, &LARGE, 1.0);
    }
    let (prefill, decode) = scene.snapshot(1).faded.unwrap();
    assert!((0.8..1.3).contains(&times(prefill.at(prompt))), "{prefill:?}");
    assert!((0.8..1.3).contains(&(decode.at(100.0) / SMALL.step.at(100.0))), "{decode:?}");
    // It has recovered: one trial shows it.
    scene.fleet.promise(scene.now, WorkerId(1), Promise::default());
    scene.answer(1, &SMALL, 1.0);
    assert!(times(scene.snapshot(1).prefill.at(prompt)) < 1.3, "{:?}", scene.snapshot(1).prefill);
}

/// Trials are at most one request in twenty of the same model, whatever another one gets.
#[test]
fn rates_hold_while_only_another_model_has_requests() {
    let mut scene = Scene::of(&["small", "small", "large"]);
    for _ in 0..200 {
        scene.answer(0, &SMALL, 1.0);
        scene.answer(1, &SMALL, 3.0);
    }
    (0..2_000).for_each(|_| scene.answer(2, &LARGE, 1.0));
    assert!(scene.snapshot(1).faded.is_none());
    (0..20).for_each(|_| scene.answer(0, &SMALL, 1.0));
    assert!(scene.snapshot(1).faded.is_some());
}

#[test]
fn a_model_without_answers_is_expected_to_be_like_the_others() {
    let mut scene = Scene::of(&["large", "new"]);
    let is_learned =
        |scene: &Scene, name| scene.fleet.model_rates(scene.fleet.model(name)).rates().is_learned();
    (0..800).for_each(|_| scene.answer(0, &LARGE, 1.0));
    let (own, other) = (scene.believed(1), scene.believed(0));
    for (own, other) in
        [(own.0.base, other.0.base), (own.0.slope, other.0.slope), (own.1.slope, other.1.slope)]
    {
        assert!((own / other - 1.0).abs() < 0.1, "{own}, not {other}");
    }
    assert!(is_learned(&scene, "large") && !is_learned(&scene, "new"));
    (0..800).for_each(|_| scene.answer(1, &SMALL, 1.0));
    scene.check(1, &SMALL);
    assert!(is_learned(&scene, "new"));
}

#[test]
fn names_and_adapters_of_one_model_share_its_rates() {
    let mut scene = Scene::of(&["small"]);
    scene.join(&["alias", "small"]);
    let adapter = Card { name: "sql", parent: Some("alias") };
    let other = scene.join(&[]);
    scene.fleet.learn_models(other, &[&[adapter][..], &cards(&["alias"])].concat());
    (0..800).for_each(|_| scene.answer(0, &SMALL, 1.0));
    (0..3).for_each(|it| scene.check(it, &SMALL));
    let bases = [0, 1, 2].map(|it| scene.fleet.base_of(WorkerId(it)));
    assert!(bases.iter().all(|it| *it == scene.fleet.model("small")), "{bases:?}");
}

/// The second worker's list shows that two names are one model.
#[test]
fn a_worker_whose_model_gets_another_name_is_compared_with_all_its_workers() {
    let mut scene = Scene::of(&["first", "second"]);
    (0..400).for_each(|_| scene.answer(0, &SMALL, 1.0));
    (0..20).for_each(|_| scene.answer(1, &LARGE, 1.0));
    scene.join(&["first", "second"]);
    assert_eq!(scene.fleet.base_of(WorkerId(1)), scene.fleet.model("first"));
    let (prefill, _) = scene.snapshot(1).faded.unwrap();
    let off = prefill.at(turn(0, 4_000)) / SMALL.prefill.at(turn(0, 4_000)) - 1.0;
    assert!(off.abs() < 0.25, "{off:+.2}");
}

#[test]
fn what_workers_showed_before_they_listed_their_model_is_kept() {
    let mut scene = Scene::of(&[]);
    scene.join(&[]);
    scene.join(&[]);
    (0..800).for_each(|_| scene.answer(0, &SMALL, 1.0));
    let before = scene.believed(0);
    scene.fleet.learn_models(WorkerId(0), &cards(&["small"]));
    assert_eq!(scene.believed(0), before);
    scene.join(&["small"]);
    scene.fleet.settle(scene.now, &mut Vec::new());
    (0..3).for_each(|it| scene.check(it, &SMALL));
}

#[test]
fn a_worker_that_runs_another_model_is_priced_like_that_model() {
    let mut scene = Scene::of(&["small", "small", "large"]);
    for _ in 0..400 {
        scene.answer(0, &SMALL, 1.0);
        scene.answer(1, &SMALL, 1.0);
        scene.answer(2, &LARGE, 1.0);
    }
    scene.fleet.learn_models(WorkerId(1), &cards(&["large"]));
    let (prefill, decode) = scene.snapshot(1).faded.unwrap();
    let large = *scene.fleet.model_rates(scene.fleet.model("large")).rates();
    assert_eq!((prefill, decode), (large.prefill, large.decode));
    scene.fleet.promise(scene.now, WorkerId(1), Promise::default());
    scene.answer(1, &LARGE, 1.0);
    scene.check(1, &LARGE);
}

#[test]
fn another_routers_rates_are_about_one_model() {
    let mut scene = Scene::of(&["small", "large", "large"]);
    (0..200).for_each(|_| scene.answer(0, &SMALL, 1.0));
    let before = scene.believed(0);
    let told = (LARGE.prefill.by_plain_tokens(), LARGE.step);
    (0..4).for_each(|_| scene.fleet.learn_peer_rates(scene.now, WorkerId(1), told));
    scene.fleet.settle(scene.now, &mut Vec::new());
    assert_eq!(scene.believed(0), before);
    for worker in [1, 2] {
        let snapshot = scene.snapshot(worker);
        let off = snapshot.prefill.by_plain_tokens().at(4_000.0) / told.0.at(4_000.0) - 1.0;
        assert!(off.abs() < 0.2, "{off}");
        assert!((snapshot.decode.at(10.0) / told.1.at(10.0) - 1.0).abs() < 0.2, "{:?}", snapshot.decode);
    }
}

#[test]
fn a_mirror_shows_the_rates_of_each_model() {
    let mut scene = Scene::of(&["small", "small", "large", "large"]);
    for _ in 0..20 {
        scene.answer(1, &SMALL, 3.0);
        scene.answer(3, &LARGE, 3.0);
    }
    let mut mirror = FleetMirror::new(&scene.fleet);
    for _ in 0..300 {
        scene.answer(0, &SMALL, 1.0);
        scene.answer(2, &LARGE, 1.0);
        mirror.follow(&scene.fleet);
    }
    // Without a tick in between: only what is listed as changed is copied.
    let (work, took) = (turn(0, 4_000), Duration::from_secs(2));
    scene.fleet.learn_first_token(scene.now, WorkerId(0), work, took);
    mirror.follow(&scene.fleet);
    let (mut own, mut copied) = (Vec::new(), Vec::new());
    for name in ["small", "large"] {
        let wanted = Wanted::Model(scene.fleet.model(name).unwrap());
        scene.fleet.snapshots(scene.now, wanted, Barred::default(), &mut own);
        assert!(mirror.fit_snapshots(scene.now, wanted, &mut copied));
        let rates = |all: &[WorkerSnapshot]| {
            all.iter().map(|it| (it.prefill, it.decode, it.faded)).collect::<Vec<_>>()
        };
        assert_eq!(rates(&copied), rates(&own), "{name}");
        assert!(own[1].faded.is_some(), "{name}");
        assert_eq!(mirror.mean_prefill(wanted), scene.fleet.mean_prefill(wanted), "{name}");
    }
}

/// Two kinds of GPU with one model, by the KV tokens that their engines report: an H200 and an A10G.
const LARGE_GPU: (u64, Truth) = (
    945_029,
    Truth {
        prefill: PrefillFit::new(0.03, 15e-6, 1.0 / 18_000.0),
        step: LinearFit { base: 4.5e-3, slope: 170e-6 },
        requests: 50..100,
    },
);
const SMALL_GPU: (u64, Truth) = (
    36_160,
    Truth {
        prefill: PrefillFit::new(0.06, 455e-6, 1.0 / 38_000.0),
        step: LinearFit { base: 35e-3, slope: 1.6e-3 },
        requests: 1..10,
    },
);

impl Scene {
    /// Two workers of each kind of GPU. The second ones have answered less.
    fn of_two_kinds() -> Scene {
        let mut scene = Scene::of(&["small"; 4]);
        let kinds = [LARGE_GPU, SMALL_GPU];
        (0..4).for_each(|it| scene.report(it, kinds[it as usize % 2].0));
        for number in 0..800 {
            for (worker, (_, truth)) in (0..).zip(&kinds) {
                scene.answer(worker, truth, 1.0);
                if number >= 760 {
                    scene.answer(worker + 2, truth, 1.0);
                }
            }
        }
        scene
    }

    fn report(&mut self, worker: u32, kv_tokens: u64) {
        let load = EngineLoad { kv_tokens: Some(kv_tokens), ..EngineLoad::default() };
        self.fleet.report(self.now, WorkerId(worker), load);
    }
}

#[test]
fn each_kind_of_gpu_has_its_own_steps() {
    let scene = Scene::of_two_kinds();
    for worker in [0, 2] {
        scene.check(worker, &LARGE_GPU.1);
        scene.check(worker + 1, &SMALL_GPU.1);
    }
}

#[test]
fn a_slow_worker_does_not_count_as_another_kind_of_gpu() {
    let mut scene = Scene::of_two_kinds();
    for _ in 0..100 {
        scene.answer(0, &LARGE_GPU.1, 1.0);
        scene.answer(2, &LARGE_GPU.1, 10.0);
    }
    let prompt = turn(0, 4_000);
    let times = |fit: &PrefillFit| fit.at(prompt) / LARGE_GPU.1.prefill.at(prompt);
    assert!(times(&scene.snapshot(2).prefill) > 8.0);
    (0..2_000).for_each(|_| scene.answer(0, &LARGE_GPU.1, 1.0));
    let (prefill, _) = scene.snapshot(2).faded.unwrap();
    assert!((0.8..1.3).contains(&times(&prefill)), "{prefill:?}");
}

#[test]
fn equal_gpus_share_their_rates_whatever_they_report() {
    let mut scene = Scene::of(&["small"; 3]);
    // Before the first report, and with a few blocks more after a restart.
    (0..800).for_each(|_| scene.answer(0, &SMALL, 1.0));
    let before = scene.believed(0);
    for (worker, kv_tokens) in [(0, 945_029), (1, 944_120), (0, 946_800)] {
        scene.report(worker, kv_tokens);
        assert_eq!(scene.believed(0), before);
    }
    (0..3).for_each(|it| scene.check(it, &SMALL));
}

/// A worker is replaced by one with another GPU, at the same address.
#[test]
fn a_worker_that_gets_another_gpu_is_priced_like_that_gpu() {
    let mut scene = Scene::of_two_kinds();
    scene.report(2, SMALL_GPU.0);
    let (prefill, decode) = scene.snapshot(2).faded.unwrap();
    let other = scene.snapshot(1);
    assert!((prefill.at(turn(0, 4_000)) / other.prefill.at(turn(0, 4_000)) - 1.0).abs() < 0.2, "{prefill:?}");
    assert!((decode.at(5.0) / other.decode.at(5.0) - 1.0).abs() < 0.2, "{decode:?}");
}

#[test]
fn a_kind_without_answers_is_expected_to_be_like_the_model() {
    let mut scene = Scene::of(&["small"; 2]);
    scene.report(0, LARGE_GPU.0);
    (0..800).for_each(|_| scene.answer(0, &LARGE_GPU.1, 1.0));
    scene.report(1, SMALL_GPU.0);
    scene.fleet.settle(scene.now, &mut Vec::new());
    scene.check(0, &LARGE_GPU.1);
    let [known, new] = [0, 1].map(|it| scene.snapshot(it));
    assert!((new.prefill.slope / known.prefill.slope - 1.0).abs() < 0.1, "{:?}", new.prefill);
    assert!((new.decode.base / known.decode.base - 1.0).abs() < 0.1, "{:?}", new.decode);
}

#[test]
fn a_mirror_shows_the_rates_of_each_kind_of_gpu() {
    let mut scene = Scene::of_two_kinds();
    let mut mirror = FleetMirror::new(&scene.fleet);
    let wanted = Wanted::Model(scene.fleet.model("small").unwrap());
    for _ in 0..200 {
        scene.answer(0, &LARGE_GPU.1, 1.0);
        scene.answer(1, &SMALL_GPU.1, 1.0);
    }
    mirror.follow(&scene.fleet);
    let work = turn(0, 4_000);
    scene.fleet.learn_first_token(scene.now, WorkerId(1), work, Duration::from_secs(8));
    mirror.follow(&scene.fleet);
    let (mut own, mut copied) = (Vec::new(), Vec::new());
    scene.fleet.snapshots(scene.now, wanted, Barred::default(), &mut own);
    assert!(mirror.fit_snapshots(scene.now, wanted, &mut copied));
    let faded = |all: &[WorkerSnapshot]| all.iter().map(|it| it.faded).collect::<Vec<_>>();
    assert_eq!(faded(&copied), faded(&own));
    assert!(own[3].faded.is_some());
}

/// More kinds than the router distinguishes: the others are compared with all workers.
#[test]
fn kinds_of_gpu_are_bounded() {
    let mut scene = Scene::of(&["small"; 12]);
    (0..12).for_each(|it| scene.report(it, 10_000 << it));
    (0..100).for_each(|_| (0..12).for_each(|it| scene.answer(it, &SMALL, 1.0)));
    for worker in 0..12 {
        let step = scene.snapshot(worker).decode.at(100.0);
        assert!((step / SMALL.step.at(100.0) - 1.0).abs() < 0.25, "worker {worker}: {step}");
    }
}

/// Compared with itself, it would never be tried again.
#[test]
fn the_only_worker_of_a_kind_is_tried_again_after_it_was_slow() {
    let mut scene = Scene::of(&["small"; 4]);
    (0..3).for_each(|it| scene.report(it, LARGE_GPU.0));
    scene.report(3, 2 * LARGE_GPU.0);
    for _ in 0..200 {
        (0..3).for_each(|it| scene.answer(it, &LARGE_GPU.1, 1.0));
        scene.answer(3, &LARGE_GPU.1, 10.0);
    }
    let prompt = turn(0, 4_000);
    let times = |fit: &PrefillFit| fit.at(prompt) / LARGE_GPU.1.prefill.at(prompt);
    assert!(times(&scene.snapshot(3).prefill) > 8.0);
    (0..2_000).for_each(|it| scene.answer(it % 3, &LARGE_GPU.1, 1.0));
    let (prefill, _) = scene.snapshot(3).faded.unwrap();
    assert!((0.8..1.3).contains(&times(&prefill)), "{prefill:?}");
}

#[test]
fn a_new_kind_is_expected_to_have_the_attention_and_the_knee_of_its_model() {
    let mut scene = Scene::of(&["small"; 4]);
    (0..2).for_each(|it| scene.report(it, 100_000));
    (0..800).for_each(|it| scene.answer(it % 2, &SMALL, 1.0));
    let part = |scene: &Scene, worker| {
        let prefill = scene.snapshot(worker).prefill;
        prefill.attention / prefill.slope
    };
    // The second pair has shown nothing yet, so it has the model's.
    let (attention, knee) = (part(&scene, 2), scene.snapshot(2).knee);
    assert!(knee.requests < 3.0 && attention > 1.0 / 30_000.0, "learned: {knee:?}, {attention}");
    (2..4).for_each(|it| scene.report(it, 200_000));
    scene.fleet.settle(scene.now, &mut Vec::new());
    assert!((part(&scene, 2) / attention - 1.0).abs() < 0.01, "{} of {attention}", part(&scene, 2));
    assert_eq!(scene.snapshot(2).knee, knee);
}

#[test]
fn a_model_does_not_inherit_what_another_worker_without_a_list_has_shown() {
    let mut scene = Scene::of(&[]);
    scene.join(&[]);
    (0..400).for_each(|_| scene.answer(0, &LARGE, 1.0));
    scene.join(&["small"]);
    let small = scene.fleet.model("small");
    assert!(!scene.fleet.model_rates(small).rates().is_learned());
    // Another model at the same address: it has no entry yet either.
    scene.fleet.learn_models(WorkerId(1), &cards(&["other"]));
    let other = *scene.fleet.model_rates(scene.fleet.model("other")).rates();
    assert!(!other.is_learned());
    // Both are expected to be like the mean of what is known.
    let known = *scene.fleet.model_rates(None).rates();
    assert!((other.decode.slope / known.decode.slope - 1.0).abs() < 1e-9, "{:?}", other.decode);
}

#[test]
fn a_report_without_a_capacity_changes_no_kind() {
    let mut scene = Scene::of_two_kinds();
    let before = [0, 1, 2, 3].map(|it| scene.believed(it));
    scene.fleet.report(scene.now, WorkerId(1), EngineLoad::default());
    assert_eq!([0, 1, 2, 3].map(|it| scene.believed(it)), before);
}

/// An engine with several ranks reports the sum of those that have started.
#[test]
fn kinds_without_workers_make_room_for_others() {
    let mut scene = Scene::of(&["small"; 4]);
    (0..9).for_each(|it| scene.report(0, 10_000 << it));
    for worker in 0..4 {
        scene.report(worker, [LARGE_GPU.0, SMALL_GPU.0][worker as usize % 2]);
    }
    for _ in 0..800 {
        scene.answer(0, &LARGE_GPU.1, 1.0);
        scene.answer(1, &SMALL_GPU.1, 1.0);
    }
    scene.check(2, &LARGE_GPU.1);
    scene.check(3, &SMALL_GPU.1);
}
