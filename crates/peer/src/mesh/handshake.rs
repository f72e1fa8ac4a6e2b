//! The handshake: turns a TCP connection into an encrypted one between two routers with the same key.
//!
//! ```text
//!   dialler                          dialled
//!   preamble, first of Noise    ─▶
//!                               ◀─   preamble, second of Noise with a hello
//!   hello                       ─▶
//!                               ◀─   verdict
//! ```
//!
//! Noise with pattern NNpsk0: there are no static keys, both sides prove knowledge of the shared key, and recorded
//! traffic stays secret if that key leaks later. The dialler learns the other side's identity first. If that is
//! itself or a router it is already connected to, it hangs up silently. The listener sends nothing to a client that
//! does not start with our preamble.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use snow::params::NoiseParams;
use snow::{Builder, HandshakeState, StatelessTransportState};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::log_limiter::RefusalCause;
use super::wire::{self, DialVerdict, Hello, LENGTH, PREAMBLE, ProtocolError, RECORD_MAX, TAG, VERSION};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// An ephemeral key and a tag.
const FIRST: usize = 32 + TAG;
/// Sent instead of the second message if the first could not be decrypted.
const NO_KEY: [u8; LENGTH] = [0; LENGTH];
/// Time limit for an incoming handshake: long enough for a distant, busy machine.
const ACCEPT_MAX: Duration = Duration::from_secs(5);
/// Time limit for an incoming connection to prove that it has the key. A dialler does so in its first packet, and has
/// given up by then.
const PROOF_MAX: Duration = DIAL_MAX;
/// Time limit for an outgoing handshake, including the TCP connect. Shorter, because we retry: a SYN lost in a
/// partition must not delay us after it heals.
const DIAL_MAX: Duration = Duration::from_secs(2);

/// What all handshakes of this router share.
#[derive(Clone)]
pub(super) struct LocalIdentity {
    pub(super) psk: [u8; 32],
    pub(super) name: String,
    pub(super) instance: u64,
    pub(super) advertise: Option<String>,
    pub(super) port: u16,
}

/// An encrypted connection after the handshake.
pub(super) struct SecureConnection {
    pub(super) stream: TcpStream,
    pub(super) remote: SocketAddr,
    pub(super) sealer: RecordSealer,
    pub(super) opener: RecordOpener,
    pub(super) theirs: Hello,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("{0}")]
    Broken(#[from] io::Error),
    /// Closed without data: a port check, or ourselves.
    #[error("it hung up")]
    Silent,
    #[error("no handshake within {0:?}")]
    Timeout(Duration),
    #[error("it is not a Maitre router")]
    NotARouter,
    #[error(
        "it speaks cluster protocol version {0}, this router version {VERSION}; run one release on all routers"
    )]
    Version(u8),
    #[error("it has another key; give all routers of a cluster the same cluster.key")]
    Key,
    #[error("{0}")]
    Malformed(#[from] ProtocolError),
}

impl HandshakeError {
    /// The refusal to count and log, if this was one.
    pub(super) fn cause(&self) -> Option<RefusalCause> {
        match self {
            HandshakeError::Broken(_) | HandshakeError::Silent => None,
            HandshakeError::Timeout(_) => Some(RefusalCause::Timeout),
            HandshakeError::NotARouter => Some(RefusalCause::NotARouter),
            HandshakeError::Version(_) => Some(RefusalCause::Version),
            HandshakeError::Key => Some(RefusalCause::Key),
            HandshakeError::Malformed(_) => Some(RefusalCause::Malformed),
        }
    }
}

impl LocalIdentity {
    fn hello(&self, you: IpAddr) -> Hello {
        let (name, advertise) = (self.name.clone(), self.advertise.clone());
        Hello { name, instance: self.instance, advertise, port: self.port, you }
    }

