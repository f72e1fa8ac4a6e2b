//! What clients call their requests, for the last so many: a decision can be asked for by that name.

use http::HeaderValue;
use maitre_base::RequestId;
use parking_lot::Mutex;

/// As many as decisions are kept by default, four times over: those that were refused have ids too.
const KEPT: usize = 4_096;

pub(crate) struct Ids {
    /// By number, the newest in the place of the oldest.
    ring: Mutex<Vec<Option<(RequestId, HeaderValue)>>>,
}

impl Default for Ids {
    fn default() -> Ids {
        Ids { ring: Mutex::new(vec![None; KEPT]) }
    }
}

impl Ids {
    pub(crate) fn keep(&self, request: RequestId, id: &HeaderValue) {
        let id = id.clone();
        self.ring.lock()[place(request)] = Some((request, id));
    }

    pub(crate) fn of(&self, request: RequestId) -> Option<String> {
        let ring = self.ring.lock();
        let (kept, id) = ring[place(request)].as_ref()?;
        (*kept == request).then(|| String::from_utf8_lossy(id.as_bytes()).into_owned())
    }

    /// The newest that goes by this name.
    pub(crate) fn find(&self, name: &str) -> Option<RequestId> {
        let ring = self.ring.lock();
        ring.iter().flatten().filter(|(_, id)| id.as_bytes() == name.as_bytes()).map(|it| it.0).max()
    }
}

fn place(request: RequestId) -> usize {
    (request.0 % KEPT as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_known_by_name_and_number() {
        let ids = Ids::default();
        let name = |it: u64| HeaderValue::from_str(&format!("r{}", it % 5_000)).unwrap();
        (1..=10_000).for_each(|it| ids.keep(RequestId(it), &name(it)));
        assert_eq!(ids.of(RequestId(10_000)), Some("r0".to_owned()));
        assert_eq!(ids.of(RequestId(1)), None);
        assert_eq!(ids.find("r4999"), Some(RequestId(9_999)));
        assert_eq!(ids.find("nobody"), None);
    }
}
