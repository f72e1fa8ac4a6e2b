//! The flags that only vllm-router has.

use super::{ALL_SPLIT, Reason};
use crate::compat::flag::ArgumentForm::Word;
use crate::compat::flag::Fate::{Changed, Kept, Left};
use crate::compat::flag::Flag;
use crate::compat::flag::Goal::{Key, Part};
use crate::compat::flag::Takes::{Nothing, One};

const PROGRAMS: &str = "holds calls by a rule of its own while KV memory is short; programs are known by a header, a session id in \
     the body or their prompts, not by vllm_xargs, which only a trusted key may send: see docs/programs.md";

pub(super) static FLAGS: &[Flag] = &[
    Flag::new(&["--vllm-pd-disaggregation"], Nothing, Changed(Key("split", Word("always")), ALL_SPLIT)),
    Flag::new(
        &["--kv-connector"],
        One,
        Changed(Part("workers"), "transfer=nixl or transfer=mooncake of each worker; no other connector"),
    ),
    Flag::new(
        &["--enable-program-scheduling"],
        Nothing,
        Changed(Key("programs.rule", Word("working-set")), PROGRAMS),
    ),
    Flag::new(&["--intra-node-data-parallel-size"], One, Kept(Part("workers"))),
    Flag::new(
        &["--api-key"],
        One,
        Changed(
            Part("worker_key"),
            "sent with the router's own probes and queries; clients need no key, and theirs is passed on, as before",
        ),
    ),
];

pub(super) static LEFT: &[Reason] = &[
    Reason {
        fate: Left("workers do not register over ZeroMQ: name them with --prefill and --decode"),
        flags: [&[], &[&["--vllm-discovery-address"]], &[]],
    },
    Reason {
        fate: Left(
            "the rule learns its thresholds; programs.wait is the longest time that a call is held: see docs/programs.md",
        ),
        flags: [&[], &[&["--program-scheduling-config-json"]], &[]],
    },
    Reason {
        fate: Left("plug-ins are not supported"),
        flags: [
            &[],
            &[&["--wasm-middleware"], &["--wasm-middleware-sha256"], &["--wasm-middleware-route"]],
            &[],
        ],
    },
];
