//! One connection to a Redis server: a question, its answer, and never more than was bargained for.
//!
//! The socket is our own, so that what passes is counted as it passes, and an answer longer than its question allows
//! ends the connection before it fills the memory: whoever may write to the server may write entries of half a
//! gigabyte. The library packs the commands and reads the answers. It is polled along with each question; nothing runs
//! beside.

use super::failure::Failure;
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

/// For the connection, for TLS, and for what is said first: each. Longer than one lost SYN takes to be repeated.
const DIAL: Duration = Duration::from_secs(3);

/// For an answer that has nothing to wait for.
pub(super) const ANSWER: Duration = Duration::from_secs(2);

/// For an answer of numbers and short words.
pub(super) const SHORT: u64 = 1 << 20;

/// What an answer may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    pub(super) bytes: u64,
    pub(super) wait: Duration,
}

impl Allowance {
    pub(super) const LITTLE: Allowance = Allowance { bytes: SHORT, wait: ANSWER };
}

pub(super) struct Wire {
    connection: MultiplexedConnection,
    /// What reads and writes; none once it ended.
    driver: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    meter: Arc<Meter>,
}

impl Wire {
    /// Connected, and let in. `label` is how the server's operator finds us in its list of clients. Of certificates those
    /// are believed that browsers believe.
    pub(super) async fn dial(server: &Server, label: &str) -> Result<Wire, Failure> {
        let roots = RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        Wire::dial_trusting(roots, server, label).await
    }

    async fn dial_trusting(roots: RootCertStore, server: &Server, label: &str) -> Result<Wire, Failure> {
        let meter = Arc::new(Meter::default());
        let stream = tokio::time::timeout(DIAL, open(roots, server, &meter))
            .await
            .map_err(|_| Failure::Late(DIAL))??;
        // Nothing is said on its own: what is said first is said below, where its answers are understood.
        let silent = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let (connection, driver) = MultiplexedConnection::new_with_config(&silent, stream, config)
            .await
            .map_err(|error| Failure::of(error, false))?;
        let mut wire = Wire { connection, driver: Some(Box::pin(driver)), meter };
        wire.enter(server, label).await?;
        Ok(wire)
    }

    /// All answers to what is asked. After a failure that is not the server's own word, the connection is of no use.
    pub(super) async fn ask<T: FromRedisValue>(
        &mut self,
        question: &Pipeline,
        allowance: Allowance,
    ) -> Result<T, Failure> {
        self.meter.allow(allowance.bytes);
        let mut answer = std::pin::pin!(put(question, &mut self.connection));
        let answered = async {
            let Some(driver) = &mut self.driver else { return answer.await };
            tokio::select! {
                biased;
                answer = &mut answer => answer,
                // It says why it ended to those who wait.
                () = driver => {
                    self.driver = None;
                    answer.await
                }
            }
        };
        match tokio::time::timeout(allowance.wait, answered).await {
            Err(_) => Err(Failure::Late(allowance.wait)),
            Ok(answer) => answer
                .and_then(|it| Ok(redis::from_redis_value(it)?))
                .map_err(|error| Failure::of(error, self.meter.left() == 0)),
        }
    }

    /// Bytes that came and went since this was last asked.
    pub(super) fn passed(&self) -> (u64, u64) {
        (self.meter.came.swap(0, Ordering::Relaxed), self.meter.went.swap(0, Ordering::Relaxed))
    }

