//! Scrapes and probes in, loads and brands out.

use proptest::prelude::*;

use super::*;

/// Running, waiting, usage, block size, blocks, tokens.
type Numbers = (Option<u64>, Option<u64>, Option<f64>, Option<u64>, Option<u64>, Option<u64>);

#[track_caller]
fn check(kind: EngineKind, body: &str, expected: Numbers) {
    let load = parse_metrics(kind, None, body.as_bytes()).unwrap();
    let actual = (load.running, load.waiting, load.kv_usage, load.block_size, load.blocks, load.kv_tokens);
    assert_eq!(actual, expected, "{kind:?}: {body}");
}

#[track_caller]
fn check_kind(answers: &[(&str, u16, &str)], expected: EngineKind) {
    let answers: Vec<_> = answers
        .iter()
        .map(|&(path, status, body)| ProbeReply { path, status, body: body.as_bytes(), server: None })
        .collect();
    assert_eq!(detect(&answers), expected, "{answers:?}");
}

const VLLM_0_32: &str = include_str!("../../tests/fixtures/vllm-0.32-metrics.txt");

#[test]
fn a_scrape_of_a_real_vllm_is_read() {
    check(EngineKind::Vllm, VLLM_0_32, (Some(0), Some(0), Some(0.0), Some(128), Some(512), Some(65_536)));
    check_kind(&[("/metrics", 200, VLLM_0_32)], EngineKind::Vllm);
}

/// While one request ran, on pages of 16 tokens.
const SGLANG_0_5_23: &str = include_str!("../../tests/fixtures/sglang-0.5.23/metrics.txt");
const SGLANG_LOADS: &str = include_str!("../../tests/fixtures/sglang-0.5.23/loads.json");
const SGLANG_INFO: &str = include_str!("../../tests/fixtures/sglang-0.5.23/server-info.json");

#[test]
fn the_pages_of_a_real_sglang_are_read() {
    check(EngineKind::Sglang, SGLANG_0_5_23, (Some(1), Some(0), Some(0.19), Some(16), Some(64), Some(1024)));
    check(EngineKind::Sglang, SGLANG_LOADS, (Some(1), Some(0), Some(0.2031), None, None, Some(1024)));
    check_kind(&[("/metrics", 200, SGLANG_0_5_23)], EngineKind::Sglang);
    check_kind(&[("/version", 404, ""), ("/server_info", 200, SGLANG_INFO)], EngineKind::Sglang);
    let answer = ProbeReply { path: SERVER_INFO, status: 200, body: SGLANG_INFO.as_bytes(), server: None };
    let about = about(EngineKind::Sglang, &[answer]);
    assert_eq!(
        (about.version.as_deref(), about.dtype.as_deref(), about.kv_dtype.as_deref()),
        (Some("0.5.23"), Some("float32"), Some("auto"))
    );
    assert_eq!(
        (about.prefix_caching, about.block_tokens, about.batch_tokens_max),
        (Some(true), Some(16), Some(4096))
    );
    let found = sources::parse(EngineKind::Sglang, SGLANG_INFO.as_bytes()).unwrap();
    let source = &found.sources[0];
    assert_eq!((found.sources.len(), source.rank, source.events.port, &*source.topic), (1, 0, 5557, ""));
    assert_eq!((source.replay.as_ref().map(|it| it.port), found.block_tokens), (Some(6557), Some(16)));
    let found = disaggregation(EngineKind::Sglang, SGLANG_INFO.as_bytes()).unwrap().unwrap();
    assert_eq!((found.role, found.dp_size, found.caches_prefixes), (Role::Both, 1, true));
}

#[test]
fn counters_are_read_under_old_and_new_names() {
    for scrape in [
        VLLM_0_32,
        "vllm:prefix_cache_queries 5569\nvllm:prefix_cache_hits 2688",
        "vllm:gpu_prefix_cache_queries_total 5569\nvllm:gpu_prefix_cache_hits_total 2688",
    ] {
        let load = parse_metrics(EngineKind::Vllm, None, scrape.as_bytes()).unwrap();
        assert_eq!((load.queried_tokens, load.hit_tokens), (Some(5569), Some(2688)), "{scrape}");
    }
}

