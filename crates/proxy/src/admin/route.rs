//! All that can be asked of the admin API: one row each, from which follow the answer, the OpenAPI document and the
//! test that nobody gets in without the key.

use http::Method;

/// What a row does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Overview,
    History,
    Live,
    Decisions,
    Decision,
    Explain,
    Workers,
    Worker,
    AddWorker,
    RemoveWorker,
    Drain,
    Resume,
    Weigh,
    Strategies,
    SetStrategies,
    Config,
    Reload,
    Index,
    Cluster,
    Log,
    SetLog,
    OpenApi,
}

#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) method: Verb,
    /// A part in braces stands for anything without a slash.
    pub(crate) path: &'static str,
    pub(crate) action: Action,
    /// One sentence for whoever reads the document.
    pub(crate) does: &'static str,
    /// What may follow the question mark: name, and what it is.
    pub(crate) query: &'static [(&'static str, &'static str)],
    /// The schema of what is sent, by its name in the document.
    pub(crate) takes: Option<&'static str>,
    /// The schema of what comes back.
    pub(crate) gives: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Post,
    Put,
    Delete,
}

impl Verb {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Verb::Get => "GET",
            Verb::Post => "POST",
            Verb::Put => "PUT",
            Verb::Delete => "DELETE",
        }
    }

    fn is(self, method: &Method) -> bool {
        method == self.name()
    }
}

const fn row(
    method: Verb,
    path: &'static str,
    action: Action,
    gives: &'static str,
    does: &'static str,
) -> Row {
    Row { method, path, action, does, query: &[], takes: None, gives }
}

impl Row {
    const fn takes(mut self, schema: &'static str) -> Row {
        self.takes = Some(schema);
        self
    }

    const fn query(mut self, query: &'static [(&'static str, &'static str)]) -> Row {
        self.query = query;
        self
    }
}

const DECISIONS_QUERY: &[(&str, &str)] = &[
    ("limit", "How many at most; 100 if it is not said, 1000 at most"),
    ("before", "Only those with a smaller number"),
    ("worker", "Only those that went to this worker"),
    ("why", "Only those with this reason"),
];

pub(crate) static ROWS: &[Row] = &[
    row(
        Verb::Get,
        "/admin/v1/overview",
        Action::Overview,
        "Overview",
        "The fleet, the line, the totals and the last second, as the page shows them.",
    ),
    row(
        Verb::Get,
        "/admin/v1/history",
        Action::History,
        "History",
        "A sample for each second of the last quarter of an hour.",
    ),
    row(
        Verb::Get,
        "/admin/v1/live",
        Action::Live,
        "Live",
        "An event stream: the overview each second, decisions as they are made and as they end.",
    ),
    row(
        Verb::Get,
        "/admin/v1/decisions",
        Action::Decisions,
        "Decisions",
        "The last decisions, newest first.",
    )
    .query(DECISIONS_QUERY),
    row(
        Verb::Get,
        "/admin/v1/decisions/{decision}",
        Action::Decision,
        "Decision",
        "One decision with its candidates and their cost, by its number or by the request's id.",
    ),
    row(
        Verb::Get,
        "/admin/decisions/{decision}",
        Action::Decision,
        "Decision",
        "The same, by a shorter path.",
    ),
    row(
        Verb::Post,
        "/admin/v1/explain",
        Action::Explain,
        "Decision",
        "Where a request would go if it came now. Nothing is sent to a worker.",
    )
    .takes("Request")
    .query(&[("path", "The API it is for; /v1/chat/completions if it is not said")]),
    row(Verb::Get, "/admin/v1/workers", Action::Workers, "Workers", "All workers."),
    row(
        Verb::Post,
        "/admin/v1/workers",
        Action::AddWorker,
        "Workers",
        "Take a worker in. Its URL must match one of `admin_workers` in the settings.",
    )
    .takes("NewWorker"),
    row(Verb::Get, "/admin/v1/workers/{worker}", Action::Worker, "Worker", "One worker."),
    row(
        Verb::Delete,
        "/admin/v1/workers/{worker}",
        Action::RemoveWorker,
        "Removed",
        "Let a worker go: no new requests, and gone once those under way are done.",
    ),
    row(
        Verb::Post,
        "/admin/v1/workers/{worker}/drain",
        Action::Drain,
        "Worker",
        "No new requests for this worker; those under way are finished.",
    ),
    row(
        Verb::Post,
        "/admin/v1/workers/{worker}/resume",
        Action::Resume,
        "Worker",
        "Requests for this worker again.",
    ),
    row(
        Verb::Put,
        "/admin/v1/workers/{worker}/weight",
        Action::Weigh,
        "Worker",
        "How much of its fair part this worker should take, from 0.01 to 100.",
    )
    .takes("Weight"),
    row(
        Verb::Get,
        "/admin/v1/strategies",
        Action::Strategies,
        "Strategies",
        "The strategies there are, and those in use.",
    ),
    row(
        Verb::Put,
        "/admin/v1/strategies",
        Action::SetStrategies,
        "Strategies",
        "Go by another strategy until the settings are read again.",
    )
    .takes("Strategy"),
    row(Verb::Get, "/admin/v1/config", Action::Config, "Config", "The settings in force, secrets left out."),
    row(
        Verb::Post,
        "/admin/v1/reload",
        Action::Reload,
        "Reloaded",
        "Read the settings again. If they are wrong, the old ones stay.",
    ),
    row(
        Verb::Get,
        "/admin/v1/index",
        Action::Index,
        "Index",
        "What the index of caches holds, in all and of each worker.",
    ),
    row(
        Verb::Get,
        "/admin/v1/cluster",
        Action::Cluster,
        "Cluster",
        "The other routers: who is there, how far behind we hear each, and which part of the requests it takes.",
    ),
    row(Verb::Get, "/admin/cluster", Action::Cluster, "Cluster", "The same, by a shorter path."),
    row(Verb::Get, "/admin/v1/log", Action::Log, "Log", "How much is logged."),
    row(
        Verb::Put,
        "/admin/v1/log",
        Action::SetLog,
        "Log",
        "Log more or less, until the settings are read again.",
    )
    .takes("Log"),
    row(
        Verb::Get,
        "/admin/v1/openapi.json",
        Action::OpenApi,
        "Document",
        "This API, as an OpenAPI document.",
    ),
];

