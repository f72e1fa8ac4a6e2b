//! Over real sockets, against the simulated engine: the wiring. How good the constants are is tested in virtual time.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::*;
use crate::facts::{Fact, FactSource};
use crate::probe::RoundKind;
use crate::session::{SessionSettings, calibrate};
use maitre_net::address::Address;
use maitre_sim::http::fault::{Fault, Injection};
use maitre_sim::http::{Host, HostConfig};
use maitre_sim::profile::{H200_8B, INSTANT, Profile, StepModel};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

const ANYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

async fn host(profile: Profile) -> (Host, HttpClient) {
    let host = Host::bind(ANYWHERE, HostConfig::new(profile)).await.unwrap();
    let client = HttpClient::new(Address::from(host.addr()), Arc::default(), None);
    (host, client)
}

async fn meet(client: &HttpClient) -> (LiveEngine, EngineFacts) {
    LiveEngine::meet(client.clone(), None, Duration::from_secs(5)).await.unwrap()
}

fn round(requests: Vec<ProbeRequest>) -> ProbeRound {
    ProbeRound { kind: RoundKind::Decode, requests }
}

#[tokio::test]
async fn an_engine_is_met_and_answers_token_by_token() {
    let (_host, client) = host(INSTANT).await;
    let (mut engine, facts) = meet(&client).await;
    let read = |value, path| Some(Fact { value, source: FactSource::Read(path) });
    assert_eq!(engine.model, "maitre-sim");
    assert_eq!(facts.block_tokens, read(16, "/metrics"));
    assert_eq!(facts.kv_tokens, read(16 * 65_536, "/metrics"));
    assert_eq!(facts.context_tokens_max, read(131_072, "/v1/models"));
    let requests = vec![ProbeRequest::new(1, 100, 7), ProbeRequest::new(2, 50, 3)];
    let answers = engine.run(&round(requests)).await.unwrap();
    let seen: Vec<(usize, Option<u32>)> =
        answers.iter().map(|it| (it.tokens.len(), it.cached_tokens)).collect();
    assert_eq!(seen, [(7, Some(0)), (3, Some(0))]);
    let again = engine.run(&round(vec![ProbeRequest::new(1, 100, 1)])).await.unwrap();
    assert_eq!(again[0].cached_tokens, Some(96));
}

#[tokio::test]
async fn a_router_is_refused() {
    let listener = TcpListener::bind(ANYWHERE).await.unwrap();
    let client = HttpClient::new(Address::from(listener.local_addr().unwrap()), Arc::default(), None);
    let answer = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = [0; 1_024];
        let read = stream.read(&mut asked).await.unwrap();
        assert!(asked[..read].starts_with(b"GET /health "));
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nx-maitre-router: 1\r\ncontent-length: 0\r\n\r\n")
            .await
            .unwrap();
    };
    let (met, ()) = tokio::join!(LiveEngine::meet(client, None, Duration::from_secs(5)), answer);
    let refused = met.err().unwrap();
    assert!(refused.to_string().contains("is a Maitre router"), "{refused:#}");
}

#[tokio::test]
async fn a_short_calibration_runs_to_its_end() {
    let step = StepModel { floor_ms: 1.0, ..H200_8B.step };
    let profile = Profile { step, kv_blocks: 2_001, context_tokens_max: 8_192, running_max: 20, ..H200_8B };
    let (host, client) = host(profile).await;
    let (mut engine, facts) = meet(&client).await;
    let settings = SessionSettings { facts, time: Duration::from_secs(2), seed: 3 };
    let mut rounds = (0, 0);
    let found = calibrate(&mut engine, &settings, |done, all| rounds = (done + 1, all)).await.unwrap();
    assert_eq!(rounds.0, rounds.1);
    assert_eq!((found.profile.kv_blocks, found.profile.block_tokens), (2_001, 16));
    assert_eq!(found.sizes.running_max, Fact { value: 20, source: FactSource::Measured });
    assert!(found.fit.equations > 8 && found.profile.step.prefill_token_ms > 0.0, "{:?}", found.fit);
    assert!(found.mixed.len() >= 8 && found.singles.len() == 4);
    assert!(
        found.measured.repeats.iter().all(|it| it.cached_tokens > Some(0)),
        "{:?}",
        found.measured.repeats
    );
    let received = host.handle().stats().requests_received;
    assert!(received < 500, "{received} requests");
}

#[tokio::test]
async fn an_engine_that_fails_ends_the_calibration_with_its_reason() {
    let (host, client) = host(INSTANT).await;
    let missing =
        LiveEngine::meet(client.clone(), Some("gpt"), Duration::ZERO).await.err().unwrap().to_string();
    assert_eq!(missing, "--model gpt: the engine does not serve it; it serves maitre-sim");
    let (mut engine, _) = meet(&client).await;
    let too_long = engine.run(&round(vec![ProbeRequest::new(1, 131_072, 1)])).await.unwrap_err();
    let text = format!("{too_long:#}");
    assert!(text.contains("probe http://127.0.0.1:") && text.contains("maximum context length"), "{text}");
    host.handle().inject(Injection::always(Fault::CloseAfterChunks { chunks: 2 }));
    assert!(engine.run(&round(vec![ProbeRequest::new(1, 10, 9)])).await.is_err());
    let gone = client.clone();
    host.stop().await;
    let refused = LiveEngine::meet(gone, None, Duration::ZERO).await.err().unwrap();
    assert!(format!("{refused:#}").contains("/v1/models: connect: "), "{refused:#}");
}
