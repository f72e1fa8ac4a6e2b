//! What a worker that prefills for others hands over: one prompt of one token, as the router would send it.

use bytes::Bytes;
use maitre_base::Role;
use maitre_dialect::engine::EngineKind;
use maitre_dialect::exposition;
use maitre_dialect::legs::Transfer;
use maitre_dialect::route::Route;
use serde_json::Value;

use super::requests;
use crate::client::{DoctorClient, Question};
use crate::facts::{Handoff, Worker};

const CHAT: &str = "/v1/chat/completions";
const EXPIRED: &str = "vllm:nixl_num_kv_expired_reqs_total";

/// Asks a prefill worker of vLLM for a handoff, which nobody will fetch: a few blocks stay held until its lease ends.
pub(super) async fn ask(client: &DoctorClient, worker: &Worker, may_send: bool) -> Handoff {
    if worker.role != Role::Prefill || worker.kind != EngineKind::Vllm {
        return Handoff::Unasked;
    }
    let Some(model) = requests::model(worker).filter(|_| may_send) else { return Handoff::Unasked };
    let plain = requests::body(CHAT, &model, "Say one word.").to_string();
    let Ok(body) = Transfer::NixlPull.prefill(Route::Chat, plain.as_bytes()) else {
        return Handoff::Unasked;
    };
    let client = requests::patient(client);
    let Ok(body) = String::from_utf8(body) else { return Handoff::Unasked };
    match client.ask(Question::post(CHAT, body, None)).await {
        Ok(page) if page.is_success() => read(&page.body),
        // What is wrong with its answers another check says.
        _ => Handoff::Unasked,
    }
}

fn read(body: &Bytes) -> Handoff {
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    match answer["kv_transfer_params"]["remote_host"].as_str() {
        Some(host) => Handoff::At(host.to_owned()),
        None => Handoff::None,
    }
}

/// How many handoffs nobody fetched in time, by its metrics.
pub(super) fn expired(metrics: &[u8]) -> u64 {
    let of = exposition::samples(metrics).filter(|it| it.name == EXPIRED);
    of.map(|it| it.value as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_its_host_or_none() {
        let check = |body: &'static str, expected| assert_eq!(read(&Bytes::from(body)), expected, "{body}");
        check(r#"{"kv_transfer_params":{"remote_host":"10.0.0.1"}}"#, Handoff::At("10.0.0.1".to_owned()));
        check(r#"{"kv_transfer_params":null}"#, Handoff::None);
        check("{", Handoff::None);
    }

    #[test]
    fn expired_handoffs_are_summed_over_ranks() {
        let page = b"vllm:nixl_num_kv_expired_reqs_total{engine=\"0\"} 2\n\
                     vllm:nixl_num_kv_expired_reqs_total{engine=\"1\"} 3\n\
                     vllm:other_total 9\n";
        assert_eq!(expired(page), 5);
        assert_eq!(expired(b""), 0);
    }
}
