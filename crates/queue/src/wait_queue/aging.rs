//! Lets requests that waited long behind higher classes go before them, for a bounded part of the work.
//!
//! Strict precedence alone starves lower classes while higher ones have work. Letting every aged request go
//! first hands the pool to the lower classes as soon as all have aged, which happens quickly in an overload.
//! So aged requests earn credit: while one waits, the work of higher classes earns a tenth of itself, and
//! once the credit covers the oldest request, it goes. Hence both bounds: a request of cost c goes after at
//! most ten times c of higher work, and aged requests get at most a tenth of what busy higher classes get.
//!
//! It would be quicker to let a request go first and charge it afterwards. But then each newly aged request would
//! start with a debt that is forgiven once no request is aged, and a trickle of them would get any share.

use super::work::Work;

/// Aged requests get one part in this many of the work that goes before them.
pub(super) const AGED_PART: u128 = 10;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credit(Work);

impl Credit {
    pub(super) fn covers(self, cost: Work) -> bool {
        self.0 >= cost
    }

    /// Work of higher classes went. The credit is capped at the cost of the costliest request that is next by age.
    pub(super) fn earn(&mut self, work: Work, most: Work) {
        self.0 = (self.0 + work.part(AGED_PART)).min(most);
    }

    /// A request went by age.
    pub(super) fn spend(&mut self, work: Work) {
        self.0 -= work;
    }

    /// No request is aged: keep no credit for later ones.
    pub(super) fn reset(&mut self) {
        self.0 = Work::ZERO;
    }
}
