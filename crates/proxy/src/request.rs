//! The life of a request, one stage a file, each stage a type of its own:
//!
//! 1. `serve` tells the whole story on one screen.
//! 2. `admit` checks the key and the path: `Admitted`.
//! 3. `arrive` reads the body: `Arrived`.
//! 4. `describe` parses the body and tokenizes its prompt: `Described`. `priority` says how urgent the request is.
//! 5. `place` asks the brain for a worker: `Placed`.
//! 6. `forward` sends it to the worker, and to another one if that fails before the first byte: `StartedResponse`.
//! 7. `response` streams the worker's bytes to the client: `ResponseBody`.
//!
//! A stream whose worker fails goes on at another one, if it can (`coverage`, `response/continuation`); for that, workers
//! are asked for token ids (`token_ids`).
//!
//! A request that a gateway carries goes through the same stages up to its placement, by `carried`.
//!
//! `reader` counts a response as it passes. `count_tokens` goes on to other workers where one does not have that path.
//!
//! Where one worker prefills for another, `handoff` is what both must know, `prefill` sends one leg after the other and
//! `at_once` both.
//!
//! `aborted` tells answers that their worker gave up.
//!
//! `within` limits the time of what mostly need not wait.
//!
//! `guard` accompanies the request through all of them and does the accounting when it ends, however it ends.

mod aborted;
mod admit;
pub(crate) mod arrive;
mod at_once;
mod carried;
mod count_tokens;
mod coverage;
pub(crate) mod describe;
mod exchange;
mod forward;
mod guard;
mod handoff;
pub(crate) mod models;
mod place;
mod prefill;
mod priority;
mod pull;
mod reader;
mod response;
mod second;
mod serve;
mod state_name;
mod token_ids;
mod within;

pub(crate) use arrive::RequestBody;
pub(crate) use carried::{CarriedResponse, PickedRequest, pick, receive_carried, refuse_carried};
pub(crate) use guard::RequestGuard;
pub(crate) use response::ResponseBody;
pub(crate) use serve::{receive, respond};
