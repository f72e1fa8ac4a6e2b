//! How the commands beside the router open a connection to a worker or a router: plain or by TLS, as the address has
//! it, and with the same TLS that the router itself speaks.
//!
//! The router's own lines are opened in `line`, which tells other failures apart. HTTP and patience are left to whoever
//! dials.

use std::fmt;
use std::io;

use tokio::net::TcpStream;

use crate::address::Address;
use crate::settings::WorkerTls;
use crate::stream::Stream;
use crate::tls::{BadTls, NoTls, Outward};

/// Whom we believe and who we are when we dial. The default one dials plain addresses only.
#[derive(Default)]
pub struct Dialer(Option<Outward>);

/// Why nobody was reached.
#[derive(Debug, thiserror::Error)]
pub enum Undialled {
    #[error("its name does not resolve: {0}")]
    Unresolved(io::Error),
    #[error("connect: {0}")]
    Unconnected(io::Error),
    /// Somebody is there, and there is no TLS with them.
    #[error("{0}")]
    NoTls(NoTls),
}

impl Dialer {
    /// By these settings, which are named by their section where a file of theirs cannot be used.
    pub fn load(section: &'static str, settings: &WorkerTls) -> Result<Dialer, BadTls> {
        Ok(Dialer(Some(Outward::load(section, settings)?)))
    }

    /// Opens a connection, with its handshake if the address asks for TLS. Takes as long as the other side does: the
    /// caller has the patience. Dropping it closes whatever is open.
    pub async fn dial(&self, address: &Address) -> Result<Stream, Undialled> {
        let stream = connect(address).await?;
        match address.is_tls() {
            false => Ok(Stream::Plain(stream)),
            true => self.shake(address, stream).await.map_err(Undialled::NoTls),
        }
    }

    /// Whether somebody at the address answers a TLS handshake, however it ends; whatever the address's scheme.
    pub async fn finds_tls(&self, address: &Address) -> bool {
        let Ok(stream) = connect(address).await else { return false };
        match self.shake(address, stream).await {
            Ok(_) => true,
            Err(why) => why.speaks_tls(),
        }
    }

    async fn shake(&self, address: &Address, stream: TcpStream) -> Result<Stream, NoTls> {
        match &self.0 {
            Some(tls) => tls.shake(address, stream).await,
            None => Err(NoTls::Failed("nothing says whom to believe".to_owned())),
        }
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Dialer(TLS)" } else { "Dialer(plain)" })
    }
}

async fn connect(address: &Address) -> Result<TcpStream, Undialled> {
    let found = tokio::net::lookup_host((address.host(), address.port())).await;
    let places: Vec<_> = found.map_err(Undialled::Unresolved)?.collect();
    let stream = TcpStream::connect(&places[..]).await.map_err(Undialled::Unconnected)?;
    // A lost option costs milliseconds.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}
