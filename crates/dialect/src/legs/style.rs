//! The ways in which engines move a KV cache from the worker that prefills to the worker that decodes.

use std::fmt;
use std::str::FromStr;

use crate::route::Route;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Style {
    /// vLLM's `NixlConnector`: the prefill worker answers with the place of its blocks, the decode worker reads them.
    NixlPull,
    /// vLLM's `NixlPushConnector`: the prefill worker writes into the decode worker's blocks.
    NixlPush,
    /// vLLM's `MooncakeConnector`.
    Mooncake,
    Sglang,
    TensorRt,
    /// A store that both workers share and that finds blocks by their content: LMCache, Mooncake's store, FlexKV, a
    /// folder. It needs no parameters.
    Store,
}

/// A style by a name that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown style {name:?}; known: {}", Style::ALL.map(Style::name).join(", "))]
pub struct UnknownStyle {
    name: String,
}

impl Style {
    pub const ALL: [Style; 6] =
        [Style::NixlPull, Style::NixlPush, Style::Mooncake, Style::Sglang, Style::TensorRt, Style::Store];

    /// The name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Style::NixlPull => "nixl",
            Style::NixlPush => "nixl-push",
            Style::Mooncake => "mooncake",
            Style::Sglang => "sglang",
            Style::TensorRt => "tensorrt-llm",
            Style::Store => "store",
        }
    }

    /// Whether both legs are sent at the same time. Otherwise the decode leg waits for the prefill worker's answer.
    pub const fn is_concurrent(self) -> bool {
        matches!(self, Style::NixlPush | Style::Mooncake | Style::Sglang)
    }

    /// Whether engines of this style accept the parameters on a route.
    pub const fn serves(self, route: Route) -> bool {
        match self {
            Style::NixlPull | Style::NixlPush | Style::Mooncake | Style::Store => {
                matches!(route, Route::Chat | Route::Completions | Route::Messages | Route::Responses)
            }
            Style::Sglang => matches!(route, Route::Chat | Route::Completions | Route::Generate),
            Style::TensorRt => matches!(route, Route::Chat | Route::Completions),
        }
    }
}

impl fmt::Display for Style {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

impl FromStr for Style {
    type Err = UnknownStyle;

    fn from_str(name: &str) -> Result<Style, UnknownStyle> {
        let found = Style::ALL.into_iter().find(|it| it.name() == name);
        found.ok_or_else(|| UnknownStyle { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_back_to_its_style() {
        for style in Style::ALL {
            assert_eq!(style.to_string().parse(), Ok(style));
        }
        let error = "Nixl".parse::<Style>().unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown style \"Nixl\"; known: nixl, nixl-push, mooncake, sglang, tensorrt-llm, store"
        );
    }

    #[test]
    fn three_styles_send_both_legs_at_once() {
        let concurrent: Vec<Style> = Style::ALL.into_iter().filter(|it| it.is_concurrent()).collect();
        assert_eq!(concurrent, [Style::NixlPush, Style::Mooncake, Style::Sglang]);
    }

    #[test]
    fn only_routes_that_decode_have_two_legs() {
        for (style, served) in Style::ALL.into_iter().zip([4, 4, 4, 3, 2, 4]) {
            let routes: Vec<Route> = Route::ALL.into_iter().filter(|it| style.serves(*it)).collect();
            assert!(routes.iter().all(|it| it.decodes()), "{style}: {routes:?}");
            assert_eq!(routes.len(), served, "{style}: {routes:?}");
        }
    }
}
