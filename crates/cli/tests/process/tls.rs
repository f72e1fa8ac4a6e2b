//! What an operator sees of TLS, in the log and as errors at the start.

use std::path::PathBuf;

use crate::client::{chat, within};
use crate::operator::maitre;
use crate::program::{Engine, LOOK_AGAIN, Program, Serve, run};

const ANYWHERE: [&str; 5] = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];

#[tokio::test]
async fn a_worker_without_tls_is_named_once_with_the_reason() {
    let engine = Engine::start(&["--profile", "instant"]).await;
    let url = engine.url.replace("http://", "https://");
    let flags = ["--worker", &url, "--worker-tls-verify=false", "--probes-interval", "1ms"];
    let mut serve = Program::start(&[&ANYWHERE[..], &flags].concat());
    let contains = |part: &'static str| move |line: &str| line.contains(part).then_some(());
    serve.until_says(contains("certificates of servers are not verified")).await;
    serve.until_says(contains("it does not speak TLS; write http://")).await;
    serve.signal("TERM");
    serve.until_ends().await;
    let said = serve.said();
    assert_eq!(said.matches("TLS to the worker failed").count(), 1, "{said}");
    assert!(!said.contains("first probe failed"), "said twice: {said}");
}

#[test]
fn missing_files_prevent_the_start_and_name_their_setting() {
    let flags = ["--tls-cert", "absent.crt", "--tls-key", "absent.key"];
    let output = run(&[&ANYWHERE[..], &flags].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("tls.cert: absent.crt: "), "{said}");
}

const KEY: &str = "the-key-of-operators";

/// A self-signed certificate for this machine and its key, as files.
fn papers(name: &str) -> (String, String) {
    let papers = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let write = |end: &str, text: String| {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{end}"));
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    (write("crt", papers.cert.pem()), write("key", papers.signing_key.serialize_pem()))
}

/// A router that uses TLS on both listeners, in front of an engine that it has found.
async fn router(engine: &Engine, (cert, key): &(String, String)) -> Serve {
    let flags = ["--tls-cert", cert, "--tls-key", key, "--admin-tls-cert", cert, "--admin-tls-key", key];
    let program = Program::start_with(
        &[&ANYWHERE[..], &["--worker", &engine.url], &flags].concat(),
        &[("MAITRE_ADMIN_KEY", KEY)],
    );
    let serve = Serve::of(program).await;
    let (url, body) = (format!("https://{}", serve.admin), chat(1).to_string());
    let mut looks = tokio::time::interval(LOOK_AGAIN);
    within(async {
        loop {
            let ran = maitre(&["explain", "--url", &url, "--ca", cert], KEY, &body).await;
            if ran.code == Some(0) {
                break;
            }
            // Not there yet, and for no other reason.
            ran.check(1, "refused: ");
            looks.tick().await;
        }
    })
    .await;
    serve
}

#[tokio::test]
async fn top_explain_and_bench_work_with_a_router_behind_tls() {
    let engine = Engine::start(&["--profile", "instant"]).await;
    let (ours, others) = (papers("router"), papers("others"));
    let serve = router(&engine, &ours).await;
    let [admin, front] = [serve.admin, serve.listen].map(|it| format!("https://{it}"));
    let ran = maitre(&["top", "--once", "--url", &admin, "--ca", &ours.0], KEY, "").await;
    assert!(ran.good().starts_with(&format!("{admin}\nmaitre ")), "{}", ran.printed);
    let trace = crate::bench::trace("bench-tls.jsonl");
    let bench = ["bench", "--trace", &trace, "--url"];
    let ran = maitre(&[&bench[..], &[&front, "--ca", &ours.0, "--json"]].concat(), "", "").await;
    let report: serde_json::Value = serde_json::from_str(ran.good()).unwrap();
    assert_eq!((&report["rows"][0]["requests"], &report["errors"]), (&40.into(), &serde_json::json!({})));
    // And every error that prevents the start.
    let plain = format!("http://{}", serve.admin);
    let untold = "its certificate is not signed by anyone we trust; name its authority with --ca FILE";
    let no_tls = engine.url.replace("http://", "https://");
    for (args, said) in [
        (&["--url", &admin][..], untold),
        (&["--url", &admin, "--ca", &others.0], untold),
        (&["--url", &plain], "this port speaks TLS; write https:// in the URL"),
        (&["--url", &plain, "--ca", &ours.0], "--ca goes with an address that begins with https://"),
        (&["--url", &no_tls], "it does not speak TLS; write http:// if that is how it is reached"),
        (&["--url", &admin, "--ca", &ours.1], "holds no certificate"),
    ] {
        maitre(&[&["top", "--once"], args].concat(), KEY, "").await.check(2, said);
        maitre(&[&["explain", "--decision", "1"], args].concat(), KEY, "").await.check(2, said);
    }
    for (url, model, part) in
        [(&front, "x", "handshake: its certificate"), (&front, "", "name its authority")]
    {
        let model: &[&str] = if model.is_empty() { &[] } else { &["--model", model] };
        let ran = maitre(&[&bench[..], &[url], model].concat(), "", "").await;
        assert!(ran.code == Some(1) && ran.said.contains(part), "{}", ran.said);
    }
}
