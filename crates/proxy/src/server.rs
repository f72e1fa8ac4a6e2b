//! The listener and its connections: limits, patience with clients, and the way out.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use maitre_net::stream::ByteStream;
use maitre_net::wake_gate::Gated;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tracing::warn;

use crate::client::{Client, Pulse};
use crate::house::RouterState;
use crate::lane::{Connection, Lane};
use crate::serve::serve;
use crate::tls::{self, Listener};
use crate::visit::RequestGuard;

/// Requests at once on one HTTP/2 connection.
const STREAMS_MAX: u32 = 1_024;

/// Header lines of a request.
const HEADER_LINES_MAX: usize = 128;

/// Most bytes read from a client at once: a body that fits comes in one piece, and is never copied.
const READ_BYTES_MAX: usize = 1 << 20;

/// Pause after a failed `accept`.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections and deals them out to the lanes in turn, until the house closes.
pub(crate) async fn listen(
    house: Arc<RouterState>,
    listener: TcpListener,
    lanes: Vec<mpsc::Sender<Connection>>,
) {
    let places = Arc::new(Semaphore::new(house.settings().limits.connections));
    let mut turn = 0;
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &places) => accepted,
            () = house.closing.cancelled() => return,
        };
        match accepted {
            Ok(guest) => {
                turn = (turn + 1) % lanes.len().max(1);
                // A lane's queue holds as many as there are places: it is never full, and only closed
                // when the house is.
                let _ = lanes[turn].try_send(guest);
            }
            Err(error) => {
                // Out of file descriptors, most likely: wait for somebody to leave.
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> std::io::Result<Connection> {
    let place = places.clone().acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    // A lost option costs latency, not correctness.
    let _ = stream.set_nodelay(true);
    Ok(Connection { stream: stream.into_std()?, place })
}

/// Serves one client connection to its end.
pub(crate) async fn connection(lane: Arc<Lane>, stream: TcpStream, place: OwnedSemaphorePermit) {
    let house = lane.house.clone();
    let pulse = Arc::new(Pulse::new(house.settings().timeouts));
    house.metrics.connections.inc();
    tokio::select! {
        biased;
        () = converse(&lane, stream, &pulse) => {}
        () = Gated::new(pulse.watch()) => {}
    }
    house.metrics.connections.dec();
    drop(place);
}

/// How a client begins that speaks HTTP/2 without asking first.
const PREFACE: &[u8] = b"PRI * HTTP/2";

async fn converse(lane: &Arc<Lane>, stream: TcpStream, pulse: &Arc<Pulse>) {
    let house = &lane.house;
    let received = tokio::select! {
        received = tls::accept(house, Listener::Clients, stream) => received,
        () = house.closing.cancelled() => return,
    };
    let Some(stream) = received else { return };
    let speaks = tokio::select! {
        speaks = speaks_frames(&stream) => speaks,
        () = house.closing.cancelled() => return,
    };
    let Some(frames) = speaks else { return };
    if frames {
        pulse.speaks_frames();
    }
    let service = service_fn(|request: Request<Incoming>| {
        let visit = RequestGuard::begin(lane.clone(), pulse.busy());
        async move { Ok::<_, Infallible>(serve(visit, request).await) }
    });
    let io = TokioIo::new(Client::new(stream, pulse.clone()));
    // Clients break connections off all the time, and there is nothing an operator could do about it.
    if frames {
        let served = http2(&lane.house).serve_connection(io, service);
        let _ = until_closing(&lane.house, served, |it| it.graceful_shutdown()).await;
    } else {
        let served = http1(&lane.house).serve_connection(io, service);
        let _ = until_closing(&lane.house, served, |it| it.graceful_shutdown()).await;
    }
}

/// Whether it is HTTP/2: by agreement under TLS, and without it by how the client begins. None if it left.
async fn speaks_frames(stream: &ByteStream) -> Option<bool> {
    let ByteStream::Plain(plain) = stream else { return Some(stream.protocol() == Some(b"h2")) };
    let mut beginning = [0; PREFACE.len()];
    // Looked at, not taken. A client whose very first packet is shorter than this speaks HTTP/1.
    let length = plain.peek(&mut beginning).await.ok()?;
    Some(&beginning[..length] == PREFACE)
}

/// Drives a connection; when the house closes, asks it to finish what it has begun.
async fn until_closing<F: Future>(
    house: &RouterState,
    served: F,
    finish: impl FnOnce(Pin<&mut F>),
) -> F::Output {
    let mut served = pin!(served);
    tokio::select! {
        biased;
        ended = served.as_mut() => return ended,
        () = Gated::new(house.closing.cancelled()) => finish(served.as_mut()),
    }
    served.await
}

fn http1(house: &RouterState) -> http1::Builder {
    let mut builder = http1::Builder::new();
    // Slow heads are the watchdog's business: hyper's own timer costs an allocation a request, and also
    // closes connections that are merely idle.
    builder.timer(TokioTimer::new()).header_read_timeout(None);
    builder.max_headers(HEADER_LINES_MAX).max_header_size(house.settings().limits.header_bytes);
    builder.max_buf_size(READ_BYTES_MAX);
    builder
}

/// Runs the streams of an HTTP/2 connection. A body is not polled while its client opens no window, so
/// its own limits do not see that: whoever is past the longest visit by this much is cut off here.
#[derive(Clone, Copy)]
struct Streams {
    limit: Duration,
}

const CUT_OFF_AFTER: Duration = Duration::from_secs(5);

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    #[expect(clippy::disallowed_methods, reason = "ends with its connection, or at the limit")]
    fn execute(&self, stream: F) {
        let limit = self.limit;
        tokio::spawn(async move { drop(tokio::time::timeout(limit, stream).await) });
    }
}

fn http2(house: &RouterState) -> http2::Builder<Streams> {
    let header_bytes = u32::try_from(house.settings().limits.header_bytes).unwrap_or(u32::MAX);
    let mut builder =
        http2::Builder::new(Streams { limit: house.settings().timeouts.total.saturating_add(CUT_OFF_AFTER) });
    builder.timer(TokioTimer::new()).max_concurrent_streams(STREAMS_MAX).max_header_list_size(header_bytes);
    builder
}
