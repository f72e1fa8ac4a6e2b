//! From a fresh connection to one that is secret, and between two who hold the same key.
//!
//! ```text
//!   dialler                          dialled
//!   preamble, first of Noise    ─▶
//!                               ◀─   preamble, second of Noise with a hello
//!   hello                       ─▶
//!                               ◀─   verdict
//! ```
//!
//! Noise with the pattern NNpsk0: nobody has a key of his own, both prove that they know the shared one, and what
//! was said stays secret if that becomes known later. The dialler learns first whom he reached: he may find himself
//! there, or one he is connected with, and leaves without a word. Whoever is dialled says nothing at all to those
//! who do not begin with our preamble.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use snow::params::NoiseParams;
use snow::{Builder, HandshakeState, StatelessTransportState};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::notices::Cause;
use super::wire::{self, Hello, LENGTH, Nonsense, PREAMBLE, RECORD_MAX, TAG, VERSION, Verdict};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// An ephemeral key and a tag.
const FIRST: usize = 32 + TAG;
/// In place of the second message: the first could not be opened.
const NO_KEY: [u8; LENGTH] = [0; LENGTH];
/// For one who dialled us: long enough for a distant and busy machine.
const ACCEPT_MAX: Duration = Duration::from_secs(5);
/// For one we dial, from the first packet on. Shorter, because we try again: what a partition has swallowed must not
/// hold us up when it heals.
const DIAL_MAX: Duration = Duration::from_secs(2);

/// What all handshakes of a router have in common.
#[derive(Clone)]
pub(super) struct Card {
    pub(super) psk: [u8; 32],
    pub(super) name: String,
    pub(super) instance: u64,
    pub(super) advertise: Option<String>,
    pub(super) port: u16,
}

/// A connection whose two ends know each other.
pub(super) struct Shaken {
    pub(super) stream: TcpStream,
    pub(super) remote: SocketAddr,
    pub(super) sealing: Sealing,
    pub(super) opening: Opening,
    pub(super) theirs: Hello,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("{0}")]
    Broken(#[from] io::Error),
    /// Not a word: a port check, or ourselves.
    #[error("it hung up")]
    Quiet,
    #[error("no handshake within {0:?}")]
    Late(Duration),
    #[error("it does not speak as routers do")]
    Stranger,
    #[error(
        "it speaks version {0} of the cluster's protocol and we speak {VERSION}; run one release on all routers"
    )]
    Version(u8),
    #[error("it has another key; give all routers of a cluster the same cluster.key")]
    Key,
    #[error("{0}")]
    Nonsense(#[from] Nonsense),
}

impl Failure {
    /// Why somebody was refused; none if nobody was.
    pub(super) fn cause(&self) -> Option<Cause> {
        match self {
            Failure::Broken(_) | Failure::Quiet => None,
            Failure::Late(_) => Some(Cause::Late),
            Failure::Stranger => Some(Cause::Stranger),
            Failure::Version(_) => Some(Cause::Version),
            Failure::Key => Some(Cause::Key),
            Failure::Nonsense(_) => Some(Cause::Nonsense),
        }
    }
}

impl Card {
    fn hello(&self, you: IpAddr) -> Hello {
        let (name, advertise) = (self.name.clone(), self.advertise.clone());
        Hello { name, instance: self.instance, advertise, port: self.port, you }
    }

    fn noise(&self) -> Result<Builder<'_>, snow::Error> {
        let pattern: NoiseParams = PATTERN.parse()?;
        Builder::new(pattern).psk(0, &self.psk)?.prologue(&PROLOGUE)
    }

    /// Reaches somebody, and learns who it is. He knows nothing of us yet.
    pub(super) async fn dial(&self, address: SocketAddr) -> Result<Shaken, Failure> {
        let dialled = async { self.meet(TcpStream::connect(address).await?).await };
        timeout(DIAL_MAX, dialled).await.unwrap_or(Err(Failure::Late(DIAL_MAX)))
    }

    async fn meet(&self, mut stream: TcpStream) -> Result<Shaken, Failure> {
        stream.set_nodelay(true)?;
        let mut noise = self.noise().and_then(Builder::build_initiator).map_err(broken)?;
        let mut first = wire::preamble().to_vec();
        first.extend(message(&mut noise, &[])?);
        stream.write_all(&first).await?;
        check_version(read_version(&mut stream).await?)?;
        let mut length = [0; LENGTH];
        stream.read_exact(&mut length).await?;
        if length == NO_KEY {
            return Err(Failure::Key);
        }
        let theirs = read_message(&mut noise, &mut stream, length).await?;
        Shaken::new(stream, noise, Hello::decode(&theirs)?)
    }

    /// Says who we are, and hears what is thought of it.
    pub(super) async fn introduce(&self, mut shaken: Shaken) -> Result<(Shaken, Verdict), Failure> {
        let introduced = async {
            let hello = self.hello(shaken.remote.ip());
            shaken.say(&hello.encode()).await?;
            let verdict = Verdict::decode(&shaken.hear().await?)?;
            Ok((shaken, verdict))
        };
        timeout(DIAL_MAX, introduced).await.unwrap_or(Err(Failure::Late(DIAL_MAX)))
    }

    /// Lets somebody introduce himself. He waits for a verdict then.
    pub(super) async fn accept(&self, stream: TcpStream) -> Result<Shaken, Failure> {
        timeout(ACCEPT_MAX, self.answer(stream)).await.unwrap_or(Err(Failure::Late(ACCEPT_MAX)))
    }

    async fn answer(&self, mut stream: TcpStream) -> Result<Shaken, Failure> {
        stream.set_nodelay(true)?;
        let version = read_version(&mut stream).await?;
        let mut noise = self.noise().and_then(Builder::build_responder).map_err(broken)?;
        let mut second = wire::preamble().to_vec();
        if let Err(failure) = check_version(version) {
            stream.write_all(&second).await?;
            return Err(failure);
        }
        let mut length = [0; LENGTH];
        stream.read_exact(&mut length).await?;
        if usize::from(u16::from_be_bytes(length)) != FIRST {
            return Err(Nonsense("a handshake that does not begin like one").into());
        }
        match read_message(&mut noise, &mut stream, length).await {
            Err(Failure::Key) => {
                second.extend(NO_KEY);
                stream.write_all(&second).await?;
                return Err(Failure::Key);
            }
            other => other?,
        };
        let remote = stream.peer_addr()?;
        second.extend(message(&mut noise, &self.hello(remote.ip()).encode())?);
        stream.write_all(&second).await?;
        let nobody = self.hello(remote.ip());
        let mut shaken = Shaken::new(stream, noise, nobody)?;
        shaken.theirs = Hello::decode(&shaken.hear().await?)?;
        Ok(shaken)
    }
}

