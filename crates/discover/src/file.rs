//! Workers from a file, one per line, read again whenever it changes.
//!
//! The folder is watched, not the file: editors replace the file, and Kubernetes swaps a symbolic link beside
//! it when a ConfigMap changes. Some file systems send no notifications, so the file is also read
//! periodically.
//!
//! A file with one bad line is rejected as a whole, because a half-written file looks the same; its last list
//! stays. A file cut between two lines, or within a port, looks valid. So we wait until it has been quiet for
//! a moment before reading. A program that writes it should write another file and rename it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use maitre_net::worker_url::WorkerUrl;
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::report::{ReportedWorkers, Reporter, SourceReport};
use crate::small_file;

/// Maximum file size. Chosen: 250 bytes for each of the maximum number of workers.
const FILE_BYTES_MAX: usize = 1 << 20;
/// How long the folder must be quiet before we read: longer than the gap between two writes of one program.
const QUIET: Duration = Duration::from_millis(50);
/// Maximum rounds of waiting: a log in the same folder must not delay the read for ever.
const QUIET_WAITS_MAX: usize = 20;

/// Runs until dropped.
pub(crate) async fn follow(path: PathBuf, reread: Duration, reporter: Reporter) {
    let (notify, mut notified) = mpsc::channel(1);
    loop {
        // A new watch each time, and before the read: a watch dies with its folder, without a notification.
        let watcher = watch(&path, notify.clone());
        let blind = watcher.as_ref().err().map(|it| format!("changes are only seen every {reread:?}: {it}"));
        let mut answer = answer(&path, small_file::read(path.clone(), FILE_BYTES_MAX).await);
        answer.note = answer.note.or(blind);
        reporter.send(answer).await;
        tokio::select! {
            _ = notified.recv() => quiet(&mut notified).await,
            () = sleep(reread) => {}
        }
    }
}

async fn quiet(notified: &mut mpsc::Receiver<()>) {
    for _ in 0..QUIET_WAITS_MAX {
        if timeout(QUIET, notified.recv()).await.is_err() {
            return;
        }
    }
}

fn watch(path: &Path, notify: mpsc::Sender<()>) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Our own read is an event too. If a notification is already pending, this one is dropped.
        if !event.is_ok_and(|it| it.kind.is_access()) {
            let _ = notify.try_send(());
        }
    })?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    watcher.watch(folder, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}

fn answer(path: &Path, read: io::Result<Vec<u8>>) -> SourceReport {
    let path = path.display();
    let none = |why| SourceReport {
        workers: ReportedWorkers::List(Vec::new()),
        note: Some(format!("{path}: {why}")),
    };
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return none("there is no such file"),
        Err(error) => return SourceReport::failure(format!("read {path}: {error}")),
    };
    let text = match std::str::from_utf8(&bytes) {
        Ok(text) => text,
        Err(error) => {
            let line = 1 + bytes[..error.valid_up_to()].iter().filter(|it| **it == b'\n').count();
            return SourceReport::failure(format!("{path}:{line}: is not text in UTF-8"));
        }
    };
    match workers(text) {
        Ok(workers) if workers.is_empty() => none("there are no workers in it"),
        Ok(workers) => SourceReport::of(ReportedWorkers::List(workers)),
        Err((line, why)) => SourceReport::failure(format!("{path}:{line}: {why}")),
    }
}

/// The workers, or the first bad line and the reason.
fn workers(text: &str) -> Result<Vec<WorkerUrl>, (usize, String)> {
    let (mut workers, mut lines) = (Vec::new(), BTreeMap::new());
    for (number, line) in (1..).zip(text.lines()) {
        let comment = line.match_indices('#').map(|it| it.0);
        let end = comment.into_iter().find(|&at| at == 0 || line[..at].ends_with(char::is_whitespace));
        let line = line[..end.unwrap_or(line.len())].trim();
        if line.is_empty() {
            continue;
        }
        let worker: WorkerUrl = line.parse().map_err(|error| (number, format!("{error}")))?;
        if let Some(first) = lines.insert(worker.address.clone(), number) {
            return Err((number, format!("{} is in line {first} already", worker.address)));
        }
        workers.push(worker);
    }
    Ok(workers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&[&str], &str>) {
        match (workers(text), expected) {
            (Ok(found), Ok(urls)) => {
                assert_eq!(found.iter().map(WorkerUrl::to_string).collect::<Vec<_>>(), urls);
            }
            (Err((line, why)), Err(part)) => {
                assert!(format!("{line}: {why}").contains(part), "{line}: {why}");
            }
            (actual, expected) => panic!("{text}: {actual:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn one_worker_per_line_and_comments() {
        check("", Ok(&[]));
        check("\n  \n# http://no:1\n", Ok(&[]));
        check("http://a:1\r\n  http://b:2?ranks=2 # two cards\n", Ok(&["http://a:1", "http://b:2?ranks=2"]));
        check("\thttp://a:1", Ok(&["http://a:1"]));
        check("https://a:8443\n", Ok(&["https://a:8443"]));
    }

    #[test]
    fn a_bad_line_is_named() {
        check("# mine\nhttp://a:1\nhtt", Err("3: \"htt\": it has no scheme"));
        check("http://a:1\n\nhttp://b:1#x\n", Err("3: "));
        check("http://a:1\n\nhttp://A:1/?ranks=2\n", Err("3: http://a:1 is in line 1 already"));
        check("http://a:1 http://b:1\n", Err("1: "));
    }

    #[test]
    fn bytes_that_are_not_text_are_a_failure_with_a_line() {
        let answer = answer(Path::new("/w"), Ok(b"http://a:1\n\xff\n".to_vec()));
        assert_eq!(answer, SourceReport::failure("/w:2: is not text in UTF-8"));
    }

    #[test]
    fn no_file_and_an_empty_file_are_an_empty_list() {
        for read in [Err(io::Error::from(io::ErrorKind::NotFound)), Ok(Vec::new())] {
            assert_eq!(answer(Path::new("/w"), read).workers, ReportedWorkers::List(Vec::new()));
        }
        let denied = answer(Path::new("/w"), Err(io::Error::from(io::ErrorKind::PermissionDenied)));
        assert_eq!(denied.workers, ReportedWorkers::Failure);
    }
}
