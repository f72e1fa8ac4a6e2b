//! Routers with a real Redis server: one per test, on loopback, without persistence.
//!
//! Needs `redis-server`; without it these tests fail. `scripts/test` installs it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "the tasks and clocks of tests end with them")]

#[path = "redis/server.rs"]
mod server;

use bytes::Bytes;
use maitre_peer::Outgoing;
use maitre_peer::redis::RedisConfig;
use redis::Value;
use server::{Log, Router, Server, config, key, until};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

#[tokio::test]
async fn routers_receive_each_others_frames_in_order_and_not_their_own() {
    let server = Server::start(&[]).await;
    let mut routers = Vec::new();
    for name in ["a", "b", "c"] {
        routers.push(Router::join(config(&server, name)).await);
    }
    for number in 0..100 {
        for router in &routers {
            router.send_text(format!("{} {number}", router.name)).await;
        }
    }
    for router in &mut routers {
        let mut next = BTreeMap::new();
        for _ in 0..200 {
            let frame = router.receive().await;
            let (name, number) = frame.split_once(' ').unwrap();
            let expected = next.entry(name.to_owned()).or_insert(0);
            assert_eq!(number, expected.to_string(), "{name} at {}", router.name);
            *expected += 1;
        }
        let others: Vec<&str> = ["a", "b", "c"].into_iter().filter(|it| *it != router.name).collect();
        assert_eq!(next.keys().collect::<Vec<_>>(), others);
        let status = router.status(|it| it.frames_out == 100 && it.peers == others).await;
        assert_eq!((status.frames_in, status.dropped, status.refused), (200, 0, 0));
        assert!(status.connected && status.trouble.is_none(), "{status:?}");
        assert!(status.bytes_out > 800 && status.bytes_in > 2_000, "{status:?}");
    }
}

#[tokio::test]
async fn queued_frames_are_sent_together() {
    let server = Server::start(&[]).await;
    let mut a = Router::join(config(&server, "a")).await;
    let before = server.info("stats", "total_reads_processed");
    for number in 0..1_000 {
        a.send_text(number.to_string()).await;
    }
    a.status(|it| it.frames_out == 1_000).await;
    let reads = server.info("stats", "total_reads_processed") - before;
    assert!(reads < 100, "{reads} reads for 1000 frames");
    let length: u64 = server.ask(redis::cmd("XLEN").arg("maitre:g:stream"));
    assert_eq!(length, 1_001, "frames, and the join entry");
}

#[tokio::test]
async fn a_joining_router_receives_stored_snapshots_before_it_is_connected() {
    let server = Server::start(&[]).await;
    let a = Router::join(config(&server, "a")).await;
    a.leave(&["of yesterday"]).await;
    a.leave(&["one", "two"]).await;
    let key = "maitre:g:snapshot:a";
    until("the second snapshot", || {
        let length: u64 = server.ask(redis::cmd("STRLEN").arg(key));
        length == 2 * (4 + 1 + 3)
    })
    .await;
    let life: i64 = server.ask(redis::cmd("TTL").arg(key));
    assert!((500..=600).contains(&life), "{life} s");
    for key in ["maitre:g:members", "maitre:g:stream"] {
        let life: i64 = server.ask(redis::cmd("TTL").arg(key));
        assert!((500..=600).contains(&life), "{key}: {life} s");
    }

    let mut b = Router::start(config(&server, "b"));
    assert_eq!(b.recall().await, "one");
    assert_eq!(b.recall().await, "two");
    b.connected().await;
    a.send_text("three").await;
    assert_eq!(b.receive().await, "three");

    // It also receives its own snapshot from an earlier start.
    drop(a);
    let mut a = Router::start(config(&server, "a"));
    assert_eq!(a.recall().await, "one");
    assert_eq!(a.recall().await, "two");
    a.connected().await;
}

#[tokio::test]
async fn groups_are_separate() {
    let server = Server::start(&[]).await;
    let a = Router::join(config(&server, "a")).await;
    let other = RedisConfig { group: "other".into(), ..config(&server, "b") };
    let b = Router::join(other.clone()).await;
    let mut c = Router::join(RedisConfig { name: "c".into(), ..other }).await;
    a.send_text("not for them").await;
    a.clone_status(|it| it.frames_out == 1).await;
    b.send_text("for c").await;
    assert_eq!(c.receive().await, "for c");
}

