//! The API as it should be, and with faults.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use maitre_discover::DiscoverySettings;
use maitre_discover::update::SourceState;
use serde_json::{Value, json};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;

use crate::api::{Api, Fault};
use crate::follower::{Follower, SOON, quick};
use maitre_testkit::folder::Folder;

const SOURCE: &str = "kubernetes:inference/vllm";

fn settings(api: &Api) -> DiscoverySettings {
    let mut settings = quick();
    settings.kubernetes.api = Some(format!("http://{}", api.address).parse().unwrap());
    settings
}

/// A slice with one endpoint.
fn slice(last: u8, conditions: Value) -> Value {
    json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "vllm"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [format!("10.0.0.{last}")], "conditions": conditions}],
        "ports": [{"name": "http", "port": 8000}, {"name": "metrics", "port": 9000}],
    })
}

fn ready(last: u8) -> Value {
    slice(last, json!({"ready": true, "serving": true, "terminating": false}))
}

fn unready(last: u8) -> Value {
    slice(last, json!({"ready": false}))
}

fn url(last: u8) -> String {
    format!("http://10.0.0.{last}:8000")
}

/// Waits until exactly these workers are present.
#[track_caller]
fn workers(follower: &mut Follower, last: &[u8]) -> impl Future<Output = ()> {
    let urls: Vec<String> = last.iter().map(|it| url(*it)).collect();
    let seen = follower.until(format!("{urls:?}"), move |it| {
        it.workers.iter().map(|it| it.to_string()).eq(urls.iter().cloned())
    });
    async { _ = seen.await }
}

/// An API with this many workers, and a follower that has seen them.
async fn started(count: u8, settings: impl FnOnce(&Api) -> DiscoverySettings) -> (Api, Follower) {
    let api = Api::start().await;
    (1..=count).for_each(|it| api.put(&format!("s{it}"), ready(it)));
    let mut follower = Follower::new(&[SOURCE], settings(&api));
    workers(&mut follower, &(1..=count).collect::<Vec<_>>()).await;
    api.until_watched(1).await;
    (api, follower)
}

#[tokio::test]
async fn lists_come_in_pages_and_changes_one_by_one() {
    let (api, mut follower) = started(5, settings).await;
    let path = "/apis/discovery.k8s.io/v1/namespaces/inference/endpointslices\
                ?labelSelector=kubernetes.io%2Fservice-name%3Dvllm&limit=250";
    let pages = [path.to_owned(), format!("{path}&continue=2"), format!("{path}&continue=4")];
    assert_eq!(api.lists(), pages);
    let watch = &api.watches()[0];
    assert!(
        watch.contains("&allowWatchBookmarks=true&") && watch.contains("&resourceVersion=105"),
        "{watch}"
    );
    api.put("s6", ready(6));
    workers(&mut follower, &[1, 2, 3, 4, 5, 6]).await;
    api.put("s6", ready(7));
    workers(&mut follower, &[1, 2, 3, 4, 5, 7]).await;
    api.delete("s1");
    workers(&mut follower, &[2, 3, 4, 5, 7]).await;
    assert_eq!((api.lists().len(), api.watches().len()), (3, 1));
}

#[tokio::test]
async fn a_deleted_or_terminating_worker_is_gone_at_once_and_an_unready_one_is_not() {
    // With a delay of an hour, workers go only for these reasons.
    let (api, mut follower) = started(4, settings).await;
    api.put("s1", unready(1));
    api.delete("s2");
    workers(&mut follower, &[1, 3, 4]).await;
    api.put("s3", slice(3, json!({"ready": false, "serving": true, "terminating": true})));
    workers(&mut follower, &[1, 4]).await;
    // Flapping changes nothing, and a new unready worker is absent.
    api.put("s1", ready(1));
    api.put("s1", unready(1));
    api.put("s5", unready(5));
    api.put("s6", ready(6));
    workers(&mut follower, &[1, 4, 6]).await;
}

