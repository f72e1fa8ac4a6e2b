//! How many retries the fleet can stand.
//!
//! A retry is a second request. When a few requests fail, it hides the failure; when all fail, it doubles the load on the
//! remaining workers, and clients retry too (the openai SDK twice by itself). So requests earn retries: a fifth of the
//! traffic, plus a few per second that let a quiet fleet retry.

use std::time::Duration;

use maitre_base::Instant;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryIncome {
    /// Retries earned by each request.
    pub per_request: f64,
    /// Retries earned each second, traffic or not.
    pub per_second: f64,
}

impl Default for RetryIncome {
    fn default() -> RetryIncome {
        RetryIncome { per_request: 0.2, per_second: 10.0 }
    }
}

/// The balance is limited to what this much time earns: an old quiet hour does not pay for a storm of retries.
const WINDOW: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct RetryBudget {
    settings: RetryIncome,
    balance: f64,
    requests: f64,
    at: Instant,
}

impl RetryBudget {
    pub fn new(settings: RetryIncome) -> RetryBudget {
        RetryBudget { settings, balance: settings.per_second, requests: 0.0, at: Instant::ZERO }
    }

    /// Changes the income. The balance stays, up to its new limit.
    pub fn retune(&mut self, settings: RetryIncome) {
        self.settings = settings;
    }

    pub fn earn(&mut self, now: Instant) {
        self.age(now);
        self.requests += 1.0;
        self.balance += self.settings.per_request;
    }

    /// Takes one retry, if the balance allows it.
    pub fn spend(&mut self, now: Instant) -> bool {
        self.age(now);
        let affordable = self.balance >= 1.0;
        if affordable {
            self.balance -= 1.0;
        }
        affordable
    }

    fn age(&mut self, now: Instant) {
        let passed = now.since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        let window = WINDOW.as_secs_f64();
        self.requests *= (1.0 - passed / window).max(0.0);
        let most = self.settings.per_second * window + self.settings.per_request * self.requests;
        self.balance =
            (self.balance + self.settings.per_second * passed).min(most.max(self.settings.per_second));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_limited_to_a_fifth_of_the_traffic() {
        let mut budget = RetryBudget::new(RetryIncome { per_request: 0.2, per_second: 10.0 });
        let mut retries = 0;
        for request in 0..10_000u64 {
            // A thousand requests a second for ten seconds, all of which want a retry.
            let now = Instant::from_millis(request);
            budget.earn(now);
            retries += u32::from(budget.spend(now));
        }
        assert!((2_000..=2_150).contains(&retries), "{retries}");
    }

    #[test]
    fn a_quiet_fleet_earns_no_more_than_one_window_of_retries() {
        let mut budget = RetryBudget::new(RetryIncome::default());
        let later = Instant::from_millis(3_600_000);
        let spent = (0..1_000).filter(|_| budget.spend(later)).count();
        assert_eq!(spent, 100);
    }

    #[test]
    fn without_income_there_are_no_retries() {
        let mut budget = RetryBudget::new(RetryIncome { per_request: 0.0, per_second: 0.0 });
        budget.earn(Instant::from_millis(1));
        assert!(!budget.spend(Instant::from_millis(10_000)));
    }
}
