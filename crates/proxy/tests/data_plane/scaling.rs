//! A fleet that goes to no worker: KEDA's questions over real sockets, and a request that waits for its first worker.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use maitre_grpc::external_scaler::{
    GET_METRIC_SPEC, GET_METRICS, GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IS_ACTIVE,
    IsActiveResponse, STREAM_IS_ACTIVE, ScaledObjectRef,
};
use maitre_sim::http::Host;
use prost::Message;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::fixture::{
    ANYWHERE, Client, Fixture, chat, engine_settings, fixture, fixture_with, get, metric, settings, within,
};
use crate::picker::gateway::frame;

/// KEDA, as far as a scaler sees it.
struct Keda {
    sender: SendRequest<Full<Bytes>>,
    _driver: JoinSet<()>,
}

impl Keda {
    async fn connect(addr: SocketAddr) -> Keda {
        let tcp = within(TcpStream::connect(addr)).await.unwrap();
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tcp)).await.unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        Keda { sender, _driver: driver }
    }

    async fn call(&mut self, method: &str, message: &impl Message) -> Response<Incoming> {
        let request = Request::post(format!("http://maitre{method}"));
        let request = request.header("content-type", "application/grpc").header("te", "trailers");
        let request = request.body(Full::new(frame(message))).unwrap();
        within(self.sender.send_request(request)).await.unwrap()
    }

    /// The answer, or the status and its message.
    async fn ask<T: Message + Default>(&mut self, method: &str, message: &impl Message) -> Result<T, String> {
        let answer = self.call(method, message).await;
        let text = |name: &str| answer.headers().get(name).map(|it| it.to_str().unwrap().to_owned());
        if let Some(status) = text("grpc-status").filter(|it| it != "0") {
            return Err(format!("{status} {}", text("grpc-message").unwrap_or_default()));
        }
        let body = within(answer.into_body().collect()).await.unwrap().to_bytes();
        Ok(T::decode(&body[5..]).unwrap())
    }

    async fn is_active(&mut self, model: &str) -> Result<bool, String> {
        self.ask(IS_ACTIVE, &object(&[("model", model)])).await.map(|it: IsActiveResponse| it.result)
    }

    async fn number(&mut self, model: &str) -> Result<i64, String> {
        let request = GetMetricsRequest {
            scaled_object_ref: Some(object(&[("model", model)])),
            metric_name: "maitre_desired_workers".to_owned(),
        };
        let response: GetMetricsResponse = self.ask(GET_METRICS, &request).await?;
        let value = &response.metric_values[0];
        assert_eq!(value.metric_value as f64, value.metric_value_float);
        Ok(value.metric_value)
    }
}

fn object(metadata: &[(&str, &str)]) -> ScaledObjectRef {
    let metadata = metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    ScaledObjectRef {
        name: "llama".to_owned(),
        namespace: "default".to_owned(),
        scaler_metadata: metadata.collect::<HashMap<_, _>>(),
    }
}

/// A router without workers, for a model that may have none.
async fn from_zero() -> Fixture {
    let mut settings = settings();
    settings.brain.scaling.idle = Duration::from_secs(60);
    settings.brain.expected_models = vec!["maitre-sim".to_owned()];
    fixture_with(0, engine_settings(), settings).await
}

