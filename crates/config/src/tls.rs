//! What must agree between the settings of TLS. What the files hold is looked at when they are read, at the start.

use std::path::PathBuf;

use maitre_net::tls::{ClientAuth, TlsServerSettings};
use maitre_proxy::Settings;

/// Whether a listener lets in nobody without a certificate.
pub(super) fn keeps_out(tls: &TlsServerSettings) -> bool {
    tls.cert.is_some() && tls.client_ca.is_some() && tls.client_auth == ClientAuth::Required
}

pub(super) fn conflicts(settings: &Settings) -> Vec<(Vec<&'static str>, String)> {
    let Settings { tls, admin_tls, worker_tls, .. } = settings;
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
            let what = format!(
                "{} asks clients for certificates, and there is no TLS; set {}, too",
                keys[0], keys[1]
            );
            conflicts.push((keys.to_vec(), what));
        }
    }
    if !worker_tls.verify && worker_tls.ca.is_some() {
        let keys = vec!["worker_tls.verify", "worker_tls.ca"];
        let what =
            "worker_tls.ca says whom to believe, and worker_tls.verify = false believes anybody; drop one";
        conflicts.push((keys, what.to_owned()));
    }
    conflicts
}

/// A certificate without its key, or the other way round.
fn half(keys: [&'static str; 2], paths: [&Option<PathBuf>; 2]) -> Option<(Vec<&'static str>, String)> {
    let (there, missing) = match paths {
        [Some(_), None] => (keys[0], keys[1]),
        [None, Some(_)] => (keys[1], keys[0]),
        _ => return None,
    };
    Some((vec![there], format!("{there} needs {missing}; set both")))
}
