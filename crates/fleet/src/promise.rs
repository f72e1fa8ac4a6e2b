//! Work routed to a worker and not yet done. Whoever makes a promise must release it, whatever happens
//! to the request; sums that go below zero are a bug, and tests say so.

use maitre_base::Tokens;

/// What one request will cost a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promise {
    pub prefill: Tokens,
    pub decode: Tokens,
}

/// All that is promised to one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promised {
    pub requests: u32,
    pub prefill: Tokens,
    pub decode: Tokens,
}

impl Promised {
    pub fn make(&mut self, promise: Promise) {
        self.requests += 1;
        self.prefill += promise.prefill;
        self.decode += promise.decode;
    }

    /// The first token is out: the prefill is done. The caller's promise shrinks with ours.
    pub fn prefilled(&mut self, promise: &mut Promise) {
        debug_assert!(self.prefill >= promise.prefill, "prefilled more than was promised");
        self.prefill -= promise.prefill;
        promise.prefill = Tokens::ZERO;
    }

    pub fn release(&mut self, promise: Promise) {
        debug_assert!(self.requests > 0, "released a promise nobody made");
        debug_assert!(self.prefill >= promise.prefill && self.decode >= promise.decode, "released too much");
        self.requests = self.requests.saturating_sub(1);
        self.prefill -= promise.prefill;
        self.decode -= promise.decode;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_released_in_any_order_leaves_exactly_zero() {
        let mut promised = Promised::default();
        let mut one = Promise { prefill: Tokens(100), decode: Tokens(7) };
        let two = Promise { prefill: Tokens(5), decode: Tokens(0) };
        promised.make(one);
        promised.make(two);
        promised.prefilled(&mut one);
        assert_eq!(promised, Promised { requests: 2, prefill: Tokens(5), decode: Tokens(7) });
        promised.release(one);
        promised.release(two);
        assert_eq!(promised, Promised::default());
    }
}
