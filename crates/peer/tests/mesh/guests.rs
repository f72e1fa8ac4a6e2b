//! Those who do not belong: each is refused in its own words, said once, and does no harm.

use maitre_peer::mesh::{self, Settings};
use maitre_peer::seal::Key;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::log::Log;
use crate::router::{LIMIT, Router, meet, now, settings, start};

/// Says something, and returns all that is answered until the other end hangs up.
async fn knock(router: &Router, words: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(router.address).await.unwrap();
    // It may hang up before all is said.
    let _ = stream.write_all(words).await;
    let mut answer = Vec::new();
    let _ = timeout(LIMIT, stream.read_to_end(&mut answer)).await.expect("it hangs up");
    answer
}

#[tokio::test]
async fn a_wrong_key_is_told_at_both_ends_and_the_others_go_on() {
    let log = Log::new();
    let mut a = start("a", &[]).await;
    let mut b = start("b", &[&a]).await;
    meet(&mut [&mut a, &mut b]).await;
    let peers = [a.address.to_string()];
    let mut stranger = Router::new(Settings { key: Key::new(b"another"), ..settings("c", &peers) }).await;
    let status = stranger.until("trouble", |it| it.trouble.is_some() && it.refused > 2).await;
    let expected = format!(
        "no peer of 1 answers: {}: it has another key; give all routers of a cluster the same cluster.key",
        a.address
    );
    assert_eq!(status.trouble.unwrap(), expected);
    a.until("some refused", |it| it.refused > 2).await;
    log.check_once("refused a connection at the cluster's listener: it has another key");
    log.check_once("cannot connect with another router: it has another key");
    a.say("still here");
    b.hears("still here").await;
    assert_eq!(a.status().peers, ["b"]);
}

#[tokio::test]
async fn an_old_version_is_told_from_a_wrong_key() {
    let log = Log::new();
    let mut a = start("a", &[]).await;
    for _ in 0..5 {
        let answer = knock(&a, b"maitre\xF5\x0A\x07and whatever that version says next").await;
        assert_eq!(answer, b"maitre\xF5\x0A\x01", "so that it can tell too");
    }
    a.until("all counted", |it| it.refused == 5).await;
    log.check_once("it speaks version 7 of the cluster's protocol and we speak 1");
}

#[tokio::test]
async fn what_answers_in_an_old_version_or_not_at_all_is_trouble() {
    let log = Log::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut a = Router::new(settings("a", &[address])).await;
    for (answer, words) in
        [(&b"maitre\xF5\x0A\x07"[..], "speaks version 7"), (b"SSH-2.0", "does not speak as")]
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
    log.check_once("speaks version 7");
    log.check_once("it does not speak as routers do");
}

#[tokio::test]
async fn strangers_get_no_word_and_one_line() {
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
    log.check_once("it does not speak as routers do; probes and scrapers belong");
    // A port check says nothing, and nothing is said of it.
    drop(TcpStream::connect(a.address).await.unwrap());
    let mut b = start("b", &[&a]).await;
    meet(&mut [&mut a, &mut b]).await;
    assert_eq!(a.status().refused, said);
}

#[tokio::test]
async fn random_bytes_after_a_good_beginning_are_refused() {
    let log = Log::new();
    let mut a = start("a", &[]).await;
    let hello = b"maitre\xF5\x0A\x01";
    let wrong_length = knock(&a, &[&hello[..], &[0xFF; 400]].concat()).await;
    assert_eq!(wrong_length, b"");
    let unsealed = knock(&a, &[&hello[..], &[0, 48], &[7; 48]].concat()).await;
    assert_eq!(unsealed, b"maitre\xF5\x0A\x01\0\0", "it is told that its key is another");
    a.until("both counted", |it| it.refused == 2).await;
    log.check_once("a handshake that does not begin like one");
    log.check_once("it has another key");
}

#[tokio::test]
async fn handshakes_that_do_not_go_on_are_bounded_in_number_and_time() {
    let log = Log::new();
    let mut a = start("a", &[]).await;
    let mut silent = Vec::new();
    for _ in 0..32 {
        let mut stream = TcpStream::connect(a.address).await.unwrap();
        stream.write_all(b"maitre").await.unwrap();
        silent.push(stream);
    }
    assert_eq!(knock(&a, b"").await, b"", "one too many");
    a.until("one refused", |it| it.refused == 1).await;
    let since = now();
    for mut stream in silent {
        let read = timeout(LIMIT, stream.read(&mut [0; 10])).await.expect("it hangs up");
        assert_eq!(read.unwrap_or(0), 0);
    }
    assert!(since.elapsed().as_secs() < 10, "{:?}", since.elapsed());
    a.until("all refused", |it| it.refused == 33).await;
    log.check_once("too many are shaking hands");
    log.check_once("no handshake within 5s");
    let mut b = start("b", &[&a]).await;
    meet(&mut [&mut a, &mut b]).await;
}

