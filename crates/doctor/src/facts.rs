//! What the doctor observed about a fleet: plain values, gathered once, judged afterwards.
//!
//! Facts that were not or could not be gathered are states of their own, so that no check treats them as
//! healthy.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use maitre_base::{EngineLoad, Role};
use maitre_dialect::engine::{About, EngineKind};
use maitre_dialect::models::Model;
use maitre_dialect::usage::Usage;
use maitre_net::tls::TlsFailure;

#[derive(Clone, Debug, Default)]
pub struct Fleet {
    pub workers: Vec<Worker>,
    /// None if the command names no router.
    pub router: Option<Router>,
    pub here: Here,
}

/// Facts about this machine and the settings.
#[derive(Clone, Debug, Default)]
pub struct Here {
    /// Maximum files this process may open; none if unknown.
    pub descriptors: Option<u64>,
    pub connections: u64,
    pub idle_per_worker: u64,
    pub threads: u64,
    /// The admin listener, if the settings let other machines reach it without TLS.
    pub open_admin: Option<OpenAdmin>,
    /// Tokenizers that cannot be loaded: the model and the reason.
    pub unusable: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenAdmin {
    pub at: SocketAddr,
    /// Whether it requires a key, which then crosses the network.
    pub with_key: bool,
}

#[derive(Clone, Debug)]
pub struct Worker {
    pub url: String,
    /// As configured; one unless the operator sets another number.
    pub ranks: u32,
    pub role: Role,
    pub handoff: Handoff,
    /// Prompts that it computed for others and nobody fetched in time.
    pub expired_handoffs: u64,
    pub reach: Reach,
    pub kind: EngineKind,
    pub listed: Listed,
    pub about: About,
    pub metered: Metered,
    pub events: Events,
    pub asked: Asked,
    pub compared: Vec<Compared>,
    /// Time to the first chunk of a tiny streamed answer, the minimum of a few.
    pub first_token: Option<Duration>,
    /// How far its clock is ahead of ours, in seconds, by its `date` header; none without that header.
    pub clock_ahead: Option<f64>,
}

/// What a prefill worker hands over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handoff {
    Unasked,
    /// Its answer names nothing to fetch.
    None,
    /// The host of its KV cache, as it names it.
    At(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// A Maitre router at its address for clients.
    Router,
    /// The status of its probe path.
    Answers {
        path: String,
        status: u16,
    },
    Not(Unanswered),
}

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unanswered {
    Unresolved(String),
    Refused(String),
    TimedOut(Duration),
    /// The URL is https, and the TLS handshake failed.
    NoTls(TlsFailure),
    /// The URL is http, and the server speaks TLS.
    SpeaksTls,
    /// The server does not speak HTTP, or closed the connection.
    Broke(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listed {
    Models(Vec<Model>),
    /// 401 or 403.
    Locked {
        status: u16,
        with_key: bool,
    },
    Unreadable {
        status: u16,
        why: String,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Metered {
    Read(EngineLoad),
    /// No metrics page; this was the status.
    Missing {
        path: &'static str,
        status: u16,
    },
    /// A page without any metric of the brand.
    Foreign(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Events {
    /// Disabled in the settings.
    Off,
    /// The brand has no KV events.
    Unheard,
    /// The engine reports that it publishes none.
    None,
    /// Neither the engine nor the settings name an address.
    UnknownPlace {
        path: &'static str,
        status: u16,
    },
    At(Published),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// `host:port`.
    pub place: String,
    /// Whether the settings name the address; otherwise the engine does.
    pub is_configured: bool,
    /// The address to which the engine connects instead of listening.
    pub dialled: Option<String>,
    /// Ranks that the engine reports.
    pub ranks: usize,
    /// The topic prefix to subscribe to.
    pub topic: String,
    pub stream: Stream,
    pub replay: Replay,
    /// Further ranks whose stream cannot be reached: which, where, and why.
    pub unreachable_ranks: Vec<(u32, String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stream {
    /// `on_loopback`: the same port of this machine's loopback answers.
    Unreachable {
        why: String,
        on_loopback: bool,
    },
    /// The handshake succeeds; no request was sent that would cause events.
    Open,
    /// A prompt of this many tokens was sent, and no event arrived.
    Silent {
        prompt_tokens: u64,
    },
    Heard {
        topic: String,
        block_tokens: u32,
    },
    Unreadable {
        why: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replay {
    Absent,
    Answers,
    Fails {
        place: String,
        why: String,
    },
    /// The event stream is not reachable either.
    Unasked,
}

/// The outcome of a few small requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Why none was sent.
    No(&'static str),
    Failed {
        path: &'static str,
        why: String,
    },
    Answered(Answered),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// A new prompt.
    pub first: Usage,
    /// The same prompt again.
    pub second: Usage,
    pub salted: Salted,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Salted {
    #[default]
    Unasked,
    /// The same prompt under a new salt.
    Answered(Usage),
    Refused {
        status: u16,
    },
}

/// One fixed chat as tokens: ours and the engine's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compared {
    pub model: String,
    pub outcome: Comparison,
}

/// Counts and positions only: token ids would reveal the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Comparison {
    Same {
        tokens: usize,
    },
    /// The first position where they differ.
    Differ {
        ours: usize,
        theirs: usize,
        at: usize,
    },
    /// We cannot render the chat.
    Unrendered(String),
    /// The engine did not answer.
    Unanswered(String),
}

#[derive(Clone, Debug, Default)]
pub struct Router {
    pub admin: Option<Result<Admin, String>>,
    /// The models it offers to clients.
    pub front: Option<Result<Vec<String>, String>>,
}

#[derive(Clone, Debug, Default)]
pub struct Admin {
    pub url: String,
    pub is_ready: bool,
    /// The answer of `/readyz`.
    pub said: String,
    /// The body of `/metrics`.
    pub page: Bytes,
    /// When it was read, in seconds since 1970.
    pub read_at: f64,
}

impl Worker {
    /// Only whether it can be reached is known.
    pub fn unknown(url: String, reach: Reach) -> Worker {
        Worker {
            url,
            ranks: 1,
            role: Role::Both,
            handoff: Handoff::Unasked,
            expired_handoffs: 0,
            reach,
            kind: EngineKind::Generic,
            listed: Listed::Models(Vec::new()),
            about: About::default(),
            metered: Metered::Read(EngineLoad::default()),
            events: Events::Off,
            asked: Asked::No("it was not reached"),
            compared: Vec::new(),
            first_token: None,
            clock_ahead: None,
        }
    }

    /// Whether it answers like an engine, so that the other facts can be judged.
    pub fn is_present(&self) -> bool {
        matches!(self.reach, Reach::Answers { status, .. } if status < 500) && !self.is_stranger()
    }

    /// An HTTP server without either of the two pages that every engine has.
    pub fn is_stranger(&self) -> bool {
        let is_lost = |status: u16| !(200..300).contains(&status);
        let no_health = matches!(self.reach, Reach::Answers { status, .. } if is_lost(status));
        no_health && matches!(self.listed, Listed::Unreadable { .. }) && self.kind == EngineKind::Generic
    }

    /// The models it serves, without adapters.
    pub fn models(&self) -> Vec<&Model> {
        match &self.listed {
            Listed::Models(models) => models.iter().filter(|it| it.parent.is_none()).collect(),
            _ => Vec::new(),
        }
    }

    /// Tokens per block, from its events or its own report.
    pub fn block_tokens(&self) -> Option<u64> {
        let heard = match &self.events {
            Events::At(Published { stream: Stream::Heard { block_tokens, .. }, .. }) => {
                Some(u64::from(*block_tokens))
            }
            _ => None,
        };
        let told = match &self.metered {
            Metered::Read(load) => load.block_size,
            _ => None,
        };
        heard.filter(|it| *it > 0).or(told).or(self.about.block_tokens)
    }

    /// Ranks behind the address that the router does not know of: it cannot tell which one answers.
    pub fn hidden_ranks(&self) -> Option<usize> {
        match &self.events {
            Events::At(published) if published.ranks > 1 && self.ranks == 1 => Some(published.ranks),
            _ => None,
        }
    }
}

impl Fleet {
    pub fn present(&self) -> impl Iterator<Item = &Worker> {
        self.workers.iter().filter(|it| it.is_present())
    }

    pub fn admin(&self) -> Option<&Admin> {
        self.router.as_ref()?.admin.as_ref()?.as_ref().ok()
    }
}
