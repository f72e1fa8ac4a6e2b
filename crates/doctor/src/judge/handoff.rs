//! Checks that what a prefill worker computes can be fetched.

use maitre_base::Role;

use super::groups;
use crate::code::Code;
use crate::facts::{Fleet, Handoff, Worker};
use crate::report::{Finding, Outcome};

pub(super) fn handoffs(fleet: &Fleet) -> Outcome {
    let mut outcome = Outcome::default();
    let mut asked = 0;
    for group in groups(fleet) {
        for worker in group.iter().filter(|it| it.role == Role::Prefill) {
            asked += usize::from(worker.handoff != Handoff::Unasked);
            outcome.findings.extend(place(worker, &group));
            outcome.findings.extend(expired(worker));
        }
    }
    outcome.said = match asked {
        0 => "no prefill worker was asked".to_owned(),
        _ => format!("{} asked for a handoff", super::workers(asked)),
    };
    outcome
}

/// Whether its decode workers can reach what it hands over.
fn place(worker: &Worker, group: &[&Worker]) -> Option<Finding> {
    match &worker.handoff {
        Handoff::Unasked => None,
        Handoff::None => Some(Finding::at(
            &worker.url,
            Code::HandoffMissing,
            "has the role prefill, but its answer to a prefill names no KV cache that another worker could fetch"
                .to_owned(),
            r#"start it with --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'"#
                .to_owned(),
        )),
        Handoff::At(place) => {
            let is_elsewhere = |it: &&&Worker| it.role == Role::Decode && host(&it.url) != host(&worker.url);
            let decode = group.iter().find(is_elsewhere).filter(|_| is_loopback(place))?;
            Some(Finding::at(
                &worker.url,
                Code::HandoffHost,
                format!("tells {} to fetch its KV cache from {place}", decode.url),
                format!(
                    "start it with VLLM_NIXL_SIDE_CHANNEL_HOST={}, or another address that decode workers reach",
                    host(&worker.url)
                ),
            ))
        }
    }
}

fn expired(worker: &Worker) -> Option<Finding> {
    (worker.expired_handoffs > 0).then(|| {
        Finding::at(
            &worker.url,
            Code::HandoffsExpired,
            format!("held the KV cache of {} prompts until nobody fetched it in time", worker.expired_handoffs),
            "check that decode workers reach its side channel and are not full; a longer \"kv_lease_duration\"; \
             clients that disconnect between prefill and answer count too"
                .to_owned(),
        )
    })
}

fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |it| it.1);
    let end = rest.rfind(':').filter(|&it| !rest[it..].contains(']')).unwrap_or(rest.len());
    &rest[..end]
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare == "localhost" || bare.parse::<std::net::IpAddr>().is_ok_and(|it| it.is_loopback())
}
