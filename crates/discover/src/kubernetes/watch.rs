//! Reads lists in pages and watches line by line, as the API sends them.

use std::borrow::Cow;
use std::pin::pin;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::{sleep, timeout};

use super::ApiError;
use super::api::{ApiClient, shown};
use super::line_buffer::LineBuffer;
use super::store::{ChangeKind, Store};
use crate::backoff::Backoff;
use crate::escape::escape;
use crate::report::{Reporter, SourceReport};

/// Objects per page, and bytes per page. A Pod takes about 10 KiB, and at most 1.5 MiB.
const PAGE_OBJECTS: usize = 250;
const PAGE_BYTES_MAX: usize = 32 << 20;
/// Maximum bytes of one watch event.
const LINE_BYTES_MAX: usize = 4 << 20;
/// A watch that lasted this long counts as successful.
const STEADY: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
struct ListPage<'a> {
    metadata: PageMetadata,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
struct PageMetadata {
    #[serde(rename = "resourceVersion")]
    version: String,
    #[serde(rename = "continue", default)]
    rest: Option<String>,
}

#[derive(Deserialize)]
struct WatchEvent<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Bookmark {
    metadata: PageMetadata,
}

#[derive(Deserialize)]
struct ErrorStatus {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
}

/// Fills an empty store; returns the version to watch from.
pub(super) async fn list(client: &ApiClient, path: &str, store: &mut Store) -> Result<String, ApiError> {
    let mut rest = String::new();
    loop {
        let from = if rest.is_empty() { String::new() } else { format!("&continue={}", escape(&rest)) };
        let answer = client.get(&format!("{path}&limit={PAGE_OBJECTS}{from}")).await?;
        let late = |_| ApiError::Failed(format!("list: not done within {:?}", client.timeout()));
        let bytes = timeout(client.timeout(), answer.read_all(PAGE_BYTES_MAX)).await.map_err(late)??;
        let page: ListPage<'_> = serde_json::from_slice(&bytes).map_err(|error| bad("list", &error))?;
        for item in page.items.unwrap_or_default() {
            store.put(item.get())?;
        }
        match page.metadata.rest.filter(|it| !it.is_empty()) {
            None => return Ok(page.metadata.version),
            // A server that repeats the same page would keep us here for ever.
            Some(next) if next == rest => return Err(ApiError::Failed("list: it does not go on".to_owned())),
            Some(next) => rest = next,
        }
    }
}

fn bad(what: &str, error: &serde_json::Error) -> ApiError {
    ApiError::Failed(format!("{what}: not the JSON it should be: {}", shown(&error.to_string())))
}

/// A store and the watch that keeps it up to date.
pub(super) struct ObjectWatch<'a> {
    pub(super) client: ApiClient,
    pub(super) path: String,
    pub(super) store: Store,
    pub(super) version: String,
    pub(super) backoff: &'a mut Backoff,
    pub(super) reporter: &'a Reporter,
}

/// Why a watch cannot continue, so that everything must be listed again.
pub(super) enum WatchEnd {
    VersionTooOld,
    /// An event could not be parsed, and the object it was about is unknown.
    Unreadable(String),
}

