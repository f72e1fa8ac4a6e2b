//! SGLang: one body for both workers, sent at the same time, with the place where they meet.
//!
//! The prefill worker's bootstrap server pairs the legs by a number, the room. A room that is reused can be spoilt by a late
//! message of the request that had it before, so rooms are random. With several ranks, the prefill worker's default is
//! to run a request on rank `room % dp_size`: the router chooses the rank by choosing the room.

use std::fmt::{self, Display};
use std::iter;

use crate::json::edit::{MemberEdit, Quoted, set};
use crate::json::{Cursor, Fault};
use crate::openai::{BadRequest, batch, edited, not_json, text};
use crate::route::Route;

/// Rooms are below this.
const ROOMS_END: u64 = 1 << 63;

/// Room for the rooms of one batch: far more than prompts times ranks fit into one request.
const BATCH_SPAN: u64 = 1 << 40;

/// Largest batch that gets lists, so that no body grows by more than it bounds. Of one value for all prompts, SGLang makes
/// consecutive rooms itself: both workers the same, but not all on one rank.
const PROMPTS_MAX: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bootstrap<'a> {
    /// The prefill worker as the decode worker reaches it.
    pub host: &'a str,
    /// None where the prefill worker did not report one. The field is sent all the same: SGLang tells `null` from
    /// nothing.
    pub port: Option<u16>,
    pub rooms: Rooms,
    /// The prefill worker's rank, where its load balancing does not follow the room.
    pub prefill_rank: Option<u32>,
}

/// The room of a request; for a batch one room for each prompt, all on the same rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rooms {
    first: u64,
    step: u64,
}

impl Rooms {
    /// Any room, from a random number.
    pub const fn any(random: u64) -> Rooms {
        Rooms { first: (random >> 1) % (ROOMS_END - BATCH_SPAN), step: 1 }
    }

    /// A room that a prefill worker with `dp_size` ranks runs on `rank`.
    pub fn on_rank(random: u64, rank: u32, dp_size: u32) -> Rooms {
        debug_assert!(rank < dp_size, "no rank {rank} of {dp_size}");
        let step = u64::from(dp_size).max(1);
        let first = Rooms::any(random).first;
        Rooms { first: first - first % step + u64::from(rank) % step, step }
    }

    fn room(self, index: usize) -> u64 {
        self.first + self.step * index as u64
    }
}

impl Bootstrap<'_> {
    pub(super) fn prefill(&self, route: Route, body: &[u8]) -> Result<Vec<u8>, BadRequest> {
        self.with("routed_dp_rank", route, body)
    }

    pub(super) fn decode(&self, route: Route, body: &[u8]) -> Result<Vec<u8>, BadRequest> {
        self.with("disagg_prefill_dp_rank", route, body)
    }

    fn with(&self, rank_field: &str, route: Route, body: &[u8]) -> Result<Vec<u8>, BadRequest> {
        let text = text(body)?;
        let prompts = prompts(route, text).map_err(|fault| not_json(text, fault))?;
        let host = each(prompts, |_, out| write!(out, "{}", Quoted(self.host)));
        let port = each(prompts, |_, out| match self.port {
            Some(port) => write!(out, "{port}"),
            None => out.write_str("null"),
        });
        let room = each(prompts, |index, out| write!(out, "{}", self.rooms.room(index)));
        let rank = self.prefill_rank.unwrap_or_default();
        let changes: [MemberEdit<'_>; 4] = [
            set("bootstrap_host", &host),
            set("bootstrap_port", &port),
            set("bootstrap_room", &room),
            set(rank_field, &rank),
        ];
        edited(body, &changes[..3 + usize::from(self.prefill_rank.is_some())])
    }
}

/// One value, or for a batch a list of them.
fn each(
    prompts: Option<usize>,
    write: impl Fn(usize, &mut fmt::Formatter<'_>) -> fmt::Result,
) -> impl Display {
    fmt::from_fn(move |out| {
        let Some(count) = prompts else { return write(0, out) };
        for (index, mark) in iter::once("[").chain(iter::repeat(",")).take(count).enumerate() {
            out.write_str(mark)?;
            write(index, out)?;
        }
        out.write_str("]")
    })
}

/// How many prompts a batch has, for which each field is a list; none if the body is not a batch or too large a one.
fn prompts(route: Route, text: &str) -> Result<Option<usize>, Fault> {
    let names: &[&str] = match route {
        Route::Completions => &["prompt"],
        Route::Generate => &["text", "input_ids"],
        _ => return Ok(None),
    };
    let mut count = None;
    Cursor::new(text).members(|key, value| {
        if names.contains(&&*key) {
            count = count.or(batch(value));
        }
    })?;
    Ok(count.filter(|it| *it <= PROMPTS_MAX))
}
