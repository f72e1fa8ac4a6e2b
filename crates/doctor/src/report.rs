//! The result: what is wrong, and what was checked.

use super::code::Code;

/// One thing that is wrong, where, by which evidence, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub code: Code,
    /// The worker's URL; none if it is the router's, or this machine's.
    pub worker: Option<String>,
    pub what: String,
    pub fix: String,
}

/// One check that was made, and what it saw; or why it could not be made.
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

    /// One that is no worker's.
    pub(super) fn general(code: Code, what: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { code, worker: None, what: what.into(), fix: fix.into() }
    }
}