#[tokio::test]
async fn keda_learns_the_number_by_model_on_the_admin_listener() {
    let fixture = fixture(2).await;
    within(fixture.router.until(|it| it.scaling().iter().any(|it| it.model.is_some()))).await;
    let mut keda = Keda::connect(fixture.router.admin()).await;
    let spec: GetMetricSpecResponse = keda.ask(GET_METRIC_SPEC, &object(&[])).await.unwrap();
    assert_eq!(spec.metric_specs.len(), 1);
    assert_eq!(spec.metric_specs[0].metric_name, "maitre_desired_workers");
    assert_eq!((spec.metric_specs[0].target_size, spec.metric_specs[0].target_size_float), (1, 1.0));
    assert_eq!(keda.number("maitre-sim").await, Ok(1));
    assert_eq!(keda.is_active("maitre-sim").await, Ok(true));
    let only: IsActiveResponse = keda.ask(IS_ACTIVE, &object(&[])).await.unwrap();
    assert!(only.result, "there is one model, which need not be named");
    let unknown = keda.number("gpt-5").await.unwrap_err();
    assert!(unknown.starts_with("5 ") && unknown.contains("maitre-sim"), "{unknown}");
    let other = keda.ask::<IsActiveResponse>("/externalscaler.ExternalScaler/Other", &object(&[])).await;
    assert!(other.unwrap_err().starts_with("12 "));
    // The page, probes and metrics stay where they were.
    let mut client = Client::connect(fixture.router.admin()).await;
    assert_eq!(client.ask(get("/readyz")).await.unwrap().status, 200);
}

#[tokio::test]
async fn a_request_waits_for_its_first_worker_and_keda_starts_it() {
    let fixture = from_zero().await;
    let router = &fixture.router;
    let mut admin = Client::connect(router.admin()).await;
    assert_eq!(admin.ask(get("/readyz")).await.unwrap().status, 200, "requests may come");
    within(router.until(|it| !it.scaling().is_empty())).await;
    let mut keda = Keda::connect(router.admin()).await;
    assert_eq!(keda.is_active("maitre-sim").await, Ok(false));
    assert_eq!(keda.number("maitre-sim").await, Ok(0));
    let mut watch = keda.call(STREAM_IS_ACTIVE, &object(&[("model", "maitre-sim")])).await.into_body();
    let mut seen = BytesMut::new();
    let mut next = async || {
        while seen.len() < 5 || seen.len() < 5 + usize::from(seen[4]) {
            let frame = within(watch.frame()).await.expect("the stream goes on").unwrap();
            seen.extend_from_slice(&frame.into_data().unwrap());
        }
        let length = 5 + usize::from(seen[4]);
        IsActiveResponse::decode(&seen.split_to(length)[5..]).unwrap().result
    };
    assert!(!next().await);

    let mut client = fixture.client().await;
    let mut asking = JoinSet::new();
    asking.spawn(async move { client.post("/v1/chat/completions", chat(5, false)).await });
    assert!(next().await, "pushed, once the request waits");
    assert_eq!(keda.number("maitre-sim").await, Ok(1));
    let page = router.metrics();
    let line = "maitre_desired_workers_reason{model=\"maitre-sim\",reason=\"first-worker\"}";
    assert_eq!(metric(&page, line), 1.0);

    let engine = Host::bind(ANYWHERE, engine_settings()).await.unwrap();
    router.discovered(&[format!("http://{}", engine.addr()).parse().unwrap()], Vec::new());
    let answer = within(asking.join_next()).await.unwrap().unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    fixture.until_nothing_is_open().await;
}

#[tokio::test]
async fn only_known_models_wait_and_only_where_that_is_on() {
    let fixture = from_zero().await;
    let body = chat(5, false).replace("maitre-sim", "gpt-5");
    let answer = fixture.client().await.post("/v1/chat/completions", body).await;
    assert_eq!((answer.status.as_u16(), answer.json()["error"]["code"].as_str()), (503, Some("no_worker")));

    let mut off = settings();
    off.brain.expected_models = vec!["maitre-sim".to_owned()];
    let fixture = fixture_with(0, engine_settings(), off).await;
    let answer = fixture.client().await.post("/v1/chat/completions", chat(5, false)).await;
    assert_eq!((answer.status.as_u16(), answer.json()["error"]["code"].as_str()), (503, Some("no_worker")));
    let mut admin = Client::connect(fixture.router.admin()).await;
    assert_eq!(admin.ask(get("/readyz")).await.unwrap().status, 503);
}
