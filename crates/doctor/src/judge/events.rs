//! KV events: are they published, at the expected address, under the expected topic?

use maitre_dialect::engine::{self, Need};

use super::caching;
use super::workers;
use crate::code::Code;
use crate::facts::{Events, Fleet, Listed, Published, Replay, Stream, Worker};
use crate::report::{Finding, Outcome};

pub(super) fn events(fleet: &Fleet) -> Outcome {
    let mut outcome = Outcome::default();
    let (mut heard, mut able) = (0, 0);
    // An engine that caches nothing has no events.
    for worker in fleet.present().filter(|it| caching::is_off(it).is_none()) {
        able += usize::from(!matches!(worker.events, Events::Off | Events::Unheard));
        match &worker.events {
            Events::Off | Events::Unheard => {}
            Events::None => outcome.find(off(worker, "says that it publishes none".to_owned())),
            Events::UnknownPlace { path, status } => {
                let what = format!("does not say whether it publishes any ({path} answers {status})");
                outcome.find(off(worker, what));
            }
            Events::At(published) => {
                heard += usize::from(matches!(published.stream, Stream::Heard { .. } | Stream::Open));
                of_published(worker, published, &mut outcome);
            }
        }
    }
    outcome.said = match able {
        0 => "not looked for".to_owned(),
        _ => format!("reachable at {heard} of {}", workers(able)),
    };
    outcome
}

fn off(worker: &Worker, what: String) -> Finding {
    let start = worker.kind.advice(Need::Events);
    let fix = format!(
        "start it {start}; if it then does not say where, write ?events=5557&replay=5558 after its URL. \
         To do without: ?events=off"
    );
    Finding::at(&worker.url, Code::EventsOff, what, fix)
}

fn of_published(worker: &Worker, published: &Published, outcome: &mut Outcome) {
    if let Some(ranks) = worker.hidden_ranks() {
        outcome.find(Finding::at(
            &worker.url,
            Code::RanksHidden,
            format!("has {ranks} data-parallel ranks behind one address, each with a cache of its own"),
            format!("write ?ranks={ranks} after its URL"),
        ));
    }
    stream(worker, published, outcome);
    for (rank, place, why) in &published.unreachable_ranks {
        let what = format!("the events of rank {rank} cannot be had at {place}: {why}");
        let fix = "see that the ports after the first are open: each rank publishes on one of its own";
        outcome.find(Finding::at(&worker.url, Code::EventsUnreachable, what, fix));
    }
    match &published.replay {
        Replay::Answers | Replay::Unasked => {}
        Replay::Absent => outcome.find(Finding::at(
            &worker.url,
            Code::EventsReplay,
            "offers no replay: what was published before the router came, or was lost on the way, stays unknown",
            format!(
                "start it {}{}",
                worker.kind.advice(Need::Replay),
                if published.is_configured { ", and write &replay=5558 after its URL (or events.replay_endpoint)" } else { "" }
            ),
        )),
        Replay::Fails { place, why } => outcome.find(Finding::at(
            &worker.url,
            Code::EventsReplay,
            format!("its replay at {place} does not answer: {why}"),
            "see that the port of its replay_endpoint is open to this machine and is the one named",
        )),
    }
}

fn stream(worker: &Worker, published: &Published, outcome: &mut Outcome) {
    let mut find = |code, what: String, fix: String| outcome.find(Finding::at(&worker.url, code, what, fix));
    match &published.stream {
        Stream::Open => {}
        Stream::Unreachable { why, on_loopback } => {
            let (what, fix) = unreachable(published, why, *on_loopback);
            find(Code::EventsUnreachable, what, fix);
        }
        // Another rank may have taken the prompt.
        Stream::Silent { .. } if worker.hidden_ranks().is_some() => {}
        Stream::Silent { prompt_tokens } => find(
            Code::EventsSilent,
            format!("published nothing at {} for a new prompt of {prompt_tokens} tokens", published.place),
            format!("see that this port is this engine's, and start it {}", worker.kind.advice(Need::Events)),
        ),
        Stream::Unreadable { why } => find(
            Code::EventsUnreadable,
            format!("what it publishes at {} cannot be read: {why}", published.place),
            "see that the port is that of its KV events; if it is, the engine is newer than this Maitre"
                .to_owned(),
        ),
        Stream::Heard { topic, .. } => {
            if !topic.starts_with(&published.topic) {
                find(
                    Code::EventsTopic,
                    format!("publishes under topic {topic:?}; listened to is {:?}", published.topic),
                    format!("set events.topic to {topic:?}, or to \"\" for all"),
                );
            }
            usable(worker, &mut find);
        }
    }
}

fn unreachable(published: &Published, why: &str, on_loopback: bool) -> (String, String) {
    let place = &published.place;
    let port = place.rsplit_once(':').map_or("5557", |it| it.1);
    let listen = format!("write \"endpoint\":\"tcp://*:{port}\" in its --kv-events-config");
    match &published.dialled {
        Some(endpoint) => (
            format!("was given the endpoint {endpoint}, to which it connects instead of listening there"),
            listen,
        ),
        None if on_loopback => (
            format!("no answer at {place} ({why}), but one at 127.0.0.1:{port}: it listens on loopback only"),
            listen,
        ),
        None if published.is_configured => (
            format!("no publisher at {place}, where the settings say: {why}"),
            "fix ?events= after its URL, or events.endpoint; without either it is asked where it publishes"
                .to_owned(),
        ),
        None => (
            format!("says that it publishes at {place}, and it cannot be reached there: {why}"),
            format!("open port {port} to this machine, or write ?events=tcp://host:port after its URL"),
        ),
    }
}

fn usable(worker: &Worker, find: &mut impl FnMut(Code, String, String)) {
    let version = worker.about.version.as_deref();
    if let (Some(since), Some(version)) = (worker.kind.events_since(), version)
        && engine::is_below(version, since) == Some(true)
    {
        find(
            Code::EventsUnusable,
            format!(
                "is version {version}, whose events do not tell at which place of a prompt a block stands"
            ),
            format!("bring it to {since} or later"),
        );
    }
    let has_adapters =
        matches!(&worker.listed, Listed::Models(it) if it.iter().any(|it| it.parent.is_some()));
    if has_adapters && !worker.kind.names_adapters() {
        find(
            Code::AdaptersAlias,
            "serves adapters, and its events do not name them: what one stores looks like the base model's"
                .to_owned(),
            "serve adapters from workers of their own, or write ?events=off after this one's URL".to_owned(),
        );
    }
}
