//! The listener for gateways: the router as an endpoint picker (Gateway API Inference Extension), over gRPC.
//!
//! A gateway shows a request, asks which worker to send it to, and shows the response as it passes. Connections, TLS,
//! lanes and the stages of a request are those of clients; only what travels is different. The gateway holds one stream for
//! each of its requests, for as long as the request takes, so a request that waits in the queue is a stream without an
//! answer, and a stream that ends is a client that left.
//!
//! `process` is one exchange, `messages` translates between HTTP and what gateways send, `endpoints` between workers and
//! their addresses, `health` answers gRPC's health checks.

mod endpoints;
mod health;
mod messages;
mod process;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use maitre_grpc::{ext_proc, health as grpc_health};
use maitre_net::wake_gate::Gated;
use tonic::Status;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic_prost::ProstCodec;

use crate::body_memory::ConnectionBodies;
use crate::client::streams::Streams;
use crate::client::{Busy, ClientSocket, Pulse};
use crate::lane::Lane;
use health::{Check, Watch};
use process::Process;

/// Exchanges at once on one connection. A gateway opens another connection for more.
const STREAMS_MAX: u32 = 1_024;

/// A gateway that vanished without closing its connection holds promises for its requests; so it is asked whether it is
/// there, this often, and gets as long to answer.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The largest message, which nothing counts until it is complete. gRPC's usual limit, so gateways send bodies in smaller pieces.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// Serves one connection of a gateway to its end.
pub(crate) async fn serve(lane: &Arc<Lane>, socket: ClientSocket, pulse: &Arc<Pulse>) {
    let state = &lane.state;
    let bodies: Arc<ConnectionBodies> = Arc::default();
    let service = service_fn(|request: Request<Incoming>| {
        let (lane, busy, bodies) = (lane.clone(), pulse.busy(), bodies.clone());
        async move { Ok::<_, Infallible>(answer(lane, busy, bodies, request).await) }
    });
    let timeouts = state.settings.load().timeouts;
    let mut builder = http2::Builder::new(Streams::new(state.clock, &timeouts));
    builder.timer(TokioTimer::new()).max_concurrent_streams(STREAMS_MAX);
    builder.keep_alive_interval(Some(KEEP_ALIVE)).keep_alive_timeout(KEEP_ALIVE);
    let mut served = pin!(builder.serve_connection(TokioIo::new(socket), service));
    // Connections break all the time, and an operator can do nothing about it.
    tokio::select! {
        biased;
        _ = served.as_mut() => return,
        () = Gated::new(state.shutdown.closing()) => served.as_mut().graceful_shutdown(),
    }
    let _ = served.await;
}

/// One call of a method.
async fn answer(
    lane: Arc<Lane>,
    busy: Busy,
    bodies: Arc<ConnectionBodies>,
    request: Request<Incoming>,
) -> Response<Body> {
    match request.uri().path() {
        ext_proc::PROCESS => {
            let mut grpc = Grpc::new(ProstCodec::default()).max_decoding_message_size(MESSAGE_BYTES_MAX);
            grpc.streaming(Process::new(lane, busy, bodies), request).await
        }
        grpc_health::CHECK => Grpc::new(ProstCodec::default()).unary(Check(lane), request).await,
        grpc_health::WATCH => Grpc::new(ProstCodec::default()).server_streaming(Watch(lane), request).await,
        path => Status::unimplemented(format!("{path} is not served here")).into_http(),
    }
}
