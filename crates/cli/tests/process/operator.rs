//! `maitre top` and `maitre explain` as their users run them, against a demo: their output and exit codes.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::client::{chat, within};
use crate::program::{Program, run};

pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) printed: String,
    pub(crate) said: String,
}

impl Ran {
    #[track_caller]
    pub(crate) fn check(&self, code: i32, said: &str) {
        assert_eq!(self.code, Some(code), "{}{}", self.said, self.printed);
        assert!(self.said.contains(said), "no {said:?} in {:?}", self.said);
        assert_eq!(self.printed, "", "errors go to standard error");
    }

    #[track_caller]
    pub(crate) fn good(&self) -> &str {
        assert_eq!((self.code, self.said.as_str()), (Some(0), ""), "{}", self.printed);
        &self.printed
    }
}

/// Runs to the end, with this key in the environment and this on standard input.
pub(crate) async fn maitre(args: &[&str], key: &str, input: &str) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_maitre"));
    command.args(args).env_clear().env("MAITRE_ADMIN_KEY", key);
    // A killed router may have left its key among the temporary files, for a port that is now used again.
    command.env("TMPDIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/without-keys"));
    let input = input.to_owned();
    let run = move || {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // It may have ended without reading.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    };
    let output = within(tokio::task::spawn_blocking(run)).await.unwrap();
    Ran {
        code: output.status.code(),
        printed: String::from_utf8(output.stdout).unwrap(),
        said: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A demo, the address of its admin listener, and the key.
async fn demo() -> (Program, String, String) {
    let mut demo =
        Program::start(&["demo", "--headless", "--seconds", "600", "--rate", "2", "--engines", "2"]);
    let page = demo.until_says(|it| it.strip_prefix("page ").map(str::to_owned)).await;
    let (url, key) = page.split_once("/#key=").unwrap();
    (demo, url.to_owned(), key.to_owned())
}

/// The number of a decision that the demo has made.
async fn decided(url: &str, key: &str) -> String {
    let mut looks = tokio::time::interval(crate::program::LOOK_AGAIN);
    within(async {
        loop {
            looks.tick().await;
            let ran = maitre(&["explain", "--url", url, "--decision", "1", "--json"], key, "").await;
            if ran.code == Some(0) {
                return ran.printed;
            }
            // Not there yet, and for no other reason.
            ran.check(1, "no decision \"1\" is kept");
        }
    })
    .await
}

#[tokio::test]
async fn top_prints_the_state_of_a_running_router() {
    let (_demo, url, key) = demo().await;
    decided(&url, &key).await;
    let page = format!("{url}/#key={key}");
    for ran in [
        maitre(&["top", "--once", "--url", &page], "", "").await,
        maitre(&["top", "--once", "--url", &url, "--key", &key], "", "").await,
        maitre(&["top", "--once", "--url", &url], &key, "").await,
    ] {
        let text = ran.good();
        assert!(text.starts_with(&format!("{url}\nmaitre {}", env!("CARGO_PKG_VERSION"))), "{text}");
        for part in [
            "least-delay",
            "ready",
            "TTFT p50",
            "interactive 0",
            "shadows  our price",
            "round-robin ",
            "127.0.0.1:",
            "maitre-sim",
        ] {
            assert!(text.contains(part), "no {part:?} in:\n{text}");
        }
        assert!(!text.contains('\x1b') && !text.contains(&key), "{text}");
    }
}

#[tokio::test]
async fn commands_find_the_key_of_a_router_that_made_its_own() {
    let ports = ["--listen", "localhost:0", "--admin", "localhost:0"];
    let mut router = Program::start(&[&["serve"][..], &ports].concat());
    let admin = |it: &str| it.split_once("admin=").map(|it| it.1.split(' ').next().unwrap().to_owned());
    let admin = router.until_says(admin).await;
    let file = router.until_says(|it| it.split_once("file=").map(|it| it.1.trim().to_owned())).await;
    let port = admin.rsplit(':').next().unwrap();
    let top = run(&["top", "--once", "--url", &admin]);
    assert_eq!(top.status.code(), Some(0), "{}", String::from_utf8_lossy(&top.stderr));
    let key = run(&["key", "--admin", "--port", port]);
    let key = String::from_utf8(key.stdout).unwrap();
    assert!(key.starts_with("mk-") && !router.said().contains(key.trim()), "{key}");
    router.signal("TERM");
    router.until_ends().await;
    assert!(!std::path::Path::new(&file).exists(), "{file}");
    let late = run(&["key", "--admin", "--port", port]);
    assert!(!late.status.success() && late.stdout.is_empty());
}

#[tokio::test]
async fn explain_shows_where_a_request_would_go_and_where_one_went() {
    let (_demo, url, key) = demo().await;
    let decision: Value = serde_json::from_str(&decided(&url, &key).await).unwrap();
    let id = decision["id"].as_str().unwrap();
    let ran = maitre(&["explain", "--url", &url, "--decision", id], &key, "").await;
    let text = ran.good();
    assert!(text.starts_with("went to http://127.0.0.1:") && text.contains("decision 1; request "), "{text}");
    let body = chat(50).to_string();
    let ran = maitre(&["explain", "--url", &url], &key, &body).await;
    let text = ran.good();
    assert!(text.starts_with("would "), "{text}");
    for part in [
        "candidates, cheapest first",
        "price",
        "prefill",
        "\n*  127.0.0.1:",
        "what other strategies",
        "round-robin",
    ] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    let file = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("explain.json");
    std::fs::write(&file, &body).unwrap();
    let ran = maitre(&["explain", "--url", &url, "--json", file.to_str().unwrap()], &key, "").await;
    let object: Value = serde_json::from_str(ran.good()).unwrap();
    assert_eq!((&object["number"], &object["candidates_total"]), (&Value::Null, &2.into()));
    for (args, input, said) in [
        (
            &["--path", "/v1/nothing"][..],
            body.as_str(),
            "refused: \"/v1/nothing\" is not an API of this router",
        ),
        (&[], r#"{"model": "nobody", "messages": [{"role": "user", "content": "x"}]}"#, "not served here"),
        (&[], "{", "refused: "),
        (&["--decision", "999999"], "", "no decision \"999999\" is kept"),
    ] {
        maitre(&[&["explain", "--url", &url], args].concat(), &key, input).await.check(1, said);
    }
    for (args, said) in [
        (&["--path", "v1"][..], "--path \"v1\": write the path of an API"),
        (&["--decision", "a/b"], "--decision \"a/b\""),
        (&["/nonexistent/request.json"], "read /nonexistent/request.json"),
        (&["-"], "there is no request"),
    ] {
        maitre(&[&["explain", "--url", &url], args].concat(), &key, "").await.check(2, said);
    }
}

#[tokio::test]
async fn a_worker_is_drained_by_the_name_that_top_shows() {
    let (_demo, url, key) = demo().await;
    let ran = maitre(&["drain", "--url", &url, "nobody:1"], &key, "").await;
    ran.check(2, "no worker nobody:1; there are http://127.0.0.1:");
    let name = ran.said.rsplit("http://").next().unwrap().trim().to_owned();
    for resume in [false, true] {
        let rest: &[&str] = if resume { &["--resume"] } else { &[] };
        let ran = maitre(&[&["drain", "--url", &url, &name], rest].concat(), &key, "").await;
        let said = if resume { "gets requests again" } else { "empty after" };
        assert!(ran.good().starts_with(&format!("http://{name}: {said}")), "{}", ran.printed);
    }
}

#[tokio::test]
async fn an_unreachable_router_is_reported_with_the_reason() {
    let (_demo, url, key) = demo().await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = format!("http://{}", taken.local_addr().unwrap());
    drop(taken);
    let engine = crate::program::Engine::start(&["--profile", "instant"]).await;
    let wrong_said = format!("`maitre key --admin --port {}` prints", url.rsplit(':').next().unwrap());
    for (command, rest) in
        [("top", &["--once"][..]), ("explain", &["--decision", "1"]), ("drain", &["127.0.0.1:1"])]
    {
        let wrong = format!("{url}/#key=wrong-and-long-enough");
        for (at, key, said) in [
            (&wrong, "", "does not accept this key"),
            (&wrong, "", &wrong_said),
            (&url, "", "no key: "),
            // Without a router nobody has asked for a key.
            (&nobody, "", "; does maitre run there, and is this its admin address?"),
            (&nobody, &key, "; does maitre run there, and is this its admin address?"),
            (&engine.url, &key, "not as the admin API does"),
        ] {
            let ran = maitre(&[&[command, "--url", at], rest].concat(), key, "").await;
            ran.check(2, said);
            assert!(!ran.said.contains("wrong-and") && !ran.said.contains("mt-"), "a key: {}", ran.said);
        }
    }
    maitre(&["top", "--url", &url], &key, "").await.check(2, "not a terminal; add --once");
    maitre(&["top", "--once", "--interval", "5"], &key, "").await.check(2, "has no unit");
}
