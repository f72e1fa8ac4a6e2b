//! KEDA's external scaler: the number of workers that each model should have, over gRPC.
//!
//! It says what `/metrics` says, and like `/metrics` it needs no key: nothing of it is of any request. KEDA could send one
//! only in the clear text of its own objects. Where strangers reach this port, `admin_tls` can ask for a certificate.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use maitre_dispatch::Brain;
use maitre_grpc::external_scaler::{
    GET_METRIC_SPEC, GET_METRICS, GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IS_ACTIVE,
    IsActiveResponse, MetricSpec, MetricValue, STREAM_IS_ACTIVE, ScaledObjectRef,
};
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::codec::Codec;
use tonic::server::{Grpc, ServerStreamingService, UnaryService};
use tonic::{Request as Call, Response as Answer, Status};
use tonic_prost::ProstCodec;

use super::{AdminState, READ_PATIENCE};
use crate::client::streams::Streams;
use crate::client::{ClientSocket, Pulse};
use crate::state::RouterState;

/// The name of the metric.
const METRIC: &str = "maitre_desired_workers";

/// The key that names the model, in `metadata` of a trigger.
const MODEL: &str = "model";

/// Calls at once on one connection. Chosen: KEDA has one stream for each scaled object.
const CALLS_MAX: u32 = 128;

/// A call names an object and a model. Announced sizes above this are refused before anything is reserved for them.
const MESSAGE_MAX: usize = 16 << 10;

/// Streams of `StreamIsActive` that later ones leave open, on all connections. Beyond that the oldest ends, and its client
/// opens another; a stranger that opens many keeps nobody out.
const WATCHES_MAX: u64 = 256;

/// As often as the number is computed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A client that vanished without closing its connection is asked whether it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Serves one connection over HTTP/2 to its end.
pub(super) async fn serve(admin: &Arc<AdminState>, socket: ClientSocket, pulse: &Arc<Pulse>) {
    let service = service_fn(|request: Request<Incoming>| {
        let (admin, busy) = (admin.clone(), pulse.busy());
        async move {
            let too_slow = |_| Status::deadline_exceeded("the call did not arrive in time").into_http();
            let response = timeout(READ_PATIENCE, answer(&admin, request)).await.unwrap_or_else(too_slow);
            drop(busy);
            Ok::<_, Infallible>(response)
        }
    });
    let timeouts = admin.router.settings.load().timeouts;
    let mut builder = http2::Builder::new(Streams::new(admin.router.clock, &timeouts));
    builder.timer(TokioTimer::new()).max_concurrent_streams(CALLS_MAX);
    builder.keep_alive_interval(Some(KEEP_ALIVE)).keep_alive_timeout(KEEP_ALIVE);
    // Connections break all the time, and an operator can do nothing about it.
    let _ = builder.serve_connection(TokioIo::new(socket), service).await;
}

/// One call of a method.
async fn answer(admin: &Arc<AdminState>, request: Request<Incoming>) -> Response<Body> {
    let scaler = Scaler(admin.clone());
    match request.uri().path() {
        IS_ACTIVE => small(ProstCodec::default()).unary(IsActive(scaler), request).await,
        STREAM_IS_ACTIVE => small(ProstCodec::default()).server_streaming(scaler, request).await,
        GET_METRIC_SPEC => small(ProstCodec::default()).unary(GetMetricSpec, request).await,
        GET_METRICS => small(ProstCodec::default()).unary(GetMetrics(scaler), request).await,
        path => Status::unimplemented(format!("{path} is not served here")).into_http(),
    }
}

/// A method with small messages.
fn small<C: Codec>(codec: C) -> Grpc<C> {
    Grpc::new(codec).max_decoding_message_size(MESSAGE_MAX)
}

struct Scaler(Arc<AdminState>);
struct IsActive(Scaler);
struct GetMetricSpec;
struct GetMetrics(Scaler);

type Answered<T> = std::future::Ready<Result<Answer<T>, Status>>;

fn answered<T>(result: Result<T, Status>) -> Answered<T> {
    std::future::ready(result.map(Answer::new))
}

impl Scaler {
    fn desired(&self, metadata: &HashMap<String, String>) -> Result<u32, Status> {
        desired(&self.0.router, metadata.get(MODEL).map(String::as_str))
    }
}

