//! Observed and predicted answers in, numbers and sentences out.

use std::time::Duration;

use maitre_base::WorkerId;
use maitre_sim::lab::ArrivedKv;
use maitre_sim::trace::Piece;

use super::*;

/// Milliseconds to the first and to the last token, and cached tokens of 1,000.
type Times = (u64, u64, u32);

const ANSWER_TOKENS: u32 = 11;

fn request(observed: Option<ObservedAnswer>) -> Request {
    Request {
        prompt: [Piece { text: 1, tokens: 1_000 }].into(),
        answer_tokens: ANSWER_TOKENS,
        observed: observed.map(Box::new),
        ..Request::default()
    }
}

fn streamed((first_ms, total_ms, cached): Times) -> ObservedAnswer {
    ObservedAnswer {
        first_token: Some(Duration::from_millis(first_ms)),
        total: Duration::from_millis(total_ms),
        cached_tokens: Some(cached),
    }
}

fn answer(number: usize, (first_ms, total_ms, cached_tokens): Times) -> AnsweredRequest {
    AnsweredRequest {
        arrived: ArrivedKv::default(),
        number,
        metrics: AnswerMetrics {
            first_token: Duration::from_millis(first_ms),
            total: Duration::from_millis(total_ms),
            prompt_tokens: 1_000,
            cached_tokens,
            answer_tokens: ANSWER_TOKENS,
            ..AnswerMetrics::default()
        },
        worker: WorkerId(0),
        believed_tokens: None,
        predicted: None,
    }
}

fn check(pairs: &[(Times, Times)]) -> ReplayCheck {
    let requests: Vec<Request> = pairs.iter().map(|it| request(Some(streamed(it.0)))).collect();
    let answers: Vec<AnsweredRequest> =
        pairs.iter().enumerate().map(|(number, it)| answer(number, it.1)).collect();
    ReplayCheck::new(&requests, &answers)
}

#[test]
fn numbers_are_what_one_would_count_by_hand() {
    let check = check(&[
        ((100, 1_100, 0), (150, 1_150, 500)),
        ((200, 1_200, 500), (180, 2_180, 500)),
        ((600, 1_600, 1_000), (600, 1_600, 800)),
    ]);
    assert_eq!(check.hit_ratio, Some(Compared { observed: 0.5, predicted: 0.6 }));
    let Spread(ttft) = check.ttft.unwrap();
    assert_eq!(ttft.map(|it| it.observed), [0.3, 0.2, 0.6, 0.6]);
    assert_eq!(ttft.map(|it| it.predicted), [0.31, 0.18, 0.6, 0.6]);
    let Spread(tpot) = check.tpot.unwrap();
    assert_eq!((tpot[0].observed, tpot[0].predicted), (0.1, 0.133333));
    assert_eq!(check.e2e.unwrap().0[1], Compared { observed: 1.2, predicted: 1.6 });
    // 50 %, 10 % and none.
    assert_eq!(check.ttft_request_error, Some(0.1));
}

#[test]
fn both_columns_are_of_the_same_requests() {
    // The first was never answered, the third not in the replay, the second not as a stream.
    let whole = ObservedAnswer { first_token: None, ..streamed((1, 500, 0)) };
    let silent = ObservedAnswer { cached_tokens: None, ..streamed((50, 60, 0)) };
    let requests = [None, Some(whole), Some(streamed((9_000, 9_000, 0))), Some(silent)].map(request);
    let answers = [(3, (55, 70, 900)), (0, (7_000, 7_000, 0)), (1, (400, 450, 250))];
    let check = ReplayCheck::new(&requests, &answers.map(|(number, times)| answer(number, times)));
    assert_eq!((check.requests, check.observed, check.compared, check.lost()), (4, 3, 2, 1));
    assert_eq!(check.ttft.unwrap().0[0], Compared { observed: 0.05, predicted: 0.055 });
    assert_eq!(check.e2e.unwrap().0[0], Compared { observed: 0.28, predicted: 0.26 });
    assert_eq!(check.hit_ratio, Some(Compared { observed: 0.0, predicted: 0.25 }));
}

/// Two hundred answers in a second, half of the prompt cached, and a replay that has them at `first_ms` and `cached`.
#[track_caller]
fn check_sentence(first_ms: u64, cached: u32, is_close: bool, parts: &[&str]) {
    let check = check(&vec![((1_000, 2_000, 500), (first_ms, first_ms + 1_000, cached)); 200]);
    let said = check.sentences();
    assert_eq!(check.is_close(), is_close, "{said}");
    for part in parts {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn the_finding_says_how_far_to_trust_the_replay() {
    check_sentence(1_000, 500, true, &["Close on this traffic", "above 2 %."]);
    check_sentence(1_105, 515, true, &["Close on this traffic", "above 11 %."]);
    check_sentence(1_200, 500, false, &["Not close on this traffic: mean TTFT 20 % too high.", "--profile"]);
    check_sentence(500, 500, false, &["mean TTFT 50 % too low, p90 TTFT 50 % too low", "--profile"]);
    check_sentence(1_000, 600, false, &["hit ratio 0.100 too high", "--kv-tokens", "Do not size a fleet"]);
}

#[test]
fn what_cannot_be_compared_is_said() {
    let whole = ObservedAnswer { first_token: None, cached_tokens: None, ..streamed((1, 1_000, 0)) };
    let requests = vec![request(Some(whole)); 3];
    let said = ReplayCheck::new(&requests, &[answer(0, (1, 1_500, 0)), answer(2, (1, 1_500, 0))]).sentences();
    for part in [
        "mean E2E 50 % too high",
        "no cached tokens",
        "lost 1 requests that were answered",
        "With only 2 answers",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(ReplayCheck::new(&requests, &[]).sentences().contains("nothing to compare"));
}
