//! Rows of the table about time limits of connections, requests and the router's end.

use super::{ABOVE_ZERO, FROM_ZERO};
use crate::field::At;
use crate::form::Time;
use crate::knob::{Knob, knob};

pub(super) static TIMEOUTS: &[Knob] = &[
    knob(
        "timeouts.client_header",
        &At(|it| &mut it.settings.timeouts.client_header, Time(ABOVE_ZERO)),
        "Time limit for receiving a request header, from its first byte.",
    ),
    knob(
        "timeouts.client_body",
        &At(|it| &mut it.settings.timeouts.client_body, Time(ABOVE_ZERO)),
        "Time limit for receiving a request body, from the end of its header.",
    ),
    knob(
        "timeouts.client_stalled",
        &At(|it| &mut it.settings.timeouts.client_stalled, Time(ABOVE_ZERO)),
        "How long a client may read nothing of its response. Then the router closes the connection, or \
         resets the HTTP/2 stream.",
    ),
    knob(
        "timeouts.client_idle",
        &At(|it| &mut it.settings.timeouts.client_idle, Time(ABOVE_ZERO)),
        "How long a client connection may stay open without a request.",
    ),
    knob(
        "timeouts.connect",
        &At(|it| &mut it.settings.timeouts.connect, Time(ABOVE_ZERO)),
        "Time limit for connecting to a worker, TLS handshake included.",
    ),
    knob(
        "timeouts.headers",
        &At(|it| &mut it.settings.timeouts.headers, Time(ABOVE_ZERO)),
        "Time limit from sending a request to the header of its response. Without streaming, engines send \
         that when the answer is complete.",
    ),
    knob(
        "timeouts.first_token",
        &At(|it| &mut it.settings.timeouts.first_token, Time(ABOVE_ZERO)),
        "Time limit from sending a request to the first event of its stream. Raise it for slow engines.",
    ),
    knob(
        "timeouts.inter_token",
        &At(|it| &mut it.settings.timeouts.inter_token, Time(ABOVE_ZERO)),
        "Longest time between two events of a stream.",
    ),
    knob(
        "timeouts.total",
        &At(|it| &mut it.settings.timeouts.total, Time(ABOVE_ZERO)),
        "Time limit from a request's arrival to the last byte of its response.",
    ),
    knob(
        "timeouts.worker_idle",
        &At(|it| &mut it.settings.timeouts.worker_idle, Time(FROM_ZERO)),
        "How long the router keeps an idle connection to a worker. Keep it shorter than the worker does \
         (uvicorn: 5s).",
    ),
    knob(
        "timeouts.drain_grace",
        &At(|it| &mut it.settings.timeouts.drain_grace, Time(FROM_ZERO)),
        "After SIGTERM: how long the router still accepts connections, while load balancers notice that it \
         is not ready.",
    ),
    knob(
        "timeouts.drain",
        &At(|it| &mut it.settings.timeouts.drain, Time(FROM_ZERO)),
        "After timeouts.drain_grace: how long responses may take to finish.",
    ),
];
