//! The operator's listener: is it alive, is it ready, what does it count. Nothing here changes anything.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use maitre_fleet::State;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::house::House;
use crate::refuse::{Health, plain};
use crate::server::ACCEPT_PAUSE;

/// Operators, scrapers and probes at once; further ones wait in the kernel.
const CONNECTIONS_MAX: usize = 64;

/// OpenMetrics, as prometheus-client writes it.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(crate) async fn listen(house: Arc<House>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => {
                match accepted {
                    Ok((stream, _)) => drop(connections.spawn(connection(house.clone(), stream))),
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(house: Arc<House>, stream: TcpStream) {
    let service = service_fn(|request: Request<Incoming>| {
        let response = answer(&house, request.uri().path());
        async move { Ok::<_, Infallible>(response.map(Full::new)) }
    });
    // Errors here are the scraper's own; it will come again.
    let _ =
        http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service).await;
}

fn answer(house: &House, path: &str) -> Response<Bytes> {
    match path {
        "/healthz" => plain(Health::Well, "alive\n"),
        "/readyz" => readiness(house),
        "/metrics" => {
            let page = house.look(|brain| house.metrics.page(house.now(), brain));
            let mut response = Response::new(Bytes::from(page));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(METRICS_TYPE));
            response
        }
        _ => plain(Health::Unknown, "try /healthz, /readyz or /metrics\n"),
    }
}

/// Ready: not leaving, and at least one worker could take a request now.
fn readiness(house: &House) -> Response<Bytes> {
    if house.leaving.is_cancelled() {
        return plain(Health::Unwell, "draining\n");
    }
    let fit = |state| matches!(state, State::Ready | State::Warming { .. });
    match house.look(|brain| brain.fleet().workers().any(|it| fit(it.health.state()))) {
        true => plain(Health::Well, "ready\n"),
        false => plain(Health::Unwell, "no worker is ready\n"),
    }
}
