//! Intruders: each is refused with one log line that says what is wrong, and the routers continue.

use bytes::Bytes;
use maitre_peer::seal::ClusterKey;
use maitre_peer::{Outgoing, Transport, mesh, redis};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::client::within;
use crate::stage::{CLUSTER_KEY, Followed, GROUP, PATIENCE, Router, Stage, Way, prompt};
use crate::watch;

/// How often each intruder repeats itself, to show that it is logged once.
const TIMES: usize = 5;

/// An intruder that has the key and sends what no router would.
struct Insider {
    line: Transport,
    _transport: JoinSet<()>,
}

impl Insider {
    async fn enter(stage: &Stage) -> Insider {
        let (key, name) = (ClusterKey::new(CLUSTER_KEY.as_bytes()), "insider".to_owned());
        let mut tasks = JoinSet::new();
        let line = match &stage.redis {
            Some(server) => {
                let (url, group) = (server.url(), GROUP.to_owned());
                let (line, work) = redis::connect(redis::RedisConfig { url, group, name, key: Some(key) });
                tasks.spawn(work);
                line
            }
            None => {
                let peers = stage.routers.iter().filter_map(|it| it.mesh).map(|it| it.to_string()).collect();
                let listen = ([127, 0, 0, 1], 0).into();
                let settings = mesh::MeshConfig { listen, advertise: None, peers, name, key };
                let (line, _, work) = mesh::join(settings).await.unwrap();
                tasks.spawn(work);
                line
            }
        };
        let mut status = line.status.clone();
        let all = if stage.redis.is_some() { 0 } else { stage.routers.len() };
        within(status.wait_for(|it| it.connected && it.peers.len() >= all)).await.unwrap();
        Insider { line, _transport: tasks }
    }

    async fn say(&self, frame: &[u8]) {
        self.line.outgoing.send(Outgoing::Frame(Bytes::copy_from_slice(frame))).await.unwrap();
    }
}

/// Sends bytes to a listener of the mesh, and waits until it closes the connection.
async fn knock(router: &Router, words: &[u8]) {
    let mut stream = TcpStream::connect(router.mesh.unwrap()).await.unwrap();
    // It may close before everything is sent.
    let _ = stream.write_all(words).await;
    let _ = within(stream.read_to_end(&mut Vec::new())).await;
}

/// Waits until the router has logged this warning, and returns how often it has.
async fn until_warned(router: &Router, words: &str) -> Vec<String> {
    watch::until(words, watch::now(), PATIENCE, async || {
        let warnings = router.warnings();
        let is_said = warnings.iter().any(|it| it.contains(words));
        is_said.then_some(()).ok_or(format!("{} warned: {warnings:#?}", router.name))
    })
    .await;
    router.warnings().into_iter().filter(|it| it.contains(words)).collect()
}

/// Waits until the router has refused this many, for this cause.
async fn until_refused(router: &Router, cause: &str, least: f64) {
    let mut operator = router.operator().await;
    let name = format!("maitre_cluster_frames_refused_total{{cause=\"{cause}\"}}");
    watch::until(&name, watch::now(), PATIENCE, async || {
        let seen = operator.metric(&name).await;
        (seen >= least).then_some(()).ok_or(format!("{seen} of {least} at {}", router.name))
    })
    .await;
}

/// Checks that these are the only warnings, each once, and that the routers still share everything.
async fn check_warnings(stage: &Stage, expected: [&[&str]; 3]) {
    for (router, expected) in stage.routers.iter().zip(expected) {
        for words in expected {
            assert_eq!(until_warned(router, words).await.len(), 1, "{words}");
        }
        let warnings = router.warnings();
        assert_eq!(warnings.len(), expected.len(), "{} warned: {warnings:#?}", router.name);
        assert!(warnings.iter().all(|it| it.contains(" WARN ")), "{warnings:#?}");
    }
    let mut b = stage.routers[1].operator().await;
    let Followed { known, .. } = stage.follow(0, &mut b, &prompt("what comes after", 2)).await;
    eprintln!("{:?}: after all who do not belong, b knows a prefix of a's after {known:.1?}", stage.way);
}

