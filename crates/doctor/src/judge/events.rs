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
            Events::None => outcome.find(off(worker, "reports that it publishes none".to_owned())),
            Events::UnknownPlace { path, status } => {
                let what = format!("does not report whether it publishes any ({path} answers {status})");
                outcome.find(off(worker, what));
            }
            Events::At(published) => {
                heard += usize::from(matches!(published.stream, Stream::Heard { .. } | Stream::Open));
                of_published(worker, published, &mut outcome);
            }
        }
    }
    outcome.said = match able {
        0 => "not checked".to_owned(),
        _ => format!("reachable at {heard} of {}", workers(able)),
    };
    outcome
}

fn off(worker: &Worker, what: String) -> Finding {
    let start = worker.kind.advice(Need::Events);
    let fix = format!(
        "start it {start}; if it then does not report where, append ?events=5557&replay=5558 to its URL. \
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
            format!("append ?ranks={ranks} to its URL"),
        ));
    }
    stream(worker, published, outcome);
    for (rank, place, why) in &published.unreachable_ranks {
        let what = format!("the events of rank {rank} cannot be reached at {place}: {why}");
        let fix = "check that the ports after the first are open: each rank publishes on its own port";
        outcome.find(Finding::at(&worker.url, Code::EventsUnreachable, what, fix));
    }
    match &published.replay {
        Replay::Answers | Replay::Unasked => {}
        Replay::Absent => outcome.find(Finding::at(
            &worker.url,
            Code::EventsReplay,
            "offers no replay: events from before the router started, or lost on the way, stay unknown",
            format!(
                "start it {}{}",
                worker.kind.advice(Need::Replay),
                if published.is_configured {
                    ", and append &replay=5558 to its URL (or set events.replay_endpoint)"
                } else {
                    ""
                }
            ),
        )),
        Replay::Fails { place, why } => outcome.find(Finding::at(
            &worker.url,
            Code::EventsReplay,
            format!("its replay at {place} does not answer: {why}"),
            "check that the port of its replay_endpoint is open to this machine and configured correctly",
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
            format!(
                "check that this port belongs to this engine, and start it {}",
                worker.kind.advice(Need::Events)
            ),
        ),
        Stream::Unreadable { why } => find(
            Code::EventsUnreadable,
            format!("what it publishes at {} cannot be read: {why}", published.place),
            "check that this is the port of its KV events; if it is, the engine is newer than this Maitre"
                .to_owned(),
        ),
        Stream::Heard { topic, .. } => {
            if !topic.starts_with(&published.topic) {
                find(
                    Code::EventsTopic,
                    format!(
                        "publishes under topic {topic:?}, but the router subscribes to {:?}",
                        published.topic
                    ),
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
            format!("is configured with the endpoint {endpoint}, to which it connects instead of listening there"),
            listen,
        ),
        None if on_loopback => (
            format!("no answer at {place} ({why}), but 127.0.0.1:{port} answers: it listens on loopback only"),
            listen,
        ),
        None if published.is_configured => (
            format!("no publisher at the configured address {place}: {why}"),
            "fix ?events= in its URL, or events.endpoint; without either, the router asks the engine where it publishes"
                .to_owned(),
        ),
        None => (
            format!("reports that it publishes at {place}, which cannot be reached: {why}"),
            format!("open port {port} to this machine, or append ?events=tcp://host:port to its URL"),
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
                "is version {version}, whose events do not identify the position of a block in its prompt"
            ),
            format!("update it to {since} or later"),
        );
    }
    let has_adapters =
        matches!(&worker.listed, Listed::Models(it) if it.iter().any(|it| it.parent.is_some()));
    if has_adapters && !worker.kind.names_adapters(version) {
        find(
            Code::AdaptersAlias,
            "serves adapters, but its events do not name them: an adapter's blocks look like the base model's"
                .to_owned(),
            "serve adapters from separate workers, or append ?events=off to this worker's URL".to_owned(),
        );
    }
}
