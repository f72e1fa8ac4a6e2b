//! Foreign bytes as traces, workloads, scripts and profiles: no panic, and what was read can be written and read again.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use maitre_sim::generate::Plan;
use maitre_sim::lab::Script;
use maitre_sim::profile;
use maitre_sim::trace::Trace;
use maitre_testkit::fuzz::fuzz;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn fuzz_trace() {
    let seeds: [&[u8]; 3] = [
        b"{\"timestamp\": 0, \"input_length\": 6758, \"output_length\": 500, \"hash_ids\": [0, 1, 2]}\n{\"timestamp\": 3000, \"input_length\": 7322, \"output_length\": 490, \"hash_ids\": [0, 14]}\n",
        b"{\"at\":0.5,\"prompt\":[[1,20],[2,30]],\"answer\":[3,10],\"class\":\"batch\",\"tenant\":7,\"session\":1}\n",
        b"\x1f\x8b\x08\0\0\0\0\0\0\x03",
    ];
    fuzz(HERE, "trace", &seeds, |input, _| {
        let Ok(trace) = Trace::read(input) else { return };
        let mut written = Vec::new();
        trace.write(&mut written).unwrap();
        let again = Trace::read(written.as_slice()).expect("what was written can be read");
        assert_eq!(again.requests.len(), trace.requests.len());
    });
}

#[test]
fn fuzz_plan_script_and_profile() {
    let seeds: [&[u8]; 4] = [
        b"groups:groups=40,shared=4000,own=500,out=200,qps=80,seconds=120,zipf=1,tenants=a:3;b:1,deadline=interactive:60",
        b"4s slow 2 4\n9s slow 2 1\n10s restart 0\n11s leave 1\n",
        b"name = \"mine\"\nkv_blocks = 1000\nblock_tokens = 16\nrunning_max = 8\n[step]\nbase_ms = 3.5\n",
        b"agents:rate=1.5",
    ];
    fuzz(HERE, "plan", &seeds, |input, _| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        let _ = (text.parse::<Plan>(), text.parse::<Script>(), profile::file::parse(text, "stem"));
    });
}
