//! The report as text for people and as JSON for programs.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::code::Severity;
use super::report::{Finding, Report};

/// Escape sequences for a terminal; empty elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Paint {
    Plain,
    Coloured,
}

impl Paint {
    fn put(self, code: &str, text: &str) -> String {
        match self {
            Paint::Plain => text.to_owned(),
            Paint::Coloured => format!("\x1b[{code}m{text}\x1b[0m"),
        }
    }

    fn severity(self, severity: Severity) -> String {
        match severity {
            Severity::Fault => self.put("1;31", severity.word()),
            Severity::Warning => self.put("33", severity.word()),
        }
    }
}

/// Findings worst first, grouped by code; then one line for each check.
pub(super) fn text(report: &Report, paint: Paint) -> String {
    let mut text = String::new();
    for group in report.findings.chunk_by(|one, other| one.code == other.code) {
        for finding in group {
            // Writing to a string cannot fail.
            let _ = write!(text, "{}", of_finding(finding, paint));
        }
        text.push('\n');
    }
    for check in &report.checks {
        let _ = writeln!(text, "{:<20}{}", check.name, check.said);
    }
    text.push('\n');
    let count = |severity| report.findings.iter().filter(|it| it.code.severity() == severity).count();
    let _ = match (count(Severity::Fault), count(Severity::Warning)) {
        (0, 0) => writeln!(text, "{}", paint.put("32", "no findings")),
        (faults, warnings) => {
            writeln!(text, "{}, {}", counted(faults, "fault"), counted(warnings, "warning"))
        }
    };
    text
}

fn counted(count: usize, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}

fn of_finding(finding: &Finding, paint: Paint) -> String {
    let severity = paint.severity(finding.code.severity());
    let code = paint.put("1", finding.code.name());
    let worker = finding.worker.as_deref().map(|it| format!("  {it}")).unwrap_or_default();
    format!("{severity} {code}{worker}\n  {}\n  fix: {}\n", finding.what, finding.fix)
}

pub(super) fn json(report: &Report) -> Value {
    let findings: Vec<Value> = report
        .findings
        .iter()
        .map(|it| {
            json!({
                "code": it.code.name(),
                "severity": it.code.severity().word(),
                "worker": it.worker,
                "what": it.what,
                "fix": it.fix,
            })
        })
        .collect();
    let checks: Vec<Value> =
        report.checks.iter().map(|it| json!({"name": it.name, "said": it.said})).collect();
    json!({"healthy": report.findings.is_empty(), "findings": findings, "checks": checks})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::Code;
    use crate::report::Check;

    fn report() -> Report {
        let slow = Finding::at("http://a:1", Code::Slow, "takes 900 ms", "look there");
        let open = Finding::general(Code::AdminOpen, "is open", "close it");
        Report {
            findings: vec![slow, open],
            checks: vec![Check { name: "reach", said: "1 of 1 worker".to_owned() }],
        }
    }

    #[test]
    fn the_text_has_finding_place_and_fix() {
        let expected = "warning slow  http://a:1\n  takes 900 ms\n  fix: look there\n\n\
                        warning admin-open\n  is open\n  fix: close it\n\n\
                        reach               1 of 1 worker\n\n0 faults, 2 warnings\n";
        assert_eq!(text(&report(), Paint::Plain), expected);
        let well = Report { findings: Vec::new(), ..report() };
        assert_eq!(text(&well, Paint::Plain), "reach               1 of 1 worker\n\nno findings\n");
        assert!(text(&well, Paint::Coloured).contains("\x1b[32mno findings"));
    }

    #[test]
    fn the_json_has_the_same() {
        let value = json(&report());
        assert_eq!(value["healthy"], false);
        assert_eq!(value["findings"][0]["code"], "slow");
        assert_eq!(value["findings"][0]["worker"], "http://a:1");
        assert_eq!(value["findings"][1]["worker"], Value::Null);
        assert_eq!(value["checks"][0]["name"], "reach");
    }
}
