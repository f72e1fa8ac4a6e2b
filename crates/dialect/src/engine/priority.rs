//! How urgent a request is, as a number that an engine understands.
//!
//! The brands that know such a number do not agree which way it counts, and where it may stand. They heed it only
//! if they were started for it: vLLM with `--scheduling-policy priority`, SGLang with `--enable-priority-scheduling`,
//! without which it refuses requests that name one. Which of the two an engine was, it does not tell.

use super::Kind;
use crate::route::Route;

impl Kind {
    /// The body's `priority` for a request that has `place` better classes before it, out of `classes` in all; none
    /// where the engine has no such field.
    pub fn priority(self, route: Route, place: usize, classes: usize) -> Option<i64> {
        let number = match (self, route) {
            // Lower goes first; zero is what a request without one has.
            (Kind::Vllm, Route::Chat | Route::Completions | Route::Responses) => place,
            // Higher goes first.
            (Kind::Sglang, Route::Chat | Route::Completions | Route::Generate) => {
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
    fn check(kind: Kind, route: Route, expected: [Option<i64>; 3]) {
        assert_eq!([0, 1, 2].map(|place| kind.priority(route, place, 3)), expected, "{kind:?} {route:?}");
    }

    #[test]
    fn a_better_class_is_a_lower_number_for_one_brand_and_a_higher_one_for_another() {
        check(Kind::Vllm, Route::Chat, [0, 1, 2].map(Some));
        check(Kind::Vllm, Route::Responses, [0, 1, 2].map(Some));
        check(Kind::Sglang, Route::Chat, [2, 1, 0].map(Some));
        check(Kind::Sglang, Route::Generate, [2, 1, 0].map(Some));
    }

    #[test]
    fn where_the_field_is_unknown_there_is_no_number() {
        check(Kind::Vllm, Route::Embeddings, [None; 3]);
        check(Kind::Vllm, Route::Messages, [None; 3]);
        check(Kind::Sglang, Route::Responses, [None; 3]);
        for kind in [Kind::TensorRt, Kind::LlamaCpp, Kind::Generic] {
            check(kind, Route::Chat, [None; 3]);
        }
    }
}
