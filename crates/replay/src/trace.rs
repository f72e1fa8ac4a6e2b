//! Where traffic comes from: a file, or a generated workload.

use std::collections::HashMap;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context as _;
use maitre_sim::generate::{Plan, WORKLOADS};
use maitre_sim::report::{self, ReportRow};
use maitre_sim::trace::Trace;

/// Reads a trace from a file, or generates the one that `spec` describes. An existing file takes precedence.
pub fn load(spec: &str, seed: u64) -> anyhow::Result<Trace> {
    if is_workload(spec) {
        let plan: Plan = spec.parse().with_context(|| format!("--trace {spec}"))?;
        return Ok(plan.generate(seed));
    }
    let file = open(spec)?;
    Trace::read(file).with_context(|| format!("--trace {spec}"))
}

/// Opens a trace. The name may be a misspelt workload.
pub fn open(spec: &str) -> anyhow::Result<File> {
    File::open(spec).map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            let names: Vec<&str> = WORKLOADS.iter().map(|it| it.name).collect();
            anyhow::anyhow!("--trace {spec}: there is no such file; workloads are {}", names.join(", "))
        }
        _ => anyhow::anyhow!("--trace {spec}: {error}"),
    })
}

/// Names tenants as `spec` does, if it is a workload: a trace has only numbers.
pub fn name_tenants<'a>(spec: &str, rows: impl Iterator<Item = &'a mut ReportRow>) {
    let Some(plan) = is_workload(spec).then(|| spec.parse::<Plan>().ok()).flatten() else { return };
    let names: HashMap<String, &str> =
        plan.tenants().into_iter().map(|(number, name)| (report::tenant(number), name)).collect();
    for tenant in rows.filter_map(|it| it.tenant.as_mut()) {
        if let Some(&name) = names.get(tenant) {
            name.clone_into(tenant);
        }
    }
}

/// Whether `spec` is generated, so that another seed gives another trace.
pub fn is_workload(spec: &str) -> bool {
    let name = spec.split(':').next().unwrap_or_default();
    !Path::new(spec).exists() && WORKLOADS.iter().any(|it| it.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_may_be_a_misspelt_workload() {
        assert_eq!(
            load("chatt:rate=2", 1).unwrap_err().to_string(),
            "--trace chatt:rate=2: there is no such file; workloads are groups, chat, rag, agents, coding, hot, noreuse, \
             bursts"
        );
    }

    #[test]
    fn tenants_of_a_workload_keep_their_names() {
        let spec = "hot:tenants=acme:10;b:1";
        let plan: Plan = spec.parse().unwrap();
        let numbers: Vec<u64> = plan.tenants().into_keys().chain([7]).collect();
        let mut rows: Vec<ReportRow> = numbers
            .iter()
            .map(|&it| ReportRow { tenant: Some(report::tenant(it)), ..ReportRow::default() })
            .chain([ReportRow::default()])
            .collect();
        name_tenants("no-such-file", rows.iter_mut());
        assert_eq!(rows[2].tenant.as_deref(), Some("7"));
        name_tenants(spec, rows.iter_mut());
        let mut names: Vec<Option<String>> = rows.into_iter().map(|it| it.tenant).collect();
        names.sort();
        assert_eq!(names, [None, Some("7".to_owned()), Some("acme".to_owned()), Some("b".to_owned())]);
    }
}
