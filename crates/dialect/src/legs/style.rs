//! What each way to hand KV cache over asks of a router: when it sends the legs, on which routes, and to whom.

use maitre_base::{Handoff, HandoffStyle, PrefillAnswer, Role};

use crate::engine::{Disaggregation, EngineKind};
use crate::route::Route;

/// The style of an engine for which the operator names none.
pub const fn usual_style(kind: Option<EngineKind>) -> HandoffStyle {
    match kind {
        Some(EngineKind::Sglang) => HandoffStyle::Sglang,
        Some(EngineKind::TensorRt) => HandoffStyle::TensorRt,
        _ => HandoffStyle::NixlPull,
    }
}

/// Whether both legs are sent at the same time. Otherwise the decode leg waits for the prefill worker's answer.
pub const fn is_concurrent(style: HandoffStyle) -> bool {
    matches!(style, HandoffStyle::NixlPush | HandoffStyle::Mooncake | HandoffStyle::Sglang)
}

/// Whether engines of this style accept the parameters on a route.
pub const fn serves(style: HandoffStyle, route: Route) -> bool {
    match style {
        HandoffStyle::NixlPull | HandoffStyle::Mooncake | HandoffStyle::Store => {
            matches!(route, Route::Chat | Route::Completions | Route::Messages | Route::Responses)
        }
        // vLLM pairs the legs by `X-Request-Id`, which it does not read for responses: each leg would wait for the other.
        HandoffStyle::NixlPush => matches!(route, Route::Chat | Route::Completions | Route::Messages),
        HandoffStyle::Sglang => matches!(route, Route::Chat | Route::Completions | Route::Generate),
        HandoffStyle::TensorRt => matches!(route, Route::Chat | Route::Completions),
    }
}

/// What decisions must know of a worker of this style. SGLang's decode workers cache no prefixes unless they report it.
pub fn handoff(style: HandoffStyle, role: Role, reported: Option<&Disaggregation>) -> Handoff {
    let is_sglang = matches!(style, HandoffStyle::Sglang);
    Handoff {
        style,
        // SGLang's prefill worker answers once the decode worker has fetched, and neither takes a request without a room.
        answer: if is_sglang { PrefillAnswer::Fetched } else { PrefillAnswer::Computed },
        needs_partner: is_sglang && role != Role::Both,
        caches_prefixes: reported.map_or(!is_sglang || role != Role::Decode, |it| it.caches_prefixes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_styles_send_both_legs_at_once() {
        let concurrent: Vec<HandoffStyle> =
            HandoffStyle::ALL.into_iter().filter(|it| is_concurrent(*it)).collect();
        assert_eq!(concurrent, [HandoffStyle::NixlPush, HandoffStyle::Mooncake, HandoffStyle::Sglang]);
    }

    #[test]
    fn only_routes_that_decode_have_two_legs() {
        for (style, served) in HandoffStyle::ALL.into_iter().zip([4, 3, 4, 3, 2, 4]) {
            let routes: Vec<Route> = Route::ALL.into_iter().filter(|it| serves(style, *it)).collect();
            assert!(routes.iter().all(|it| it.decodes()), "{style}: {routes:?}");
            assert_eq!(routes.len(), served, "{style}: {routes:?}");
        }
    }

    #[test]
    fn only_workers_of_sglang_with_a_role_answer_nothing_alone() {
        for style in HandoffStyle::ALL {
            for role in Role::ALL {
                let expected = style == HandoffStyle::Sglang && role != Role::Both;
                assert_eq!(handoff(style, role, None).needs_partner, expected, "{style} {role}");
            }
        }
    }
}
