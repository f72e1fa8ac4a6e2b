//! When requests arrive: at the trace's times (an open loop), or whenever a client's last request has ended (a closed
//! loop). Sessions have a loop of their own.

use maitre_base::Instant;

use super::{ClosedLoop, RunObserver, SimEvent, Simulation};

impl Simulation<'_> {
    /// Schedules the first request of the trace, or of every client.
    pub(super) fn start_arrivals(&mut self) {
        if self.sessions.is_some() {
            return self.start_sessions();
        }
        let requests = &self.prepared.requests;
        match self.config.closed_loop {
            Some(ClosedLoop { clients, .. }) => {
                let first = requests.len().min(clients as usize);
                (0..first).for_each(|number| self.schedule(Instant::ZERO, SimEvent::Arrival(number)));
                self.unsent = first;
            }
            None => {
                self.unsent = requests.len();
                if let Some(first) = requests.first() {
                    self.schedule(first.at, SimEvent::Arrival(0));
                }
            }
        }
    }

    pub(super) fn on_arrival(&mut self, now: Instant, number: usize, observer: &mut dyn RunObserver) {
        if !self.session_goes_on(number) {
            return;
        }
        self.not_arrived -= 1;
        if self.config.closed_loop.is_none()
            && self.sessions.is_none()
            && let Some(next) = self.prepared.requests.get(number + 1)
        {
            self.schedule(next.at, SimEvent::Arrival(number + 1));
        }
        observer.arrived(self.prepared.requests.len() - self.not_arrived);
        self.arrive(now, number, observer);
    }

    /// A request ended, with any result: its client sends the next one of the trace, or stops.
    pub(super) fn client_is_free(&mut self, now: Instant) {
        if self.sessions.is_some() {
            return;
        }
        let unsent = self.prepared.requests.len() - self.unsent;
        if unsent == 0 {
            return;
        }
        if self.config.closed_loop.is_some_and(|it| it.until <= now) {
            self.unsent += unsent;
            self.not_arrived -= unsent;
            return;
        }
        self.schedule(now, SimEvent::Arrival(self.unsent));
        self.unsent += 1;
    }
}
