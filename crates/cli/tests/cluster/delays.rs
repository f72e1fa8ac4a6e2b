//! How soon one router knows what another did: in a quiet fleet, and measured.

use std::time::Duration;

use crate::client::{CHAT, Client};
use crate::operator::Operator;
use crate::stage::{Followed, PATIENCE, Stage, Way, check_whole, prompt};
use crate::watch::{self, Delays};

/// The maximum delay until another router knows.
const TOLD: Duration = Duration::from_millis(100);

const PREFIXES: usize = 200;
/// How many prompts are sent through b instead of only explained.
const SENT_EVERY: usize = 4;
const STREAMS: usize = 40;

/// Each prefix is new: when b is asked, only router a has sent it anywhere.
async fn check_prefixes(stage: &Stage) {
    let mut b = stage.routers[1].operator().await;
    let mut client = Client::connect(stage.routers[1].listen).await;
    let (mut knowing, mut following, mut elsewhere) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..PREFIXES {
        let prompt = prompt(&format!("prefix {number}"), 1);
        let Followed { worker, known, followed } = stage.follow(0, &mut b, &prompt).await;
        knowing.push(known);
        following.push(followed);
        if number % SENT_EVERY > 0 {
            continue;
        }
        let answer = client.post(CHAT, &prompt).await;
        check_whole(&answer);
        if answer.worker() != worker {
            elsewhere.push((number, worker, answer.worker().to_owned()));
        }
    }
    check_delays(stage, "from the moment it is sent to a until b knows a prefix", knowing);
    check_delays(
        stage,
        "from a's first token until b would send the same prompt to the same worker",
        following,
    );
    assert!(elsewhere.is_empty(), "b sent elsewhere: {elsewhere:?}");
}

/// The time from a client's request until b counts it, and from its disconnect until b stops counting it.
async fn check_load(stage: &Stage) {
    let mut b = stage.routers[1].operator().await;
    let (mut rises, mut falls) = (Vec::new(), Vec::new());
    for _ in 0..STREAMS {
        let (stream, rise) = tokio::join!(stage.routers[0].stream(2_000), until_others_have(&mut b, 1));
        rises.push(rise);
        drop(stream);
        falls.push(until_others_have(&mut b, 0).await);
    }
    check_delays(stage, "from the moment it is sent to a until b counts a stream", rises);
    // A router must first notice that its client is gone, and no bound is promised for that.
    Delays::new(falls)
        .show(&format!("{:?}: from the moment its client leaves until b counts it no more", stage.way));
}

#[track_caller]
fn check_delays(stage: &Stage, what: &str, delays: Vec<Duration>) {
    let delays = Delays::new(delays);
    delays.show(&format!("{:?}: {what}", stage.way));
    assert!(delays.percentile(99) < TOLD, "p99 {:?} {what}", delays.percentile(99));
}

/// Prints how long that took.
async fn until_others_have(operator: &mut Operator, expected: u64) -> Duration {
    let looked = watch::until("load is known elsewhere", watch::now(), PATIENCE, async || {
        let requests = operator.promises().await.requests_of_others();
        (requests == expected).then_some(()).ok_or(requests.to_string())
    });
    looked.await.1
}

async fn check(way: Way) {
    let stage = Stage::open_alone(way).await;
    check_prefixes(&stage).await;
    check_load(&stage).await;
    stage.until_nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_redis_routers_know_of_each_others_requests_within_100_ms() {
    check(Way::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_mesh_routers_know_of_each_others_requests_within_100_ms() {
    check(Way::Mesh).await;
}
