//! The listener for clients and its connections: limits, timeouts, graceful shutdown.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Method, Request, Response};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use maitre_net::downstream::Downstream;
use maitre_net::stream::ByteStream;
use maitre_net::wake_gate::Gated;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tracing::{info, warn};

use crate::body_memory::ConnectionBodies;
use crate::client::streams::{CHUNK_BYTES_MAX, Streams};
use crate::client::{Busy, ClientSocket, Pulse};
use crate::clock::Clock;
use crate::cors::CrossOrigin;
use crate::descriptors;
use crate::lane::Lane;
use crate::picker;
use crate::probes::probe;
use crate::refuse::bad_head;
use crate::request::{RequestBody, RequestGuard, ResponseBody, receive, respond};
use crate::settings::{RouterSettings, Serves};
use crate::shutdown::Shutdown;
use crate::state::RouterState;
use crate::tls::Listener;

/// Concurrent requests on one HTTP/2 connection.
const STREAMS_MAX: u32 = 1_024;

/// Bytes of one HTTP/2 stream that wait for the socket. hyper's 400 KB are 400 MB for a connection whose client opens wide
/// windows and does not read. Chosen: four frames; what the network has under way is in the kernel's buffer.
const SEND_BYTES_MAX: usize = 4 * CHUNK_BYTES_MAX;

