//! Adapters: what they share with the model under them (a tokenizer, no cache), and who should serve them.

use super::*;

const CARDS: [Card<'_>; 3] = [
    Card { name: "llama", parent: None },
    Card { name: "sql", parent: Some("llama") },
    Card { name: "poet", parent: Some("llama") },
];

fn fleet(count: u32, strategy: Name, seed: u64) -> Table {
    let mut table = Table::cached(count, strategy, seed);
    for worker in 0..count {
        table.on(Event::ModelsReported { worker: WorkerId(worker), cards: &CARDS });
    }
    table
}

fn ask(table: &mut Table, request: u64, model: &str) -> Placement {
    let plan = table.brain.plan(Some(model)).unwrap();
    let root =
        Root::new(Unit::Tokens, plan.model.as_deref().unwrap_or_default(), plan.adapter.as_deref(), None);
    let prompt = named(root, &text(1, 2_000), plan.block);
    table.placement(Arrival { model: Some(model), ..of_prompt(request, &prompt) })
}

fn hear(table: &mut Table, worker: u32, slots: u32, loaded: &[&str]) {
    table.on(Event::AdaptersReported { worker: WorkerId(worker), slots, loaded });
}

#[test]
fn an_adapter_is_planned_under_the_model_it_is_laid_over() {
    let table = fleet(1, Name::LeastDelay, 0);
    let plan = |model| table.brain.plan(Some(model)).unwrap();
    let (llama, sql): (Arc<str>, Arc<str>) = ("llama".into(), "sql".into());
    assert_eq!(
        plan("sql"),
        Plan {
            model: Some(llama.clone()),
            adapter: Some(sql),
            block: 16,
            reported: false,
            reader: Reader::Strategy
        }
    );
    assert_eq!(
        plan("llama"),
        Plan { model: Some(llama), adapter: None, block: 16, reported: false, reader: Reader::Strategy }
    );
}

#[test]
fn adapters_share_no_prefix_with_their_model_nor_with_each_other() {
    for seed in 0..6 {
        let mut table = fleet(4, Name::LeastDelay, seed);
        let home = ask(&mut table, 1, "llama").worker.0;
        table.answer(1, None);
        check_held_by_nobody(ask(&mut table, 2, "sql"));
        table.on(Event::Left { request: RequestId(2) });
        check_held_by_nobody(ask(&mut table, 3, "poet"));
        table.on(Event::Left { request: RequestId(3) });
        check_seat(ask(&mut table, 4, "llama"), home, 1_984);
        table.on(Event::Left { request: RequestId(4) });
        // What an engine reports for an adapter, by the name it has for it, is the adapter's alone.
        table.store(2, &text(1, 1_600), Store { adapter: Some("sql"), ..PLAIN });
        check_seat(ask(&mut table, 5, "sql"), 2, 1_600);
    }
}

/// Whoever cannot price the loading goes where it is loaded too.
#[test]
fn an_adapter_goes_where_it_is_loaded_then_to_a_free_slot_then_anywhere() {
    for strategy in Name::ALL {
        for seed in 0..6 {
            let mut table = fleet(3, strategy, seed);
            hear(&mut table, 0, 1, &["poet"]);
            hear(&mut table, 1, 2, &["poet"]);
            hear(&mut table, 2, 1, &["sql"]);
            for expected in [2, 1, 0] {
                let request = u64::from(expected);
                assert_eq!(table.arrive(request, Some("sql")), Ok(expected), "{strategy}");
                table.on(Event::Left { request: RequestId(request) });
                table.on(Event::WorkerDrained { worker: WorkerId(expected), draining: true });
            }
        }
    }
}

#[test]
fn an_adapter_that_is_being_loaded_counts_as_loaded_while_its_request_is_open() {
    for seed in 0..6 {
        let mut table = fleet(4, Name::LeastDelay, seed);
        (0..4).for_each(|worker| hear(&mut table, worker, 2, &[]));
        let home = table.arrive(1, Some("sql"));
        assert_eq!(table.arrive(2, Some("sql")), home);
        for request in [1, 2] {
            table.on(Event::Left { request: RequestId(request) });
        }
        let sql = table.brain.fleet().model("sql").unwrap();
        assert!(table.brain.fleet().workers().all(|it| it.adapters.slot(sql) == AdapterSlot::Loads));
    }
}

#[test]
fn requests_for_the_model_itself_do_not_care_for_adapters() {
    for seed in 0..6 {
        let mut table = fleet(4, Name::LeastDelay, seed);
        hear(&mut table, 1, 1, &["sql"]);
        table.store(3, &text(1, 1_600), PLAIN);
        check_seat(ask(&mut table, 1, "llama"), 3, 1_600);
    }
}

/// One worker has it as an adapter, another merged into a model of its own: each list that is read changes
/// what the name is.
#[test]
fn an_adapter_that_becomes_a_model_meanwhile_is_let_go_all_the_same() {
    let mut table = fleet(2, Name::LeastDelay, 0);
    hear(&mut table, 0, 1, &[]);
    table.on(Event::WorkerDrained { worker: WorkerId(1), draining: true });
    assert_eq!(table.arrive(1, Some("sql")), Ok(0));
    let merged = [Card { name: "sql", parent: None }];
    table.on(Event::ModelsReported { worker: WorkerId(1), cards: &merged });
    table.on(Event::Left { request: RequestId(1) });
    let sql = table.brain.fleet().model("sql").unwrap();
    assert_eq!(table.brain.fleet().worker(WorkerId(0)).unwrap().adapters.slot(sql), AdapterSlot::Loads);
}

/// vLLM lets an operator write where an adapter comes from, which need not be a name that is served.
#[test]
fn an_adapter_is_found_whatever_its_parent_is_called() {
    let cards =
        [Card { name: "llama", parent: None }, Card { name: "sql", parent: Some("meta-llama/Llama-3") }];
    for seed in 0..6 {
        let mut table = fleet(4, Name::LeastDelay, seed);
        (0..4).for_each(|it| drop(table.on(Event::ModelsReported { worker: WorkerId(it), cards: &cards })));
        table.store(2, &text(1, 1_600), Store { adapter: Some("sql"), ..PLAIN });
        check_seat(ask(&mut table, 5, "sql"), 2, 1_600);
    }
}
