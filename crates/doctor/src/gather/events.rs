//! Finds where a worker publishes KV events, as the router does, and listens there during the prefill of a
//! new prompt.

use std::net::Ipv4Addr;
use std::time::Duration;

use maitre_base::KvEvent;
use maitre_dialect::engine::{EngineKind, sources};
use maitre_dialect::kv::{self, EventBatch, Groups};
use maitre_dialect::legs;
use maitre_net::worker_url::{EventSource, WorkerUrl, ZmqEndpoint};
use maitre_proxy::RouterSettings;
use maitre_proxy::subscribe::replay::{Bound, replay};
use maitre_proxy::subscribe::socket::{Subscriber, ZmqAddress, ZmqMessage};
use tokio::time::{sleep, timeout};

use super::requests::{self, Asker};
use super::unasked;
use crate::DoctorPlan;
use crate::client::{DoctorClient, Question};
use crate::facts::{Asked, Events, Published, Replay, Stream, Worker};

/// Pause between the subscription and the prompt: a publisher confirms nothing, and events that it publishes
/// before it has read the subscription are lost.
const SETTLE: Duration = Duration::from_millis(250);

/// How long events may take after the answer. Engines publish at the end of each step.
const HEAR: Duration = Duration::from_secs(2);

/// A number no publisher has reached: a replay from there contains only its end mark.
const BEYOND: u64 = u64::MAX - 1;

/// Maximum ranks tried. Chosen: more than any engine has.
const RANKS_MAX: u32 = 64;

/// Where to connect.
pub(super) struct Sought {
    events: (String, u16),
    replay: Option<(String, u16)>,
    is_configured: bool,
    dialled: Option<String>,
    ranks: usize,
    topic: String,
    /// Further ranks and where they publish.
    others: Vec<(u32, (String, u16))>,
}

/// Where the worker publishes: as configured for it, as configured for all, or as it reports itself.
pub(super) async fn seek(
    client: &DoctorClient,
    settings: &RouterSettings,
    worker: &WorkerUrl,
    kind: EngineKind,
) -> Result<Sought, Events> {
    let events = &settings.events;
    let port = |port: usize| {
        u16::try_from(port).ok().filter(|&it| it > 0).map(|port| ZmqEndpoint { host: None, port })
    };
    match (&worker.options.events, port(events.port)) {
        _ if !events.enabled => Err(Events::Off),
        (EventSource::Off, _) => Err(Events::Off),
        (EventSource::At(at), _) => Ok(configured(worker, at, worker.options.replay.as_ref(), &events.topic)),
        (EventSource::Auto, Some(at)) => {
            let usual = port(events.replay_port);
            Ok(configured(worker, &at, worker.options.replay.as_ref().or(usual.as_ref()), &events.topic))
        }
        (EventSource::Auto, None) => told(client, worker, kind).await,
    }
}

fn configured(worker: &WorkerUrl, at: &ZmqEndpoint, replay: Option<&ZmqEndpoint>, topic: &str) -> Sought {
    let place = |endpoint: &ZmqEndpoint, rank: u32| {
        let host = endpoint.host.as_deref().unwrap_or(worker.address.host());
        let rank = u16::try_from(rank).unwrap_or(u16::MAX);
        (host.to_owned(), endpoint.port.saturating_add(rank))
    };
    Sought {
        events: place(at, 0),
        replay: replay.map(|it| place(it, 0)),
        is_configured: true,
        dialled: None,
        ranks: worker.options.ranks as usize,
        topic: topic.to_owned(),
        others: (1..worker.options.ranks.min(RANKS_MAX)).map(|rank| (rank, place(at, rank))).collect(),
    }
}

async fn told(client: &DoctorClient, worker: &WorkerUrl, kind: EngineKind) -> Result<Sought, Events> {
    let path = kind.sources_path().ok_or(Events::Unheard)?;
    let unknown_place = |status| Events::UnknownPlace { path, status };
    let page = client.ask(Question::get(path)).await.map_err(|_| unknown_place(0))?;
    if !page.is_success() {
        return Err(unknown_place(page.status));
    }
    let sources = sources::parse(kind, &page.body).map_err(|_| unknown_place(page.status))?.sources;
    let place = |it: &sources::Address| {
        // The engine's loopback address refers to its own machine, not ours.
        let host = it.host.as_deref().filter(|it| !is_loopback(it));
        (host.unwrap_or(worker.address.host()).to_owned(), it.port)
    };
    let first = sources.first().ok_or(Events::None)?;
    // In order, as the router counts them.
    let ours = (0..worker.options.ranks.min(RANKS_MAX)).zip(&sources).skip(1);
    Ok(Sought {
        events: place(&first.events),
        replay: first.replay.as_ref().map(place),
        is_configured: false,
        dialled: sources::dialled(kind, &page.body),
        ranks: sources.len(),
        topic: first.topic.clone(),
        others: ours.map(|(rank, it)| (rank, place(&it.events))).collect(),
    })
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|it| it.is_loopback())
}

fn needs_partner(worker: &Worker) -> bool {
    legs::handoff(legs::usual_style(Some(worker.kind)), worker.role, None).needs_partner
}

