//! One connection to a Redis server: commands, replies, and a size limit for each reply.
//!
//! The socket is our own, to count bytes and to close the connection when a reply exceeds its limit: any client of
//! the server may write entries of half a gigabyte. The library encodes commands and parses replies. It is polled
//! together with each query; nothing runs in the background.

use super::failure::RedisFailure;
use super::url::Server;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue, Pipeline, RedisConnectionInfo, RedisResult, Value};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Time limit for each of connect, TLS and login. Longer than one retransmitted SYN.
const DIAL_MAX: Duration = Duration::from_secs(3);

/// Time limit for a reply that does not block.
pub(super) const REPLY_MAX: Duration = Duration::from_secs(2);

/// Size limit for replies of numbers and short strings.
pub(super) const SHORT_REPLY_BYTES: u64 = 1 << 20;

/// Limits of one reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyLimits {
    pub(super) bytes: u64,
    pub(super) wait: Duration,
}

impl ReplyLimits {
    pub(super) const SHORT: ReplyLimits = ReplyLimits { bytes: SHORT_REPLY_BYTES, wait: REPLY_MAX };
}

pub(super) struct RedisConnection {
    connection: MultiplexedConnection,
    /// The library's I/O future; `None` once it ended.
    driver: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    meter: Arc<Meter>,
}

impl RedisConnection {
    /// Connects and logs in. `label` identifies us in the server's client list. Trusts the certificate authorities
    /// that browsers trust.
    pub(super) async fn dial(server: &Server, label: &str) -> Result<RedisConnection, RedisFailure> {
        let roots = RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        RedisConnection::dial_trusting(roots, server, label).await
    }

    async fn dial_trusting(
        roots: RootCertStore,
        server: &Server,
        label: &str,
    ) -> Result<RedisConnection, RedisFailure> {
        let meter = Arc::new(Meter::default());
        let stream = tokio::time::timeout(DIAL_MAX, open(roots, server, &meter))
            .await
            .map_err(|_| RedisFailure::Timeout(DIAL_MAX))??;
        // The library sends nothing on its own: login commands are sent below, where their errors are understood.
        let silent = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let (connection, driver) = MultiplexedConnection::new_with_config(&silent, stream, config)
            .await
            .map_err(|error| RedisFailure::of(error, false))?;
        let mut wire = RedisConnection { connection, driver: Some(Box::pin(driver)), meter };
        wire.enter(server, label).await?;
        Ok(wire)
    }

    /// Sends commands and returns all replies. After any error except one reported by the server, the connection is
    /// unusable.
    pub(super) async fn query<T: FromRedisValue>(
        &mut self,
        commands: &Pipeline,
        limits: ReplyLimits,
    ) -> Result<T, RedisFailure> {
        self.meter.allow(limits.bytes);
        let mut answer = std::pin::pin!(put(commands, &mut self.connection));
        let answered = async {
            let Some(driver) = &mut self.driver else { return answer.await };
            tokio::select! {
                biased;
                answer = &mut answer => answer,
                // The reason of its end is in the reply.
                () = driver => {
                    self.driver = None;
                    answer.await
                }
            }
        };
        match tokio::time::timeout(limits.wait, answered).await {
            Err(_) => Err(RedisFailure::Timeout(limits.wait)),
            Ok(answer) => answer
                .and_then(|it| Ok(redis::from_redis_value(it)?))
                .map_err(|error| RedisFailure::of(error, self.meter.left() == 0)),
        }
    }

    /// Bytes received and sent since the last call.
    pub(super) fn passed(&self) -> (u64, u64) {
        (self.meter.received.swap(0, Ordering::Relaxed), self.meter.sent.swap(0, Ordering::Relaxed))
    }

    async fn enter(&mut self, server: &Server, label: &str) -> Result<(), RedisFailure> {
        if let Some(password) = &server.password {
            let mut commands = redis::pipe();
            commands.cmd("AUTH");
            if let Some(user) = &server.user {
                commands.arg(user);
            }
            commands.arg(password);
            self.query::<()>(&commands, ReplyLimits::SHORT).await.map_err(RedisFailure::on_login)?;
        }
        if server.database != 0 {
            let mut commands = redis::pipe();
            commands.cmd("SELECT").arg(server.database);
            self.query::<()>(&commands, ReplyLimits::SHORT).await.map_err(RedisFailure::on_login)?;
        }
        let label: String = label.chars().map(|it| if it.is_ascii_graphic() { it } else { '_' }).collect();
        let mut commands = redis::pipe();
        commands.cmd("CLIENT").arg("SETNAME").arg(label);
        match self.query::<()>(&commands, ReplyLimits::SHORT).await {
            // A server in protected mode answers the first command with that, and closes.
            Err(RedisFailure::Server { code, detail }) if code == "DENIED" => {
                Err(RedisFailure::Server { code, detail })
            }
            // The user may lack this permission. Missing permissions that matter show up later.
            Ok(()) | Err(RedisFailure::Server { .. }) => Ok(()),
            Err(failure) => Err(failure.on_login()),
        }
    }
}

