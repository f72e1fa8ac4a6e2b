//! The result: what is wrong, and what was checked.

use super::code::Code;

/// One finding: what is wrong, where, the evidence, and the fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub code: Code,
    /// The worker's URL; none if the finding is about the router or this machine.
    pub worker: Option<String>,
    pub what: String,
    pub fix: String,
}

/// One check and its result, or why it could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub name: &'static str,
    pub said: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Worst first.
    pub findings: Vec<Finding>,
    pub checks: Vec<Check>,
}

/// The result of one check.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) findings: Vec<Finding>,
    pub(super) said: String,
}

impl Outcome {
    pub(super) fn said(text: impl Into<String>) -> Outcome {
        Outcome { findings: Vec::new(), said: text.into() }
    }

    pub(super) fn find(&mut self, finding: Finding) {
        self.findings.push(finding);
    }
}

impl Finding {
    pub(super) fn at(worker: &str, code: Code, what: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { code, worker: Some(worker.to_owned()), what: what.into(), fix: fix.into() }
    }

    /// A finding that is not about a worker.
    pub(super) fn general(code: Code, what: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { code, worker: None, what: what.into(), fix: fix.into() }
    }
}
