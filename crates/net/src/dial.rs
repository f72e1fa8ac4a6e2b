//! Opens connections for the commands beside the router, with the TLS code that the router uses.

use std::fmt;

use crate::address::Address;
use crate::connect::{ConnectError, connect, connect_tcp};
use crate::stream::ByteStream;
use crate::tls::{TlsClient, TlsClientSettings, TlsConfigError, TlsFailure};

/// The trust settings of a command. The default one connects to `http` addresses only.
#[derive(Default)]
pub struct Dialer(Option<TlsClient>);

/// The section named where there is no TLS configuration at all.
const NO_SECTION: &str = "tls";

impl Dialer {
    /// `section` is what errors about a file call these settings.
    pub fn load(section: &'static str, settings: &TlsClientSettings) -> Result<Dialer, TlsConfigError> {
        Ok(Dialer(Some(TlsClient::load(section, settings)?)))
    }

    /// Connects and, for `https`, performs the handshake. Without a time limit: the caller sets one. Dropping the
    /// future closes the connection.
    pub async fn dial(&self, address: &Address) -> Result<ByteStream, ConnectError> {
        match &self.0 {
            Some(tls) => connect(address, tls).await,
            None if address.is_tls() => {
                let why = TlsFailure::Other("no certificate authorities are configured".to_owned());
                Err(ConnectError::Handshake { why, section: NO_SECTION })
            }
            None => connect_tcp(address).await.map(ByteStream::Plain),
        }
    }

    /// Whether the server at the address answers a TLS handshake, even one that fails. The scheme is ignored.
    pub async fn finds_tls(&self, address: &Address) -> bool {
        let (Some(tls), Ok(stream)) = (&self.0, connect_tcp(address).await) else { return false };
        match tls.handshake(address, stream).await {
            Ok(_) => true,
            Err(why) => why.speaks_tls(),
        }
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Dialer(TLS)" } else { "Dialer(plain)" })
    }
}