/// A single command is sent without a pipeline, because for pipelines the library hides why a reply could not be
/// parsed.
async fn put(commands: &Pipeline, connection: &mut MultiplexedConnection) -> RedisResult<Value> {
    let mut each = commands.cmd_iter();
    match (each.next(), each.next()) {
        (Some(only), None) => only.query_async(connection).await.map(|it| Value::Array(vec![it])),
        _ => commands.query_async(connection).await,
    }
}

trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

async fn open(
    roots: RootCertStore,
    server: &Server,
    meter: &Arc<Meter>,
) -> Result<Box<dyn ByteStream>, RedisFailure> {
    let socket =
        TcpStream::connect((server.host.as_str(), server.port)).await.map_err(RedisFailure::connecting)?;
    socket.set_nodelay(true).map_err(RedisFailure::connecting)?;
    let socket = Metered { inner: socket, meter: Arc::clone(meter) };
    // Replies to login commands are short, and only TLS precedes them.
    meter.allow(SHORT_REPLY_BYTES);
    if !server.tls {
        return Ok(Box::new(socket));
    }
    let failed = |error: &dyn std::error::Error| RedisFailure::Tls(error.to_string());
    let name = ServerName::try_from(server.host.clone()).map_err(|error| failed(&error))?;
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    let stream = connector.connect(name, socket).await.map_err(|error| failed(&error))?;
    Ok(Box::new(stream))
}

/// Counts bytes, and limits how many more may arrive.
#[derive(Debug, Default)]
struct Meter {
    received: AtomicU64,
    sent: AtomicU64,
    left: AtomicU64,
}

impl Meter {
    fn allow(&self, bytes: u64) {
        self.left.store(bytes, Ordering::Relaxed);
    }

    fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    fn count_received(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
        // Only the reading task decreases it.
        self.left.store(self.left().saturating_sub(bytes), Ordering::Relaxed);
    }
}

struct Metered<S> {
    inner: S,
    meter: Arc<Meter>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = usize::try_from(self.meter.left()).unwrap_or(usize::MAX);
        if left == 0 {
            return Poll::Ready(Err(io::Error::from(io::ErrorKind::ConnectionAborted)));
        }
        let before = buf.filled().len();
        let polled = if buf.remaining() <= left {
            Pin::new(&mut self.inner).poll_read(cx, buf)
        } else {
            // The library's buffer grows with a reply and may have more room than the limit.
            let mut part = ReadBuf::new(buf.initialize_unfilled_to(left));
            let polled = Pin::new(&mut self.inner).poll_read(cx, &mut part);
            let length = part.filled().len();
            buf.advance(length);
            polled
        };
        self.meter.count_received((buf.filled().len() - before) as u64);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(cx, buf);
        if let Poll::Ready(Ok(bytes)) = polled {
            self.meter.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::pki_types::PrivateKeyDer;

    /// Replies OK to everything, over TLS, for one connection.
    async fn agree(listener: TcpListener, acceptor: TlsAcceptor) -> usize {
        let (socket, _) = listener.accept().await.unwrap();
        let Ok(mut stream) = acceptor.accept(socket).await else { return 0 };
        let (mut buffer, mut heard_bytes) = ([0; 4_096], 0);
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            heard_bytes += length;
            stream.write_all(b"+OK\r\n").await.unwrap();
        }
        heard_bytes
    }

    /// A server with a certificate for localhost, dialled as `host`: the bytes received and sent, and the bytes that
    /// the server received.
    async fn meet(host: &str) -> (Result<(u64, u64), RedisFailure>, usize) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let private = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], private)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let server = Server::parse(&format!("rediss://joe:s3cret@{host}:{port}")).unwrap();
        let talk = async {
            RedisConnection::dial_trusting(roots, &server, "maitre:a b").await.map(|it| it.passed())
        };
        tokio::join!(talk, agree(listener, TlsAcceptor::from(Arc::new(config))))
    }

    #[tokio::test]
    async fn tls_connections_work_and_count_bytes() {
        let (passed, heard_bytes) = meet("localhost").await;
        let (received, sent) = passed.unwrap();
        let said = "*3\r\n$4\r\nAUTH\r\n$3\r\njoe\r\n$6\r\ns3cret\r\n".len()
            + "*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$10\r\nmaitre:a_b\r\n".len();
        assert_eq!(heard_bytes, said);
        assert!(sent > heard_bytes as u64 && received > 10, "{sent} and {received} with TLS around it");
    }

    #[tokio::test]
    async fn a_certificate_for_another_name_is_rejected_before_the_password_is_sent() {
        let (passed, heard_bytes) = meet("127.0.0.1").await;
        assert!(matches!(passed, Err(RedisFailure::Tls(_))), "{passed:?}");
        assert_eq!(heard_bytes, 0);
    }
}
