//! Rows of the table about other routers in front of the same workers.

use super::{FROM_ZERO, Field, Knob, knob};

pub(super) static CLUSTER: &[Knob] = &[
    knob(
        "cluster.via",
        Field::Via(|it| &mut it.cluster.via),
        "How several routers of one fleet share what they know: off, mesh (they speak with each other), or the URL of a \
         Redis: redis://host:6379, or rediss://user:password@host:6379/0 with TLS.",
    ),
    knob(
        "cluster.peers",
        Field::Addresses(|it| &mut it.cluster.peers),
        "In a mesh: where some of the others listen; as a flag, one at a time. A name may stand for several. The first \
         router needs none, and of the rest each learns.",
    ),
    knob(
        "cluster.listen",
        Field::Socket(|it| &mut it.cluster.listen),
        "In a mesh: where other routers connect. Nobody gets in without the key.",
    ),
    knob(
        "cluster.advertise",
        Field::Address(|it| &mut it.cluster.advertise),
        "In a mesh: what others reach this router at, if that is not what they see when it connects.",
    ),
    knob(
        "cluster.name",
        Field::RouterName(|it| &mut it.cluster.name),
        "What others call this router, unlike any other; if empty, the host's name and the port of listen.",
    ),
    knob(
        "cluster.group",
        Field::RouterName(|it| &mut it.cluster.group),
        "With Redis: the fleet. Routers of another one may use the same Redis under another name.",
    ),
    knob(
        "cluster.key",
        Field::Hidden(|it| &mut it.secrets.cluster_key),
        "What all routers share: a mesh needs it, and with Redis it seals what is sent. `maitre key` makes one.",
    ),
    knob(
        "cluster.key_file",
        Field::File(|it| &mut it.secrets.cluster_key_file),
        "A file that holds it instead.",
    ),
    knob(
        "cluster.wait",
        Field::Time(|it| &mut it.cluster.wait, FROM_ZERO),
        "How long a start is not ready, at the most, while others tell what they know; 0s does not wait.",
    ),
];