#[test]
fn ranks_add_up_and_shares_are_averaged() {
    check(
        EngineKind::Vllm,
        "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\n\
         vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 4.0\n\
         vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 1.0\n\
         vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"capacity\"} 9.0\n\
         vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\n\
         vllm:kv_cache_usage_perc{engine=\"1\"} 7.5e-1\n\
         vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"200\",engine=\"0\"} 1.0\n\
         vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"200\",engine=\"1\"} 1.0\n",
        (Some(7), Some(1), Some(0.5), Some(16), Some(200), Some(3200)),
    );
}

#[test]
fn vllm_counts_the_blocks_of_all_ranks_and_the_tokens_of_each() {
    let scrape = "vllm:cache_config_info{block_size=\"16\",engine=\"0\",kv_cache_size_tokens=\"1000\",num_gpu_blocks=\"200\"} 1.0\n\
         vllm:cache_config_info{block_size=\"16\",engine=\"1\",kv_cache_size_tokens=\"1000\",num_gpu_blocks=\"200\"} 1.0\n";
    check(EngineKind::Vllm, scrape, (None, None, None, Some(16), Some(200), Some(2000)));
    let load = parse_metrics(EngineKind::Vllm, Some(1), scrape.as_bytes()).unwrap();
    assert_eq!((load.blocks, load.kv_tokens), (Some(100), Some(1000)));
}

#[test]
fn the_ranks_of_a_host_may_begin_anywhere() {
    let page = |ranks: [&str; 2]| {
        let series =
            ranks.map(|it| format!("vllm:cache_config_info{{block_size=\"16\",engine=\"{it}\"}} 1.0\n"));
        format!("vllm:num_requests_running{{engine=\"0\"}} 1\n{}", series.concat())
    };
    assert_eq!(first_rank(EngineKind::Vllm, page(["10", "9"]).as_bytes()), 9);
    assert_eq!(first_rank(EngineKind::Vllm, page(["0", "1"]).as_bytes()), 0);
    assert_eq!(first_rank(EngineKind::Vllm, page(["", "x"]).as_bytes()), 0);
    assert_eq!(first_rank(EngineKind::Sglang, page(["4", "5"]).as_bytes()), 0);
}

#[test]
fn the_capacity_of_several_groups_of_layers_is_not_a_product() {
    // As DeepSeek-V4 on vLLM 0.32, whose `block_size` is that of its smallest group.
    let config = |size: &str| {
        format!(
            "vllm:cache_config_info{{block_size=\"4\",effective_attention_block_size=\"{size}\",engine=\"0\",\
             kv_cache_size_tokens=\"1179770\",num_gpu_blocks=\"20377\"}} 1.0\n"
        )
    };
    let tokens = Some(1_179_770);
    check(EngineKind::Vllm, &config("256"), (None, None, None, Some(256), Some(20_377), tokens));
    check(EngineKind::Vllm, &config("None"), (None, None, None, Some(4), Some(20_377), tokens));
}

#[test]
fn older_vllm_names_and_unmeasured_memory_are_understood() {
    check(
        EngineKind::Vllm,
        "vllm:gpu_cache_usage_perc{model_name=\"m\"} 0.5\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1.0",
        (None, None, Some(0.5), Some(16), None, None),
    );
}

#[test]
fn copies_within_an_sglang_rank_count_once() {
    check(
        EngineKind::Sglang,
        "sglang:num_running_reqs{tp_rank=\"0\",dp_rank=\"0\"} 3\n\
         sglang:num_running_reqs{tp_rank=\"1\",dp_rank=\"0\"} 3\n\
         sglang:num_running_reqs{tp_rank=\"0\",dp_rank=\"1\"} 2\n\
         sglang:num_queue_reqs{dp_rank=\"0\",priority=\"\"} 5\n\
         sglang:num_queue_reqs{dp_rank=\"0\",priority=\"1\"} 4\n\
         sglang:token_usage{dp_rank=\"0\"} 0.5\n\
         sglang:max_total_num_tokens{dp_rank=\"0\"} 6400\n\
         sglang:page_size{dp_rank=\"0\"} 64\n",
        (Some(5), Some(5), Some(0.5), Some(64), Some(100), Some(6400)),
    );
}

