//! Made-up rows, and the sentences about them.

use maitre_sim::report::ReportRow;

use super::{Demand, sweep, write};

/// A good row of a thousand answers: `name`, mean TTFT and mean E2E in seconds.
fn row(name: &str, ttft_mean_s: f64, e2e_mean_s: f64) -> ReportRow {
    ReportRow {
        strategy: name.to_owned(),
        speed: 1.0,
        requests: 1_000,
        hit_ratio: 0.4,
        ttft_mean_s,
        ttft_p50_s: 0.5,
        ttft_p90_s: 1.0,
        ttft_p99_s: 2.0,
        e2e_mean_s,
        tpot_mean_s: 0.03,
        output_tokens_per_s: 100.0,
        goodput_ratio: 0.95,
        ..ReportRow::default()
    }
}

fn text(rows: &[ReportRow]) -> String {
    let demand = Demand { tokens_per_s: Some(100.0), first_token_s: 2.0 };
    write(&rows.iter().collect::<Vec<_>>(), demand)
}

/// The text contains all of `said` and none of `not_said`.
#[track_caller]
fn check(rows: &[ReportRow], said: &[&str], not_said: &[&str]) {
    let text = text(rows);
    for it in said {
        assert!(text.contains(it), "no {it:?} in: {text}");
    }
    for it in not_said {
        assert!(!text.contains(it), "{it:?} in: {text}");
    }
}

#[test]
fn the_whole_paragraph() {
    let rows = [
        row("round-robin", 4.0, 30.0),
        ReportRow { hit_ratio: 0.3, ..row("cache-aware", 2.0, 25.0) },
        row("least-delay", 1.0, 20.0),
        ReportRow { hit_ratio: 0.5, ..row("ideal-cache", 0.5, 10.0) },
    ];
    assert_eq!(
        text(&rows),
        "Of 3 strategies, least-delay has the lowest mean TTFT, 1.00 s: 50 % lower than the next, cache-aware, \
         and 75 % lower than round-robin. It also has the lowest mean E2E latency, 20.0 s: 20 % lower than \
         cache-aware. Its hit ratio is 0.400, 80 % of the 0.500 that an ideal cache reaches; no other strategy has a \
         higher one. No other strategy is better by 2 % or more in TTFT at p50, p90 or p99, in TPOT, or in requests \
         within the targets. The fleet keeps up under least-delay: 95.0 % of the requests meet the targets."
    );
}

#[test]
fn well_known_strategies_are_named_once() {
    let two = [row("round-robin", 2.0, 9.0), row("least-delay", 1.0, 8.0)];
    check(&two, &["1.00 s: 50 % lower than the next, round-robin."], &["and 50 %"]);
    let three = [row("round-robin", 4.0, 9.0), row("least-request", 2.0, 9.0), row("random", 1.0, 8.0)];
    check(&three, &["50 % lower than the next, least-request, and 75 % lower than round-robin."], &[]);
}

#[test]
fn a_difference_under_two_percent_is_called_close() {
    let one = [row("a", 1.0, 9.0), row("b", 1.01, 8.95), row("round-robin", 2.0, 9.0)];
    check(
        &one,
        &[
            "a has the lowest mean TTFT, 1.00 s: 50 % lower than round-robin. But b (1.01 s) is within 2 % of it",
            "Its mean E2E latency, 9.00 s, is within 2 % of the lowest, that of b (8.95 s).",
        ],
        &["the next"],
    );
    let two = [row("a", 1.0, 9.0), row("b", 1.01, 9.1), row("c", 1.0, 9.5)];
    check(
        &two,
        &["But b (1.01 s) and c (1.00 s) are within 2 %", "though b is within 2 % of it (9.10 s)"],
        &[],
    );
}

#[test]
fn one_strategy_alone_is_not_called_a_leader() {
    check(
        &[row("random", 1.0, 9.0)],
        &["Only one strategy was run, random: there is nothing", "Its hit ratio is 0.400. The fleet"],
        &["lowest", "no other", "lead"],
    );
    check(&[row("random", 1.0, 9.0), row("oracle", 0.5, 5.0)], &["Only one strategy", "random"], &["lowest"]);
}

#[test]
fn bounds_and_strategies_without_answers_never_lead() {
    let silent = ReportRow { requests: 0, refused: 1_000, ..row("least-delay", 0.0, 0.0) };
    check(
        &[silent.clone(), row("a", 2.0, 9.0), row("b", 3.0, 9.0), row("oracle", 0.1, 1.0)],
        &["Of 2 strategies, a has the lowest", "least-delay (1,000 of 1,000)"],
        &["oracle has"],
    );
    check(
        &[row("oracle", 0.1, 1.0)],
        &["only bounds that no router can reach: oracle has a mean TTFT of 100 ms."],
        &[],
    );
    check(&[silent], &["No request was answered"], &[]);
    check(&[], &["No request was answered"], &[]);
}

