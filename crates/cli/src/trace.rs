//! Where traffic comes from: a file, or a workload that is made up.

use std::fs::File;
use std::path::Path;

use anyhow::Context as _;
use maitre_sim::generate::{Plan, WORKLOADS};
use maitre_sim::trace::Trace;

/// Reads a trace from a file, or makes the one that `spec` describes. A file goes first: it is there.
pub fn load(spec: &str, seed: u64) -> anyhow::Result<Trace> {
    if is_workload(spec) {
        let plan: Plan = spec.parse().with_context(|| format!("--trace {spec}"))?;
        return Ok(plan.generate(seed));
    }
    let file = File::open(spec).with_context(|| format!("--trace {spec}"))?;
    Trace::read(file).with_context(|| format!("--trace {spec}"))
}

/// Whether `spec` is to be made up, so that another seed makes another trace of it.
pub fn is_workload(spec: &str) -> bool {
    let name = spec.split(':').next().unwrap_or_default();
    !Path::new(spec).exists() && WORKLOADS.iter().any(|it| it.name == name)
}
