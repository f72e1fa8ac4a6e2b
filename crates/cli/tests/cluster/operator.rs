//! What an operator sees of a router, through its admin API and its metrics.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use http::{Request, StatusCode};
use http_body_util::Full;
use serde_json::Value;

use crate::client::Client;

pub(crate) const ADMIN_KEY: &str = "what-the-operator-shows";

/// Requests, tokens to prefill and tokens to decode.
pub(crate) type Load = [u64; 3];

/// What is promised to each worker, by its URL: by this router, and by the others as it knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Promises {
    pub(crate) own: BTreeMap<String, Load>,
    pub(crate) others: BTreeMap<String, Load>,
}

/// What a router would do with a request.
#[derive(Clone, Debug)]
pub(crate) struct Considered {
    pub(crate) worker: String,
    /// Prompt tokens that this worker is believed to hold, and the most that any worker is.
    pub(crate) held: u64,
    pub(crate) held_most: u64,
}

/// A persistent connection, so that a query is quick.
pub(crate) struct Operator {
    client: Client,
}

impl Operator {
    pub(crate) async fn of(admin: SocketAddr) -> Operator {
        Operator { client: Client::connect(admin).await }
    }

    pub(crate) async fn see(&mut self, path: &str) -> Value {
        self.ask("GET", path, String::new()).await
    }

    /// Where a request would go, and what workers are believed to hold of it.
    pub(crate) async fn explain(&mut self, body: &Value) -> Considered {
        let decision = self.ask("POST", "/admin/v1/explain", body.to_string()).await;
        let candidates = decision["candidates"].as_array().unwrap();
        let chosen =
            candidates.iter().find(|it| it["chosen"] == true).unwrap_or_else(|| panic!("{decision}"));
        let held = |it: &Value| it["cached_tokens"].as_u64().unwrap();
        Considered {
            worker: chosen["url"].as_str().unwrap().to_owned(),
            held: held(chosen),
            held_most: candidates.iter().map(held).max().unwrap(),
        }
    }

    pub(crate) async fn is_ready(&mut self) -> bool {
        self.client.get("/readyz").await.status == StatusCode::OK
    }

    /// The number in the line with this beginning.
    pub(crate) async fn metric(&mut self, name: &str) -> f64 {
        let page = self.client.get("/metrics").await.text();
        metric(&page, name)
    }

    pub(crate) async fn promises(&mut self) -> Promises {
        let page = self.client.get("/metrics").await.text();
        let view = self.see("/admin/v1/workers").await;
        let mut promises = Promises::default();
        for worker in view["workers"].as_array().unwrap() {
            let url = worker["url"].as_str().unwrap().to_owned();
            let number = |it: &Value| it.as_u64().unwrap_or_else(|| panic!("{worker}"));
            let requests = metric(&page, &format!("maitre_worker_requests{{worker=\"{url}\"}}")) as u64;
            let own = [requests, number(&worker["prefill_tokens"]), number(&worker["decode_tokens"])];
            let others = &worker["other_routers"];
            let others = ["requests", "prefill_tokens", "decode_tokens"].map(|it| number(&others[it]));
            promises.own.insert(url.clone(), own);
            promises.others.insert(url, others);
        }
        promises
    }

    async fn ask(&mut self, method: &str, path: &str, body: String) -> Value {
        let request = Request::builder().method(method).uri(path).header("host", "maitre");
        let request = request.header("authorization", format!("Bearer {ADMIN_KEY}"));
        let answer = self.client.begin(request.body(Full::new(body.into())).unwrap()).await.rest().await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text());
        answer.json()
    }
}

impl Promises {
    pub(crate) fn requests_of_others(&self) -> u64 {
        self.others.values().map(|it| it[0]).sum()
    }

    pub(crate) fn is_nothing(&self) -> bool {
        self.own.values().chain(self.others.values()).all(|it| *it == Load::default())
    }
}

#[track_caller]
fn metric(page: &str, name: &str) -> f64 {
    let line = page.lines().find_map(|it| it.strip_prefix(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in:\n{page}"));
    line.trim().trim_start_matches("{}").trim().parse().unwrap()
}