    fn noise(&self) -> Result<Builder<'_>, snow::Error> {
        let pattern: NoiseParams = PATTERN.parse()?;
        Builder::new(pattern).psk(0, &self.psk)?.prologue(&PROLOGUE)
    }

    /// Connects and learns the other side's identity. The other side does not know ours yet.
    pub(super) async fn dial(&self, address: SocketAddr) -> Result<SecureConnection, HandshakeError> {
        let dialled = async { self.handshake_as_dialler(TcpStream::connect(address).await?).await };
        timeout(DIAL_MAX, dialled).await.unwrap_or(Err(HandshakeError::Timeout(DIAL_MAX)))
    }

    async fn handshake_as_dialler(&self, mut stream: TcpStream) -> Result<SecureConnection, HandshakeError> {
        stream.set_nodelay(true)?;
        let mut noise = self.noise().and_then(Builder::build_initiator).map_err(broken)?;
        let mut first = wire::preamble().to_vec();
        first.extend(message(&mut noise, &[])?);
        stream.write_all(&first).await?;
        check_version(read_version(&mut stream).await?)?;
        let mut length = [0; LENGTH];
        stream.read_exact(&mut length).await?;
        if length == NO_KEY {
            return Err(HandshakeError::Key);
        }
        let theirs = read_message(&mut noise, &mut stream, length).await?;
        SecureConnection::new(stream, noise, Hello::decode(&theirs)?)
    }

    /// Sends our identity and receives the verdict.
    pub(super) async fn introduce(
        &self,
        mut connection: SecureConnection,
    ) -> Result<(SecureConnection, DialVerdict), HandshakeError> {
        let introduced = async {
            let hello = self.hello(connection.remote.ip());
            connection.send_record(&hello.encode()).await?;
            let verdict = DialVerdict::decode(&connection.receive_record().await?)?;
            Ok((connection, verdict))
        };
        timeout(DIAL_MAX, introduced).await.unwrap_or(Err(HandshakeError::Timeout(DIAL_MAX)))
    }

    /// Accepts a connection and learns the dialler's identity. The dialler then waits for a verdict. Sets `proof` as soon
    /// as the other side has shown that it has the key.
    pub(super) async fn accept(
        &self,
        mut stream: TcpStream,
        proof: &AtomicBool,
    ) -> Result<SecureConnection, HandshakeError> {
        let late = |limit| HandshakeError::Timeout(limit);
        let shaken = async {
            let proved = timeout(PROOF_MAX, self.read_proof(&mut stream)).await;
            let noise = proved.unwrap_or(Err(late(PROOF_MAX)))?;
            proof.store(true, Ordering::Relaxed);
            self.learn_identity(stream, noise).await
        };
        timeout(ACCEPT_MAX, shaken).await.unwrap_or(Err(late(ACCEPT_MAX)))
    }

    /// Reads the dialler's first message, which nobody can make without the key.
    async fn read_proof(&self, stream: &mut TcpStream) -> Result<HandshakeState, HandshakeError> {
        stream.set_nodelay(true)?;
        let version = read_version(stream).await?;
        let mut noise = self.noise().and_then(Builder::build_responder).map_err(broken)?;
        let mut second = wire::preamble().to_vec();
        if let Err(failure) = check_version(version) {
            stream.write_all(&second).await?;
            return Err(failure);
        }
        let mut length = [0; LENGTH];
        stream.read_exact(&mut length).await?;
        if usize::from(u16::from_be_bytes(length)) != FIRST {
            return Err(ProtocolError("an invalid first handshake message").into());
        }
        match read_message(&mut noise, stream, length).await {
            Err(HandshakeError::Key) => {
                second.extend(NO_KEY);
                stream.write_all(&second).await?;
                Err(HandshakeError::Key)
            }
            other => other.map(|_| noise),
        }
    }

    async fn learn_identity(
        &self,
        mut stream: TcpStream,
        mut noise: HandshakeState,
    ) -> Result<SecureConnection, HandshakeError> {
        let remote = stream.peer_addr()?;
        let mut second = wire::preamble().to_vec();
        second.extend(message(&mut noise, &self.hello(remote.ip()).encode())?);
        stream.write_all(&second).await?;
        let nobody = self.hello(remote.ip());
        let mut connection = SecureConnection::new(stream, noise, nobody)?;
        connection.theirs = Hello::decode(&connection.receive_record().await?)?;
        Ok(connection)
    }
}

/// Both sides must have read the same preamble.
const PROLOGUE: [u8; 1] = [VERSION];

/// Noise fails only on oversized input or without randomness.
fn broken(error: snow::Error) -> HandshakeError {
    HandshakeError::Broken(io::Error::other(error.to_string()))
}

async fn read_version(stream: &mut TcpStream) -> Result<u8, HandshakeError> {
    let (mut received, mut length) = ([0; PREAMBLE], 0);
    loop {
        length += match stream.read(&mut received[length..]).await {
            Ok(0) if length == 0 => return Err(HandshakeError::Silent),
            Ok(0) => return Err(HandshakeError::NotARouter),
            Ok(read) => read,
            Err(_) if length == 0 => return Err(HandshakeError::Silent),
            Err(error) => return Err(error.into()),
        };
        match wire::version(&received[..length]) {
            Ok(None) => (),
            Ok(Some(version)) => return Ok(version),
            Err(wire::NotARouter) => return Err(HandshakeError::NotARouter),
        }
    }
}

