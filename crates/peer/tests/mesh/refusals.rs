//! Clients that do not belong: each is refused with its own reason, logged once, and does no harm.

use maitre_peer::mesh::{self, MeshConfig};
use maitre_peer::seal::ClusterKey;
use maitre_testkit::log::Log;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::router::{LIMIT, Router, config, meet, now, start};

/// Sends bytes, and returns everything received until the other end hangs up.
async fn send_and_read(router: &Router, words: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(router.address).await.unwrap();
    // It may hang up before everything is sent.
    let _ = stream.write_all(words).await;
    let mut answer = Vec::new();
    let _ = timeout(LIMIT, stream.read_to_end(&mut answer)).await.expect("it hangs up");
    answer
}

#[tokio::test]
async fn a_wrong_key_is_reported_at_both_ends_and_the_others_continue() {
    let log = Log::new();
    let mut a = start("a", &[]).await;
    let mut b = start("b", &[&a]).await;
    meet(&mut [&mut a, &mut b]).await;
    let peers = [a.address.to_string()];
    let mut stranger =
        Router::new(MeshConfig { key: ClusterKey::new(b"another"), ..config("c", &peers) }).await;
    let status = stranger.until("trouble", |it| it.trouble.is_some() && it.refused > 2).await;
    let expected = format!(
        "no peer of 1 answers: {}: it has another key; give all routers of a cluster the same cluster.key",
        a.address
    );
    assert_eq!(status.trouble.unwrap(), expected);
    a.until("some refused", |it| it.refused > 2).await;
    log.check_once("refused a connection at cluster.listen: it has another key");
    log.check_once("cannot connect to another router: it has another key");
    a.send_text("still here");
    b.expect_frame("still here").await;
    assert_eq!(a.status().peers, ["b"]);
}

#[tokio::test]
async fn an_old_version_is_distinguished_from_a_wrong_key() {
    let log = Log::new();
    let mut a = start("a", &[]).await;
    for _ in 0..5 {
        let answer = send_and_read(&a, b"maitre\xF5\x0A\x07and whatever that version says next").await;
        assert_eq!(answer, b"maitre\xF5\x0A\x01", "so that it can report the version too");
    }
    a.until("all counted", |it| it.refused == 5).await;
    log.check_once("it speaks cluster protocol version 7, this router version 1");
}

#[tokio::test]
async fn a_peer_with_an_old_version_or_without_an_answer_is_trouble() {
    let log = Log::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut a = Router::new(config("a", &[address])).await;
    for (answer, words) in
        [(&b"maitre\xF5\x0A\x07"[..], "protocol version 7"), (b"SSH-2.0", "is not a Maitre router")]
    {
        let answering = async {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(answer).await.unwrap();
                let _ = stream.read(&mut [0; 100]).await;
            }
        };
        tokio::select! {
            () = answering => (),
            _ = a.until(words, |it| it.trouble.as_ref().is_some_and(|it| it.contains(words))) => (),
        }
    }
    log.check_once("protocol version 7");
    log.check_once("it is not a Maitre router");
}

#[tokio::test]
async fn foreign_clients_get_no_reply_and_one_log_line() {
    let log = Log::new();
    let mut a = start("a", &[]).await;
    let requests =
        [&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], b"\x16\x03\x01\x02\x00\x01\x00", b"\0\0\0\0", b"m"];
    let mut said = 0;
    for _ in 0..10 {
        for request in requests {
            let mut stream = TcpStream::connect(a.address).await.unwrap();
            stream.write_all(request).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut answer = Vec::new();
            let _ = timeout(LIMIT, stream.read_to_end(&mut answer)).await.expect("it hangs up");
            assert_eq!(answer, b"", "to {request:?}");
            said += 1;
        }
    }
    a.until("all counted", |it| it.refused == said).await;
    log.check_once("it is not a Maitre router; point probes and scrapers");
    // A port check sends nothing, and nothing is logged.
    drop(TcpStream::connect(a.address).await.unwrap());
    let mut b = start("b", &[&a]).await;
    meet(&mut [&mut a, &mut b]).await;
    assert_eq!(a.status().refused, said);
}

#[tokio::test]
async fn random_bytes_after_a_valid_preamble_are_refused() {
    let log = Log::new();
    let mut a = start("a", &[]).await;
    let hello = b"maitre\xF5\x0A\x01";
    let wrong_length = send_and_read(&a, &[&hello[..], &[0xFF; 400]].concat()).await;
    assert_eq!(wrong_length, b"");
    let unsealed = send_and_read(&a, &[&hello[..], &[0, 48], &[7; 48]].concat()).await;
    assert_eq!(unsealed, b"maitre\xF5\x0A\x01\0\0", "the answer for a wrong key");
    a.until("both counted", |it| it.refused == 2).await;
    log.check_once("an invalid first handshake message");
    log.check_once("it has another key");
}