/// What a path and a method ask for.
#[derive(Debug)]
pub(crate) enum Found<'a> {
    /// With what stands in its braces.
    Row(&'static Row, &'a str),
    /// The path is known, by these methods.
    Methods(Vec<&'static str>),
    Nothing,
}

pub(crate) fn find<'a>(method: &Method, path: &'a str) -> Found<'a> {
    let matching: Vec<(&Row, &str)> =
        ROWS.iter().filter_map(|row| Some((row, matches(row.path, path)?))).collect();
    match matching.iter().find(|(row, _)| row.method.is(method)) {
        Some(&(row, part)) => Found::Row(row, part),
        None if matching.is_empty() => Found::Nothing,
        None => Found::Methods(matching.iter().map(|(row, _)| row.method.name()).collect()),
    }
}

/// What stands in the braces of `pattern`, if `path` is one of its kind.
fn matches<'a>(pattern: &str, path: &'a str) -> Option<&'a str> {
    let Some((before, rest)) = pattern.split_once('{') else { return (pattern == path).then_some("") };
    let (_, after) = rest.split_once('}')?;
    let part = path.strip_prefix(before)?.strip_suffix(after)?;
    (!part.is_empty() && !part.contains('/')).then_some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(method: Method, path: &str, expected: Option<(Action, &str)>) {
        let found = match find(&method, path) {
            Found::Row(row, part) => Some((row.action, part)),
            Found::Methods(_) | Found::Nothing => None,
        };
        assert_eq!(found, expected, "{method} {path}");
    }

    #[test]
    fn a_path_names_its_row_and_what_it_is_about() {
        check(Method::GET, "/admin/v1/workers", Some((Action::Workers, "")));
        check(Method::POST, "/admin/v1/workers", Some((Action::AddWorker, "")));
        check(Method::GET, "/admin/v1/workers/7", Some((Action::Worker, "7")));
        check(Method::POST, "/admin/v1/workers/7/drain", Some((Action::Drain, "7")));
        check(Method::GET, "/admin/decisions/req-1", Some((Action::Decision, "req-1")));
        check(Method::GET, "/admin/v1/workers/", None);
        check(Method::GET, "/admin/v1/workers/7/8", None);
        check(Method::GET, "/admin/v1/workers//drain", None);
        check(Method::POST, "/admin/v1/overview", None);
    }

    #[test]
    fn a_wrong_method_is_told_the_right_ones() {
        let Found::Methods(methods) = find(&Method::PATCH, "/admin/v1/workers/7") else { panic!() };
        assert_eq!(methods, ["GET", "DELETE"]);
    }

    #[test]
    fn no_two_rows_are_the_same() {
        for (place, row) in ROWS.iter().enumerate() {
            assert!(row.path.starts_with("/admin/"), "{}: all that needs the key is under /admin/", row.path);
            let same = |it: &&Row| (it.method, it.path) == (row.method, row.path);
            assert_eq!(ROWS[place + 1..].iter().filter(same).count(), 0, "{}", row.path);
        }
    }
}
