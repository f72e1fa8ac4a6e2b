//! Objects as the API writes them, and the workers they describe.

use super::*;

fn cluster(source: &str) -> KubernetesSource {
    match source.parse().unwrap() {
        crate::WorkerSource::Kubernetes(cluster) => cluster,
        other => panic!("{other}"),
    }
}

/// Each worker as `url readiness`, or the note if there is one.
#[track_caller]
fn check(source: &str, json: serde_json::Value, expected: &[&str]) {
    let object = read(&cluster(source), &[], &json.to_string()).unwrap();
    let shown = object.places.iter().map(|it| format!("{} {:?}", it.worker, it.readiness));
    let shown: Vec<String> = shown.chain(object.note).collect();
    let fits =
        shown.len() == expected.len() && shown.iter().zip(expected).all(|(it, part)| it.contains(part));
    assert!(fits, "{shown:?}\nexpected {expected:?}");
}

fn slice(endpoints: serde_json::Value, ports: serde_json::Value) -> serde_json::Value {
    serde_json::json!({
        "metadata": {"name": "vllm-x", "resourceVersion": "7", "labels": {"kubernetes.io/service-name": "vllm"}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": ports,
    })
}

fn endpoint(address: &str, conditions: serde_json::Value) -> serde_json::Value {
    serde_json::json!({"addresses": [address], "conditions": conditions})
}

const SERVICE: &str = "kubernetes:a/vllm";
const PODS: &str = "kubernetes:a?pods=app%3Dvllm";

#[test]
fn an_endpoint_is_ready_unless_unready_or_terminating() {
    let port = serde_json::json!([{"name": "http", "port": 8000, "protocol": "TCP"}]);
    let cases = [
        (serde_json::json!({}), "Ready"),
        (serde_json::json!({"ready": null}), "Ready"),
        (serde_json::json!({"ready": true, "serving": true, "terminating": false}), "Ready"),
        (serde_json::json!({"ready": false, "serving": false}), "Unready"),
        (serde_json::json!({"ready": false, "serving": true, "terminating": true}), "Ending"),
        // With `publishNotReadyAddresses` every endpoint is ready until the end.
        (serde_json::json!({"ready": true, "terminating": true}), "Ending"),
    ];
    for (conditions, readiness) in cases {
        let endpoints = serde_json::json!([endpoint("10.0.0.7", conditions)]);
        check(SERVICE, slice(endpoints, port.clone()), &[&format!("http://10.0.0.7:8000 {readiness}")]);
    }
}

#[test]
fn empty_slices_of_every_form_have_no_workers() {
    for none in [serde_json::json!(null), serde_json::json!([])] {
        check(SERVICE, slice(none.clone(), none), &[]);
    }
    let port = serde_json::json!([{"port": 8000}]);
    check(SERVICE, slice(serde_json::json!([{"addresses": []}]), port), &[]);
    let bare = serde_json::json!({"metadata": {"name": "x"}});
    check(SERVICE, bare, &[]);
}

#[test]
fn the_port_is_the_requested_one_or_http_or_the_only_one() {
    let at = |source: &str, ports, expected: &str| {
        let endpoints = serde_json::json!([endpoint("fd00::7", serde_json::json!({}))]);
        check(source, slice(endpoints, ports), &[expected]);
    };
    let two = serde_json::json!([{"name": "metrics", "port": 9}, {"name": "http", "port": 8000}]);
    at(SERVICE, two.clone(), "http://[fd00::7]:8000 Ready");
    at("kubernetes:a/vllm?port=metrics", two.clone(), "http://[fd00::7]:9 Ready");
    at("kubernetes:a/vllm?port=81", two.clone(), "http://[fd00::7]:81 Ready");
    at(
        "kubernetes:a/vllm?port=api",
        two,
        "vllm-x is left out: no port is called api, there are [metrics:9 http:8000]",
    );
    at(SERVICE, serde_json::json!([{"name": "", "port": 7}]), "http://[fd00::7]:7");
    at(
        SERVICE,
        serde_json::json!([{"name": "x", "port": 7, "protocol": "UDP"}, {"port": 8}]),
        "http://[fd00::7]:8",
    );
    at(
        SERVICE,
        serde_json::json!([{"name": "a", "port": 7}, {"name": "b", "port": 8}]),
        "say which by port=",
    );
    at(SERVICE, serde_json::json!(null), "no port is called http, there are []");
}

#[test]
fn labels_and_annotations_of_a_slice_override_the_source() {
    let port = serde_json::json!([{"port": 8000}]);
    let mut slice = slice(serde_json::json!([endpoint("10.0.0.7", serde_json::json!({}))]), port);
    slice["metadata"]["labels"]["maitre.dev/events-port"] = "5557".into();
    slice["metadata"]["labels"]["maitre.dev/ranks"] = "4".into();
    check(SERVICE, slice.clone(), &["http://10.0.0.7:8000?events=5557&ranks=4 Ready"]);
    slice["metadata"]["annotations"] = serde_json::json!({"maitre.dev/ranks": "2", "maitre.dev/port": "81"});
    check(
        "kubernetes:a/vllm?ranks=8&replay=9&port=82",
        slice,
        &["http://10.0.0.7:81?events=5557&replay=9&ranks=2 Ready"],
    );
}

fn pod() -> serde_json::Value {
    serde_json::json!({
        "metadata": {"name": "vllm-0", "resourceVersion": "7"},
        "spec": {"containers": [{"name": "sidecar"}, {"ports": [{"containerPort": 8000}]}]},
        "status": {"phase": "Running", "podIP": "10.0.0.7", "conditions": [
            {"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"},
        ]},
    })
}

#[test]
fn a_pod_is_ready_by_its_condition_and_gone_when_deleted_or_finished() {
    check(PODS, pod(), &["http://10.0.0.7:8000 Ready"]);
    let mut unready = pod();
    unready["status"]["conditions"][1]["status"] = "False".into();
    check(PODS, unready, &["http://10.0.0.7:8000 Unready"]);
    let mut deleted = pod();
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    check(PODS, deleted, &["http://10.0.0.7:8000 Ending"]);
    for phase in ["Failed", "Succeeded"] {
        let mut done = pod();
        done["status"]["phase"] = phase.into();
        check(PODS, done, &["http://10.0.0.7:8000 Ending"]);
    }
    let mut new = pod();
    new["status"] = serde_json::json!({"phase": "Pending"});
    check(PODS, new, &[]);
}

#[test]
fn annotations_of_a_pod_are_checked_one_by_one() {
    let with = |annotations: serde_json::Value| {
        let mut pod = pod();
        pod["metadata"]["annotations"] = annotations;
        pod
    };
    let all = serde_json::json!({
        "maitre.dev/port": "81", "maitre.dev/events-port": "5557", "maitre.dev/replay-port": "5558",
        "maitre.dev/ranks": "2", "maitre.dev/chunks": "0.15", "maitre.dev/ignore": "false", "other": "x",
    });
    check(PODS, with(all), &["http://10.0.0.7:81?events=5557&replay=5558&ranks=2&chunks=0.15 Ready"]);
    check(PODS, with(serde_json::json!({"maitre.dev/ignore": "true"})), &["http://10.0.0.7:8000 Ending"]);
    let wrong = [
        ("port", "0", "maitre.dev/port: port is \"0\""),
        ("events-port", "x", "maitre.dev/events-port: events is \"x\"; write a port"),
        ("ranks", "0", "from 1 to 1024"),
        ("chunks", "15%", "maitre.dev/chunks: chunks is \"15%\"; write the part that is computed again"),
        ("ignore", "yes", "write \"true\" or \"false\""),
    ];
    for (key, value, part) in wrong {
        let annotations = serde_json::json!({format!("maitre.dev/{key}"): value});
        check(PODS, with(annotations), &[part]);
    }
    // Labels of a Pod select it; they set no options.
    let mut labelled = pod();
    labelled["metadata"]["labels"] = serde_json::json!({"maitre.dev/port": "81"});
    check(PODS, labelled, &["http://10.0.0.7:8000 Ready"]);
}

#[test]
fn malformed_objects_are_an_error() {
    for json in ["", "null", "[]", "{}", "{\"metadata\":{}}", "{\"metadata\":{\"name\":3}}"] {
        assert!(read(&cluster(SERVICE), &[], json).is_err(), "{json}");
        assert!(read(&cluster(PODS), &[], json).is_err(), "{json}");
    }
}

#[test]
fn fuzz_kubernetes_object() {
    let port = serde_json::json!([{"name": "http", "port": 8000, "protocol": "TCP"}]);
    let one = slice(serde_json::json!([endpoint("10.0.0.1", serde_json::json!({"ready": true}))]), port);
    let pod = serde_json::json!({
        "metadata": {"name": "p", "resourceVersion": "8", "annotations": {"maitre.dev/port": "8000"}},
        "spec": {"containers": [{"ports": [{"containerPort": 8000}]}]},
        "status": {"podIP": "10.0.0.2", "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    let (one, pod) = (one.to_string(), pod.to_string());
    let sources = [cluster(SERVICE), cluster(PODS)];
    let seeds = [one.as_bytes(), pod.as_bytes()];
    maitre_testkit::fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "kubernetes-object", &seeds, |input, _| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        for source in &sources {
            if let Ok(object) = read(source, &[], text) {
                assert!(
                    object.places.iter().all(|it| it.worker.to_string().parse() == Ok(it.worker.clone()))
                );
            }
        }
    });
}
