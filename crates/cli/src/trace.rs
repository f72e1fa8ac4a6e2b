//! Where traffic comes from: a file.

use std::fs::File;

use anyhow::Context as _;
use maitre_sim::trace::Trace;

/// Reads a trace.
pub fn load(spec: &str, _seed: u64) -> anyhow::Result<Trace> {
    let file = File::open(spec).with_context(|| format!("--trace {spec}"))?;
    Trace::read(file).with_context(|| format!("--trace {spec}"))
}