/// Subscribes, sends a new prompt, and reads the events about it; then sends the other requests.
pub(super) async fn follow(
    sought: Result<Sought, Events>,
    client: &DoctorClient,
    plan: &DoctorPlan,
    worker: &Worker,
) -> (Events, Asked) {
    let asker = requests::model(worker).map(|model| Asker::new(client, worker, model));
    let asker = match (plan.requests, asker) {
        (false, _) => Err("--no-requests"),
        // SGLang's prefill and decode workers refuse a request that names no room.
        (true, _) if needs_partner(worker) => Err("SGLang's workers with a role answer in pairs only"),
        (true, None) => Err("no engine lists a model"),
        (true, Some(asker)) => Ok(asker),
    };
    let sought = match sought {
        Ok(sought) => sought,
        Err(events) => {
            return match asker {
                Err(why) => unasked(events, why),
                Ok(mut asker) => {
                    let asked = all(&mut asker, worker).await;
                    (events, asked)
                }
            };
        }
    };
    let subscribed = subscribe(&sought.events, client.timeout).await;
    let (stream, asked) = match (subscribed, asker) {
        (Err(stream), Err(why)) => (stream, Asked::No(why)),
        (Err(stream), Ok(mut asker)) => (stream, all(&mut asker, worker).await),
        (Ok(_), Err(why)) => (Stream::Open, Asked::No(why)),
        (Ok(subscriber), Ok(mut asker)) => hear(subscriber, &mut asker, worker).await,
    };
    let replay = replay_of(&sought, &stream, client.timeout).await;
    let mut unreachable_ranks = Vec::new();
    for (rank, place) in &sought.others {
        if let Err(Stream::Unreachable { why, .. }) = subscribe(place, client.timeout).await {
            unreachable_ranks.push((*rank, shown(place), why));
        }
    }
    let Sought { events, is_configured, dialled, ranks, topic, .. } = sought;
    let place = shown(&events);
    (
        Events::At(Published {
            place,
            is_configured,
            dialled,
            ranks,
            topic,
            stream,
            replay,
            unreachable_ranks,
        }),
        asked,
    )
}

async fn all(asker: &mut Asker, worker: &Worker) -> Asked {
    match asker.first().await {
        Ok(first) => asker.rest(first, worker).await,
        Err(why) => asker.failed(why),
    }
}

fn shown((host, port): &(String, u16)) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Subscribes to all topics, to learn under which one it publishes.
async fn subscribe((host, port): &(String, u16), timeout: Duration) -> Result<Subscriber, Stream> {
    let connect = |host| Subscriber::connect(ZmqAddress { host, port: *port }, b"", timeout);
    let local = Ipv4Addr::LOCALHOST.to_string();
    match connect(host).await {
        Ok(subscriber) => Ok(subscriber),
        Err(error) => {
            let on_loopback = *host != local && error.is_refused() && connect(&local).await.is_ok();
            Err(Stream::Unreachable { why: error.to_string(), on_loopback })
        }
    }
}

async fn hear(mut subscriber: Subscriber, asker: &mut Asker, worker: &Worker) -> (Stream, Asked) {
    sleep(SETTLE).await;
    let first = match asker.first().await {
        Ok(first) => first,
        Err(why) => return (Stream::Open, asker.failed(why)),
    };
    let heard = timeout(HEAR, next_stored(&mut subscriber)).await;
    let asked = asker.rest(first, worker).await;
    // A prompt that fills no block causes no event.
    let block = worker.block_tokens();
    let is_news = first.prompt_tokens.zip(block).filter(|(prompt, block)| prompt > block);
    let stream = match (heard, is_news) {
        (Ok(stream), _) => stream,
        (Err(_), Some((prompt_tokens, _))) => Stream::Silent { prompt_tokens },
        (Err(_), None) => Stream::Open,
    };
    (stream, asked)
}

/// Waits for a message with stored blocks.
async fn next_stored(subscriber: &mut Subscriber) -> Stream {
    let (mut groups, mut batch) = (Groups::default(), EventBatch::default());
    loop {
        let message = match subscriber.next().await {
            Ok(message) => message,
            Err(error) => return Stream::Unreadable { why: error.to_string() },
        };
        match read(message, &mut groups, &mut batch) {
            Ok(Some(heard)) => return heard,
            Ok(None) => {}
            Err(why) => return Stream::Unreadable { why },
        }
    }
}

fn read(message: ZmqMessage, groups: &mut Groups, batch: &mut EventBatch) -> Result<Option<Stream>, String> {
    let [topic, _, payload] = &message[..] else {
        return Err(format!("a message of {} frames, and 3 were expected", message.len()));
    };
    kv::decode(payload, groups, batch).map_err(|it| it.to_string())?;
    let topic = String::from_utf8_lossy(topic).into_owned();
    let block = batch.events().find_map(|it| match it {
        KvEvent::Stored(stored) => Some(stored.block_tokens),
        _ => None,
    });
    Ok(block.map(|block_tokens| Stream::Heard { topic, block_tokens }))
}

async fn replay_of(sought: &Sought, stream: &Stream, timeout: Duration) -> Replay {
    if matches!(stream, Stream::Unreachable { .. }) {
        return Replay::Unasked;
    }
    let Some(place) = &sought.replay else { return Replay::Absent };
    match replay(ZmqAddress { host: &place.0, port: place.1 }, BEYOND, Bound::within(timeout)).await {
        Ok(_) => Replay::Answers,
        Err(error) => Replay::Fails { place: shown(place), why: error.to_string() },
    }
}