#[tokio::test]
async fn a_worker_that_stays_unready_is_gone_after_the_delay() {
    let (api, mut follower) = started(2, |api| {
        let mut settings = settings(api);
        settings.grace.gone_after = SOON;
        settings
    })
    .await;
    api.put("s1", unready(1));
    workers(&mut follower, &[2]).await;
    // The last worker is held.
    api.put("s2", unready(2));
    let status = follower.state(SourceState::Holding).await;
    assert_eq!((status.workers, status.held), (1, 1));
    // A deleted worker is not held.
    api.delete("s2");
    workers(&mut follower, &[]).await;
}

#[tokio::test]
async fn a_selector_that_suddenly_matches_nothing_keeps_the_workers() {
    let (api, mut follower) = started(1, settings).await;
    let mut empty = ready(1);
    empty["endpoints"] = json!(null);
    api.put("s1", empty);
    let status = follower.state(SourceState::Holding).await;
    assert_eq!((status.workers, status.note.as_deref()), (1, Some("there are no workers")));
    api.put("s1", ready(1));
    follower.state(SourceState::Fine).await;
}

#[tokio::test]
async fn a_watch_that_ends_resumes_at_its_version() {
    let (api, mut follower) = started(2, settings).await;
    api.put("s3", ready(3));
    workers(&mut follower, &[1, 2, 3]).await;
    let version = api.version();
    api.cut();
    api.put("s4", ready(4));
    api.delete("s1");
    workers(&mut follower, &[2, 3, 4]).await;
    assert_eq!(api.lists().len(), 1, "one page, once");
    assert!(api.watches()[1].ends_with(&format!("&resourceVersion={version}")), "{:?}", api.watches());
}

#[tokio::test]
async fn a_bookmark_moves_the_version_and_nothing_else() {
    let (api, mut follower) = started(1, settings).await;
    let version = api.bookmark();
    // A later event shows that the bookmark was read.
    api.put("s2", ready(2));
    workers(&mut follower, &[1, 2]).await;
    let marked = api.bookmark();
    assert!(marked > version + 1);
    api.cut();
    api.until_watched(2).await;
    let watches = api.watches();
    // The cut may come before the second bookmark is read, never before the first.
    let resumed = watches[1].rsplit_once('=').unwrap().1.parse::<u64>().unwrap();
    assert!(resumed > version, "{watches:?}");
    assert_eq!(api.lists().len(), 1);
}

#[tokio::test]
async fn an_expired_version_causes_a_new_list_and_deleted_workers_are_gone() {
    let expired = json!({"type": "ERROR", "object": {"kind": "SourceStatus", "code": 410, "reason": "Expired",
        "message": "too old resource version: 1 (2)"}});
    for gone in [Fault::Status(410), Fault::Body(expired.to_string() + "\n")] {
        let (api, mut follower) = started(3, settings).await;
        api.delete_in_silence("s2");
        api.spoil_watches([gone]);
        api.cut();
        workers(&mut follower, &[1, 3]).await;
        assert_eq!(api.lists().len(), 3, "two pages, then one");
        api.put("s4", ready(4));
        workers(&mut follower, &[1, 3, 4]).await;
        follower.state(SourceState::Fine).await;
    }
}

#[tokio::test]
async fn a_list_that_expires_between_pages_starts_over() {
    let api = Api::start().await;
    (1..=3).for_each(|it| api.put(&format!("s{it}"), ready(it)));
    // The first page succeeds, the second has expired.
    let first = json!({"metadata": {"resourceVersion": "9", "continue": "2"}, "items": []}).to_string();
    api.spoil_lists([Fault::Body(first), Fault::Status(410)]);
    let mut follower = Follower::new(&[SOURCE], settings(&api));
    workers(&mut follower, &[1, 2, 3]).await;
    assert_eq!(api.lists().len(), 4);
}