    async fn enter(&mut self, server: &Server, label: &str) -> Result<(), Failure> {
        if let Some(password) = &server.password {
            let mut question = redis::pipe();
            question.cmd("AUTH");
            if let Some(user) = &server.user {
                question.arg(user);
            }
            question.arg(password);
            self.ask::<()>(&question, Allowance::LITTLE).await.map_err(Failure::on_entering)?;
        }
        if server.database != 0 {
            let mut question = redis::pipe();
            question.cmd("SELECT").arg(server.database);
            self.ask::<()>(&question, Allowance::LITTLE).await?;
        }
        let label: String = label.chars().map(|it| if it.is_ascii_graphic() { it } else { '_' }).collect();
        let mut question = redis::pipe();
        question.cmd("CLIENT").arg("SETNAME").arg(label);
        match self.ask::<()>(&question, Allowance::LITTLE).await {
            // A user may well not be allowed to; that it lacks what matters will show.
            Ok(()) | Err(Failure::Server { .. }) => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}

/// One command goes as such, since of several the library does not say that their answers made no sense, only that
/// there will be none.
async fn put(question: &Pipeline, connection: &mut MultiplexedConnection) -> RedisResult<Value> {
    let mut commands = question.cmd_iter();
    match (commands.next(), commands.next()) {
        (Some(only), None) => only.query_async(connection).await.map(|it| Value::Array(vec![it])),
        _ => question.query_async(connection).await,
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

async fn open(roots: RootCertStore, server: &Server, meter: &Arc<Meter>) -> Result<Box<dyn Stream>, Failure> {
    let socket =
        TcpStream::connect((server.host.as_str(), server.port)).await.map_err(Failure::connecting)?;
    socket.set_nodelay(true).map_err(Failure::connecting)?;
    let socket = Metered { inner: socket, meter: Arc::clone(meter) };
    // Answers to what is said first are short; and before them stands only TLS.
    meter.allow(SHORT);
    if !server.tls {
        return Ok(Box::new(socket));
    }
    let failed = |error: &dyn std::error::Error| Failure::Tls(error.to_string());
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

/// Counts what passes, and how much more may come.
#[derive(Debug, Default)]
struct Meter {
    came: AtomicU64,
    went: AtomicU64,
    left: AtomicU64,
}

impl Meter {
    fn allow(&self, bytes: u64) {
        self.left.store(bytes, Ordering::Relaxed);
    }

    fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    fn came(&self, bytes: u64) {
        self.came.fetch_add(bytes, Ordering::Relaxed);
        // Only the one task that reads takes away from it.
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
            // The library's buffer grows with an answer, and may have room for more than is allowed.
            let mut part = ReadBuf::new(buf.initialize_unfilled_to(left));
            let polled = Pin::new(&mut self.inner).poll_read(cx, &mut part);
            let length = part.filled().len();
            buf.advance(length);
            polled
        };
        self.meter.came((buf.filled().len() - before) as u64);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(cx, buf);
        if let Poll::Ready(Ok(bytes)) = polled {
            self.meter.went.fetch_add(bytes as u64, Ordering::Relaxed);
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

    /// Says OK to whatever it is told, behind TLS, once.
    async fn agree(listener: TcpListener, acceptor: TlsAcceptor) -> usize {
        let (socket, _) = listener.accept().await.unwrap();
        let Ok(mut stream) = acceptor.accept(socket).await else { return 0 };
        let (mut buffer, mut heard) = ([0; 4_096], 0);
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            heard += length;
            stream.write_all(b"+OK\r\n").await.unwrap();
        }
        heard
    }

    /// A server with a certificate for localhost, and us, who look for it under `host`: the bytes that came and went, and
    /// those that it heard.
    async fn meet(host: &str) -> (Result<(u64, u64), Failure>, usize) {
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
        let talk = async { Wire::dial_trusting(roots, &server, "maitre:a b").await.map(|it| it.passed()) };
        tokio::join!(talk, agree(listener, TlsAcceptor::from(Arc::new(config))))
    }

    #[tokio::test]
    async fn behind_tls_all_is_as_before_and_counted_as_it_passes() {
        let (passed, heard) = meet("localhost").await;
        let (came, went) = passed.unwrap();
        let said = "*3\r\n$4\r\nAUTH\r\n$3\r\njoe\r\n$6\r\ns3cret\r\n".len()
            + "*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$10\r\nmaitre:a_b\r\n".len();
        assert_eq!(heard, said);
        assert!(went > heard as u64 && came > 10, "{went} and {came} with TLS around it");
    }

    #[tokio::test]
    async fn a_certificate_for_another_name_is_refused_before_the_password_is_said() {
        let (passed, heard) = meet("127.0.0.1").await;
        assert!(matches!(passed, Err(Failure::Tls(_))), "{passed:?}");
        assert_eq!(heard, 0);
    }
}
