//! The priority of a request, as the number that an engine expects.
//!
//! The brands that support a priority differ in its direction and in the routes that accept it. They use it
//! only if they were started for it: vLLM with `--scheduling-policy priority`, SGLang with
//! `--enable-priority-scheduling`. Without that flag SGLang refuses requests that carry a priority. An engine
//! does not report whether the flag is set.

use super::EngineKind;
use crate::route::Route;

impl EngineKind {
    /// The body's `priority` for a request with `place` better classes before it, out of `classes` in total.
    /// None if the engine has no such field.
    pub fn priority(self, route: Route, place: usize, classes: usize) -> Option<i64> {
        let number = match (self, route) {
            // Lower goes first; a request without a priority has zero.
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
    fn a_better_class_is_lower_for_vllm_and_higher_for_sglang() {
        check(EngineKind::Vllm, Route::Chat, [0, 1, 2].map(Some));
        check(EngineKind::Vllm, Route::Responses, [0, 1, 2].map(Some));
        check(EngineKind::Sglang, Route::Chat, [2, 1, 0].map(Some));
        check(EngineKind::Sglang, Route::Generate, [2, 1, 0].map(Some));
    }

    #[test]
    fn routes_and_brands_without_the_field_get_no_number() {
        check(EngineKind::Vllm, Route::Embeddings, [None; 3]);
        check(EngineKind::Vllm, Route::Messages, [None; 3]);
        check(EngineKind::Sglang, Route::Responses, [None; 3]);
        for kind in [EngineKind::TensorRt, EngineKind::LlamaCpp, EngineKind::Generic] {
            check(kind, Route::Chat, [None; 3]);
        }
    }
}