#[tokio::test]
async fn two_of_one_name_are_told_and_the_first_stays() {
    let log = Log::new();
    let mut first = start("a", &[]).await;
    let mut b = start("b", &[&first]).await;
    meet(&mut [&mut first, &mut b]).await;
    let mut second = start("a", &[&first, &b]).await;
    let has_word =
        |it: &maitre_peer::Status| it.trouble.as_ref().is_some_and(|it| it.contains("cluster.name"));
    second.until("trouble", has_word).await;
    first.until("trouble", has_word).await;
    b.until("one refused", |it| it.refused > 1).await;
    assert_eq!(second.status().peers, [""; 0]);
    assert_eq!((b.status().peers, first.status().peers), (vec!["a".to_owned()], vec!["b".to_owned()]));
    first.say("I am the first");
    b.hears("I am the first").await;
    log.check_once("we are connected with another router called a; give each its own cluster.name");
    log.check_once("b is connected with another router called a; give each its own cluster.name");
    // One line each, of the two that share it.
    assert_eq!(log.with("another router is called a too").len(), 2, "{:?}", log.with(""));
    first.leave().await;
    second.peers(&["b"]).await;
}

#[tokio::test]
async fn whoever_finds_himself_says_nothing() {
    let log = Log::new();
    let reserved = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = reserved.local_addr().unwrap();
    drop(reserved);
    let mut a = Router::new(Settings { listen, ..settings("a", &[listen.to_string()]) }).await;
    let mut b = start("b", &[&a]).await;
    meet(&mut [&mut a, &mut b]).await;
    let status = a.status();
    assert_eq!((status.refused, status.trouble), (0, None));
    assert_eq!(log.with("WARN").len() + log.with("ERROR").len(), 0, "{:?}", log.with(""));
}

#[tokio::test]
async fn a_name_nobody_knows_is_trouble_and_not_the_end() {
    let log = Log::new();
    let mut a = Router::new(settings("a", &["nobody.invalid.:7946".to_owned()])).await;
    let trouble = a.until("trouble", |it| it.trouble.is_some()).await.trouble.unwrap();
    assert!(trouble.starts_with("no peer of 1 answers: look nobody.invalid. up: "), "{trouble}");
    let mut b = start("b", &[&a]).await;
    meet(&mut [&mut a, &mut b]).await;
    let words = "1 of 2 peers does not answer: look nobody.invalid. up: ";
    a.until(words, |it| it.trouble.as_ref().is_some_and(|it| it.starts_with(words))).await;
    log.check_once(
        "cannot find other routers: look nobody.invalid. up: Non-Existent Domain and no addresses",
    );
}

#[tokio::test]
async fn a_name_is_looked_up() {
    let mut a = start("a", &[]).await;
    let mut b = Router::new(settings("b", &[format!("localhost:{}", a.address.port())])).await;
    meet(&mut [&mut a, &mut b]).await;
}

#[tokio::test]
async fn nobody_there_is_trouble_with_the_reason() {
    let reserved = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = reserved.local_addr().unwrap();
    drop(reserved);
    let mut a = Router::new(settings("a", &[address.to_string()])).await;
    let trouble = a.until("trouble", |it| it.trouble.is_some()).await.trouble.unwrap();
    assert!(trouble.starts_with(&format!("no peer of 1 answers: {address}: ")), "{trouble}");
    assert!(trouble.contains("refused"), "{trouble}");
}

#[tokio::test]
async fn what_an_operator_got_wrong_is_said_before_anything_begins() {
    let long = "n".repeat(200);
    let many = vec!["a:1".to_owned(); 65];
    for (settings, part) in [
        (settings("", &[]), "cluster.name: \"\" is not a name"),
        (settings("a\nb", &[]), "cluster.name: \"a\\nb\" is not a name"),
        (settings(&long, &[]), "is not a name; write 1 to 128 bytes"),
        (settings("a", &["router-b".to_owned()]), "cluster.peers: \"router-b\" has no port; write host:port"),
        (settings("a", &many), "cluster.peers: 65 of them"),
        (
            Settings { advertise: Some("here".to_owned()), ..settings("a", &[]) },
            "cluster.advertise: \"here\"",
        ),
    ] {
        let error = mesh::join(settings).await.err().unwrap().to_string();
        assert!(error.contains(part), "{error}");
    }
    let a = start("a", &[]).await;
    let taken =
        mesh::join(Settings { listen: a.address, ..settings("b", &[]) }).await.err().unwrap().to_string();
    assert!(taken.starts_with(&format!("listen for other routers at {}: ", a.address)), "{taken}");
}