/// Both ends must have read the same preamble.
const PROLOGUE: [u8; 1] = [VERSION];

/// Noise fails only if it is given too much, or the system has no randomness.
fn broken(error: snow::Error) -> Failure {
    Failure::Broken(io::Error::other(error.to_string()))
}

async fn read_version(stream: &mut TcpStream) -> Result<u8, Failure> {
    let (mut heard, mut length) = ([0; PREAMBLE], 0);
    loop {
        length += match stream.read(&mut heard[length..]).await {
            Ok(0) if length == 0 => return Err(Failure::Quiet),
            Ok(0) => return Err(Failure::Stranger),
            Ok(read) => read,
            Err(_) if length == 0 => return Err(Failure::Quiet),
            Err(error) => return Err(error.into()),
        };
        match wire::version(&heard[..length]) {
            Ok(None) => (),
            Ok(Some(version)) => return Ok(version),
            Err(wire::Stranger) => return Err(Failure::Stranger),
        }
    }
}

fn check_version(version: u8) -> Result<(), Failure> {
    if version == VERSION { Ok(()) } else { Err(Failure::Version(version)) }
}

/// A message of the handshake, with its length before it.
fn message(noise: &mut HandshakeState, payload: &[u8]) -> Result<Vec<u8>, Failure> {
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
) -> Result<Vec<u8>, Failure> {
    let mut bytes = vec![0; wire::record(length)?];
    stream.read_exact(&mut bytes).await?;
    let mut payload = vec![0; bytes.len()];
    let length = noise.read_message(&bytes, &mut payload).map_err(|_| Failure::Key)?;
    payload.truncate(length);
    Ok(payload)
}

impl Shaken {
    fn new(stream: TcpStream, noise: HandshakeState, theirs: Hello) -> Result<Shaken, Failure> {
        let noise = Arc::new(noise.into_stateless_transport_mode().map_err(broken)?);
        let (sealing, opening) = (Sealing { noise: noise.clone(), nonce: 0 }, Opening { noise, nonce: 0 });
        let remote = stream.peer_addr()?;
        Ok(Shaken { stream, remote, sealing, opening, theirs })
    }

    /// One record.
    pub(super) async fn say(&mut self, payload: &[u8]) -> Result<(), Failure> {
        let mut bytes = Vec::new();
        self.sealing.seal(payload, &mut bytes)?;
        Ok(self.stream.write_all(&bytes).await?)
    }

    async fn hear(&mut self) -> Result<Vec<u8>, Failure> {
        let mut length = [0; LENGTH];
        // Who hangs up here has found out that he does not need us.
        if let Err(error) = self.stream.read_exact(&mut length).await {
            return Err(if error.kind() == io::ErrorKind::UnexpectedEof {
                Failure::Quiet
            } else {
                error.into()
            });
        }
        let (mut bytes, mut payload) = (vec![0; wire::record(length)?], Vec::new());
        self.stream.read_exact(&mut bytes).await?;
        self.opening.open(&bytes, &mut payload)?;
        Ok(payload)
    }

    /// Where others reach him.
    pub(super) fn address(&self) -> String {
        let seen = || SocketAddr::new(self.remote.ip().to_canonical(), self.theirs.port).to_string();
        self.theirs.advertise.clone().unwrap_or_else(seen)
    }
}

/// One direction of a connection: bytes into records.
pub(super) struct Sealing {
    noise: Arc<StatelessTransportState>,
    nonce: u64,
}

impl Sealing {
    /// Appends as many records as it takes.
    pub(super) fn seal(&mut self, bytes: &[u8], records: &mut Vec<u8>) -> Result<(), Nonsense> {
        for piece in bytes.chunks(RECORD_MAX - TAG) {
            let start = records.len() + LENGTH;
            records.extend(((piece.len() + TAG) as u16).to_be_bytes());
            records.resize(start + piece.len() + TAG, 0);
            let sealed = self.noise.write_message(self.nonce, piece, &mut records[start..]);
            sealed.map_err(|_| Nonsense("a record that cannot be sealed"))?;
            self.nonce += 1;
        }
        Ok(())
    }
}

/// The other direction.
pub(super) struct Opening {
    noise: Arc<StatelessTransportState>,
    nonce: u64,
}

impl Opening {
    /// Appends what a record holds.
    pub(super) fn open(&mut self, record: &[u8], bytes: &mut Vec<u8>) -> Result<(), Nonsense> {
        let start = bytes.len();
        bytes.resize(start + record.len(), 0);
        let opened = self.noise.read_message(self.nonce, record, &mut bytes[start..]);
        let length = opened.map_err(|_| Nonsense("a record that was not sealed for us"))?;
        bytes.truncate(start + length);
        self.nonce += 1;
        Ok(())
    }
}
