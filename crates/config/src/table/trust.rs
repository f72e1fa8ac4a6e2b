//! Rows of the table about who may speak to whom, and who is told of it.

use super::{Field, Knob, knob};

pub(super) static KEYS: &[Knob] = &[
    knob(
        "keys",
        Field::Keys(|it| &mut it.secrets.keys),
        "The keys that requests need, as hashes or in plain text; as a flag, one at a time. With any, every request \
         needs one. After the key may follow ?tenant=NAME&best=CLASS&models=NAME|NAME*&rpm=COUNT&tpm=COUNT&trusted: \
         whose it is, the best class and the models it may ask for, the tenant's requests and tokens a minute, and \
         whether it may ask why and steer engines. `maitre key` makes them.",
    ),
    knob(
        "keys_file",
        Field::File(|it| &mut it.secrets.keys_file),
        "A file with more of them, one a line; # begins a comment. Read again whenever settings are.",
    ),
    knob(
        "worker_key",
        Field::Hidden(|it| &mut it.secrets.worker_key),
        "What workers ask for (their --api-key): sent with probes and, where requests need a key, in place of the \
         client's. Without, a client's key goes to the worker only where we ask for none.",
    ),
    knob(
        "worker_key_file",
        Field::File(|it| &mut it.secrets.worker_key_file),
        "A file that holds it instead.",
    ),
    knob(
        "admin_key",
        Field::Secret(|it| &mut it.secrets.admin_key),
        "What the page and the admin API ask for: a key, or its hash. Without one, a run makes its own.",
    ),
    knob("admin_key_file", Field::File(|it| &mut it.secrets.admin_key_file), "A file that holds it instead."),
    knob(
        "salt.by",
        Field::SaltBy(|it| &mut it.secrets.salt_by),
        "What the caches of engines are kept apart by: off, or tenant, where each tenant gets a cache_salt of ours \
         and no other tenant can tell what it has asked.",
    ),
    knob(
        "salt.secret",
        Field::Hidden(|it| &mut it.secrets.salt_secret),
        "What salts follow from; the same for all routers of a fleet. Without one each process has its own, so that \
         routers do not share what they warm, and a restart begins cold.",
    ),
    knob(
        "salt.secret_file",
        Field::File(|it| &mut it.secrets.salt_secret_file),
        "A file that holds it instead.",
    ),
];

pub(super) static TLS: &[Knob] = &[
    knob(
        "tls.cert",
        Field::File(|it| &mut it.settings.tls.cert),
        "The certificate that clients are shown, and those that vouch for it, as PEM; without one, clients speak \
         plain HTTP. Read again when it changes.",
    ),
    knob("tls.key", Field::File(|it| &mut it.settings.tls.key), "Its private key, as PEM."),
    knob(
        "tls.client_ca",
        Field::File(|it| &mut it.settings.tls.client_ca),
        "Who signs the certificates of clients, as PEM; without it, clients are not asked for any.",
    ),
    knob(
        "tls.client_auth",
        Field::ClientAuth(|it| &mut it.settings.tls.client_auth),
        "With client_ca: whether a client must show a certificate (required) or may (optional).",
    ),
    knob(
        "admin_tls.cert",
        Field::File(|it| &mut it.settings.admin_tls.cert),
        "The same for the admin listener.",
    ),
    knob("admin_tls.key", Field::File(|it| &mut it.settings.admin_tls.key), "Its private key, as PEM."),
    knob(
        "admin_tls.client_ca",
        Field::File(|it| &mut it.settings.admin_tls.client_ca),
        "Who signs the certificates of operators and scrapers, as PEM.",
    ),
    knob(
        "admin_tls.client_auth",
        Field::ClientAuth(|it| &mut it.settings.admin_tls.client_auth),
        "With client_ca: whether they must show one (required) or may (optional).",
    ),
    knob(
        "worker_tls.ca",
        Field::File(|it| &mut it.settings.worker_tls.ca),
        "Who signs the certificates of workers with https:// URLs, as PEM, instead of the authorities that \
         browsers trust.",
    ),
    knob(
        "worker_tls.cert",
        Field::File(|it| &mut it.settings.worker_tls.cert),
        "The certificate that workers are shown if they ask for one, as PEM.",
    ),
    knob("worker_tls.key", Field::File(|it| &mut it.settings.worker_tls.key), "Its private key, as PEM."),
    knob(
        "worker_tls.verify",
        Field::Switch(|it| &mut it.settings.worker_tls.verify),
        "Whether workers must prove who they are; false believes anybody who answers at their address.",
    ),
    knob(
        "worker_tls.server_name",
        Field::Text(|it| &mut it.settings.worker_tls.server_name),
        "The name that the workers' certificates are for; the host of each URL if empty.",
    ),
];

pub(super) static TRACES: &[Knob] = &[
    knob(
        "traces.endpoint",
        Field::Collector(|it| &mut it.settings.traces.endpoint),
        "The OpenTelemetry collector that spans are posted to, as OTLP over HTTP; nothing is traced if empty.",
    ),
    knob(
        "traces.sample",
        Field::Ratio(|it| &mut it.settings.traces.sample, 0.0..=1.0),
        "The part of requests that are traced, of those whose callers do not say in traceparent.",
    ),
    knob(
        "traces.service",
        Field::Text(|it| &mut it.settings.traces.service),
        "What we are called there (service.name).",
    ),
    knob(
        "traces.header",
        Field::Headers(|it| &mut it.settings.traces.headers),
        "Headers that the collector wants, such as a key; as a flag, one at a time. Values with commas only in a file.",
    ),
    knob(
        "traces.ca",
        Field::File(|it| &mut it.settings.traces.ca),
        "Who signs the certificate of a collector with an https:// URL, as PEM, instead of the authorities that \
         browsers trust.",
    ),
];