#[tokio::test]
async fn frames_of_one_group_do_not_open_in_another() {
    let server = Server::start(&[]).await;
    let keyed = |group: &str, name: &str| RedisConfig {
        group: group.into(),
        key: key("ours"),
        ..config(&server, name)
    };
    let a = Router::join(keyed("other", "a")).await;
    let mut b = Router::join(keyed("g", "b")).await;
    a.send_text("sealed").await;
    a.clone_status(|it| it.frames_out == 1).await;
    let last =
        redis::cmd("XREVRANGE").arg("maitre:other:stream").arg("+").arg("-").arg("COUNT").arg(1).clone();
    let entries: Vec<(String, Vec<Vec<u8>>)> = server.ask(&last);
    server.add(&entries[0].1);
    b.status(|it| it.refused == 1).await;
}

#[tokio::test]
async fn losing_and_regaining_the_server_is_logged_once_each() {
    let log = Log::start();
    let mut server = Server::start(&[]).await;
    let mut a = Router::join(config(&server, "a")).await;
    let mut b = Router::join(config(&server, "b")).await;
    server.stop();
    for router in [&mut a, &mut b] {
        let status = router.status(|it| !it.connected).await;
        let trouble = status.trouble.unwrap();
        assert!(trouble.starts_with(&format!("redis://127.0.0.1:{}: ", server.port)), "{trouble}");
        router.status(|it| it.trouble.as_ref().is_some_and(|it| it.contains("refused"))).await;
    }
    server.start_again().await;
    for router in [&mut a, &mut b] {
        router.connected().await;
        let status = router.status(|it| it.connected).await;
        assert_eq!(status.trouble, None);
    }
    a.send_text("again").await;
    assert_eq!(b.receive().await, "again");
    assert_eq!(log.count("works alone"), 2);
    assert_eq!(log.count("connect: Connection refused"), 2, "{}", log.text());
    assert_eq!(log.count("connected again after"), 2);
}

#[tokio::test]
async fn a_hanging_server_counts_as_lost_until_it_resumes() {
    let server = Server::start(&[]).await;
    let mut a = Router::join(config(&server, "a")).await;
    server.signal("STOP");
    a.send_text("into the void").await;
    let status = a.status(|it| it.trouble.is_some()).await;
    assert!(status.trouble.unwrap().contains("no reply within 2s"));
    assert_eq!(status.dropped, 1);
    server.signal("CONT");
    a.connected().await;
}

