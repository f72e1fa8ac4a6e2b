//! Opens a connection to an address: name lookup, TCP, and TLS if the scheme is `https`.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;

use crate::address::Address;
use crate::stream::ByteStream;
use crate::tls::{TlsClient, TlsFailure};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("its name does not resolve: {0}")]
    Unresolved(io::Error),
    #[error("{0}")]
    Refused(io::Error),
    /// This machine is out of descriptors, ports or memory. Says nothing of the worker.
    #[error("no socket: {0}")]
    NoSocket(io::Error),
    #[error("no connection after {0:?}")]
    TimedOut(Duration),
    /// The server accepted the connection and the TLS handshake failed.
    #[error("{}", .why.advice(.section))]
    Handshake { why: TlsFailure, section: &'static str },
}

/// Connects and, for `https`, performs the handshake. Without a time limit: the caller sets one. Dropping the future
/// closes the connection.
pub async fn connect(address: &Address, tls: &TlsClient) -> Result<ByteStream, ConnectError> {
    #[cfg(feature = "simulated")]
    if let Some(dialed) = crate::simulated::dial(address) {
        return dialed.await.map(ByteStream::Simulated).map_err(ConnectError::Refused);
    }
    let stream = connect_tcp(address).await?;
    match address.is_tls() {
        false => Ok(ByteStream::Plain(stream)),
        true => {
            let connected = tls.handshake(address, stream).await;
            connected.map_err(|why| ConnectError::Handshake { why, section: tls.section() })
        }
    }
}

/// Connects without TLS, whatever the scheme.
pub(crate) async fn connect_tcp(address: &Address) -> Result<TcpStream, ConnectError> {
    let found = tokio::net::lookup_host((address.host(), address.port())).await;
    let unresolved = |error| match connect_error(error) {
        ConnectError::Refused(error) => ConnectError::Unresolved(error),
        error => error,
    };
    let addresses: Vec<_> = found.map_err(unresolved)?.collect();
    let stream = TcpStream::connect(&addresses[..]).await.map_err(connect_error)?;
    // Losing this option costs latency, not correctness.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

fn connect_error(error: io::Error) -> ConnectError {
    use io::ErrorKind::{AddrInUse, AddrNotAvailable, OutOfMemory};
    match error.kind() {
        AddrInUse | AddrNotAvailable | OutOfMemory => ConnectError::NoSocket(error),
        _ if is_out_of_descriptors(&error) => ConnectError::NoSocket(error),
        _ => ConnectError::Refused(error),
    }
}

/// Whether the process, or the machine, has no descriptor left. ENFILE and EMFILE have no kind of their own.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(23 | 24))
}