#[test]
fn measures_where_another_is_better_are_named() {
    let rows = [
        row("a", 1.0, 9.0),
        ReportRow {
            ttft_p99_s: 1.5,
            tpot_mean_s: 0.0299,
            goodput_ratio: 0.99,
            hit_ratio: 0.5,
            ..row("b", 2.0, 8.0)
        },
    ];
    check(
        &rows,
        &[
            "But b has the lowest mean E2E latency: 8.00 s, 11 % lower than 9.00 s.",
            "Its hit ratio is 0.400; b has a higher one, 0.500.",
            "It does not lead everywhere: b has a lower p99 TTFT (1.50 s against 2.00 s) and b meets the targets \
             more often (99.0 % against 95.0 %).",
        ],
        &["TPOT (", "no other"],
    );
}

#[test]
fn a_slightly_higher_hit_ratio_is_not_denied() {
    let second = |hit_ratio: f64| [row("a", 1.0, 9.0), ReportRow { hit_ratio, ..row("b", 2.0, 9.0) }];
    let said = "Its hit ratio is 0.400; the highest, that of b, is within 2 % of it (0.402).";
    check(&second(0.402), &[said], &["no other strategy"]);
    // The table shows both as 0.400.
    check(&second(0.4003), &["no other strategy has a higher one"], &["0.400; the"]);
}

#[test]
fn hit_ratios_are_compared_with_the_ideal_cache() {
    let nothing = [
        ReportRow { hit_ratio: 0.0, ..row("a", 1.0, 9.0) },
        ReportRow { hit_ratio: 0.0, ..row("ideal-cache", 1.0, 9.0) },
    ];
    check(&nothing, &["even ideal-cache reuses nothing"], &["NaN", "inf"]);
}

#[test]
fn saturation_strain_and_a_long_tail_differ() {
    let tail = ReportRow { ttft_p99_s: 20.0, ..row("a", 1.0, 9.0) };
    check(
        &[tail],
        &[
            "The fleet keeps up under a most of the time: 95.0 % of the requests meet the targets, but its p99 TTFT is \
             40 times its p50.",
        ],
        &["saturated", "strained"],
    );
    // A long tail within the target comes from cold prompts, not from a queue.
    check(
        &[ReportRow { ttft_p50_s: 0.01, ttft_p99_s: 1.9, ..row("a", 1.0, 9.0) }],
        &["keeps up under a: 95.0 %"],
        &[],
    );
    let strained = ReportRow { goodput_ratio: 0.12, ..row("a", 1.0, 9.0) };
    check(
        std::slice::from_ref(&strained),
        &["The fleet is strained even under a: only 12.0 % of the requests meet"],
        &["serves"],
    );
    check(
        &[ReportRow { output_tokens_per_s: 60.0, ..strained }],
        &[
            "saturated even under a: only 12.0 % of the requests meet the targets, and it serves 60 % of the requested \
             output tokens per second.",
        ],
        &[],
    );
    let half = ReportRow { goodput_ratio: 0.7, output_tokens_per_s: 60.0, ..row("a", 1.0, 9.0) };
    check(&[half], &["strained even under a: only 70.0 % of the requests"], &["saturated"]);
    // A short trace ends with a tail that says nothing about saturation.
    check(&[ReportRow { output_tokens_per_s: 60.0, ..row("a", 1.0, 9.0) }], &["keeps up"], &["saturated"]);
}

#[test]
fn lost_requests_and_few_answers_are_mentioned() {
    let rows = [ReportRow { refused: 3, failed: 1, ..row("a", 1.0, 9.0) }, row("b", 2.0, 9.0)];
    check(&rows, &["Means leave out requests that were refused or failed: a (4 of 1,004)."], &["p99 is the"]);
    check(
        &[ReportRow { requests: 1, ..row("a", 1.0, 9.0) }],
        &["With only 1 answer, p99 is the time of a single request."],
        &[],
    );
    check(&[ReportRow { requests: 42, ..row("a", 1.0, 9.0) }], &["With only 42 answers,"], &[]);
}

#[test]
fn a_sweep_names_the_leader_of_each_speed() {
    let (fast, slow) = (row("a", 1.0, 9.0), row("b", 2.0, 9.0));
    let worse = row("a", 3.0, 9.0);
    let always = [(0.5, vec![&fast, &slow]), (1.0, vec![&fast, &slow])];
    assert_eq!(sweep(&always), "At every speed, a has the lowest mean TTFT.");
    let turns = [(0.5, vec![&fast, &slow]), (1.0, vec![&fast, &slow]), (2.0, vec![&worse, &slow])];
    assert_eq!(sweep(&turns), "The lowest mean TTFT, by speed: a at 0.5× and 1×; b at 2×.");
    assert_eq!(sweep(&[]), "");
}

#[test]
fn a_strategy_that_refuses_more_does_not_lead() {
    let few = ReportRow { requests: 100, refused: 900, ..row("random", 0.1, 1.0) };
    check(
        &[few, row("least-delay", 1.0, 20.0)],
        &["Only least-delay is compared: every other strategy lost over 1 % more", "random (900 of 1,000)"],
        &["random has the lowest mean TTFT", "one strategy was run"],
    );
    // Losing as many as all others does not count against a strategy.
    let all = |name, ttft| ReportRow { requests: 900, refused: 100, ..row(name, ttft, 20.0) };
    check(&[all("random", 0.5), all("least-delay", 1.0)], &["random has the lowest mean TTFT"], &[]);
}