#[tokio::test]
async fn a_short_interruption_loses_nothing() {
    let server = Server::start(&[]).await;
    let mut a = Router::join(config(&server, "a")).await;
    let b = Router::join(config(&server, "b")).await;
    b.send_text("before").await;
    assert_eq!(a.receive().await, "before");
    let killed: u64 =
        server.ask(redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes"));
    assert!(killed >= 4, "{killed}");
    // Written by a third client, and therefore while both were disconnected.
    server.add(&["from", "0000000000000001:c", "frame", "\x10during"]);
    a.connected().await;
    assert_eq!(a.receive().await, "during");
}

#[tokio::test]
async fn without_a_server_the_backlog_is_bounded_and_drops_are_counted() {
    let mut server = Server::start(&[]).await;
    server.stop();
    let mut a = Router::start(config(&server, "a"));
    for number in 0..3_000 {
        a.send_text(number.to_string()).await;
    }
    let status = a.status(|it| it.dropped >= 3_000 - 1_024).await;
    assert!(!status.connected);
    server.start_again().await;
    a.connected().await;
    let status = a.status(|it| it.dropped + it.frames_out == 3_000).await;
    assert!(status.frames_out <= 1_024, "{status:?}");
}

#[tokio::test]
async fn frames_queued_before_the_end_are_still_sent() {
    let server = Server::start(&[]).await;
    let a = Router::join(config(&server, "a")).await;
    let mut b = Router::join(config(&server, "b")).await;
    a.send_text("bye").await;
    a.end().await;
    assert_eq!(b.receive().await, "bye");
}

#[tokio::test]
async fn without_a_server_shutdown_is_quick() {
    let mut server = Server::start(&[]).await;
    server.stop();
    let mut a = Router::start(config(&server, "a"));
    a.status(|it| it.trouble.is_some()).await;
    a.send_text("bye").await;
    a.end().await;
}

#[tokio::test]
async fn a_wrong_password_is_logged_once_and_never_shown() {
    let log = Log::start();
    let server = Server::start(&["--requirepass", "right"]).await;
    let url = |password: &str| format!("redis://:{password}@127.0.0.1:{}", server.port);
    let mut a = Router::start(RedisConfig { url: url("wr0ng"), ..config(&server, "a") });
    let status = a.status(|it| it.trouble.is_some()).await;
    assert!(status.trouble.unwrap().contains("rejects the user or the password"));
    until("some attempts", || server.info_with("right", "errorstats", "errorstat_WRONGPASS") >= 4).await;
    assert_eq!(log.count("rejects the user or the password"), 1, "{}", log.text());
    assert!(!log.text().contains("wr0ng"));

    let mut b = Router::start(RedisConfig { url: server.url(), ..config(&server, "b") });
    let status = b.status(|it| it.trouble.is_some()).await;
    assert!(status.trouble.unwrap().contains("requires a password"));

    let _c = Router::join(RedisConfig { url: url("right"), ..config(&server, "c") }).await;
}

#[tokio::test]
async fn a_superfluous_password_is_reported() {
    let server = Server::start(&[]).await;
    let url = format!("redis://:pw@127.0.0.1:{}", server.port);
    let mut a = Router::start(RedisConfig { url, ..config(&server, "a") });
    let status = a.status(|it| it.trouble.is_some()).await;
    assert!(status.trouble.unwrap().contains("remove it"));
}

#[tokio::test]
async fn routers_with_different_keys_refuse_each_other_with_one_log_line() {
    let log = Log::start();
    let server = Server::start(&[]).await;
    let mut ours = Router::join(RedisConfig { key: key("ours"), ..config(&server, "ours") }).await;
    let too = Router::join(RedisConfig { key: key("ours"), ..config(&server, "too") }).await;
    let theirs = Router::join(RedisConfig { key: key("theirs"), ..config(&server, "theirs") }).await;
    let mut none = Router::join(config(&server, "none")).await;
    for _ in 0..10 {
        theirs.send_text("sealed otherwise").await;
    }
    let status = ours.status(|it| it.refused == 10).await;
    assert!(status.connected && status.trouble.as_ref().unwrap().contains("another key"), "{status:?}");
    assert!(status.trouble.unwrap().contains("\"theirs\""));
    assert_eq!(
        log.count("refused a frame of router \"theirs\": it was encrypted with another key"),
        2,
        "ours and too"
    );
    none.status(|it| it.refused == 10).await;
    assert_eq!(log.count("this router has no key"), 1);
    none.send_text("in the open").await;
    ours.status(|it| it.refused == 11).await;
    too.send_text("heard").await;
    assert_eq!(ours.receive().await, "heard");
    let entries: Value = server.ask(redis::cmd("XRANGE").arg("maitre:g:stream").arg("-").arg("+"));
    let entries = format!("{entries:?}");
    assert!(entries.contains("in the open") && !entries.contains("heard") && !entries.contains("sealed"));
}

#[tokio::test]
async fn frames_of_a_router_with_our_name_are_delivered() {
    let server = Server::start(&[]).await;
    let a = Router::join(config(&server, "a")).await;
    let mut namesake = Router::join(config(&server, "a")).await;
    a.send_text("I am a").await;
    assert_eq!(namesake.receive().await, "I am a");
}

#[tokio::test]
async fn foreign_entries_in_the_stream_are_refused() {
    let log = Log::start();
    let server = Server::start(&[]).await;
    let mut a = Router::join(config(&server, "a")).await;
    let mut b = Router::join(config(&server, "b")).await;
    let mut rng = maitre_base::Rng::new(7);
    for _ in 0..50 {
        let bytes: Vec<u8> = (0..rng.below(300)).map(|_| rng.below(256) as u8).collect();
        server.add(&[b"from".as_slice(), b"1:c", b"frame", &[&[0xFF], &bytes[..]].concat()]);
        server.add(&[&bytes[..], b"x"]);
    }
    server.add(&["from", "1:c"]);
    server.add(&["from", "1:c", "fame", "x"]);
    server.add(&[b"from".as_slice(), b"1:c", b"frame", &vec![0x10; (256 << 10) + 100]]);
    let status = a.status(|it| it.refused == 103).await;
    assert!(status.connected);
    b.clone_status(|it| it.refused == 103).await;
    assert_eq!(log.count("exceeds the frame size limit"), 2, "once each: {}", log.text());
    assert_eq!(log.count("is not an entry of a router"), 2);
    b.send_text("still here").await;
    assert_eq!(a.receive().await, "still here");

    // More than one reply may contain: the router closes the connection and skips the entry.
    server.add(&[b"from".as_slice(), b"1:c", b"frame", &vec![0x10; 40 << 20]]);
    let status = a.status(|it| it.trouble.as_ref().is_some_and(|it| it.contains("too long"))).await;
    assert!(status.bytes_in < 18 << 20, "{status:?}");
    a.connected().await;
    b.connected().await;
    b.send_text("and still").await;
    assert_eq!(a.receive().await, "and still");
}

#[tokio::test]
async fn foreign_snapshots_are_skipped() {
    let server = Server::start(&[]).await;
    for (score, name) in
        [(1, "list"), (2, "truncated"), (3, "long"), (4, "good"), (5, "none"), (6, "line\nbreak")]
    {
        server
            .ask::<Value>(redis::cmd("ZADD").arg("maitre:g:members").arg(4_000_000_000u64 + score).arg(name));
    }
    let put = |name: &str, value: &[u8]| {
        server.ask::<Value>(redis::cmd("SET").arg(format!("maitre:g:snapshot:{name}")).arg(value));
    };
    server.ask::<Value>(redis::cmd("LPUSH").arg("maitre:g:snapshot:list").arg("x"));
    put("truncated", b"\x04\0\0\0\x10abc\xFF\0\0\0x");
    put("long", &vec![0; (8 << 20) + 1]);
    put("good", b"\x05\0\0\0\x10good");
    let mut a = Router::start(config(&server, "a"));
    assert_eq!(a.recall().await, "good");
    assert_eq!(a.recall().await, "abc");
    a.connected().await;
    a.status(|it| it.refused == 3 && it.connected).await;
}

#[tokio::test]
async fn keys_of_the_wrong_type_are_reported_until_they_are_gone() {
    let server = Server::start(&[]).await;
    for name in ["stream", "members"] {
        let key = format!("maitre:g:{name}");
        server.ask::<Value>(redis::cmd("SET").arg(&key).arg("mine"));
        let mut a = Router::start(config(&server, "a"));
        let status = a.status(|it| it.trouble.is_some()).await;
        assert!(status.trouble.unwrap().contains("choose another cluster.group"));
        server.ask::<Value>(redis::cmd("DEL").arg(&key));
        a.connected().await;
    }
}

#[tokio::test]
async fn an_emptied_server_is_used_again() {
    let server = Server::start(&[]).await;
    let mut a = Router::join(config(&server, "a")).await;
    let b = Router::join(config(&server, "b")).await;
    server.ask::<Value>(&redis::cmd("FLUSHALL"));
    // Within the millisecond of the last entry, a first entry has the same id and is skipped.
    let flushed = Instant::now();
    until("the next millisecond", || flushed.elapsed() > Duration::from_millis(2)).await;
    b.send_text("after").await;
    assert_eq!(a.receive().await, "after");
}

#[tokio::test]
async fn a_stream_that_restarts_at_an_earlier_time_is_detected() {
    let server = Server::start(&[]).await;
    let mut a = Router::join(config(&server, "a")).await;
    let future = ["maitre:g:stream", "9999999999999-0", "from", "1:c", "frame", "\x10of the future"];
    server.ask::<Value>(redis::cmd("XADD").arg(&future));
    assert_eq!(a.receive().await, "of the future");
    server.ask::<Value>(redis::cmd("DEL").arg("maitre:g:stream"));
    // More than one batch, so that some frames are left for the next connection and are written before it has read
    // everything.
    for _ in 0..300 {
        a.send_text("back to the present").await;
    }
    a.connected().await;
    a.status(|it| it.frames_out == 300).await;
    let entries: Vec<(String, Vec<String>)> =
        server.ask(redis::cmd("XRANGE").arg("maitre:g:stream").arg("-").arg("+"));
    let joins = entries.iter().filter(|(_, fields)| fields[2] == "join").count();
    assert_eq!(joins, 1, "it joined again, once");
    let b = Router::join(config(&server, "b")).await;
    b.send_text("now").await;
    assert_eq!(a.receive().await, "now");
}

#[tokio::test]
async fn a_server_that_rejects_writes_is_trouble_until_it_accepts_them() {
    let server = Server::start(&[]).await;
    let mut a = Router::join(config(&server, "a")).await;
    let replica = |of: [&str; 2]| server.ask::<Value>(redis::cmd("REPLICAOF").arg(&of));
    replica(["127.0.0.1", "1"]);
    a.send_text("no").await;
    a.status(|it| it.trouble.as_ref().is_some_and(|it| it.contains("is a replica"))).await;
    replica(["NO", "ONE"]);
    a.connected().await;

    server.ask::<Value>(redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("1"));
    a.send_text("no").await;
    a.status(|it| it.trouble.as_ref().is_some_and(|it| it.contains("maxmemory"))).await;
    server.ask::<Value>(redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("0"));
    a.connected().await;
    assert_eq!(a.status(|it| it.connected).await.trouble, None);
}

#[tokio::test]
async fn a_server_without_streams_is_reported() {
    let server = Server::start(&["--rename-command", "XADD", ""]).await;
    let mut a = Router::start(config(&server, "a"));
    let status = a.status(|it| it.trouble.is_some()).await;
    assert!(status.trouble.unwrap().contains("older than Redis 5"));
}

#[tokio::test]
async fn a_server_of_another_protocol_is_reported() {
    let server = server::stranger("HTTP/1.1 400 Bad Request\r\n\r\n").await;
    let url = format!("redis://{server}");
    let mut a = Router::start(RedisConfig { url, group: "g".into(), name: "a".into(), key: None });
    let status = a.status(|it| it.trouble.is_some()).await;
    assert!(status.trouble.unwrap().contains("does not speak the Redis protocol"));
}

/// As Redis does in protected mode, and with too many clients.
#[tokio::test]
async fn a_server_that_closes_every_connection_is_reported_with_the_likely_reasons() {
    let server = server::stranger("").await;
    let url = format!("redis://{server}");
    let mut a = Router::start(RedisConfig { url, group: "g".into(), name: "a".into(), key: None });
    let status = a.status(|it| it.trouble.is_some()).await;
    assert!(status.trouble.unwrap().contains("may be in protected mode"));
}

#[tokio::test]
async fn an_untrusted_certificate_is_rejected() {
    let server = Server::start_with_tls().await;
    let url = format!("rediss://:s3cret@localhost:{}", server.port);
    let mut a = Router::start(RedisConfig { url, ..config(&server, "a") });
    let status = a.status(|it| it.trouble.is_some()).await;
    let trouble = status.trouble.unwrap();
    assert!(trouble.contains("TLS: invalid peer certificate") && !trouble.contains("s3cret"), "{trouble}");
}

#[tokio::test]
async fn an_invalid_url_is_trouble_and_frames_are_discarded() {
    let log = Log::start();
    let url = "redis://:s3cret@host/x".to_owned();
    let mut a = Router::start(RedisConfig { url, group: "g".into(), name: "a".into(), key: None });
    let status = a.status(|it| it.trouble.is_some()).await;
    assert!(status.trouble.unwrap().contains("write redis://"));
    a.send_text("x").await;
    a.status(|it| it.dropped == 1).await;
    assert!(!log.text().contains("s3cret"));
    a.end().await;
}

#[tokio::test]
async fn a_frame_that_is_too_long_is_not_sent() {
    let server = Server::start(&[]).await;
    let mut a = Router::join(config(&server, "a")).await;
    let mut b = Router::join(config(&server, "b")).await;
    let longest = "x".repeat(256 << 10);
    a.send_text(format!("{longest}x")).await;
    a.send_text(longest.clone()).await;
    assert!(b.receive().await == longest);
    assert_eq!(a.status(|it| it.frames_out == 1).await.refused, 1);
    a.line().outgoing.send(Outgoing::Snapshot(vec![Bytes::from(longest); 40])).await.unwrap();
    a.status(|it| it.refused == 2).await;
}

#[tokio::test]
async fn an_idle_cluster_sends_almost_nothing() {
    let server = Server::start(&[]).await;
    let mut a = Router::join(config(&server, "a")).await;
    a.send_text("x").await;
    a.status(|it| it.frames_out == 1).await;
    // It reads its own entry and then waits.
    until("that it waits", || server.info("clients", "blocked_clients") == 1).await;
    let before = server.commands();
    let bytes = a.status(|_| true).await;
    until("that it waits anew", || server.commands()["xread"] > before["xread"]).await;
    let mut after = server.commands();
    assert_eq!(after.remove("xread").unwrap() - before["xread"], 1, "in five seconds");
    let before: BTreeMap<_, _> = before.into_iter().filter(|(name, _)| name != "xread").collect();
    assert_eq!(after, before);
    let now = a.status(|_| true).await;
    assert_eq!((now.frames_out, now.frames_in), (bytes.frames_out, bytes.frames_in));
    assert!(now.bytes_out - bytes.bytes_out < 200, "{now:?} after {bytes:?}");
}