#[tokio::test]
async fn an_empty_new_list_holds_the_workers() {
    let (api, mut follower) = started(2, settings).await;
    (1..=2).for_each(|it| api.delete_in_silence(&format!("s{it}")));
    api.spoil_watches([Fault::Status(410)]);
    api.cut();
    let status = follower.state(SourceState::Holding).await;
    assert_eq!((status.workers, status.held), (2, 2));
    // One present worker is enough to accept that the others are gone.
    api.put("s3", ready(3));
    workers(&mut follower, &[3]).await;
}

#[tokio::test]
async fn a_watch_that_hangs_is_given_up() {
    let api = Api::start().await;
    api.put("s1", ready(1));
    api.spoil_watches([Fault::Hang]);
    let mut settings = settings(&api);
    settings.kubernetes.watch = SOON;
    let mut follower = Follower::new(&[SOURCE], settings);
    workers(&mut follower, &[1]).await;
    api.until_watched(1).await;
    api.put("s2", ready(2));
    workers(&mut follower, &[1, 2]).await;
    assert_eq!(api.lists().len(), 1);
}

#[tokio::test]
async fn an_api_that_does_not_answer_is_a_failure() {
    let api = Api::start().await;
    api.put("s1", ready(1));
    api.spoil_lists([Fault::Silence]);
    let mut follower = Follower::new(&[SOURCE], settings(&api));
    let status = follower.state(SourceState::Failing).await;
    assert!(status.note.as_ref().unwrap().contains("no answer within 500ms"), "{status:?}");
    workers(&mut follower, &[1]).await;
}

#[tokio::test]
async fn an_incomplete_event_is_ignored_and_sent_again() {
    let api = Api::start().await;
    api.put("s1", ready(1));
    api.spoil_watches([Fault::CutMidLine]);
    let mut follower = Follower::new(&[SOURCE], settings(&api));
    workers(&mut follower, &[1]).await;
    api.until_watched(1).await;
    api.delete("s1");
    workers(&mut follower, &[]).await;
    let watches = api.watches();
    assert!(watches.len() >= 2 && watches[0] == watches[1], "from the same version: {watches:?}");
    assert_eq!(api.lists().len(), 1);
}

#[tokio::test]
async fn api_errors_are_reported_and_retried() {
    let api = Api::start().await;
    api.put("s1", ready(1));
    api.spoil_lists(vec![Fault::Status(500); 3]);
    let mut follower = Follower::new(&[SOURCE], settings(&api));
    let update = follower.note("endpointslices: 500").await;
    let note = update.sources[0].note.clone().unwrap();
    assert!(note.ends_with("Internal Server Error: made to fail"), "{note}");
    workers(&mut follower, &[1]).await;
    assert_eq!(api.lists().len(), 4);
    // A watch that cannot begin is retried from its version.
    api.until_watched(1).await;
    api.spoil_watches(vec![Fault::Status(503); 50]);
    api.cut();
    let status = follower.state(SourceState::Failing).await;
    assert_eq!(status.workers, 1);
    follower.state(SourceState::Fine).await;
    assert_eq!((api.lists().len(), api.watches().len()), (4, 52));
}

#[tokio::test]
async fn unreadable_events_cause_a_new_list() {
    let api = Api::start().await;
    api.put("s1", ready(1));
    api.spoil_lists(
        ["<html>", "{}", "{\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[{}]}"]
            .map(|it| Fault::Body(it.to_owned())),
    );
    let mut follower = Follower::new(&[SOURCE], settings(&api));
    workers(&mut follower, &[1]).await;
    assert_eq!(api.lists().len(), 4);
    let lines = [
        "what\n",
        "{\"type\":\"RENAMED\",\"object\":{}}\n",
        "{\"type\":\"ADDED\",\"object\":{\"metadata\":{}}}\n",
        "{\"type\":\"ERROR\",\"object\":{\"code\":500,\"message\":\"etcd\"}}\n",
    ];
    for line in lines {
        // Whatever the event was about, the new list contains it.
        let lists = api.lists().len();
        api.until_watched(1).await;
        api.spoil_watches([Fault::Body(line.to_owned())]);
        api.cut();
        follower.note("watch: ").await;
        follower.state(SourceState::Fine).await;
        assert_eq!(api.lists().len(), lists + 1, "{line}");
    }
}

