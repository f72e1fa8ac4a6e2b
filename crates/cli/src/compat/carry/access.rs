//! Access: the addresses, keys and certificates of the old router.
//!
//! Keys of clients and operators are kept as hashes, so the printed file contains no secret. The key for
//! workers cannot be hashed, and is not printed. If a key cannot be carried over, the listener accepts no
//! other machines.
//!
//! The help texts describe only half of what `--api-key` does. Running the programs showed: sglang-router and
//! smg require it from clients and send it to workers; vllm-router requires it from no client.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use maitre_net::bearer::Bearer;
use maitre_proxy::secret::{KEY_BYTES_MIN, Secret};

use super::{Draft, Unshown};
use crate::compat::flag::Old;

/// Where all three routers listen, and where they serve their metrics.
const PORT: &str = "30000";
const METRICS_PORT: &str = "29000";

/// With one of these flags sglang-router and smg require a key.
const GUARDS: [&str; 2] = ["--api-key", "--tenant-api-key"];

/// Files that are useless without each other.
const PAIRS: [[&str; 2]; 2] =
    [["--tls-cert-path", "--tls-key-path"], ["--client-cert-path", "--client-key-path"]];

impl Draft<'_> {
    pub(super) fn keys(&mut self) {
        let shared = self.one("--api-key").map(str::to_owned);
        if let Some(key) = &shared {
            match key.parse::<Bearer>() {
                Ok(_) => self.worker_key = Some(Unshown(key.clone())),
                Err(error) => self.wrong("--api-key", &error.to_string()),
            }
        }
        if self.old == Old::Sglang {
            self.client_keys(shared.as_deref());
            self.admin_key();
        }
    }

    /// A tenant's own key takes precedence: a client with the same key from `--api-key` is that tenant.
    fn client_keys(&mut self, shared: Option<&str>) {
        let mut rows: Vec<(Secret, String)> = Vec::new();
        for pair in self.words("--tenant-api-key") {
            match pair.split_once(':') {
                Some((tenant, key)) if is_plain(tenant) => {
                    let row =
                        self.hash("--tenant-api-key", key).map(|it| (it, format!("{it}?tenant={tenant}")));
                    rows.extend(row);
                }
                _ => self
                    .wrong("--tenant-api-key", "write TENANT:KEY; a tenant has no comma, & or ? in its name"),
            }
        }
        let speaks_for_others = self.has("--trust-tenant-header");
        if let Some(secret) = shared.and_then(|it| self.hash("--api-key", it)) {
            let trusted = if speaks_for_others { "?trusted" } else { "" };
            rows.push((secret, format!("{secret}{trusted}")));
        }
        if speaks_for_others && !rows.is_empty() {
            self.changed("--trust-tenant-header", "trusted from clients with the key of --api-key");
        }
        let is_first = |at: usize| !rows[..at].iter().any(|it| it.0.is(&rows[at].0));
        let texts: Vec<&str> =
            (0..rows.len()).filter(|&at| is_first(at)).map(|at| rows[at].1.as_str()).collect();
        if !texts.is_empty() {
            let text = texts.join(",");
            self.set("keys", text, "--api-key");
        }
    }

    fn admin_key(&mut self) {
        const FLAG: &str = "--control-plane-api-keys";
        let given = self.words(FLAG);
        let mut operators = Vec::new();
        for text in &given {
            match text.splitn(4, ':').collect::<Vec<_>>()[..] {
                [_, _, "admin", key] => operators.push(key),
                [_, _, "user", _] => self.left(FLAG, "the admin API has no read-only users"),
                _ => self.wrong(FLAG, "write ID:NAME:ROLE:KEY, with the role admin or user"),
            }
        }
        if operators.len() > 1 {
            self.left(FLAG, "Maitre has one admin key: the first with the role admin is used");
        }
        if let Some(secret) = operators.first().and_then(|it| self.hash(FLAG, it)) {
            self.set("admin_key", secret.to_string(), FLAG);
        }
    }

    /// The hash of a key that is only compared; none, with a note, if the key is easy to guess.
    fn hash(&mut self, flag: &str, key: &str) -> Option<Secret> {
        if key.len() < KEY_BYTES_MIN {
            let what = format!("keys need at least {KEY_BYTES_MIN} characters; `maitre key` generates one");
            self.left(flag, &what);
            return None;
        }
        Some(Secret::of(key.as_bytes()))
    }

    pub(super) fn certificates(&mut self) {
        for [cert, key] in PAIRS {
            match (self.has(cert), self.has(key)) {
                (true, false) => self.wrong(cert, &format!("needs {key}; write both")),
                (false, true) => self.wrong(key, &format!("needs {cert}; write both")),
                _ => {}
            }
        }
        match &self.words("--ca-cert-paths")[..] {
            [] => {}
            [path] => self.set("worker_tls.ca", path, "--ca-cert-paths"),
            _ => self.wrong(
                "--ca-cert-paths",
                "Maitre reads one file of authorities: join these, and give that file",
            ),
        }
    }

    pub(super) fn addresses(&mut self) {
        let open = match self.old {
            Old::Sglang => "0.0.0.0",
            Old::VllmRouter => "127.0.0.1",
        };
        let host = self.one("--host").unwrap_or(open).to_owned();
        let port = self.one("--port").unwrap_or(PORT).to_owned();
        let metrics_port = self.one("--prometheus-port").unwrap_or(METRICS_PORT).to_owned();
        let same_kind = if host.contains(':') && self.old == Old::Sglang { "::" } else { open };
        let metrics_host = self.one("--prometheus-host").unwrap_or(same_kind).to_owned();
        let listen = self.address(("--host", &host), ("--port", &port));
        let admin = self.address(("--prometheus-host", &metrics_host), ("--prometheus-port", &metrics_port));
        let (Some(listen), Some(admin)) = (listen, admin) else { return };
        let listen = self.guarded(listen);
        self.set("listen", listen.to_string(), "--host");
        self.set("admin", admin.to_string(), "--prometheus-host");
        let doors = [
            ("--host", listen, "keys", "other machines can reach it and no key is required"),
            (
                "--prometheus-host",
                admin,
                "admin_key",
                "other machines can read metrics there, and admin_key is not set",
            ),
        ];
        for (flag, address, guard, what) in doors {
            if !is_here(address) && !self.set.contains_key(guard) {
                self.changed(flag, &format!("{what}; insecure = true allows it"));
                self.set("insecure", "true", flag);
            }
        }
    }

    fn address(&mut self, host: (&str, &str), port: (&str, &str)) -> Option<SocketAddr> {
        let ip = match host.1 {
            "localhost" => Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            text => text.trim_start_matches('[').trim_end_matches(']').parse(),
        };
        let number = port.1.parse::<u16>();
        if ip.is_err() {
            self.wrong(host.0, &format!("{:?} is not an IP address; write one, as in 0.0.0.0", host.1));
        }
        if number.is_err() {
            self.wrong(port.0, &format!("{:?} is not a port; write 1 to 65535", port.1));
        }
        Some(SocketAddr::new(ip.ok()?, number.ok()?))
    }

    /// An operator who configured a key must not get an open listener because we cannot accept that key.
    fn guarded(&mut self, listen: SocketAddr) -> SocketAddr {
        let was_guarded = self.old == Old::Sglang && GUARDS.iter().any(|it| self.has(it));
        if is_here(listen) || !was_guarded || self.set.contains_key("keys") {
            return listen;
        }
        let ip: IpAddr = match listen.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        self.changed(
            "--host",
            "a key was required and none could be carried over, so Maitre listens on loopback only",
        );
        SocketAddr::new(ip, listen.port())
    }
}

/// Whether only this machine can reach it.
fn is_here(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Whether a tenant's name can be part of a key in a list.
fn is_plain(tenant: &str) -> bool {
    !tenant.trim().is_empty() && !tenant.contains([',', '?', '&'])
}
