//! Rows of the table about who may speak to whom, and who is told of it.

use crate::field::At;
use crate::form::{Ratio, Switch};
use crate::knob::{Knob, knob};
use crate::secrets::key::KEY_LIST;
use crate::secrets::{SALT_BY, SECRET};
use crate::types::{CLIENT_AUTH, COLLECTOR, FILE, FREE_TEXT, HEADER_LIST, KEY_HASH};

pub(super) static KEYS: &[Knob] = &[
    knob(
        "keys",
        &At(|it| &mut it.secrets.keys, KEY_LIST),
        "The keys that requests need, as hashes or in plain text; as a flag, one at a time. With any, every request \
         needs one. After the key may follow ?tenant=NAME&best=CLASS&models=NAME|NAME*&rpm=COUNT&tpm=COUNT&trusted: \
         whose it is, the best class and the models it may ask for, the tenant's requests and tokens a minute, and \
         whether it may ask why and steer engines. `maitre key` makes them.",
    ),
    knob(
        "keys_file",
        &At(|it| &mut it.secrets.keys_file, FILE),
        "A file with more of them, one a line; # begins a comment. Read again whenever settings are.",
    ),
    knob(
        "worker_key",
        &At(|it| &mut it.secrets.worker_key, SECRET),
        "What workers ask for (their --api-key): sent with probes and, where requests need a key, in place of the \
         client's. Without, a client's key goes to the worker only where we ask for none.",
    ),
    knob("worker_key_file", &At(|it| &mut it.secrets.worker_key_file, FILE), "A file that holds it instead."),
    knob(
        "admin_key",
        &At(|it| &mut it.secrets.admin_key, KEY_HASH),
        "What the page and the admin API ask for: a key, or its hash. Without one, a run makes its own.",
    ),
    knob("admin_key_file", &At(|it| &mut it.secrets.admin_key_file, FILE), "A file that holds it instead."),
    knob(
        "salt.by",
        &At(|it| &mut it.secrets.salt_by, SALT_BY),
        "What the caches of engines are kept apart by: off, or tenant, where each tenant gets a cache_salt of ours \
         and no other tenant can tell what it has asked.",
    ),
    knob(
        "salt.secret",
        &At(|it| &mut it.secrets.salt_secret, SECRET),
        "What salts follow from; the same for all routers of a fleet. Without one each process has its own, so that \
         routers do not share what they warm, and a restart begins cold.",
    ),
    knob(
        "salt.secret_file",
        &At(|it| &mut it.secrets.salt_secret_file, FILE),
        "A file that holds it instead.",
    ),
];

pub(super) static TLS: &[Knob] = &[
    knob(
        "tls.cert",
        &At(|it| &mut it.settings.tls.cert, FILE),
        "The certificate that clients are shown, and those that vouch for it, as PEM; without one, clients speak \
         plain HTTP. Read again when it changes.",
    ),
    knob("tls.key", &At(|it| &mut it.settings.tls.key, FILE), "Its private key, as PEM."),
    knob(
        "tls.client_ca",
        &At(|it| &mut it.settings.tls.client_ca, FILE),
        "Who signs the certificates of clients, as PEM; without it, clients are not asked for any.",
    ),
    knob(
        "tls.client_auth",
        &At(|it| &mut it.settings.tls.client_auth, CLIENT_AUTH),
        "With client_ca: whether a client must show a certificate (required) or may (optional).",
    ),
    knob(
        "admin_tls.cert",
        &At(|it| &mut it.settings.admin_tls.cert, FILE),
        "The same for the admin listener.",
    ),
    knob("admin_tls.key", &At(|it| &mut it.settings.admin_tls.key, FILE), "Its private key, as PEM."),
    knob(
        "admin_tls.client_ca",
        &At(|it| &mut it.settings.admin_tls.client_ca, FILE),
        "Who signs the certificates of operators and scrapers, as PEM.",
    ),
    knob(
        "admin_tls.client_auth",
        &At(|it| &mut it.settings.admin_tls.client_auth, CLIENT_AUTH),
        "With client_ca: whether they must show one (required) or may (optional).",
    ),
    knob(
        "worker_tls.ca",
        &At(|it| &mut it.settings.worker_tls.ca, FILE),
        "Who signs the certificates of workers with https:// URLs, as PEM, instead of the authorities that \
         browsers trust.",
    ),
    knob(
        "worker_tls.cert",
        &At(|it| &mut it.settings.worker_tls.cert, FILE),
        "The certificate that workers are shown if they ask for one, as PEM.",
    ),
    knob("worker_tls.key", &At(|it| &mut it.settings.worker_tls.key, FILE), "Its private key, as PEM."),
    knob(
        "worker_tls.verify",
        &At(|it| &mut it.settings.worker_tls.verify, Switch),
        "Whether workers must prove who they are; false believes anybody who answers at their address.",
    ),
    knob(
        "worker_tls.server_name",
        &At(|it| &mut it.settings.worker_tls.server_name, FREE_TEXT),
        "The name that the workers' certificates are for; the host of each URL if empty.",
    ),
];

pub(super) static TRACES: &[Knob] = &[
    knob(
        "traces.endpoint",
        &At(|it| &mut it.settings.traces.endpoint, COLLECTOR),
        "The OpenTelemetry collector that spans are posted to, as OTLP over HTTP; nothing is traced if empty.",
    ).at_restart(),
    knob(
        "traces.sample",
        &At(|it| &mut it.settings.traces.sample, Ratio(0.0..=1.0)),
        "The part of requests that are traced, of those whose callers do not say in traceparent.",
    ),
    knob(
        "traces.service",
        &At(|it| &mut it.settings.traces.service, FREE_TEXT),
        "What we are called there (service.name).",
    ).at_restart(),
    knob(
        "traces.header",
        &At(|it| &mut it.settings.traces.headers, HEADER_LIST),
        "Headers that the collector wants, such as a key; as a flag, one at a time. Values with commas only in a file.",
    ).at_restart(),
    knob(
        "traces.ca",
        &At(|it| &mut it.settings.traces.ca, FILE),
        "Who signs the certificate of a collector with an https:// URL, as PEM, instead of the authorities that \
         browsers trust.",
    ),
];
