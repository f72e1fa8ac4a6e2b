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

/// Worst first: the report lists findings in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    Unreachable,
    NotAnEngine,
    RouterUnreachable,
    RouterNotReady,
    WorkerEjected,
    WorkerUnknown,
    NoModels,
    RolesUnpaired,
    HandoffMissing,
    HandoffHost,
    RequestsFail,
    PrefixCachingOff,
    TokenizerUnusable,
    TokensDiffer,
    EventsUnreachable,
    EventsTopic,
    EventsSilent,
    EventsUnreadable,
    EventsUnusable,
    EventsUntrusted,
    BeliefsWrong,
    QueueFull,
    KeyWanted,
    HandoffsExpired,
    ModelsDiffer,
    RouterModels,
    HitsNone,
    EventsOff,
    EventsReplay,
    EventsCold,
    RanksHidden,
    AdaptersAlias,
    CachedTokensHidden,
    PromptsUnread,
    BlockSizesDiffer,
    MetricsMissing,
    MetricsStale,
    Slow,
    VersionsDiffer,
    ContextsDiffer,
    TypesDiffer,
    SaltRefused,
    SaltIgnored,
    ClockOff,
    Descriptors,
    AdminOpen,
}

impl Code {
    pub const ALL: [Code; 46] = [
        Code::Unreachable,
        Code::NotAnEngine,
        Code::RouterUnreachable,
        Code::RouterNotReady,
        Code::WorkerEjected,
        Code::WorkerUnknown,
        Code::NoModels,
        Code::RolesUnpaired,
        Code::HandoffMissing,
        Code::HandoffHost,
        Code::RequestsFail,
        Code::PrefixCachingOff,
        Code::TokenizerUnusable,
        Code::TokensDiffer,
        Code::EventsUnreachable,
        Code::EventsTopic,
        Code::EventsSilent,
        Code::EventsUnreadable,
        Code::EventsUnusable,
        Code::EventsUntrusted,
        Code::BeliefsWrong,
        Code::QueueFull,
        Code::KeyWanted,
        Code::HandoffsExpired,
        Code::ModelsDiffer,
        Code::RouterModels,
        Code::HitsNone,
        Code::EventsOff,
        Code::EventsReplay,
        Code::EventsCold,
        Code::RanksHidden,
        Code::AdaptersAlias,
        Code::CachedTokensHidden,
        Code::PromptsUnread,
        Code::BlockSizesDiffer,
        Code::MetricsMissing,
        Code::MetricsStale,
        Code::Slow,
        Code::VersionsDiffer,
        Code::ContextsDiffer,
        Code::TypesDiffer,
        Code::SaltRefused,
        Code::SaltIgnored,
        Code::ClockOff,
        Code::Descriptors,
        Code::AdminOpen,
    ];

    pub const fn word(self) -> &'static str {
        match self {
            Code::Unreachable => "unreachable",
            Code::NotAnEngine => "not-an-engine",
            Code::RouterUnreachable => "router-unreachable",
            Code::RouterNotReady => "router-not-ready",
            Code::WorkerEjected => "worker-ejected",
            Code::WorkerUnknown => "worker-unknown",
            Code::NoModels => "no-models",
            Code::RequestsFail => "requests-fail",
            Code::PrefixCachingOff => "prefix-caching-off",
            Code::TokenizerUnusable => "tokenizer-unusable",
            Code::TokensDiffer => "tokens-differ",
            Code::EventsUnreachable => "events-unreachable",
            Code::EventsTopic => "events-topic",
            Code::EventsSilent => "events-silent",
            Code::EventsUnreadable => "events-unreadable",
            Code::EventsUnusable => "events-unusable",
            Code::EventsUntrusted => "events-untrusted",
            Code::BeliefsWrong => "beliefs-wrong",
            Code::QueueFull => "queue-full",
            Code::KeyWanted => "key-wanted",
            Code::ModelsDiffer => "models-differ",
            Code::RouterModels => "router-models",
            Code::HitsNone => "hits-none",
            Code::EventsOff => "events-off",
            Code::EventsReplay => "events-replay",
            Code::EventsCold => "events-cold",
            Code::RanksHidden => "ranks-hidden",
            Code::AdaptersAlias => "adapters-alias",
            Code::RolesUnpaired => "roles-unpaired",
            Code::HandoffMissing => "handoff-missing",
            Code::HandoffHost => "handoff-host",
            Code::HandoffsExpired => "handoffs-expired",
            Code::CachedTokensHidden => "cached-tokens-hidden",
            Code::PromptsUnread => "prompts-unread",
            Code::BlockSizesDiffer => "block-sizes-differ",
            Code::MetricsMissing => "metrics-missing",
            Code::MetricsStale => "metrics-stale",
            Code::Slow => "slow",
            Code::VersionsDiffer => "versions-differ",
            Code::ContextsDiffer => "contexts-differ",
            Code::TypesDiffer => "types-differ",
            Code::SaltRefused => "salt-refused",
            Code::SaltIgnored => "salt-ignored",
            Code::ClockOff => "clock-off",
            Code::Descriptors => "descriptors",
            Code::AdminOpen => "admin-open",
        }
    }

    /// All faults come before the first warning in the list.
    pub fn severity(self) -> Severity {
        if self < Code::KeyWanted { Severity::Fault } else { Severity::Warning }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for Code {
    type Err = String;

    fn from_str(text: &str) -> Result<Code, String> {
        let known = || Code::ALL.map(Code::word).join(", ");
        let code = Code::ALL.into_iter().find(|it| it.word() == text);
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
            assert_eq!(code.word().parse(), Ok(code));
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
