//! What an operator reads of TLS in the log, and in the way of the start.

use crate::program::{Engine, Program, run};

const ANYWHERE: [&str; 5] = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];

#[tokio::test]
async fn a_worker_without_tls_is_named_once_with_the_reason() {
    let engine = Engine::start(&["--profile", "instant"]).await;
    let url = engine.url.replace("http://", "https://");
    let flags = ["--worker", &url, "--worker-tls-verify=false", "--probes-interval", "1ms"];
    let mut serve = Program::start(&[&ANYWHERE[..], &flags].concat());
    let contains = |part: &'static str| move |line: &str| line.contains(part).then_some(());
    serve.until_says(contains("whoever answers at a worker's address is believed")).await;
    serve.until_says(contains("it does not speak TLS; write http://")).await;
    serve.until_says(contains("does not answer its first probe")).await;
    serve.signal("TERM");
    serve.until_ends().await;
    assert_eq!(serve.said().matches("does not speak TLS").count(), 1, "{}", serve.said());
}

#[test]
fn files_that_are_not_there_stop_the_start_and_say_which_setting_named_them() {
    let flags = ["--tls-cert", "absent.crt", "--tls-key", "absent.key"];
    let output = run(&[&ANYWHERE[..], &flags].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("tls.cert: absent.crt: "), "{said}");
}