#[tokio::test]
async fn stalled_handshakes_are_bounded_in_number_and_time() {
    let log = Log::new();
    let mut a = start("a", &[]).await;
    let mut silent = Vec::new();
    // One more than there may be: it is let in, and the oldest has to go.
    for _ in 0..33 {
        let mut stream = TcpStream::connect(a.address).await.unwrap();
        stream.write_all(b"maitre").await.unwrap();
        silent.push(stream);
    }
    let since = now();
    for mut stream in silent {
        let read = timeout(LIMIT, stream.read(&mut [0; 10])).await.expect("it hangs up");
        assert_eq!(read.unwrap_or(0), 0);
    }
    assert!(since.elapsed().as_secs() < 10, "{:?}", since.elapsed());
    a.until("all refused", |it| it.refused == 33).await;
    log.check_once("too many connections without a handshake");
    log.check_once("no handshake within 2s");
    let mut b = start("b", &[&a]).await;
    meet(&mut [&mut a, &mut b]).await;
}

#[tokio::test]
async fn two_routers_with_one_name_are_reported_and_the_first_stays() {
    let log = Log::new();
    let mut first = start("a", &[]).await;
    let mut b = start("b", &[&first]).await;
    meet(&mut [&mut first, &mut b]).await;
    let mut second = start("a", &[&first, &b]).await;
    let has_word =
        |it: &maitre_peer::TransportStatus| it.trouble.as_ref().is_some_and(|it| it.contains("cluster.name"));
    second.until("trouble", has_word).await;
    first.until("trouble", has_word).await;
    b.until("one refused", |it| it.refused > 1).await;
    assert_eq!(second.status().peers, [""; 0]);
    assert_eq!((b.status().peers, first.status().peers), (vec!["a".to_owned()], vec!["b".to_owned()]));
    first.send_text("I am the first");
    b.expect_frame("I am the first").await;
    log.check_once("this router is connected to another router called a; give each its own cluster.name");
    log.check_once("b is connected to another router called a; give each its own cluster.name");
    // One line each, from the two that share the name.
    assert_eq!(log.with("another router is also called a").len(), 2, "{:?}", log.with(""));
    first.leave().await;
    second.peers(&["b"]).await;
}

#[tokio::test]
async fn a_router_that_dials_itself_logs_nothing() {
    let log = Log::new();
    let reserved = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = reserved.local_addr().unwrap();
    drop(reserved);
    let mut a = Router::new(MeshConfig { listen, ..config("a", &[listen.to_string()]) }).await;
    let mut b = start("b", &[&a]).await;
    meet(&mut [&mut a, &mut b]).await;
    let status = a.status();
    assert_eq!((status.refused, status.trouble), (0, None));
    assert_eq!(log.with("WARN").len() + log.with("ERROR").len(), 0, "{:?}", log.with(""));
}

#[tokio::test]
async fn an_unresolvable_peer_is_trouble_but_not_fatal() {
    let log = Log::new();
    let mut a = Router::new(config("a", &["nobody.invalid.:7946".to_owned()])).await;
    let trouble = a.until("trouble", |it| it.trouble.is_some()).await.trouble.unwrap();
    assert!(trouble.starts_with("no peer of 1 answers: resolve nobody.invalid.: "), "{trouble}");
    let mut b = start("b", &[&a]).await;
    meet(&mut [&mut a, &mut b]).await;
    let words = "1 of 2 peers does not answer: resolve nobody.invalid.: ";
    a.until(words, |it| it.trouble.as_ref().is_some_and(|it| it.starts_with(words))).await;
    log.check_once(
        "cannot find other routers: resolve nobody.invalid.: Non-Existent Domain and no addresses",
    );
}

#[tokio::test]
async fn a_peer_name_is_resolved() {
    let mut a = start("a", &[]).await;
    let mut b = Router::new(config("b", &[format!("localhost:{}", a.address.port())])).await;
    meet(&mut [&mut a, &mut b]).await;
}

#[tokio::test]
async fn an_unreachable_peer_is_trouble_with_a_reason() {
    let reserved = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = reserved.local_addr().unwrap();
    drop(reserved);
    let mut a = Router::new(config("a", &[address.to_string()])).await;
    let trouble = a.until("trouble", |it| it.trouble.is_some()).await.trouble.unwrap();
    assert!(trouble.starts_with(&format!("no peer of 1 answers: {address}: ")), "{trouble}");
    assert!(trouble.contains("refused"), "{trouble}");
}

#[tokio::test]
async fn invalid_settings_are_reported_before_start() {
    let long = "n".repeat(200);
    let many = vec!["a:1".to_owned(); 65];
    for (config, part) in [
        (config("", &[]), "cluster.name: \"\" is not a valid name"),
        (config("a\nb", &[]), "cluster.name: \"a\\nb\" is not a valid name"),
        (config(&long, &[]), "is not a valid name; write 1 to 128 bytes"),
        (config("a", &["router-b".to_owned()]), "cluster.peers: \"router-b\" has no port; write host:port"),
        (config("a", &many), "cluster.peers: 65 entries"),
        (
            MeshConfig { advertise: Some("here".to_owned()), ..config("a", &[]) },
            "cluster.advertise: \"here\"",
        ),
    ] {
        let error = mesh::join(config).await.err().unwrap().to_string();
        assert!(error.contains(part), "{error}");
    }
    let a = start("a", &[]).await;
    let taken =
        mesh::join(MeshConfig { listen: a.address, ..config("b", &[]) }).await.err().unwrap().to_string();
    assert!(taken.starts_with(&format!("listen for other routers at {}: ", a.address)), "{taken}");
}
