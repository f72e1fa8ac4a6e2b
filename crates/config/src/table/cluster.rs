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
        "How the routers of a fleet share their state: off, mesh (direct connections), or the URL of a \
         Redis: redis://host:6379, or rediss://user:password@host:6379/0 with TLS.",
    )
    .common()
    .with_flag("cluster")
    .at_restart(),
    knob(
        "cluster.peers",
        &At(|it| &mut it.cluster.peers, List::of(HOST_PORT)),
        "In a mesh: addresses of some other routers; repeat the flag for each. A name may resolve to \
         several addresses. The first router needs none, because routers learn the rest from each other.",
    )
    .with_flag("peer")
    .at_restart(),
    knob(
        "cluster.listen",
        &At(|it| &mut it.cluster.listen, SOCKET),
        "In a mesh: where other routers connect. They need the key.",
    )
    .at_restart(),
    knob(
        "cluster.advertise",
        &At(|it| &mut it.cluster.advertise, Optional(HOST_PORT)),
        "In a mesh: the address at which others reach this router. Set it if they see another one when it \
         connects.",
    )
    .at_restart(),
    knob(
        "cluster.name",
        &At(|it| &mut it.cluster.name, ROUTER_NAME),
        "A unique name of this router; empty for the host name and the port of listen.",
    )
    .at_restart(),
    knob(
        "cluster.group",
        &At(|it| &mut it.cluster.group, ROUTER_NAME),
        "With Redis: the name of the fleet. Fleets with different names can use the same Redis.",
    )
    .at_restart(),
    knob(
        "cluster.key",
        &At(|it| &mut it.secrets.cluster_key, SECRET),
        "The key that all routers share. A mesh requires it; with Redis it encrypts the messages. `maitre \
         key` makes one.",
    )
    .at_restart(),
    knob(
        "cluster.key_file",
        &At(|it| &mut it.secrets.cluster_key_file, FILE),
        "A file that holds cluster.key.",
    )
    .at_restart(),
    knob(
        "cluster.join_timeout",
        &At(|it| &mut it.cluster.join_timeout, Time(FROM_ZERO)),
        "How long a starting router waits for the state of the others before it is ready; 0s does not wait.",
    )
    .at_restart(),
];
