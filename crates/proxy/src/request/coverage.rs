//! Whether a stream goes on at another worker when its own fails, and what that takes of its worker: token ids.

use maitre_dialect::continuation::{Obstacle, StreamTerms};
use maitre_dispatch::{Arrival, Form};

use super::arrive::Arrived;
use crate::settings::RouterSettings;

#[derive(Clone)]
pub(super) enum Coverage {
    /// It is no stream, or streams of its class end with their worker.
    Off,
    Uncovered(Obstacle),
    Covered(StreamTerms),
}

impl Coverage {
    pub(super) fn of(settings: &RouterSettings, arrived: &Arrived, facts: &Arrival<'_>) -> Coverage {
        let route = arrived.route().filter(|it| it.decodes());
        let Some(route) = route.filter(|_| facts.form == Form::Stream && settings.continues(facts.class))
        else {
            return Coverage::Off;
        };
        match StreamTerms::read(route, &arrived.body) {
            Ok(terms) => Coverage::Covered(terms),
            Err(obstacle) => Coverage::Uncovered(obstacle),
        }
    }
}
