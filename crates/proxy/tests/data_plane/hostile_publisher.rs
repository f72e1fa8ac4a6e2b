//! A worker whose KV events are meant to harm the router.

use maitre_base::WorkerId;
use maitre_proxy::Router;
use maitre_testkit::log::Log;
use maitre_zmtp::{Next, Role, ZmtpLimits, ZmtpPeer, frame, greeting};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::events::by_delay;
use crate::fixture::{ANYWHERE, engine_settings, until_counted, within};

/// Publishes these payloads, numbered from zero, to everyone who subscribes, and then says nothing more.
async fn publisher(payloads: Vec<Vec<u8>>) -> u16 {
    let listener = TcpListener::bind(ANYWHERE).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut publishing = tokio::task::JoinSet::new();
    publishing.spawn(async move {
        let mut served = tokio::task::JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let payloads = payloads.clone();
            served.spawn(async move {
                let limits = ZmtpLimits { message_bytes_max: 1 << 10, frames_max: 8 };
                let (mut peer, mut received) = (ZmtpPeer::new(Role::Pub, limits), Vec::new());
                stream.write_all(&greeting::OPENING).await?;
                // Its subscription is the first frame.
                loop {
                    match peer.next(&received).unwrap() {
                        Next::Wait { .. } => drop(stream.read_buf(&mut received).await?),
                        Next::Handled { bytes, reply } => {
                            received.drain(..bytes);
                            stream.write_all(&reply).await?;
                        }
                        Next::Frame { .. } => break,
                    }
                }
                // The router counts what comes before this as older than its subscription.
                tokio::time::sleep(std::time::Duration::from_millis(300)).await;
                for (number, payload) in payloads.iter().enumerate() {
                    let number = (number as u64).to_be_bytes();
                    let mut message = Vec::new();
                    frame::put_message(&[&b""[..], &number, payload], &mut message);
                    stream.write_all(&message).await?;
                }
                // Until the router hangs up.
                stream.read_to_end(&mut received).await
            });
        }
    });
    // Lives as long as the test's runtime.
    publishing.detach_all();
    port
}

async fn router(events: u16) -> (Router, maitre_sim::http::Host) {
    let mut engine = engine_settings();
    engine.engine.profile.kv_blocks = 100_000;
    let engine = maitre_sim::http::Host::bind(ANYWHERE, engine).await.unwrap();
    let mut settings = by_delay();
    settings.workers = vec![format!("http://{}?events={events}", engine.addr()).parse().unwrap()];
    (Router::start(settings).await.unwrap(), engine)
}

/// A batch with one event that stores this many blocks, as vLLM 0.9 packs it.
fn huge_batch(blocks: u32) -> Vec<u8> {
    let mut payload = vec![0x92, 0xcb];
    payload.extend(1_700_000_000.0_f64.to_be_bytes());
    payload.extend([0x91, 0x96, 0xab]);
    payload.extend(b"BlockStored");
    payload.push(0xdd);
    payload.extend(blocks.to_be_bytes());
    for name in 1..=blocks {
        payload.push(0xce);
        payload.extend(name.to_be_bytes());
    }
    // No parent; the tokens, all alike.
    payload.extend([0xc0, 0xdd]);
    payload.extend((blocks * BLOCK_TOKENS).to_be_bytes());
    payload.extend((0..blocks * BLOCK_TOKENS).map(|_| 7));
    // The size of a block, no adapter.
    payload.extend([BLOCK_TOKENS as u8, 0xc0]);
    payload
}

/// As the engine's own.
const BLOCK_TOKENS: u32 = 16;

#[tokio::test]
async fn a_huge_event_is_applied_in_slices() {
    const BLOCKS: u32 = 20_000;
    let (router, _engine) = router(publisher(vec![huge_batch(BLOCKS)]).await).await;
    let (mut known, mut most) = (0, 0);
    let watched = async {
        while known < BLOCKS {
            let now = router.look(|it| it.cache().numbers(WorkerId(0))).map_or(0, |it| it.reported_blocks);
            most = most.max(now - known);
            known = now;
            tokio::task::yield_now().await;
        }
    };
    within(watched).await;
    assert!(most <= 2_048, "{most} of {BLOCKS} blocks in one go");
}

#[tokio::test]
async fn garbage_from_a_publisher_does_not_fill_the_log() {
    let log = Log::new();
    let (router, engine) = router(publisher(vec![b"garbage".to_vec(); 1_000]).await).await;
    let unreadable = format!("maitre_events_unreadable_total{{worker=\"http://{}\"}}", engine.addr());
    until_counted(&router, &unreadable, 1_000.0).await;
    let lines = log.with("KV events");
    assert!((1..=20).contains(&lines.len()), "{lines:#?}");
}
