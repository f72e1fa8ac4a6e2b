//! Keys as an operator has them: made by one command, put into a file, asked for by another.

use std::path::PathBuf;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;

use crate::client::{CHAT, chat, post};
use crate::program::{Engine, Serve, run};

const INSTANT: &[&str] = &["--profile", "instant"];

/// The keys that `maitre key` prints with these flags, and their hashes.
fn make(flags: &[&str]) -> Vec<(String, String)> {
    let output = run(&[&["key"], flags].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let words = |line: &str| {
        let (key, hash) = line.split_once(' ').unwrap();
        assert!(key.starts_with("mk-") && hash.starts_with("sha256:") && !hash.contains(' '), "{line}");
        (key.to_owned(), hash.to_owned())
    };
    text.lines().map(words).collect()
}

fn file(name: &str, content: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).unwrap();
    path
}

fn showing(mut request: Request<Full<Bytes>>, key: &str) -> Request<Full<Bytes>> {
    request.headers_mut().insert("x-api-key", key.parse().unwrap());
    request
}

#[test]
fn keys_are_made_as_many_as_are_wanted_and_each_once() {
    assert_eq!(make(&[]).len(), 1);
    let mut made = make(&["--count", "3", "--tenant", "acme", "--tenant", "umbra"]);
    made.sort();
    made.dedup();
    assert_eq!(made.len(), 6);
    for (flags, part) in [(["--count", "0"], "0"), (["--tenant", "a?b"], "tenant")] {
        let output = run(&[&["key"][..], &flags].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(part), "{said}");
    }
}

#[tokio::test]
async fn a_key_that_was_made_opens_the_door_its_hash_keeps() {
    let made = make(&["--count", "2"]);
    let [(first, first_hash), (second, _)] = &made[..] else { panic!("{made:?}") };
    let path = file("serve.keys", &format!("# for acme\n{first_hash}?tenant=acme&best=standard\n"));
    let engines = Engine::start_some(1, INSTANT).await;
    let serve = Serve::start(&engines, &["--keys-file", path.to_str().unwrap()]).await;
    let mut client = serve.client().await;
    for (key, status) in [(Some(first), 200), (Some(second), 401), (Some(first_hash), 401), (None, 401)] {
        let request = post(CHAT, &chat(1));
        let request = match key {
            Some(key) => showing(request, key),
            None => request,
        };
        let answer = client.begin(request).await.rest().await;
        assert_eq!(answer.status, status, "{}", answer.text());
    }
    let refused = r#"maitre_requests_total{route="chat",outcome="refused",code="invalid_api_key"} 2"#;
    assert!(serve.metrics().await.contains(refused));
    // The tests' own files are read by all.
    assert!(
        serve.program.said().contains("is open to others than its owner and group"),
        "{}",
        serve.program.said()
    );
}

#[tokio::test]
async fn a_door_to_other_machines_opens_with_keys_and_not_without() {
    let closed = run(&["serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(closed.status.code(), Some(1));
    let key = &make(&[])[0].1;
    // Which is all that it is asked here; nobody comes.
    let path = file(
        "open.toml",
        &format!(
            "listen = \"0.0.0.0:0\"\nadmin = \"0.0.0.0:1\"\nkeys = [\"{key}\"]\nadmin_key = \"{key}\"\n"
        ),
    );
    let checked = run(&["check", path.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(checked.status.success() && said.contains("1 key\n"), "{said}");
}
