//! Conflicts between the settings of TLS. What the files hold is checked when they are read, at the start.

use std::path::PathBuf;

use maitre_net::tls::{ClientAuth, TlsServerSettings};
use maitre_proxy::RouterSettings;

use crate::error::Conflict;

/// Whether a listener requires a client certificate.
pub(crate) fn requires_certificate(tls: &TlsServerSettings) -> bool {
    tls.cert.is_some() && tls.client_ca.is_some() && tls.client_auth == ClientAuth::Required
}

pub(crate) fn conflicts(settings: &RouterSettings) -> Vec<Conflict> {
    let RouterSettings { tls, admin_tls, worker_tls, .. } = settings;
    let pairs = [
        (["tls.cert", "tls.key"], [&tls.cert, &tls.key]),
        (["admin_tls.cert", "admin_tls.key"], [&admin_tls.cert, &admin_tls.key]),
        (["worker_tls.cert", "worker_tls.key"], [&worker_tls.cert, &worker_tls.key]),
    ];
    let mut conflicts: Vec<_> = pairs.into_iter().filter_map(|(keys, paths)| half(keys, paths)).collect();
    for (keys, tls) in
        [(["tls.client_ca", "tls.cert"], tls), (["admin_tls.client_ca", "admin_tls.cert"], admin_tls)]
    {
        if tls.client_ca.is_some() && tls.cert.is_none() {
            let what = format!("{} needs TLS, which is off; set {}, too", keys[0], keys[1]);
            conflicts.push(Conflict::new(&keys, what));
        }
    }
    if !worker_tls.verify && worker_tls.ca.is_some() {
        let what = "worker_tls.ca has no effect with worker_tls.verify = false; leave one of them out";
        conflicts.push(Conflict::new(&["worker_tls.verify", "worker_tls.ca"], what));
    }
    conflicts
}

/// A certificate without its key, or the other way round.
fn half(keys: [&'static str; 2], paths: [&Option<PathBuf>; 2]) -> Option<Conflict> {
    let (there, missing) = match paths {
        [Some(_), None] => (keys[0], keys[1]),
        [None, Some(_)] => (keys[1], keys[0]),
        _ => return None,
    };
    Some(Conflict::new(&[there], format!("{there} needs {missing}; set both")))
}