impl ObjectWatch<'_> {
    /// Watches, again and again, for as long as the server knows the version.
    pub(super) async fn follow(&mut self, length: Duration) -> WatchEnd {
        loop {
            match self.once(length).await {
                Ok(()) => {}
                Err(lost) => return lost,
            }
            sleep(self.backoff.next()).await;
        }
    }

    async fn once(&mut self, length: Duration) -> Result<(), WatchEnd> {
        let (path, version, seconds) = (&self.path, escape(&self.version), length.as_secs().max(1));
        let query =
            format!("watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={version}");
        let mut answer = match self.client.get(&format!("{path}&{query}")).await {
            Ok(answer) => answer,
            Err(ApiError::Gone) => return Err(WatchEnd::VersionTooOld),
            Err(ApiError::Failed(why)) => {
                self.reporter.send(SourceReport::failure(why)).await;
                return Ok(());
            }
        };
        // The watch began, so what we have is up to date.
        self.reporter.send(self.store.answer(ChangeKind::Listed)).await;
        let mut lines = LineBuffer::new(LINE_BYTES_MAX);
        let (mut steady, mut hung) = (pin!(sleep(STEADY)), pin!(sleep(length + self.client.timeout())));
        let mut is_steady = false;
        loop {
            let piece = tokio::select! {
                piece = answer.chunk() => piece,
                () = &mut steady, if !is_steady => {
                    is_steady = true;
                    self.backoff.reset();
                    continue;
                }
                // The watch should have ended by itself.
                () = &mut hung => return Ok(()),
            };
            match piece {
                Ok(Some(piece)) => lines.push(&piece),
                // The watch ended or broke off, perhaps within a line: resume after the last complete one.
                Ok(None) | Err(_) => return Ok(()),
            }
            self.read(&mut lines).await?;
        }
    }

    /// Applies every complete line, then sends one report for all of them.
    async fn read(&mut self, lines: &mut LineBuffer) -> Result<(), WatchEnd> {
        let mut cause_so_far = None;
        loop {
            let line = lines.next().map_err(|_| {
                WatchEnd::Unreadable(format!("watch: an event has more than {LINE_BYTES_MAX} bytes"))
            })?;
            let Some(line) = line else { break };
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let cause = self.event(&line).map_err(|problem| match problem {
                ApiError::Gone => WatchEnd::VersionTooOld,
                ApiError::Failed(why) => WatchEnd::Unreadable(format!("watch: {why}")),
            })?;
            cause_so_far = match (cause_so_far, cause) {
                (Some(ChangeKind::Deleted), _) | (_, Some(ChangeKind::Deleted)) => Some(ChangeKind::Deleted),
                (cause_so_far, cause) => cause.or(cause_so_far),
            };
        }
        if let Some(cause) = cause_so_far {
            self.reporter.send(self.store.answer(cause)).await;
        }
        Ok(())
    }

    /// Applies one event; returns its effect on the store.
    fn event(&mut self, line: &[u8]) -> Result<Option<ChangeKind>, ApiError> {
        let event: WatchEvent<'_> = serde_json::from_slice(line).map_err(|error| bad("an event", &error))?;
        let json = event.object.get();
        let (version, cause) = match event.kind.as_ref() {
            "ADDED" | "MODIFIED" => (self.store.put(json)?, Some(ChangeKind::Changed)),
            "DELETED" => (self.store.remove(json)?, Some(ChangeKind::Deleted)),
            "BOOKMARK" => {
                let bookmark: Bookmark =
                    serde_json::from_str(json).map_err(|error| bad("a bookmark", &error))?;
                (bookmark.metadata.version, None)
            }
            "ERROR" => {
                let status: ErrorStatus =
                    serde_json::from_str(json).map_err(|error| bad("an error", &error))?;
                let is_old = status.code == 410 || matches!(status.reason.as_str(), "Expired" | "Gone");
                let why = format!("{} {}", status.code, shown(&status.message));
                return Err(if is_old { ApiError::Gone } else { ApiError::Failed(why) });
            }
            kind => return Err(ApiError::Failed(format!("no event is called {:?}", shown(kind)))),
        };
        if !version.is_empty() {
            self.version = version;
        }
        Ok(cause)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use maitre_base::Rng;
    use tokio::sync::mpsc;

    use super::*;
    use crate::kubernetes::account::Account;
    use crate::settings::KubernetesSettings;

    /// The effect of one event, as `cause version`, or its error.
    #[track_caller]
    fn check(line: &str, expected: &str) {
        let settings = KubernetesSettings {
            api: Some("http://127.0.0.1:1".parse().unwrap()),
            ..KubernetesSettings::default()
        };
        let crate::WorkerSource::Kubernetes(cluster) = "kubernetes:a/vllm".parse().unwrap() else { panic!() };
        let mut watch = ObjectWatch {
            client: ApiClient::new(&settings, Account::new(PathBuf::new())).unwrap(),
            path: String::new(),
            store: Store::new(cluster, Vec::new()),
            version: "1".to_owned(),
            backoff: &mut Backoff::new(Duration::ZERO, Duration::ZERO, Rng::new(0)),
            reporter: &Reporter { index: 0, to: mpsc::channel(1).0 },
        };
        let actual = match watch.event(line.as_bytes()) {
            Ok(cause) => format!("{cause:?} {}", watch.version),
            Err(ApiError::Gone) => "gone".to_owned(),
            Err(ApiError::Failed(why)) => why,
        };
        assert!(actual.contains(expected), "{line}: {actual}, expected {expected}");
    }

    #[test]
    fn every_kind_of_event_is_applied() {
        let object = r#"{"metadata":{"name":"s","resourceVersion":"7"}}"#;
        check(&format!(r#"{{"type":"ADDED","object":{object}}}"#), "Some(Changed) 7");
        check(&format!(r#"{{"type":"MODIFIED","object":{object}}}"#), "Some(Changed) 7");
        check(&format!(r#"{{"object":{object},"type":"DELETED"}}"#), "Some(Deleted) 7");
        check(&format!(r#"{{"type":"BOOKMARK","object":{object}}}"#), "None 7");
        check(r#"{"type":"ADDED","object":{"metadata":{"name":"s"}}}"#, "Some(Changed) 1");
        check(r#"{"type":"ERROR","object":{"code":410}}"#, "gone");
        check(r#"{"type":"ERROR","object":{"code":500,"reason":"Expired"}}"#, "gone");
        check(r#"{"type":"ERROR","object":{"code":500,"message":"etcd\nis away"}}"#, "500 etcd is away");
        check(r#"{"type":"MOVED","object":{}}"#, "no event is called \"MOVED\"");
        check(r#"{"type":"ADDED","object":{"metadata":{}}}"#, "read an object: missing field `name`");
        check("{", "an event: not the JSON it should be");
    }
}
