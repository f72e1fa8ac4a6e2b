//! Rows of the table about other routers in front of the same workers.

use super::FROM_ZERO;
use crate::cluster::{HOST_PORT, ROUTER_NAME, VIA};
use crate::field::{At, List};
use crate::form::{Optional, Time};
use crate::knob::{Knob, knob};
use crate::secrets::SECRET;
use crate::types::{FILE, SOCKET};

pub(super) static CLUSTER: &[Knob] = &[
    knob(
        "cluster.via",
        &At(|it| &mut it.cluster.via, VIA),
        "How several routers of one fleet share what they know: off, mesh (they speak with each other), or the URL of a \
         Redis: redis://host:6379, or rediss://user:password@host:6379/0 with TLS.",
    ).with_flag("cluster").at_restart(),
    knob(
        "cluster.peers",
        &At(|it| &mut it.cluster.peers, List::of(HOST_PORT)),
        "In a mesh: where some of the others listen; as a flag, one at a time. A name may stand for several. The first \
         router needs none, and of the rest each learns.",
    ).with_flag("peer").at_restart(),
    knob(
        "cluster.listen",
        &At(|it| &mut it.cluster.listen, SOCKET),
        "In a mesh: where other routers connect. Nobody gets in without the key.",
    ).at_restart(),
    knob(
        "cluster.advertise",
        &At(|it| &mut it.cluster.advertise, Optional(HOST_PORT)),
        "In a mesh: what others reach this router at, if that is not what they see when it connects.",
    ).at_restart(),
    knob(
        "cluster.name",
        &At(|it| &mut it.cluster.name, ROUTER_NAME),
        "What others call this router, unlike any other; if empty, the host's name and the port of listen.",
    ).at_restart(),
    knob(
        "cluster.group",
        &At(|it| &mut it.cluster.group, ROUTER_NAME),
        "With Redis: the fleet. Routers of another one may use the same Redis under another name.",
    ).at_restart(),
    knob(
        "cluster.key",
        &At(|it| &mut it.secrets.cluster_key, SECRET),
        "What all routers share: a mesh needs it, and with Redis it seals what is sent. `maitre key` makes one.",
    ).at_restart(),
    knob(
        "cluster.key_file",
        &At(|it| &mut it.secrets.cluster_key_file, FILE),
        "A file that holds it instead.",
    ).at_restart(),
    knob(
        "cluster.wait",
        &At(|it| &mut it.cluster.wait, Time(FROM_ZERO)),
        "How long a start is not ready, at the most, while others tell what they know; 0s does not wait.",
    ).at_restart(),
];