#[tokio::test]
async fn an_event_over_the_limit_is_cut() {
    let (api, mut follower) = started(1, settings).await;
    api.spoil_watches([Fault::Body(format!("{{\"type\":\"{}", "x".repeat(5 << 20)))]);
    api.cut();
    follower.note("watch: an event has more than 4194304 bytes").await;
    follower.state(SourceState::Fine).await;
}

#[tokio::test]
async fn pods_are_found_by_labels_and_annotations_set_options() {
    let pod = |last: u8, annotations: Value| {
        json!({
            "metadata": {"annotations": annotations},
            "spec": {"containers": [{"ports": [{"containerPort": 8000}]}]},
            "status": {"phase": "Running", "podIP": format!("10.0.0.{last}"),
                "conditions": [{"type": "Ready", "status": "True"}]},
        })
    };
    let api = Api::start().await;
    api.put("p1", pod(1, json!({})));
    api.put("p2", pod(2, json!({"maitre.dev/port": "81", "maitre.dev/events-port": "5557"})));
    api.put("p3", pod(3, json!({"maitre.dev/ignore": "true"})));
    api.put("p4", pod(4, json!({"maitre.dev/ranks": "many"})));
    let mut follower =
        Follower::new(&["kubernetes:inference?pods=app%3Dvllm,tier%3Dgpu&ranks=2"], settings(&api));
    let (one, two) = ("http://10.0.0.1:8000?ranks=2", "http://10.0.0.2:81?events=5557&ranks=2");
    let update = follower.workers(&[one, two]).await;
    let note = "p4 is left out: maitre.dev/ranks: ranks is \"many\"; write a number from 1 to 1024";
    assert_eq!(update.sources[0].note.as_deref(), Some(note));
    let path = "/api/v1/namespaces/inference/pods?labelSelector=app%3Dvllm%2Ctier%3Dgpu&limit=250";
    assert_eq!(api.lists()[0], path);
    // A changed annotation changes the worker's options; a started deletion removes the worker.
    api.put("p1", pod(1, json!({"maitre.dev/ranks": "4"})));
    follower.workers(&["http://10.0.0.1:8000?ranks=4", two]).await;
    let mut ending = pod(1, json!({}));
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    api.put("p1", ending);
    follower.workers(&[two]).await;
}

/// A server with a certificate for this machine, and the certificate.
fn acceptor() -> (TlsAcceptor, String) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .unwrap();
    (TlsAcceptor::from(Arc::new(config)), made.cert.pem())
}

#[tokio::test]
async fn in_a_cluster_the_account_files_are_used_and_read_again() {
    let ((acceptor, certificate), (_, other)) = (acceptor(), acceptor());
    let (api, folder) = (Api::over_tls(acceptor).await, Folder::new());
    api.put("s1", ready(1));
    api.want("new");
    let mut settings = settings(&api);
    settings.kubernetes.api = Some(format!("https://{}", api.address).parse().unwrap());
    settings.kubernetes.account = folder.path().to_owned();
    // The namespace is our own.
    let mut follower = Follower::new(&["kubernetes:/vllm"], settings);
    follower.note("namespace: No such file").await;
    folder.write("namespace", "inference\n");
    follower.note("token: No such file").await;
    folder.write("token", "old\n");
    follower.note("ca.crt: No such file").await;
    folder.write("ca.crt", "nothing");
    follower.note("ca.crt: holds no certificate").await;
    folder.write("ca.crt", other);
    follower.note("certificate").await;
    assert_eq!(api.lists().len(), 0, "no request goes to a server that failed verification");
    folder.write("ca.crt", certificate);
    let update = follower.note("401 Unauthorized: Unauthorized").await;
    assert!(!format!("{update:?}").contains("old"), "a token is never shown");
    folder.write("token", "new");
    workers(&mut follower, &[1]).await;
    assert!(api.lists()[0].contains("/namespaces/inference/"));
    // The next watch notices a token that expired during a watch, and no worker is lost.
    api.until_watched(1).await;
    api.want("newer");
    api.cut();
    follower.note("401").await;
    fs::remove_file(folder.path().join("token")).unwrap();
    folder.write("token", "newer\n");
    follower.state(SourceState::Fine).await;
    workers(&mut follower, &[1]).await;
}

