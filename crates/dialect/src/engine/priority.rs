//! How urgent a request is, as a number that an engine understands.
//!
//! The brands that know such a number do not agree which way it counts, and where it may stand. They heed it only
//! if they were started for it: vLLM with `--scheduling-policy priority`, SGLang with `--enable-priority-scheduling`,
//! without which it refuses requests that name one. Which of the two an engine was, it does not tell.

use super::EngineKind;
use crate::route::Route;

impl EngineKind {
    /// The body's `priority` for a request that has `place` better classes before it, out of `classes` in all; none
    /// where the engine has no such field.
    pub fn priority(self, route: Route, place: usize, classes: usize) -> Option<i64> {
        let number = match (self, route) {
            // Lower goes first; zero is what a request without one has.
            (EngineKind::Vllm, Route::Chat | Route::Completions | Route::Responses) => place,
            // Higher goes first.
            (EngineKind::Sglang, Route::Chat | Route::Completions | Route::Generate) => {
                classes.saturating_sub(1).saturating_sub(place)
            }
            _ => return None,
        };
        i64::try_from(number).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(kind: EngineKind, route: Route, expected: [Option<i64>; 3]) {
        assert_eq!([0, 1, 2].map(|place| kind.priority(route, place, 3)), expected, "{kind:?} {route:?}");
    }

    #[test]
    fn a_better_class_is_a_lower_number_for_one_brand_and_a_higher_one_for_another() {
        check(EngineKind::Vllm, Route::Chat, [0, 1, 2].map(Some));
        check(EngineKind::Vllm, Route::Responses, [0, 1, 2].map(Some));
        check(EngineKind::Sglang, Route::Chat, [2, 1, 0].map(Some));
        check(EngineKind::Sglang, Route::Generate, [2, 1, 0].map(Some));
    }

    #[test]
    fn where_the_field_is_unknown_there_is_no_number() {
        check(EngineKind::Vllm, Route::Embeddings, [None; 3]);
        check(EngineKind::Vllm, Route::Messages, [None; 3]);
        check(EngineKind::Sglang, Route::Responses, [None; 3]);
        for kind in [EngineKind::TensorRt, EngineKind::LlamaCpp, EngineKind::Generic] {
            check(kind, Route::Chat, [None; 3]);
        }
    }
}
