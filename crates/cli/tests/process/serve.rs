//! `maitre serve` with flags only: the answers of its two listeners.

use crate::client::{CHAT, Client, chat, chat_stream};
use crate::program::{Engine, Serve};

const INSTANT: &[&str] = &["--profile", "instant"];

#[tokio::test]
async fn three_flags_are_enough_to_serve() {
    let engines = Engine::start_some(2, INSTANT).await;
    let serve = Serve::start(&engines, &[]).await;
    let mut client = serve.client().await;

    let answer = client.post(CHAT, &chat(5)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["usage"]["completion_tokens"], 5);
    assert!(engines.iter().any(|it| it.url == answer.worker()), "{answer:?}");

    let answer = client.post(CHAT, &chat_stream(5)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = answer.text();
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    assert_eq!(text.matches("\"content\":").count(), 1 + 5, "a role and five tokens: {text}");
}

#[tokio::test]
async fn the_admin_listener_has_health_readiness_and_metrics() {
    let engines = Engine::start_some(1, INSTANT).await;
    let serve = Serve::start(&engines, &[]).await;
    assert_eq!(serve.client().await.post(CHAT, &chat(1)).await.status, 200);
    let mut admin = Client::connect(serve.admin).await;
    for (path, status, text) in
        [("/healthz", 200, "alive\n"), ("/readyz", 200, "ready\n"), ("/nothing", 404, "try /, /healthz")]
    {
        let answer = admin.get(path).await;
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.text().starts_with(text), "{path}: {}", answer.text());
    }
    let page = admin.get("/metrics").await.text();
    let counted = r#"maitre_requests_total{route="chat",outcome="answered",code=""} 1"#;
    assert!(page.contains(counted), "{page}");
    assert_eq!(serve.client().await.get("/metrics").await.status, 404, "not for clients");
}

#[tokio::test]
async fn a_router_without_a_worker_is_alive_but_not_ready() {
    let serve = Serve::start(&[], &[]).await;
    let mut admin = Client::connect(serve.admin).await;
    assert_eq!(admin.get("/healthz").await.status, 200);
    assert_eq!(admin.get("/readyz").await.status, 503);
    let answer = serve.client().await.post(CHAT, &chat(1)).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["code"]), (503, &"no_worker".into()));
}

#[tokio::test]
async fn every_metric_on_the_page_is_in_the_documentation() {
    let engines = Engine::start_some(1, INSTANT).await;
    let serve = Serve::start(&engines, &[]).await;
    assert_eq!(serve.client().await.post(CHAT, &chat_stream(3)).await.status, 200);
    assert_eq!(serve.client().await.get("/nothing").await.status, 404);
    let page = serve.metrics().await;
    let docs =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md")).unwrap();
    let names = page.lines().filter_map(|it| it.strip_prefix("# TYPE ")?.split(' ').next());
    let absent: Vec<&str> = names.filter(|it| !docs.contains(it)).collect();
    assert!(absent.is_empty(), "docs/metrics.md says nothing of {absent:?}");
}
