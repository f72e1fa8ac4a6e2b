//! Adapters: what they share with the model under them (a tokenizer, no cache), and which worker serves them.

use super::*;

const CARDS: [Card<'_>; 3] = [
    Card { name: "llama", parent: None },
    Card { name: "sql", parent: Some("llama") },
    Card { name: "poet", parent: Some("llama") },
];

fn fleet(count: u32, strategy: Name, seed: u64) -> Harness {
    let mut harness = Harness::cached(count, strategy, seed);
    for worker in 0..count {
        harness.on(Event::ModelsReported { worker: WorkerId(worker), cards: &CARDS });
    }
    harness
}

fn ask(harness: &mut Harness, request: u64, model: &str) -> Placement {
    let plan = harness.brain.plan(Some(model)).unwrap();
    let root =
        Root::new(Unit::Tokens, plan.model.as_deref().unwrap_or_default(), plan.adapter.as_deref(), None);
    let prompt = named(root, &text(1, 2_000), plan.block);
    harness.placement(Arrival { model: Some(model), ..of_prompt(request, &prompt) })
}

fn report(harness: &mut Harness, worker: u32, slots: u32, loaded: &[&str]) {
    harness.on(Event::AdaptersReported { worker: WorkerId(worker), slots, loaded });
}

#[test]
fn an_adapter_is_planned_under_its_base_model() {
    let harness = fleet(1, Name::LeastDelay, 0);
    let plan = |model| harness.brain.plan(Some(model)).unwrap();
    let (llama, sql): (Arc<str>, Arc<str>) = ("llama".into(), "sql".into());
    assert_eq!(
        plan("sql"),
        ReadPlan {
            model: Some(llama.clone()),
            adapter: Some(sql),
            block: 16,
            reported: false,
            chunks: false,
            reader: PromptReader::Strategy
        }
    );
    assert_eq!(
        plan("llama"),
        ReadPlan {
            model: Some(llama),
            adapter: None,
            block: 16,
            reported: false,
            chunks: false,
            reader: PromptReader::Strategy
        }
    );
}

#[test]
fn adapters_share_no_prefix_with_their_model_nor_with_each_other() {
    for seed in 0..6 {
        let mut harness = fleet(4, Name::LeastDelay, seed);
        let home = ask(&mut harness, 1, "llama").worker.0;
        harness.answer(1, None);
        check_not_held(ask(&mut harness, 2, "sql"));
        harness.on(Event::Left { request: RequestId(2) });
        check_not_held(ask(&mut harness, 3, "poet"));
        harness.on(Event::Left { request: RequestId(3) });
        check_seat(ask(&mut harness, 4, "llama"), home, 1_984);
        harness.on(Event::Left { request: RequestId(4) });
        // Blocks that an engine reports under an adapter's name belong to the adapter alone.
        harness.store(2, &text(1, 1_600), Store { adapter: Some("sql"), ..PLAIN });
        check_seat(ask(&mut harness, 5, "sql"), 2, 1_600);
    }
}

/// A strategy that cannot price loading uses a worker that has the adapter, too.
#[test]
fn an_adapter_goes_where_it_is_loaded_then_to_a_free_slot_then_anywhere() {
    for strategy in Name::ALL {
        for seed in 0..6 {
            let mut harness = fleet(3, strategy, seed);
            report(&mut harness, 0, 1, &["poet"]);
            report(&mut harness, 1, 2, &["poet"]);
            report(&mut harness, 2, 1, &["sql"]);
            for expected in [2, 1, 0] {
                let request = u64::from(expected);
                assert_eq!(harness.arrive(request, Some("sql")), Ok(expected), "{strategy}");
                harness.on(Event::Left { request: RequestId(request) });
                harness.on(Event::WorkerDrained { worker: WorkerId(expected), draining: true });
            }
        }
    }
}

#[test]
fn an_adapter_that_is_being_loaded_counts_as_loaded_while_its_request_is_pending() {
    for seed in 0..6 {
        let mut harness = fleet(4, Name::LeastDelay, seed);
        (0..4).for_each(|worker| report(&mut harness, worker, 2, &[]));
        let home = harness.arrive(1, Some("sql"));
        assert_eq!(harness.arrive(2, Some("sql")), home);
        for request in [1, 2] {
            harness.on(Event::Left { request: RequestId(request) });
        }
        let sql = harness.brain.fleet().model("sql").unwrap();
        assert!(harness.brain.fleet().workers().all(|it| it.adapters.slot(sql) == AdapterSlot::Loads));
    }
}

#[test]
fn requests_for_the_base_model_ignore_adapters() {
    for seed in 0..6 {
        let mut harness = fleet(4, Name::LeastDelay, seed);
        report(&mut harness, 1, 1, &["sql"]);
        harness.store(3, &text(1, 1_600), PLAIN);
        check_seat(ask(&mut harness, 1, "llama"), 3, 1_600);
    }
}

/// One worker serves it as an adapter, another as a merged model: each list of models changes what the name is.
#[test]
fn an_adapter_slot_is_released_even_if_the_adapter_became_a_model() {
    let mut harness = fleet(2, Name::LeastDelay, 0);
    report(&mut harness, 0, 1, &[]);
    harness.on(Event::WorkerDrained { worker: WorkerId(1), draining: true });
    assert_eq!(harness.arrive(1, Some("sql")), Ok(0));
    let merged = [Card { name: "sql", parent: None }];
    harness.on(Event::ModelsReported { worker: WorkerId(1), cards: &merged });
    harness.on(Event::Left { request: RequestId(1) });
    let sql = harness.brain.fleet().model("sql").unwrap();
    assert_eq!(harness.brain.fleet().worker(WorkerId(0)).unwrap().adapters.slot(sql), AdapterSlot::Loads);
}

/// vLLM lets an operator set the parent of an adapter, which need not be a name that is served.
#[test]
fn an_adapter_is_found_whatever_its_parent_is_called() {
    let cards =
        [Card { name: "llama", parent: None }, Card { name: "sql", parent: Some("meta-llama/Llama-3") }];
    for seed in 0..6 {
        let mut harness = fleet(4, Name::LeastDelay, seed);
        (0..4).for_each(|it| drop(harness.on(Event::ModelsReported { worker: WorkerId(it), cards: &cards })));
        harness.store(2, &text(1, 1_600), Store { adapter: Some("sql"), ..PLAIN });
        check_seat(ask(&mut harness, 5, "sql"), 2, 1_600);
    }
}
