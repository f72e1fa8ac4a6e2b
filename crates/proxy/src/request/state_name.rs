//! The names of the state that a worker keeps of `/v1/responses`, among routers.

use maitre_base::hash;

pub(super) fn of_response(id: &str) -> u64 {
    hash::bytes(1, id.as_bytes())
}

pub(super) fn of_conversation(id: &str) -> u64 {
    hash::bytes(2, id.as_bytes())
}