#[test]
fn the_live_loads_of_sglang_are_read() {
    check(
        EngineKind::Sglang,
        r#"{"timestamp":"t","version":"0.5.8","loads":[
            {"dp_rank":0,"num_running_reqs":3,"num_waiting_reqs":1,"token_usage":0.25,"max_total_num_tokens":1000,"memory":{}},
            {"dp_rank":1,"num_running_reqs":4,"num_waiting_reqs":0,"token_usage":0.75,"max_total_num_tokens":1000}]}"#,
        (Some(7), Some(1), Some(0.5), None, None, Some(2000)),
    );
}

#[test]
fn tensorrt_reports_in_two_ways() {
    check(
        EngineKind::TensorRt,
        "trtllm_num_requests_running{model_name=\"m\"} 2\ntrtllm_num_requests_waiting 1\ntrtllm_kv_cache_utilization 0.5\n\
         trtllm_kv_cache_max_blocks 10\ntrtllm_kv_cache_tokens_per_block 32",
        (Some(2), Some(1), Some(0.5), Some(32), Some(10), Some(320)),
    );
    check(
        EngineKind::TensorRt,
        r#"[{"iter":1},{"iter":2,"numActiveRequests":3,"numQueuedRequests":4,
            "kvCacheStats":{"maxNumBlocks":100,"usedNumBlocks":25,"tokensPerBlock":32,"cacheHitRate":0.1}}]"#,
        (Some(3), Some(4), Some(0.25), Some(32), Some(100), Some(3200)),
    );
    check(EngineKind::TensorRt, "[]", (None, None, None, None, None, None));
}

#[test]
fn llamacpp_counts_its_slots() {
    check(
        EngineKind::LlamaCpp,
        "# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 2\nllamacpp:requests_deferred 1\n",
        (Some(2), Some(1), None, None, None, None),
    );
}

#[test]
fn impossible_gauge_values_are_ignored() {
    check(
        EngineKind::LlamaCpp,
        "llamacpp:requests_processing NaN\nllamacpp:requests_deferred -1\nllamacpp:kv_cache_usage_ratio 37",
        (None, None, Some(1.0), None, None, None),
    );
}

#[test]
fn an_unknown_engine_is_read_by_its_metric_names() {
    check(EngineKind::Generic, "llamacpp:requests_processing 2", (Some(2), None, None, None, None, None));
}

#[test]
fn the_newest_adapter_sample_counts() {
    let of = |running: &[&str], waiting: &[&str]| {
        let owned = |names: &[&str]| names.iter().map(|&it| it.to_owned()).collect();
        Some(Adapters { max: 4, running: owned(running), waiting: owned(waiting) })
    };
    let line = |waiting: &str, running: &str, time: &str| {
        format!(
            "vllm:lora_requests_info{{max_lora=\"4\",running_lora_adapters=\"{running}\",waiting_lora_adapters=\"{waiting}\"}} {time}\n"
        )
    };
    let scrape = [line("", "", "1.7e9"), line("c", "a,b", "1.7000001e9"), line("d", "", "NaN")].concat();
    assert_eq!(adapters(EngineKind::Vllm, scrape.as_bytes()), of(&["a", "b"], &["c"]));
    assert_eq!(adapters(EngineKind::Vllm, line("", "", "0").as_bytes()), of(&[], &[]));
    assert_eq!(adapters(EngineKind::Vllm, VLLM_0_32.as_bytes()), None);
    assert_eq!(adapters(EngineKind::Sglang, scrape.as_bytes()), None);
    let many = vec!["a"; 10_000].join(",");
    let adapters = adapters(EngineKind::Vllm, line("", &many, "1").as_bytes()).unwrap();
    assert_eq!(adapters.running.len(), crate::models::CARDS_MAX);
}

