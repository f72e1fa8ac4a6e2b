//! Rows of the table about keys, TLS and traces.

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
        "Keys of clients, as hashes or in plain text; repeat the flag for each. With any key set, every \
         request needs one. Options after the key, as in ?tenant=acme&trusted: tenant=NAME; best=CLASS, the \
         highest class allowed; models=NAME|NAME*, the models allowed; rpm=COUNT and tpm=COUNT, requests \
         and tokens per minute of the tenant; trusted, it may ask for explanations and steer engines. \
         `maitre key` makes keys.",
    )
    .common(),
    knob(
        "keys_file",
        &At(|it| &mut it.secrets.keys_file, FILE),
        "A file with more keys, one per line; # begins a comment. A reload reads it again.",
    ),
    knob(
        "worker_key",
        &At(|it| &mut it.secrets.worker_key, SECRET),
        "The key that workers require (their --api-key). The router sends it with probes and, where \
         requests need a key, in place of the client's. Without it, the router forwards a client's key only \
         where requests need none.",
    ),
    knob("worker_key_file", &At(|it| &mut it.secrets.worker_key_file, FILE), "A file that holds worker_key."),
    knob(
        "admin_key",
        &At(|it| &mut it.secrets.admin_key, KEY_HASH),
        "The key of the page and the admin API, or its hash. Without one, the router makes a new key at \
         each start.",
    )
    .common(),
    knob("admin_key_file", &At(|it| &mut it.secrets.admin_key_file, FILE), "A file that holds admin_key."),
    knob(
        "salt.by",
        &At(|it| &mut it.secrets.salt_by, SALT_BY),
        "Whether engines keep the caches of tenants apart: off, or tenant. With tenant, the router sends a \
         cache_salt for each tenant, so that no tenant can find out what another one asked.",
    ),
    knob(
        "salt.secret",
        &At(|it| &mut it.secrets.salt_secret, SECRET),
        "Secret from which the router derives salts; set the same for all routers of a fleet. Without it \
         each process draws its own: routers do not share cache hits, and every restart begins with cold \
         caches.",
    ),
    knob(
        "salt.secret_file",
        &At(|it| &mut it.secrets.salt_secret_file, FILE),
        "A file that holds salt.secret.",
    ),
];

pub(super) static TLS: &[Knob] = &[
    knob(
        "tls.cert",
        &At(|it| &mut it.settings.tls.cert, FILE),
        "Certificate chain for clients, as PEM; without it, clients use plain HTTP. The router reads it \
         again when it changes.",
    )
    .common(),
    knob("tls.key", &At(|it| &mut it.settings.tls.key, FILE), "The private key of tls.cert, as PEM.")
        .common(),
    knob(
        "tls.client_ca",
        &At(|it| &mut it.settings.tls.client_ca, FILE),
        "CA of the clients' certificates, as PEM; without it, clients need none.",
    ),
    knob(
        "tls.client_auth",
        &At(|it| &mut it.settings.tls.client_auth, CLIENT_AUTH),
        "With tls.client_ca: whether a client certificate is required or optional.",
    ),
    knob(
        "admin_tls.cert",
        &At(|it| &mut it.settings.admin_tls.cert, FILE),
        "Certificate chain of the admin listener, as PEM; without it, the listener uses plain HTTP.",
    ),
    knob(
        "admin_tls.key",
        &At(|it| &mut it.settings.admin_tls.key, FILE),
        "The private key of admin_tls.cert, as PEM.",
    ),
    knob(
        "admin_tls.client_ca",
        &At(|it| &mut it.settings.admin_tls.client_ca, FILE),
        "CA of the certificates of operators and scrapers, as PEM; without it, they need none.",
    ),
    knob(
        "admin_tls.client_auth",
        &At(|it| &mut it.settings.admin_tls.client_auth, CLIENT_AUTH),
        "With admin_tls.client_ca: whether their certificate is required or optional.",
    ),
    knob(
        "worker_tls.ca",
        &At(|it| &mut it.settings.worker_tls.ca, FILE),
        "CA of the certificates of workers with https:// URLs, as PEM. It replaces the public CAs.",
    ),
    knob(
        "worker_tls.cert",
        &At(|it| &mut it.settings.worker_tls.cert, FILE),
        "Client certificate for workers that ask for one, as PEM.",
    ),
    knob(
        "worker_tls.key",
        &At(|it| &mut it.settings.worker_tls.key, FILE),
        "The private key of worker_tls.cert, as PEM.",
    ),
    knob(
        "worker_tls.verify",
        &At(|it| &mut it.settings.worker_tls.verify, Switch),
        "Verify the workers' certificates; false accepts any and is for tests only.",
    ),
    knob(
        "worker_tls.server_name",
        &At(|it| &mut it.settings.worker_tls.server_name, FREE_TEXT),
        "Name in the workers' certificates; empty for the host of each URL.",
    ),
];

pub(super) static TRACES: &[Knob] = &[
    knob(
        "traces.endpoint",
        &At(|it| &mut it.settings.traces.endpoint, COLLECTOR),
        "OpenTelemetry collector that gets spans, as OTLP over HTTP; empty for no traces.",
    )
    .at_restart(),
    knob(
        "traces.sample",
        &At(|it| &mut it.settings.traces.sample, Ratio(0.0..=1.0)),
        "Share of requests that the router traces, where the caller's traceparent does not decide.",
    ),
    knob(
        "traces.service",
        &At(|it| &mut it.settings.traces.service, FREE_TEXT),
        "Name of this service in spans (service.name).",
    )
    .at_restart(),
    knob(
        "traces.header",
        &At(|it| &mut it.settings.traces.headers, HEADER_LIST),
        "Headers for the collector, such as a key; repeat the flag for each. A value with a comma works \
         only in a file.",
    )
    .at_restart(),
    knob(
        "traces.ca",
        &At(|it| &mut it.settings.traces.ca, FILE),
        "CA of the certificate of a collector with an https:// URL, as PEM. It replaces the public CAs.",
    ),
];
