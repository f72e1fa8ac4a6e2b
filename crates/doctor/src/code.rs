//! The codes of findings. They are stable: scripts match on them, and docs/doctor.md explains each.

use std::fmt;
use std::str::FromStr;

/// The severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Requests fail, or the router does not know the caches.
    Fault,
    /// It works, but less well than it could.
    Warning,
}

impl Severity {
    pub const fn word(self) -> &'static str {
        match self {
            Severity::Fault => "fault",
            Severity::Warning => "warning",
        }
    }
}

maitre_base::words! {
    /// Worst first: the report lists findings in this order.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Code {
        Unreachable = "unreachable",
        NotAnEngine = "not-an-engine",
        RouterUnreachable = "router-unreachable",
        RouterNotReady = "router-not-ready",
        CertificateExpires = "certificate-expires",
        WorkerEjected = "worker-ejected",
        WorkerUnknown = "worker-unknown",
        NoModels = "no-models",
        RolesUnpaired = "roles-unpaired",
        HandoffMissing = "handoff-missing",
        HandoffHost = "handoff-host",
        RequestsFail = "requests-fail",
        PrefixCachingOff = "prefix-caching-off",
        TokenizerUnusable = "tokenizer-unusable",
        TokensDiffer = "tokens-differ",
        EventsUnreachable = "events-unreachable",
        EventsTopic = "events-topic",
        EventsSilent = "events-silent",
        EventsUnreadable = "events-unreadable",
        EventsUnusable = "events-unusable",
        EventsUntrusted = "events-untrusted",
        BeliefsWrong = "beliefs-wrong",
        Overloaded = "overloaded",
        QueueFull = "queue-full",
        KeyWanted = "key-wanted",
        HandoffsExpired = "handoffs-expired",
        WorkerDrained = "worker-drained",
        RoutersLost = "routers-lost",
        ModelsDiffer = "models-differ",
        RouterModels = "router-models",
        HitsNone = "hits-none",
        EventsOff = "events-off",
        EventsReplay = "events-replay",
        EventsCold = "events-cold",
        RanksHidden = "ranks-hidden",
        AdaptersAlias = "adapters-alias",
        CachedTokensHidden = "cached-tokens-hidden",
        PromptsUnread = "prompts-unread",
        BlockSizesDiffer = "block-sizes-differ",
        MetricsMissing = "metrics-missing",
        MetricsStale = "metrics-stale",
        Slow = "slow",
        VersionsDiffer = "versions-differ",
        ContextsDiffer = "contexts-differ",
        TypesDiffer = "types-differ",
        SaltRefused = "salt-refused",
        SaltIgnored = "salt-ignored",
        ClockOff = "clock-off",
        Descriptors = "descriptors",
        AdminOpen = "admin-open",
    }
}

impl Code {
    /// All faults come before the first warning in the list.
    pub fn severity(self) -> Severity {
        if self < Code::KeyWanted { Severity::Fault } else { Severity::Warning }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Code {
    type Err = String;

    fn from_str(text: &str) -> Result<Code, String> {
        let known = || Code::ALL.map(Code::name).join(", ");
        let code = Code::ALL.into_iter().find(|it| it.name() == text);
        code.ok_or_else(|| format!("no finding is called {text:?}; known: {}", known()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = include_str!("../../../docs/doctor.md");

    #[test]
    fn every_code_is_read_back_and_they_are_listed_worst_first() {
        assert!(Code::ALL.is_sorted());
        for code in Code::ALL {
            assert_eq!(code.name().parse(), Ok(code));
        }
        assert!("slwo".parse::<Code>().unwrap_err().contains("known: unreachable, "));
    }

    /// The rows of the table of findings: code, severity, cause, fix. The page's other table lists flags.
    fn rows() -> Vec<Vec<&'static str>> {
        let rows = DOCUMENT.lines().filter(|it| it.starts_with("| `") && !it.starts_with("| `--"));
        rows.map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
    }

    #[test]
    fn the_document_explains_every_code_and_no_other() {
        let rows = rows();
        let codes: Vec<String> = Code::ALL.iter().map(|it| format!("`{it}`")).collect();
        let documented: Vec<&str> = rows.iter().map(|it| it[0]).collect();
        assert_eq!(documented, codes);
        for (row, code) in rows.iter().zip(Code::ALL) {
            assert_eq!(
                (row.len(), row[1]),
                (4, code.severity().word()),
                "{code}: code, severity, cause, fix"
            );
            assert!(row[2].len() > 10 && row[3].len() > 10, "{code}");
        }
    }
}
