//! Are all workers reachable, and which models do they list?

use maitre_dialect::engine::Need;
use maitre_net::tls::TlsFailure;

use super::{answering, odd_ones};
use crate::code::Code;
use crate::facts::{Fleet, Listed, Reach, Unanswered, Worker};
use crate::report::{Finding, Outcome};

pub(super) fn reach(fleet: &Fleet) -> Outcome {
    let there = fleet.present().count();
    let mut outcome = Outcome::said(answering(there, fleet.workers.len()));
    outcome.findings.extend(fleet.workers.iter().filter_map(absence));
    outcome
}

fn absence(worker: &Worker) -> Option<Finding> {
    let url = &worker.url;
    let find = |what: String, fix: &str| Some(Finding::at(url, Code::Unreachable, what, fix));
    match &worker.reach {
        Reach::Not(Unanswered::Unresolved(why)) => find(
            format!("its name does not resolve: {why}"),
            "fix the host in its URL, or use its IP address; check the resolver of this machine",
        ),
        Reach::Not(Unanswered::Refused(why)) => find(
            why.clone(),
            "start the engine, with --host 0.0.0.0 if it is on another machine, or fix the port in its URL",
        ),
        Reach::Not(Unanswered::TimedOut(after)) => find(
            format!("no answer within {after:?}"),
            "check whether the engine hangs, still loads its model, or is behind a firewall; \
             --timeout waits longer",
        ),
        Reach::Not(Unanswered::NoTls(why)) => find(why.to_string(), mend(why)),
        Reach::Not(Unanswered::SpeaksTls) => find(
            "its URL is plain HTTP, but it uses TLS".to_owned(),
            "write https:// in its URL, and name the authority of its certificate in worker_tls.ca unless \
             browsers trust it",
        ),
        // With TLS 1.3 a server refuses a client after the handshake, and its alert may get lost.
        Reach::Not(Unanswered::Broke(why)) if url.starts_with("https://") => find(
            format!("the server uses TLS but does not answer in HTTP/1.1: {why}"),
            "fix the port in its URL; if it requires client certificates, set worker_tls.cert and \
             worker_tls.key",
        ),
        Reach::Not(Unanswered::Broke(why)) => {
            find(format!("the server does not answer in plain HTTP/1.1: {why}"), "fix the port in its URL")
        }
        Reach::Router => Some(Finding::at(
            url,
            Code::NotAnEngine,
            "this is a Maitre router, not an engine".to_owned(),
            "to check the workers behind it, give its admin address with --admin-url and no --worker; as a worker, \
             write the URL of the engine itself",
        )),
        Reach::Answers { path, status } if worker.is_stranger() => Some(Finding::at(
            url,
            Code::NotAnEngine,
            format!("{path} answers {status}, and /v1/models is not there either"),
            "fix its URL: the host and port of the engine itself, without /v1 or another path",
        )),
        Reach::Answers { path, status } if *status >= 500 => Some(Finding::at(
            url,
            Code::Unreachable,
            format!("{path} answers {status}: it reports itself unhealthy"),
            "read the engine's own log; it gets no requests meanwhile",
        )),
        Reach::Answers { .. } => None,
    }
}

/// The setting that disables TLS.
fn mend(why: &TlsFailure) -> &'static str {
    match why {
        TlsFailure::UntrustedIssuer => "set worker_tls.ca to the PEM file of the authority that signed it",
        TlsFailure::WrongName(..) => {
            "use a name of the certificate in the worker's URL, or set worker_tls.server_name to one"
        }
        TlsFailure::Expired | TlsFailure::NotYetValid => "renew the certificate, or fix this machine's clock",
        TlsFailure::InvalidCertificate(_) => {
            "replace the certificate by one for servers, with the host's name in it, that is not an authority's \
             own (CA:FALSE)"
        }
        TlsFailure::ClientRejected(_) => {
            "it requires a client certificate: set worker_tls.cert and worker_tls.key to one that it accepts"
        }
        TlsFailure::NotTls => "write http:// in its URL, or have it serve TLS",
        TlsFailure::Alert(_) | TlsFailure::Closed | TlsFailure::Other(_) => {
            "fix the port in its URL, or write http:// if it does not use TLS; it must support version 1.2 or \
             1.3, and its own log says more"
        }
    }
}

pub(super) fn models(fleet: &Fleet) -> Outcome {
    let present: Vec<&Worker> = fleet.present().collect();
    let mut outcome = Outcome::default();
    let mut listed: Vec<(&Worker, Vec<&str>)> = Vec::new();
    for worker in present {
        match &worker.listed {
            Listed::Locked { status, with_key } => outcome.find(locked(worker, *status, *with_key)),
            Listed::Unreadable { status, why } => outcome.find(Finding::at(
                &worker.url,
                Code::NoModels,
                format!("/v1/models cannot be read (status {status}): {why}"),
                "serve the OpenAI API there, or fix the URL",
            )),
            Listed::Models(_) => {
                let mut names: Vec<&str> = worker.models().iter().map(|it| it.id.as_str()).collect();
                names.sort_unstable();
                match names.is_empty() {
                    true => outcome.find(Finding::at(
                        &worker.url,
                        Code::NoModels,
                        "/v1/models lists nothing",
                        "check whether the engine has loaded its model; until it lists one it gets only requests \
                         for models that no worker lists",
                    )),
                    false => listed.push((worker, names)),
                }
            }
        }
    }
    differ(&listed, &mut outcome);
    let mut all: Vec<&str> = listed.iter().flat_map(|it| it.1.iter().copied()).collect();
    all.sort_unstable();
    all.dedup();
    outcome.said = if all.is_empty() { "none known".to_owned() } else { all.join(", ") };
    outcome
}

fn locked(worker: &Worker, status: u16, with_key: bool) -> Finding {
    let (what, give) = match with_key {
        true => (format!("/v1/models answers {status} to the given key"), "give another key with --key"),
        false => (
            format!("/v1/models answers {status}: it requires a key"),
            "give doctor the key with --key or MAITRE_DOCTOR_KEY",
        ),
    };
    let start = worker.kind.advice(Need::NoKey);
    let fix = format!("{give}, and the router in worker_key or worker_key_file; or start the engine {start}");
    Finding::at(&worker.url, Code::KeyWanted, what, fix)
}

fn differ(listed: &[(&Worker, Vec<&str>)], outcome: &mut Outcome) {
    let Some(odd) = odd_ones(listed) else { return };
    for (worker, names) in odd.others {
        outcome.find(Finding::at(
            &worker.url,
            Code::ModelsDiffer,
            format!(
                "serves {}, while {} of {} serve {}",
                names.join(", "),
                odd.count,
                listed.len(),
                odd.usual.join(", ")
            ),
            "if all should serve the same, start it with the others' model and --served-model-name; \
             if not, --ignore models-differ",
        ));
    }
}
