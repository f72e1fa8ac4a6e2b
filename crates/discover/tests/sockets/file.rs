//! Files that are edited, replaced, half-written, swapped and lost.

use std::fs;
use std::os::unix::fs::symlink;

use maitre_discover::update::SourceState;
use maitre_discover::{DiscoverySettings, Update};

use crate::follower::{Follower, NEVER, SOON, quick};
use maitre_testkit::folder::Folder;

fn source(folder: &Folder) -> String {
    format!("file:{}", folder.path().join("workers").display())
}

/// Changes are seen through notifications only, never through periodic reads.
fn notified_only() -> DiscoverySettings {
    DiscoverySettings { reread: NEVER, ..quick() }
}

#[tokio::test]
async fn a_file_is_read_and_read_again_when_it_changes() {
    let folder = Folder::new();
    folder.write("workers", "http://a:1\n# none\nhttp://b:1?ranks=2\n");
    let mut settings = notified_only();
    settings.grace.gone_after = SOON;
    let mut follower = Follower::new(&[&source(&folder)], settings);
    follower.workers(&["http://a:1", "http://b:1?ranks=2"]).await;
    folder.replace("workers", "http://a:1\nhttp://c:1\n");
    follower.workers(&["http://a:1", "http://c:1"]).await;
    folder.write("workers", "http://c:1\n");
    follower.workers(&["http://c:1"]).await;
}

#[tokio::test]
async fn a_file_that_appears_later_is_seen() {
    let folder = Folder::new();
    let mut follower = Follower::new(&[&source(&folder)], notified_only());
    follower.note("there is no such file").await;
    folder.replace("workers", "http://a:1\n");
    follower.workers(&["http://a:1"]).await;
}

#[tokio::test]
async fn a_config_map_that_swaps_a_link_beside_the_file_is_seen() {
    let folder = Folder::new();
    let version = |name: &str, text: &str| {
        fs::create_dir(folder.path().join(name)).unwrap();
        folder.write(&format!("{name}/workers"), text);
        symlink(name, folder.path().join("..data_tmp")).unwrap();
        fs::rename(folder.path().join("..data_tmp"), folder.path().join("..data")).unwrap();
    };
    version("..one", "http://a:1\n");
    symlink("..data/workers", folder.path().join("workers")).unwrap();
    let mut follower = Follower::new(&[&source(&folder)], notified_only());
    follower.workers(&["http://a:1"]).await;
    version("..two", "http://a:1\nhttp://b:1\n");
    follower.workers(&["http://a:1", "http://b:1"]).await;
}

#[tokio::test]
async fn a_bad_line_is_named_and_the_old_list_stays() {
    let folder = Folder::new();
    folder.write("workers", "http://a:1\nhttp://b:1\n");
    let mut settings = notified_only();
    settings.grace.gone_after = SOON;
    settings.grace.empty_after = SOON;
    let mut follower = Follower::new(&[&source(&folder)], settings);
    follower.workers(&["http://a:1", "http://b:1"]).await;
    folder.replace("workers", "http://c:1\nhttp:/\n");
    let status = follower.state(SourceState::Failing).await;
    assert!(status.note.as_ref().unwrap().contains("workers:2: \"http:/\""), "{status:?}");
    assert_eq!((status.workers, status.held), (2, 0));
    folder.replace("workers", "http://c:1\n");
    follower.workers(&["http://c:1"]).await;
}

#[tokio::test]
async fn a_file_that_is_too_large_is_a_failure() {
    let folder = Folder::new();
    folder.write("workers", "http://a:1\n");
    let mut follower = Follower::new(&[&source(&folder)], notified_only());
    follower.workers(&["http://a:1"]).await;
    folder.replace("workers", "#\n".repeat((1 << 19) + 1));
    let update = follower.note("has more than 1048576 bytes").await;
    assert_eq!(update.workers.len(), 1);
}

#[tokio::test]
async fn an_empty_or_lost_file_takes_effect_after_the_hold() {
    for lose in [
        |folder: &Folder| drop(folder.replace("workers", "# later\n")),
        |folder: &Folder| {
            fs::remove_file(folder.path().join("workers")).unwrap();
        },
    ] {
        let folder = Folder::new();
        folder.write("workers", "http://a:1\nhttp://b:1\n");
        let mut follower = Follower::new(&[&source(&folder)], notified_only());
        follower.workers(&["http://a:1", "http://b:1"]).await;
        lose(&folder);
        let status = follower.state(SourceState::Holding).await;
        assert_eq!((status.workers, status.held), (2, 2));
        assert!(status.note.unwrap().contains("there "));
        folder.replace("workers", "http://c:1\n");
        follower.state(SourceState::Fine).await;

        let mut settings = notified_only();
        settings.grace.empty_after = SOON;
        let mut follower = Follower::new(&[&source(&folder)], settings);
        follower.workers(&["http://c:1"]).await;
        lose(&folder);
        follower.workers(&[]).await;
    }
}

#[tokio::test]
async fn a_folder_that_appears_later_is_found() {
    let folder = Folder::new();
    let path = folder.path().join("later/workers");
    let mut follower = Follower::new(&[&format!("file:{}", path.display())], quick());
    follower.note("there is no such file").await;
    fs::create_dir(folder.path().join("later")).unwrap();
    folder.write("later/workers", "http://a:1\n");
    follower.workers(&["http://a:1"]).await;
}

#[tokio::test]
async fn a_failing_source_does_not_affect_others() {
    let folder = Folder::new();
    folder.write("workers", "what\n");
    folder.write("others", "http://a:1\n");
    let others = format!("file:{}", folder.path().join("others").display());
    let mut follower = Follower::new(&[&source(&folder), &others], notified_only());
    let update = follower.until("both", Update::is_complete).await;
    assert_eq!(
        update.sources.iter().map(|it| it.state).collect::<Vec<_>>(),
        [SourceState::Failing, SourceState::Fine]
    );
    assert_eq!(update.workers.len(), 1);
}