#[test]
fn a_scrape_of_another_brand_is_an_error() {
    let message = |kind, body: &str| parse_metrics(kind, None, body.as_bytes()).unwrap_err().to_string();
    assert_eq!(
        message(EngineKind::Vllm, "up 1\nsglang:token_usage 1"),
        "read the load of vllm: none of the 2 samples is a metric of vllm"
    );
    assert_eq!(
        message(EngineKind::Generic, "up 1"),
        "read the load of generic: none of the 1 samples is a metric of generic"
    );
    assert!(
        message(EngineKind::Sglang, "{}")
            .starts_with("read what sglang says of itself: missing field `loads`")
    );
}

#[test]
fn the_model_card_signature_decides_first() {
    for (owner, kind) in [
        ("vllm", EngineKind::Vllm),
        ("sglang", EngineKind::Sglang),
        ("tensorrt_llm", EngineKind::TensorRt),
        ("llamacpp", EngineKind::LlamaCpp),
    ] {
        let models = format!(r#"{{"data":[{{"id":"m","owned_by":"{owner}"}}]}}"#);
        check_kind(&[("/metrics", 200, "vllm:x 1"), ("/v1/models", 200, &models)], kind);
    }
}

#[test]
fn metric_names_decide_without_a_signature() {
    let models = ("/v1/models", 200, r#"{"data":[{"id":"m","owned_by":"acme"}]}"#);
    check_kind(&[models, ("/metrics", 200, "# HELP x vllm: y\nsglang:token_usage 1")], EngineKind::Sglang);
    check_kind(
        &[models, ("/metrics", 200, "trtllm_x 1"), ("/version", 200, r#"{"version":"1"}"#)],
        EngineKind::TensorRt,
    );
    check_kind(&[models, ("/metrics", 404, "vllm:x 1")], EngineKind::Generic);
}

#[test]
fn a_path_that_only_one_brand_has_decides() {
    check_kind(&[("/props", 200, r#"{"total_slots":4}"#)], EngineKind::LlamaCpp);
    check_kind(&[("/server_info", 200, r#"{"mem_fraction_static":0.8}"#)], EngineKind::Sglang);
    check_kind(&[("/version", 200, r#"{"version":"0.9"}"#)], EngineKind::Vllm);
    check_kind(&[("/v1/models", 200, "garbage"), ("/version", 200, "ok")], EngineKind::Generic);
    check_kind(&[], EngineKind::Generic);
    let answer = ProbeReply { path: "/v1/models", status: 503, body: b"", server: Some("llama.cpp") };
    assert_eq!(detect(&[answer]), EngineKind::LlamaCpp);
}

#[test]
fn a_worker_of_known_brand_is_not_asked_for_pages_of_others() {
    let asked = |known: (&'static str, &'static str)| {
        let body = |path| if path == known.0 { known.1 } else { "" };
        let mut answers: Vec<ProbeReply<'_>> = Vec::new();
        while let Some(path) = next_probe(&answers) {
            answers.push(ProbeReply { path, status: 200, body: body(path).as_bytes(), server: None });
        }
        answers.iter().map(|it| it.path).collect::<Vec<_>>()
    };
    let card =
        |owner: &str| format!(r#"{{"object":"list","data":[{{"id":"m","owned_by":"{owner}"}}]}}"#).leak();
    let common = [MODELS, METRICS, VERSION];
    assert_eq!(asked((MODELS, card("vllm"))), common);
    assert_eq!(asked((METRICS, "vllm:num_requests_running 0")), common);
    assert_eq!(asked((MODELS, card("tensorrt_llm"))), common);
    assert_eq!(asked((MODELS, card("sglang"))), [MODELS, METRICS, VERSION, SERVER_INFO]);
    assert_eq!(asked((MODELS, card("llamacpp"))), [MODELS, METRICS, VERSION, PROPS]);
    assert_eq!(asked((MODELS, card("me"))), PROBES);
}

#[test]
fn a_scrape_with_changed_bytes_never_panics() {
    let mut rng = maitre_base::Rng::new(11);
    for _ in 0..300 {
        let mut bytes = VLLM_0_32.as_bytes().to_vec();
        for _ in 0..20 {
            let at = rng.below(bytes.len());
            bytes[at] = rng.next_u64() as u8;
        }
        exercise(&bytes);
    }
}

fn exercise(body: &[u8]) {
    for kind in EngineKind::ALL {
        let _ = parse_metrics(kind, None, body);
        let _ = adapters(kind, body);
        let _ = sources::parse(kind, body);
        let _ = disaggregation(kind, body);
    }
    let answers = PROBES.map(|path| ProbeReply { path, status: 200, body, server: None });
    detect(&answers);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(body: Vec<u8>) {
        exercise(&body);
    }

    #[test]
    fn arbitrary_values_never_panic(value in "[-+.0-9eEinfNa]{0,12}", rank in "[0-9]{0,3}") {
        exercise(format!("vllm:num_requests_running{{engine=\"{rank}\"}} {value}\nsglang:page_size {value}\ntrtllm_x {value}").as_bytes());
        exercise(format!("{{\"loads\":[{{\"dp_rank\":{rank},\"token_usage\":{value}}}]}}").as_bytes());
        exercise(format!("[{{\"numActiveRequests\":{value},\"kvCacheStats\":{{\"maxNumBlocks\":{value}}}}}]").as_bytes());
    }
}

#[test]
fn one_rank_can_be_read_alone() {
    let scrape = b"vllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_running{engine=\"1\"} 4\n\
        vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"10\",engine=\"1\"} 1\n";
    let running = |only| parse_metrics(EngineKind::Vllm, only, scrape).unwrap().running;
    assert_eq!((running(None), running(Some(0)), running(Some(1))), (Some(7), Some(3), Some(4)));
    assert_eq!(running(Some(9)), Some(7), "an engine that does not tell its ranks apart");
}

#[test]
fn the_role_of_a_worker_of_sglang_is_read() {
    let read = |body: &str| disaggregation(EngineKind::Sglang, body.as_bytes()).unwrap().unwrap();
    let alone = Disaggregation {
        role: Role::Both,
        bootstrap_port: None,
        dp_size: 1,
        follows_room: true,
        caches_prefixes: true,
    };
    assert_eq!(read("{}"), alone);
    let info = r#"{"disaggregation_mode":"null","disaggregation_bootstrap_port":8998,"dp_size":1,"page_size":64,"load_balance_method":"auto"}"#;
    assert_eq!(read(info), Disaggregation { bootstrap_port: Some(8998), ..alone });
    let info = r#"{"disaggregation_mode":"prefill","disaggregation_bootstrap_port":9001,"dp_size":4,"load_balance_method":"follow_bootstrap_room"}"#;
    let expected = Disaggregation { role: Role::Prefill, bootstrap_port: Some(9001), dp_size: 4, ..alone };
    assert_eq!(read(info), expected);
    assert!(!read(r#"{"disaggregation_mode":"prefill","load_balance_method":"round_robin"}"#).follows_room);
    let decode = Disaggregation { role: Role::Decode, caches_prefixes: false, ..alone };
    assert_eq!(read(r#"{"disaggregation_mode":"decode","dp_size":0}"#), decode);
    let info = r#"{"disaggregation_mode":"decode","disaggregation_decode_enable_radix_cache":true}"#;
    assert!(read(info).caches_prefixes);
    let error = disaggregation(EngineKind::Sglang, b"[]").unwrap_err().to_string();
    assert!(error.starts_with("read what sglang says of itself: "), "{error}");
    assert_eq!(disaggregation(EngineKind::Vllm, b"{}").unwrap(), None);
}
