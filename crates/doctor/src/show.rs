//! The report as text for people and as JSON for programs.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::code::Severity;
use super::report::{Finding, Report};

/// Most workers that one finding lists, two lines of a terminal; `--json` has all.
const URLS_MAX: usize = 8;

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

/// Findings worst first, grouped by code, and alike ones of several workers as one; then one line for each check.
pub(super) fn text(report: &Report, paint: Paint) -> String {
    let mut text = String::new();
    for group in report.findings.chunk_by(|one, other| one.code == other.code) {
        for alike in alike(group) {
            text.push_str(&of_findings(&alike, paint));
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

/// Findings of one code that say the same, in the order of the first of them. A fleet is often wrong as a whole.
fn alike(group: &[Finding]) -> Vec<Vec<&Finding>> {
    let mut all: Vec<Vec<&Finding>> = Vec::new();
    let says = |it: &Finding| (it.what.clone(), it.fix.clone());
    let mut places: HashMap<(String, String), usize> = HashMap::new();
    for finding in group {
        let place = *places.entry(says(finding)).or_insert(all.len());
        match all.get_mut(place) {
            Some(alike) => alike.push(finding),
            None => all.push(vec![finding]),
        }
    }
    all
}

/// Findings that say the same, of which there is at least one.
fn of_findings(alike: &[&Finding], paint: Paint) -> String {
    let Some(first) = alike.first() else { return String::new() };
    let severity = paint.severity(first.code.severity());
    let code = paint.put("1", first.code.name());
    let urls: Vec<&str> = alike.iter().filter_map(|it| it.worker.as_deref()).collect();
    let mut at = urls.iter().take(URLS_MAX).map(|it| format!("  {it}")).collect::<String>();
    if urls.len() > URLS_MAX {
        // Writing to a string cannot fail.
        let _ = write!(at, "  and {} more", urls.len() - URLS_MAX);
    }
    format!("{severity} {code}{at}\n  {}\n  fix: {}\n", first.what, first.fix)
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
    fn what_is_wrong_with_many_workers_is_said_once() {
        let off = |url: &str| Finding::at(url, Code::EventsOff, "publishes none", "turn it on");
        let other = Finding::at("http://c:1", Code::EventsOff, "does not say", "name its port");
        let findings = vec![off("http://a:1"), other.clone(), off("http://b:1")];
        let report = Report { findings, checks: Vec::new() };
        let expected = "warning events-off  http://a:1  http://b:1\n  publishes none\n  fix: turn it on\n\
                        warning events-off  http://c:1\n  does not say\n  fix: name its port\n\n\n\
                        0 faults, 3 warnings\n";
        assert_eq!(text(&report, Paint::Plain), expected);
        assert_eq!(json(&report)["findings"].as_array().unwrap().len(), 3);
        let many = Report { findings: vec![off("http://a:1"); 10], checks: Vec::new() };
        let text = text(&many, Paint::Plain);
        assert!(text.contains("http://a:1  and 2 more\n") && text.ends_with("10 warnings\n"), "{text}");
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
