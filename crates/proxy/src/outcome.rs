//! How a request ended: one word for metrics, traces, logs and the admin API.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RequestOutcome {
    /// The worker's response was complete; or the router answered from what it knows.
    Answered,
    /// The worker responded with an error status of this class, which the client got.
    Declined(&'static str),
    /// The router refused the request, with this code.
    Refused(&'static str),
    /// The client disconnected first.
    Gone,
    /// The client read nothing of its response for `timeouts.client_stalled`, and was disconnected.
    ClientStalled,
    /// The worker failed in the middle of its response.
    Broke,
    /// The worker fell silent in the middle of its response.
    Stalled,
    /// The response took longer than `timeouts.total`.
    Overdue,
}

impl RequestOutcome {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            RequestOutcome::Answered => "answered",
            RequestOutcome::Declined(_) => "declined",
            RequestOutcome::Refused(_) => "refused",
            RequestOutcome::Gone => "gone",
            RequestOutcome::ClientStalled => "client_stalled",
            RequestOutcome::Broke => "broke",
            RequestOutcome::Stalled => "stalled",
            RequestOutcome::Overdue => "overdue",
        }
    }

    pub(crate) const fn code(self) -> &'static str {
        match self {
            RequestOutcome::Refused(code) | RequestOutcome::Declined(code) => code,
            _ => "",
        }
    }
}
