//! The log, when nobody reads it.

use crate::client::{CHAT, chat};
use crate::program::{Engine, Serve, without_colours};

/// More than fit into a pipe and the router's own buffer, at over a hundred bytes each.
const REQUESTS_MAX: usize = 10_000;

fn dropped(page: &str) -> f64 {
    let line = page.lines().find_map(|it| it.strip_prefix("maitre_log_lines_dropped_total "));
    line.map_or(0.0, |it| it.parse().unwrap())
}

#[tokio::test]
async fn a_log_that_nobody_reads_stops_no_request() {
    let engines = Engine::start_some(1, &["--profile", "instant"]).await;
    let mut serve = Serve::start(&engines, &["--log-level", "debug"]).await;
    serve.program.stop_reading();
    let mut client = serve.client().await;
    let mut sent = 0;
    while sent % 100 != 0 || dropped(&serve.metrics().await) == 0.0 {
        assert!(sent < REQUESTS_MAX, "nothing is dropped");
        assert_eq!(client.get("/nothing").await.status, 404);
        sent += 1;
    }
    assert_eq!(client.post(CHAT, &chat(5)).await.status, 200);
    serve.program.read_on();
    let said = |it: &str| without_colours(it).contains("log lines were dropped").then_some(());
    serve.program.until_says(said).await;
}
