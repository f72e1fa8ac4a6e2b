//! How those who waited long behind higher classes come to go before them.
//!
//! Strict precedence alone starves the lower classes as long as the higher ones have work; letting the aged go first
//! hands the pool to the lower classes as soon as all of them have aged, which in an overload is soon. So the
//! aged save up: what higher classes get, while somebody has aged behind them, earns a tenth of itself, and when that
//! covers the oldest one, it goes. Hence both bounds: one of cost c goes after ten times c of work from above, and
//! beside higher classes that always wait the aged get a tenth of what those get, never more.
//!
//! To let it go first and earn it afterwards would be quicker, but then each newly aged one would begin with a debt
//! that is forgiven once nobody is aged, and a trickle of them would get any share.

use super::work::Work;

/// The aged get one part in this many of what goes before them.
pub(super) const AGED_PART: u128 = 10;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credit(Work);

impl Credit {
    pub(super) fn covers(self, cost: Work) -> bool {
        self.0 >= cost
    }

    /// Work went from above. No more is kept than the costliest of those that are next by age needs.
    pub(super) fn earn(&mut self, work: Work, most: Work) {
        self.0 = (self.0 + work.part(AGED_PART)).min(most);
    }

    /// Work went by age.
    pub(super) fn spend(&mut self, work: Work) {
        self.0 -= work;
    }

    /// Nobody is aged: nothing is hoarded for those who will be.
    pub(super) fn reset(&mut self) {
        self.0 = Work::ZERO;
    }
}