/// Starts a router with another key, which reports that itself, and stops it.
async fn meet_a_wrong_key(stage: &Stage, words: &str) {
    let peers = stage.routers.iter().filter_map(|it| it.mesh);
    let peers: Vec<String> = peers.flat_map(|it| ["--peer".to_owned(), it.to_string()]).collect();
    let stranger = stage.start_with("stranger", &peers, "what-nobody-else-has").await;
    for router in &stage.routers {
        until_refused(router, "transport", 1.0).await;
    }
    let own = until_warned(&stranger, words).await;
    // At most one line for each router that it reaches.
    assert!(own.len() <= stage.routers.len(), "{own:#?}");
    let hit = stranger.operator().await.metric("maitre_cluster_routers{state=\"live\"}").await;
    assert!((hit - 1.0).abs() < 0.1, "it hears nobody: {hit}");
}

const FOREIGN: &str = "refused a frame of another router: not a Maitre cluster frame";
const OLD: &str = "cluster protocol version 0; this router speaks version 2";
const TORN: &str = "refused a frame of another router: malformed frame";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_mesh_intruders_are_refused_with_one_log_line() {
    let stage = Stage::open(Way::Mesh).await;
    let noise: Vec<u8> = (0..4_000_u32).map(|it| (it.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for _ in 0..TIMES {
        knock(&stage.routers[0], &noise).await;
        knock(&stage.routers[1], b"GET /metrics HTTP/1.1\r\nhost: router\r\n\r\n").await;
        knock(&stage.routers[2], b"maitre\xF5\x0A\x00and whatever that version says next").await;
    }
    meet_a_wrong_key(&stage, "it has another key; give all routers of a cluster the same cluster.key").await;
    let insider = Insider::enter(&stage).await;
    for _ in 0..TIMES {
        insider.say(b"GET / HTTP/1.1\r\n\r\n").await;
        insider.say(b"Mr\x00and whatever that version says next").await;
        insider.say(b"Mr\x02\xFF\xFF\xFF\xFF").await;
    }
    for router in &stage.routers {
        for cause in ["foreign", "version", "malformed"] {
            until_refused(router, cause, TIMES as f64).await;
        }
    }
    let (key, stranger) =
        ("it has another key", "it is not a Maitre router; point probes and scrapers at the other listeners");
    let old = "it speaks cluster protocol version 0, this router version 1";
    let expected: [&[&str]; 3] = [
        &[stranger, key, FOREIGN, OLD, TORN],
        &[stranger, key, FOREIGN, OLD, TORN],
        &[old, key, FOREIGN, OLD, TORN],
    ];
    check_warnings(&stage, expected).await;
    drop(insider);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_redis_intruders_are_refused_with_one_log_line() {
    let stage = Stage::open(Way::Redis).await;
    let stream = format!("maitre:{GROUP}:stream");
    let server = stage.redis.as_ref().unwrap();
    let from = b"00000000000000aa:somebody";
    for _ in 0..TIMES {
        for words in [
            &[&b"payload"[..], b"{\"x\": 1}"][..],
            &[b"from", from, b"frame", b"\xFF\xFE and other bytes"],
            &[b"from", from, b"frame", b"\x21 sealed by a later version"],
        ] {
            let answer = server.send(&[&[&b"XADD"[..], stream.as_bytes(), b"*"], words].concat()).await;
            assert!(answer.starts_with('$'), "{answer}");
        }
    }
    for router in &stage.routers {
        until_refused(router, "transport", (3 * TIMES) as f64).await;
    }
    let key =
        "it was encrypted with another key or changed in transit; give all routers the same cluster.key";
    meet_a_wrong_key(&stage, key).await;
    let insider = Insider::enter(&stage).await;
    for _ in 0..TIMES {
        insider.say(b"GET / HTTP/1.1\r\n\r\n").await;
        insider.say(b"Mr\x00and whatever that version says next").await;
        insider.say(b"Mr\x02\xFF\xFF\xFF\xFF").await;
    }
    for router in &stage.routers {
        for cause in ["foreign", "version", "malformed"] {
            until_refused(router, cause, TIMES as f64).await;
        }
    }
    let expected: &[&str] = &[
        "it is not an entry of a router; another program writes to this stream",
        "it is not a Maitre frame",
        "it has version 2, but this router uses version 1",
        key,
        FOREIGN,
        OLD,
        TORN,
    ];
    check_warnings(&stage, [expected; 3]).await;
    drop(insider);
}
