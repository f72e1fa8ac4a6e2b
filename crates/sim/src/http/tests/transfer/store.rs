//! A store that engines share.

use super::*;
use crate::http::StoreMember;
use crate::link::LinkModel;
use crate::store::SharedStore;

/// Loads take this long, and 100 bytes a token at 1,000 bytes a millisecond.
const LINK: LinkModel =
    LinkModel { floor: Duration::from_millis(50), bytes_per_second: 1e6, token_bytes: 100 };

async fn member(store: &SharedStore, link: LinkModel) -> Host {
    let store = Some(StoreMember { store: store.clone(), link });
    let config = HostConfig { model: "tiny".to_owned(), store, ..HostConfig::new(INSTANT) };
    Host::bind(LOOPBACK, config).await.unwrap()
}

async fn ask(host: &Host) -> RouteReply {
    post(host, "/v1/chat/completions", chat(TEXT, json!({"max_tokens": 24}))).await
}

fn cached_tokens(reply: &RouteReply) -> Value {
    reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
}

#[tokio::test(start_paused = true)]
async fn what_another_engine_computed_is_loaded_over_the_link() {
    let store = SharedStore::new(100);
    let (a, b) = (member(&store, LINK).await, member(&store, LINK).await);
    let computed = ask(&a).await;
    let (loaded, took) = timed(ask(&b)).await;
    assert_eq!(text_of(&loaded), text_of(&computed));
    assert_eq!((cached_tokens(&computed), cached_tokens(&loaded)), (json!(0), json!(48)));
    // 4,800 bytes.
    let expected = Duration::from_micros(54_800);
    assert!(took >= expected && took < expected + SHORT, "{took:?}");
    check_metrics(
        &b,
        &[
            ("prompt_tokens_by_source_total{source=\"local_compute\"}", 11.0),
            ("prompt_tokens_by_source_total{source=\"external_kv_transfer\"}", 48.0),
            ("prompt_tokens_cached_by_source_total{source=\"store\"}", 48.0),
            ("external_prefix_cache_hits_total", 48.0),
        ],
    )
    .await;
    let (again, took) = timed(ask(&b)).await;
    assert_eq!(cached_tokens(&again), json!(48));
    assert!(took < SHORT, "it is in the engine's own cache now: {took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_during_a_load_leaves_the_engine_idle() {
    let store = SharedStore::new(100);
    let (a, b) = (member(&store, LINK).await, member(&store, LINK).await);
    ask(&a).await;
    let handle = b.handle();
    tokio::select! {
        _ = ask(&b) => panic!("it takes longer"),
        _ = handle.until(|it| it.engine.receiving == 1) => {}
    }
    handle.until(|it| it.engine.counters.aborted == 1).await;
    assert_eq!(handle.stats().engine.used_blocks, 0);
}

#[tokio::test]
async fn events_name_the_store() {
    let store = SharedStore::new(100);
    let mut config = HostConfig::new(INSTANT);
    config.engine.changes_max = 100;
    config.store = Some(StoreMember { store, link: LinkModel::of(&INSTANT) });
    config.model = "tiny".to_owned();
    let host = Host::bind(LOOPBACK, config).await.unwrap();
    ask(&host).await;
    let (changes, _) = host.handle().take_changes();
    let stored = changes
        .iter()
        .filter(|it| matches!(it, crate::kv::Change::Stored(it) if it.medium == crate::kv::Medium::Store));
    assert_eq!(stored.count(), 3);
}