/// How many workers this model should have; without a name, the only model.
fn desired(router: &RouterState, model: Option<&str>) -> Result<u32, Status> {
    router.brain.read(|brain| {
        let named = |name: &str| brain.fleet().expected(name).map(|it| brain.fleet().base(it));
        let numbers = brain.scaling();
        let found = match (model, numbers) {
            (Some(name), _) => {
                named(name).and_then(|it| numbers.iter().find(|number| number.model == Some(it)))
            }
            (None, [only]) => Some(only),
            (None, _) => {
                return Err(Status::invalid_argument(format!(
                    "metadata has no \"model\"; write one of: {}",
                    names(brain)
                )));
            }
        };
        found.map(|it| it.desired.workers).ok_or_else(|| {
            Status::not_found(format!(
                "model {:?} is not known; known: {}. List models that may have no worker in scaling.models",
                model.unwrap_or("").chars().take(NAME_SHOWN).collect::<String>(),
                names(brain)
            ))
        })
    })
}

/// Most names in a message, and characters of one that is not known.
const NAMES_MAX: usize = 20;
const NAME_SHOWN: usize = 100;

fn names(brain: &Brain) -> String {
    let names = brain.scaling().iter().filter_map(|it| brain.fleet().name(it.model?));
    let names: Vec<&str> = names.map(|it| &**it).take(NAMES_MAX).collect();
    if names.is_empty() { "none yet".to_owned() } else { names.join(", ") }
}

impl UnaryService<ScaledObjectRef> for IsActive {
    type Response = IsActiveResponse;
    type Future = Answered<IsActiveResponse>;

    fn call(&mut self, call: Call<ScaledObjectRef>) -> Self::Future {
        let desired = self.0.desired(&call.get_ref().scaler_metadata);
        answered(desired.map(|it| IsActiveResponse { result: it > 0 }))
    }
}

impl UnaryService<ScaledObjectRef> for GetMetricSpec {
    type Response = GetMetricSpecResponse;
    type Future = Answered<GetMetricSpecResponse>;

    fn call(&mut self, _call: Call<ScaledObjectRef>) -> Self::Future {
        // One worker for each that is asked for.
        let spec = MetricSpec { metric_name: METRIC.to_owned(), target_size: 1, target_size_float: 1.0 };
        answered(Ok(GetMetricSpecResponse { metric_specs: vec![spec] }))
    }
}

impl UnaryService<GetMetricsRequest> for GetMetrics {
    type Response = GetMetricsResponse;
    type Future = Answered<GetMetricsResponse>;

    fn call(&mut self, call: Call<GetMetricsRequest>) -> Self::Future {
        let request = call.into_inner();
        let metadata = request.scaled_object_ref.unwrap_or_default().scaler_metadata;
        answered(self.0.desired(&metadata).map(|it| {
            let value = MetricValue {
                metric_name: METRIC.to_owned(),
                metric_value: i64::from(it),
                metric_value_float: f64::from(it),
            };
            GetMetricsResponse { metric_values: vec![value] }
        }))
    }
}

impl ServerStreamingService<ScaledObjectRef> for Scaler {
    type Response = IsActiveResponse;
    type ResponseStream = Activity;
    type Future = Answered<Activity>;

    fn call(&mut self, call: Call<ScaledObjectRef>) -> Self::Future {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let model = call.into_inner().scaler_metadata.remove(MODEL);
        let number = self.0.watches.fetch_add(1, Ordering::Relaxed);
        answered(Ok(Activity { admin: self.0.clone(), model, last: None, looks, number }))
    }
}

/// Whether there should be any worker, and then each change of that.
struct Activity {
    admin: Arc<AdminState>,
    model: Option<String>,
    last: Option<bool>,
    looks: Interval,
    /// How many were opened before this one.
    number: u64,
}

impl Activity {
    fn has_to_end(&self) -> bool {
        self.admin.watches.load(Ordering::Relaxed).saturating_sub(self.number) > WATCHES_MAX
    }
}

impl Stream for Activity {
    type Item = Result<IsActiveResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            ready!(self.looks.poll_tick(cx));
            if self.has_to_end() {
                return Poll::Ready(Some(Err(Status::unavailable(
                    "later streams took its place; open another",
                ))));
            }
            let result = match desired(&self.admin.router, self.model.as_deref()) {
                Ok(workers) => workers > 0,
                Err(status) => return Poll::Ready(Some(Err(status))),
            };
            if self.last.replace(result) != Some(result) {
                return Poll::Ready(Some(Ok(IsActiveResponse { result })));
            }
        }
    }
}