#[tokio::test]
async fn an_unreachable_api_is_a_failure_until_it_answers() {
    let api = Api::start().await;
    let mut settings = settings(&api);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    settings.kubernetes.api = Some(format!("http://{free}").parse().unwrap());
    settings.kubernetes.retry_max = Duration::from_millis(50);
    let mut follower = Follower::new(&[SOURCE], settings);
    follower.note("Connection refused").await;
}

fn pool(label: &str, ports: &[u16]) -> Value {
    let ports: Vec<Value> = ports.iter().map(|it| json!({"number": it})).collect();
    json!({
        "kind": "InferencePool",
        "metadata": {},
        "spec": {"selector": {"matchLabels": {"app": label}}, "targetPorts": ports},
    })
}

fn pod(last: u8) -> Value {
    json!({
        "metadata": {"annotations": {"maitre.dev/events-port": "5557"}},
        "status": {
            "phase": "Running",
            "podIP": format!("10.0.0.{last}"),
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

#[tokio::test]
async fn a_pool_gives_a_worker_for_each_pod_and_port_and_its_changes_are_followed() {
    let api = Api::start().await;
    api.put("vllm", pool("vllm", &[8000, 8001]));
    api.put("p1", pod(1));
    let mut follower = Follower::new(&["kubernetes:inference?pool=vllm"], settings(&api));
    // Each port is a rank, whose events are as many ports on.
    let both = ["http://10.0.0.1:8000?events=5557", "http://10.0.0.1:8001?events=5558"];
    follower.workers(&both).await;
    api.until_watched(2).await;
    let lists = api.lists();
    assert_eq!(
        lists[0],
        "/apis/inference.networking.k8s.io/v1/namespaces/inference/inferencepools?fieldSelector=metadata.name%3Dvllm"
    );
    assert!(lists[1].starts_with("/api/v1/namespaces/inference/pods?labelSelector=app%3Dvllm&"), "{lists:?}");
    api.put("p2", pod(2));
    api.delete("p1");
    follower.workers(&["http://10.0.0.2:8000?events=5557", "http://10.0.0.2:8001?events=5558"]).await;
    // Another port, and other labels: the Pods are listed anew.
    api.put("vllm", pool("other", &[9000]));
    follower.workers(&["http://10.0.0.2:9000?events=5557"]).await;
    assert!(
        api.lists().last().is_some_and(|it| it.contains("labelSelector=app%3Dother")),
        "{:?}",
        api.lists()
    );
}

#[tokio::test]
async fn a_pool_that_is_missing_or_deleted_changes_nothing_and_says_so() {
    let api = Api::start().await;
    api.put("p1", pod(1));
    let mut follower = Follower::new(&["kubernetes:inference?pool=vllm"], settings(&api));
    follower.note("InferencePool vllm: there is none").await;
    api.put("vllm", pool("vllm", &[8000]));
    follower.workers(&["http://10.0.0.1:8000?events=5557"]).await;
    api.until_watched(2).await;
    // Neither a deletion nor a watch that ends takes workers away, and the pool is found again.
    api.delete("vllm");
    api.cut();
    api.put("vllm", pool("vllm", &[8000, 8001]));
    follower.workers(&["http://10.0.0.1:8000?events=5557", "http://10.0.0.1:8001?events=5558"]).await;
}

#[tokio::test]
async fn a_pool_that_selects_every_pod_is_refused() {
    let api = Api::start().await;
    let mut all = pool("vllm", &[8000]);
    all["spec"]["selector"] = json!({"matchLabels": {}});
    api.put("vllm", all);
    let mut follower = Follower::new(&["kubernetes:inference?pool=vllm"], settings(&api));
    follower.note("every pod would be a worker").await;
}