fn check_version(version: u8) -> Result<(), HandshakeError> {
    if version == VERSION { Ok(()) } else { Err(HandshakeError::Version(version)) }
}

/// A handshake message with its length prefix.
fn message(noise: &mut HandshakeState, payload: &[u8]) -> Result<Vec<u8>, HandshakeError> {
    let mut bytes = vec![0; LENGTH + FIRST + payload.len() + TAG];
    let length = noise.write_message(payload, &mut bytes[LENGTH..]).map_err(broken)?;
    bytes.truncate(LENGTH + length);
    bytes[..LENGTH].copy_from_slice(&(length as u16).to_be_bytes());
    Ok(bytes)
}

async fn read_message(
    noise: &mut HandshakeState,
    stream: &mut TcpStream,
    length: [u8; LENGTH],
) -> Result<Vec<u8>, HandshakeError> {
    let mut bytes = vec![0; wire::record(length)?];
    stream.read_exact(&mut bytes).await?;
    let mut payload = vec![0; bytes.len()];
    let length = noise.read_message(&bytes, &mut payload).map_err(|_| HandshakeError::Key)?;
    payload.truncate(length);
    Ok(payload)
}

impl SecureConnection {
    fn new(
        stream: TcpStream,
        noise: HandshakeState,
        theirs: Hello,
    ) -> Result<SecureConnection, HandshakeError> {
        let noise = Arc::new(noise.into_stateless_transport_mode().map_err(broken)?);
        let (sealer, opener) =
            (RecordSealer { noise: noise.clone(), nonce: 0 }, RecordOpener { noise, nonce: 0 });
        let remote = stream.peer_addr()?;
        Ok(SecureConnection { stream, remote, sealer, opener, theirs })
    }

    /// Sends one record.
    pub(super) async fn send_record(&mut self, payload: &[u8]) -> Result<(), HandshakeError> {
        let mut bytes = Vec::new();
        self.sealer.seal(payload, &mut bytes)?;
        Ok(self.stream.write_all(&bytes).await?)
    }

    async fn receive_record(&mut self) -> Result<Vec<u8>, HandshakeError> {
        let mut length = [0; LENGTH];
        // A dialler that hangs up here has found that it does not need this connection.
        if let Err(error) = self.stream.read_exact(&mut length).await {
            return Err(if error.kind() == io::ErrorKind::UnexpectedEof {
                HandshakeError::Silent
            } else {
                error.into()
            });
        }
        let (mut bytes, mut payload) = (vec![0; wire::record(length)?], Vec::new());
        self.stream.read_exact(&mut bytes).await?;
        self.opener.open(&bytes, &mut payload)?;
        Ok(payload)
    }

    /// The address that others use to reach the other side.
    pub(super) fn address(&self) -> String {
        let seen = || SocketAddr::new(self.remote.ip().to_canonical(), self.theirs.port).to_string();
        self.theirs.advertise.clone().unwrap_or_else(seen)
    }
}

/// The sending direction: bytes into encrypted records.
pub(super) struct RecordSealer {
    noise: Arc<StatelessTransportState>,
    nonce: u64,
}

impl RecordSealer {
    /// Appends as many records as needed.
    pub(super) fn seal(&mut self, bytes: &[u8], records: &mut Vec<u8>) -> Result<(), ProtocolError> {
        for piece in bytes.chunks(RECORD_MAX - TAG) {
            let start = records.len() + LENGTH;
            records.extend(((piece.len() + TAG) as u16).to_be_bytes());
            records.resize(start + piece.len() + TAG, 0);
            let sealed = self.noise.write_message(self.nonce, piece, &mut records[start..]);
            sealed.map_err(|_| ProtocolError("a record that cannot be encrypted"))?;
            self.nonce += 1;
        }
        Ok(())
    }
}

/// The receiving direction.
pub(super) struct RecordOpener {
    noise: Arc<StatelessTransportState>,
    nonce: u64,
}

impl RecordOpener {
    /// Appends a record's plaintext.
    pub(super) fn open(&mut self, record: &[u8], bytes: &mut Vec<u8>) -> Result<(), ProtocolError> {
        let start = bytes.len();
        bytes.resize(start + record.len(), 0);
        let opened = self.noise.read_message(self.nonce, record, &mut bytes[start..]);
        let length = opened.map_err(|_| ProtocolError("a record that cannot be decrypted"))?;
        bytes.truncate(start + length);
        self.nonce += 1;
        Ok(())
    }
}