/// A client connection for a thread to serve. Dropping the permit lets another one be accepted.
pub(crate) struct Accepted {
    pub(crate) stream: std::net::TcpStream,
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Pause after a failed `accept`.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections and hands them to the threads in turn, until the router closes.
pub(crate) async fn listen(
    state: Arc<RouterState>,
    listener: TcpListener,
    threads: Vec<mpsc::Sender<Accepted>>,
) {
    let permits = Arc::new(Semaphore::new(connections_max(state.settings.load().limits.connections)));
    let mut turn = 0;
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &permits) => accepted,
            () = state.shutdown.closing() => return,
        };
        match accepted {
            Ok(accepted) => {
                turn = (turn + 1) % threads.len().max(1);
                // A thread's queue holds as many connections as there are permits: it is never full, and closed only
                // when the router is.
                let _ = threads[turn].try_send(accepted);
            }
            Err(error) => {
                // Out of file descriptors, most likely: wait until a connection ends.
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// What the operator allows, as far as there are descriptors for it.
fn connections_max(allowed: usize) -> usize {
    let possible = descriptors::client_connections_max();
    if possible < allowed {
        // Not a warning: that many are enough for most.
        info!(
            "serving at most {possible} client connections at a time: the limit on open files is too low for \
             limits.connections = {allowed}; raise it (`ulimit -n`, LimitNOFILE under systemd)"
        );
    }
    allowed.min(possible)
}

async fn accept(listener: &TcpListener, permits: &Arc<Semaphore>) -> std::io::Result<Accepted> {
    let permit = permits.clone().acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    // Without the option there is more latency, but no error.
    let _ = stream.set_nodelay(true);
    Ok(Accepted { stream: stream.into_std()?, permit })
}

/// Serves one client connection to its end.
pub(crate) async fn connection(lane: Arc<Lane>, stream: TcpStream, permit: OwnedSemaphorePermit) {
    let state = lane.state.clone();
    let RouterState { settings, tls, metrics, .. } = &*state;
    let limit = settings.load().timeouts.client_header;
    serve_stream(lane, tls.accept(Listener::Clients, stream, limit, metrics)).await;
    drop(permit);
}

/// Serves the stream that `opening` yields to its end; nothing if it yields none.
pub(crate) async fn serve_stream(lane: Arc<Lane>, opening: impl Future<Output = Option<ByteStream>>) {
    let state = lane.state.clone();
    let settings = state.settings.load();
    let mut timeouts = settings.timeouts;
    if settings.serves == Serves::Gateways {
        // A request that a gateway sends at the moment its idle connection is closed would fail.
        timeouts.client_idle = Duration::MAX;
    }
    let pulse = Arc::new(Pulse::new(timeouts));
    drop(settings);
    state.metrics.connections.inc();
    tokio::select! {
        biased;
        () = exchange(&lane, opening, &pulse) => {}
        () = Gated::new(pulse.watch(|| state.shutdown.is_closing())) => {}
    }
    state.metrics.connections.dec();
}

/// The first bytes of a client that uses HTTP/2 with prior knowledge.
const PREFACE: &[u8] = b"PRI * HTTP/2";

async fn exchange(lane: &Arc<Lane>, opening: impl Future<Output = Option<ByteStream>>, pulse: &Arc<Pulse>) {
    let shutdown = &lane.state.shutdown;
    let accepted = tokio::select! {
        biased;
        accepted = opening => accepted,
        () = shutdown.closing() => return,
    };
    let Some(stream) = accepted else { return };
    let version = tokio::select! {
        biased;
        version = is_http2(&stream) => version,
        () = shutdown.closing() => return,
    };
    let Some(is_http2) = version else { return };
    if is_http2 {
        pulse.is_http2();
    }
    let socket = ClientSocket::new(stream, pulse.clone());
    let serves = lane.state.settings.load().serves;
    match (serves, is_http2) {
        (Serves::Clients, true) => serve_http2(lane, socket, pulse).await,
        (Serves::Clients, false) => serve_http1(lane, socket, pulse).await,
        (Serves::Gateways, true) => picker::serve(lane, socket, pulse).await,
        // gRPC needs HTTP/2.
        (Serves::Gateways, false) => {}
    }
}

/// Answers one request after the other, until the client leaves or the router closes.
async fn serve_http1(lane: &Arc<Lane>, socket: ClientSocket, pulse: &Arc<Pulse>) {
    let RouterState { settings, shutdown, .. } = &*lane.state;
    let bodies: Arc<ConnectionBodies> = Arc::default();
    let mut client = Downstream::new(socket, settings.load().limits.header_bytes);
    let mut closing = Gated::new(shutdown.closing());
    loop {
        let head = poll_fn(|cx| match client.poll_head(cx) {
            Poll::Ready(head) => Poll::Ready(head),
            // A request that has begun to arrive is still answered, if its head does not take too long.
            Poll::Pending if !client.is_idle() => {
                pulse.head_began();
                Poll::Pending
            }
            Poll::Pending => match Pin::new(&mut closing).poll(cx).is_ready() || shutdown.is_closing() {
                true => Poll::Ready(Ok(None)),
                false => Poll::Pending,
            },
        });
        let responded = match head.await {
            Ok(Some(request)) => {
                let opened = Opened::new(lane, pulse.busy(), &bodies, request);
                let Some(response) = answer(opened, &mut client).await else { return };
                client.respond(response, shutdown.is_closing()).await
            }
            Ok(None) => break,
            Err(bad) => client.respond(bad_head(bad).map(ResponseBody::Whole), true).await,
        };
        match responded {
            Ok(true) => {}
            Ok(false) => break,
            // Clients break connections all the time, and an operator can do nothing about it.
            Err(_) => return,
        }
    }
    client.close().await;
}

/// The response to a request; none if the client disconnected before it began.
async fn answer(opened: Opened<()>, client: &mut Downstream<ClientSocket>) -> Option<Response<ResponseBody>> {
    let Opened { request, cors, by } = opened;
    let mut response = match by {
        AnswerBy::Probe(response) => response.map(ResponseBody::Whole),
        AnswerBy::Request(mut guard) => {
            let request = request.map(|()| RequestBody::Http1(client));
            let received = receive(&mut guard, request).await;
            tokio::select! {
                biased;
                response = respond(guard, received) => response,
                () = poll_fn(|cx| client.poll_closed(cx)) => return None,
            }
        }
    };
    cors.mark(response.headers_mut());
    Some(response)
}

async fn serve_http2(lane: &Arc<Lane>, socket: ClientSocket, pulse: &Arc<Pulse>) {
    let RouterState { settings, shutdown, clock, .. } = &*lane.state;
    let bodies: Arc<ConnectionBodies> = Arc::default();
    let service = service_fn(|request: Request<Incoming>| {
        let is_head = request.method() == Method::HEAD;
        let Opened { request, cors, by } = Opened::new(lane, pulse.busy(), &bodies, request);
        async move {
            let mut response = match by {
                AnswerBy::Probe(response) => response.map(ResponseBody::Whole),
                AnswerBy::Request(mut guard) => {
                    let received = receive(&mut guard, request.map(RequestBody::Http2)).await;
                    respond(guard, received).await
                }
            };
            cors.mark(response.headers_mut());
            Ok::<_, Infallible>(if is_head { without_body(response) } else { response })
        }
    });
    let served = http2(&settings.load(), *clock).serve_connection(TokioIo::new(socket), service);
    // Errors are ignored, as above.
    let _ = until_closing(shutdown, served, |it| it.graceful_shutdown()).await;
}

/// The response to HEAD. hyper sends the body of one over HTTP/2, which clients take for an error of the protocol.
fn without_body(mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    if let Some(length @ 1..) = response.body().size_hint().exact() {
        response.headers_mut().entry(CONTENT_LENGTH).or_insert(length.into());
    }
    response.map(|_| ResponseBody::Whole(Bytes::new()))
}

/// A request whose head has arrived, and who answers it.
struct Opened<B> {
    request: Request<B>,
    cors: CrossOrigin,
    by: AnswerBy,
}

enum AnswerBy {
    /// A probe or a preflight is no request, and is answered at once.
    Probe(Response<Bytes>),
    Request(Box<RequestGuard>),
}

impl<B> Opened<B> {
    fn new(
        lane: &Arc<Lane>,
        busy: Busy,
        bodies: &Arc<ConnectionBodies>,
        mut request: Request<B>,
    ) -> Opened<B> {
        let settings = lane.state.settings.load();
        let cors = CrossOrigin::of(&settings.cors_origins, &request);
        let probed = cors.preflight(&request).or_else(|| probe(&lane.state, &settings, &request));
        let by = match probed {
            Some(response) => AnswerBy::Probe(response),
            None => AnswerBy::Request(Box::new(RequestGuard::open(
                lane.clone(),
                busy,
                bodies.clone(),
                &mut request,
            ))),
        };
        Opened { request, cors, by }
    }
}

/// Whether the client uses HTTP/2: by ALPN with TLS, without it by its first bytes. None if it disconnected.
pub(crate) async fn is_http2(stream: &ByteStream) -> Option<bool> {
    let ByteStream::Plain(plain) = stream else { return Some(stream.protocol() == Some(b"h2")) };
    let mut start = [0; PREFACE.len()];
    // Peeked, not read. A client whose very first packet is shorter than this uses HTTP/1.
    let length = plain.peek(&mut start).await.ok()?;
    Some(&start[..length] == PREFACE)
}

/// Drives a connection. When the router closes, the connection ends with the requests that are in flight on it.
async fn until_closing<F: Future>(
    shutdown: &Shutdown,
    served: F,
    finish: impl FnOnce(Pin<&mut F>),
) -> F::Output {
    let mut served = pin!(served);
    tokio::select! {
        biased;
        ended = served.as_mut() => return ended,
        () = Gated::new(shutdown.closing()) => finish(served.as_mut()),
    }
    served.await
}

fn http2(settings: &RouterSettings, clock: Clock) -> http2::Builder<Streams> {
    // Beyond its limit hyper answers 431 with an empty body. `admit` checks ours, and says why.
    let header_bytes = u32::try_from(settings.limits.header_bytes.saturating_mul(2)).unwrap_or(u32::MAX);
    let mut builder = http2::Builder::new(Streams::new(clock, &settings.timeouts));
    builder.timer(TokioTimer::new()).max_concurrent_streams(STREAMS_MAX).max_header_list_size(header_bytes);
    builder.max_send_buf_size(SEND_BYTES_MAX);
    builder
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Context;

    use http_body::Frame;
    use tokio::io::{AsyncWriteExt as _, duplex};

    use super::*;

    /// A body without end that counts what was taken of it.
    struct Endless(Arc<AtomicUsize>);

    impl http_body::Body for Endless {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.0.fetch_add(CHUNK_BYTES_MAX, Ordering::Relaxed);
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[0; CHUNK_BYTES_MAX])))))
        }
    }

    /// A client that opens the largest windows, sends a GET of `/`, and reads nothing.
    #[tokio::test]
    async fn a_stream_that_its_client_does_not_read_is_held_in_a_small_buffer_whatever_its_window() {
        let (mut client, server) = duplex(64 << 10);
        let frames: [&[u8]; 4] = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            &[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0x7f, 0xff, 0xff, 0xff],
            &[0, 0, 4, 8, 0, 0, 0, 0, 0, 0x7f, 0xff, 0, 0],
            &[0, 0, 6, 1, 5, 0, 0, 0, 1, 0x82, 0x86, 0x84, 0x41, 1, b'm'],
        ];
        client.write_all(&frames.concat()).await.unwrap();
        let taken = Arc::new(AtomicUsize::new(0));
        let service = service_fn(|_| ready(Ok::<_, Infallible>(Response::new(Endless(taken.clone())))));
        let http2 = http2(&RouterSettings::default(), Clock::start());
        let mut served = pin!(http2.serve_connection(TokioIo::new(server), service));
        for _ in 0..1_000 {
            assert!(poll_fn(|cx| Poll::Ready(served.as_mut().poll(cx).is_pending())).await);
            tokio::task::yield_now().await;
        }
        let taken = taken.load(Ordering::Relaxed);
        // What fits into the client's end, one frame on its way, and one chunk that waits.
        assert!(taken > 64 << 10 && taken <= (64 << 10) + SEND_BYTES_MAX + 2 * CHUNK_BYTES_MAX, "{taken}");
    }
}
