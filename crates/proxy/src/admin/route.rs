//! The routes of the admin API: one table for the dispatch, the OpenAPI document and the test that every route needs
//! the key.

use http::Method;
use maitre_views::cluster::ClusterView;
use maitre_views::control::{
    ConfigText, IndexView, LogLevel, NewWorker, OpenApiDocument, ReloadReport, RemovedWorker, StrategyChange,
    StrategyView, WorkerWeight,
};
use maitre_views::decision::{ClientRequest, DecisionDetail, DecisionList};
use maitre_views::overview::{History, LiveEvents, Overview};
use maitre_views::scaling::ScalingView;
use maitre_views::schema::{JsonShape, View as _};
use maitre_views::worker::{WorkerList, WorkerView};

/// What a route does.
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
    Scaling,
    Cluster,
    Log,
    SetLog,
    OpenApi,
}

/// One method of one path.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) method: Method,
    /// A part in braces matches anything without a slash.
    pub(crate) path: &'static str,
    pub(crate) action: Action,
    /// One sentence for the OpenAPI document.
    pub(crate) doc: &'static str,
    /// Query parameters: name, and what it is.
    pub(crate) query: &'static [(&'static str, &'static str)],
    /// The body it takes.
    pub(crate) takes: Option<&'static JsonShape>,
    /// The body it answers with.
    pub(crate) gives: &'static JsonShape,
}

const fn route(method: Method, path: &'static str, action: Action, gives: &'static JsonShape) -> Route {
    Route { method, path, action, doc: "", query: &[], takes: None, gives }
}

impl Route {
    const fn takes(mut self, shape: &'static JsonShape) -> Route {
        self.takes = Some(shape);
        self
    }

    const fn query(mut self, query: &'static [(&'static str, &'static str)]) -> Route {
        self.query = query;
        self
    }

    const fn doc(mut self, doc: &'static str) -> Route {
        self.doc = doc;
        self
    }
}

const DECISIONS_QUERY: &[(&str, &str)] = &[
    ("limit", "Maximum number; 100 by default, at most 1000"),
    ("before", "Only decisions with a smaller number"),
    ("worker", "Only decisions for this worker"),
    ("why", "Only decisions with this reason"),
    (
        "outcome",
        "Only decisions with one of these outcomes, with commas between them: failed,broke-off,declined",
    ),
    (
        "slower_than_ms",
        "Only requests that waited longer than this for their first token, or have waited longer so far",
    ),
];

pub(crate) static ROUTES: &[Route] = &[
    route(Method::GET, "/admin/v1/overview", Action::Overview, Overview::SHAPE)
        .doc("The workers, the queue, the totals and the last second, as the page shows them."),
    route(Method::GET, "/admin/v1/history", Action::History, History::SHAPE)
        .doc("One sample for each second of the last 15 minutes."),
    route(Method::GET, "/admin/v1/live", Action::Live, LiveEvents::SHAPE)
        .doc("Server-sent events: the overview each second, decisions as they are made and as they end."),
    route(Method::GET, "/admin/v1/decisions", Action::Decisions, DecisionList::SHAPE)
        .doc("The last decisions, newest first.")
        .query(DECISIONS_QUERY),
    route(Method::GET, "/admin/v1/decisions/{decision}", Action::Decision, DecisionDetail::SHAPE)
        .doc("One decision with its candidates and their cost, by its number or by the request's id."),
    route(Method::GET, "/admin/decisions/{decision}", Action::Decision, DecisionDetail::SHAPE)
        .doc("The same, by a shorter path."),
    route(Method::POST, "/admin/v1/explain", Action::Explain, DecisionDetail::SHAPE)
        .doc("Where a request would go if it arrived now. Nothing is sent to a worker.")
        .takes(ClientRequest::SHAPE)
        .query(&[("path", "The API it is for; by default /v1/chat/completions")]),
    route(Method::GET, "/admin/v1/workers", Action::Workers, WorkerList::SHAPE).doc("All workers."),
    route(Method::POST, "/admin/v1/workers", Action::AddWorker, WorkerList::SHAPE)
        .doc("Add a worker. Its URL must match one of `admin_workers` in the settings.")
        .takes(NewWorker::SHAPE),
    route(Method::GET, "/admin/v1/workers/{worker}", Action::Worker, WorkerView::SHAPE).doc("One worker."),
    route(Method::DELETE, "/admin/v1/workers/{worker}", Action::RemoveWorker, RemovedWorker::SHAPE)
        .doc("Remove a worker: it gets no new requests and leaves once its requests have ended."),
    route(Method::POST, "/admin/v1/workers/{worker}/drain", Action::Drain, WorkerView::SHAPE)
        .doc("Send no new requests to this worker; it finishes those it has. With `hand_over=true`, streams that can be continued go on at other workers at once."),
    route(Method::POST, "/admin/v1/workers/{worker}/resume", Action::Resume, WorkerView::SHAPE)
        .doc("Send requests to this worker again."),
    route(Method::PUT, "/admin/v1/workers/{worker}/weight", Action::Weigh, WorkerView::SHAPE)
        .doc("Set the part of the work this worker should take, from 0.01 to 100.")
        .takes(WorkerWeight::SHAPE),
    route(Method::GET, "/admin/v1/strategies", Action::Strategies, StrategyView::SHAPE)
        .doc("All strategies, and those in use."),
    route(Method::PUT, "/admin/v1/strategies", Action::SetStrategies, StrategyView::SHAPE)
        .doc("Use other strategies until the settings are read again.")
        .takes(StrategyChange::SHAPE),
    route(Method::GET, "/admin/v1/config", Action::Config, ConfigText::SHAPE)
        .doc("The settings in force, without secrets."),
    route(Method::POST, "/admin/v1/reload", Action::Reload, ReloadReport::SHAPE)
        .doc("Read the settings again. If they are invalid, the old ones stay in force."),
    route(Method::GET, "/admin/v1/index", Action::Index, IndexView::SHAPE)
        .doc("The size of the prefix index, in total and by worker."),
    route(Method::GET, "/admin/v1/scaling", Action::Scaling, ScalingView::SHAPE)
        .doc("How many workers each model should have, and why."),
    route(Method::GET, "/admin/v1/cluster", Action::Cluster, Option::<ClusterView>::SHAPE).doc(
        "The routers of the cluster: state, lag and share of the requests of each. Null without a cluster.",
    ),
    route(Method::GET, "/admin/cluster", Action::Cluster, Option::<ClusterView>::SHAPE)
        .doc("The same, by a shorter path."),
    route(Method::GET, "/admin/v1/log", Action::Log, LogLevel::SHAPE).doc("The log level."),
    route(Method::PUT, "/admin/v1/log", Action::SetLog, LogLevel::SHAPE)
        .doc("Set the log level until the settings are read again.")
        .takes(LogLevel::SHAPE),
    route(Method::GET, "/admin/v1/openapi.json", Action::OpenApi, OpenApiDocument::SHAPE)
        .doc("This API, as an OpenAPI document."),
];

/// What a path and a method name.
#[derive(Debug)]
pub(crate) enum RouteMatch<'a> {
    /// With the part of the path in its braces.
    Route(&'static Route, &'a str),
    /// The path has only these methods.
    Methods(Vec<&'static str>),
    Nothing,
}

pub(crate) fn find<'a>(method: &Method, path: &'a str) -> RouteMatch<'a> {
    let matching: Vec<(&Route, &str)> =
        ROUTES.iter().filter_map(|route| Some((route, matches(route.path, path)?))).collect();
    match matching.iter().find(|(route, _)| route.method == method) {
        Some(&(route, part)) => RouteMatch::Route(route, part),
        None if matching.is_empty() => RouteMatch::Nothing,
        None => RouteMatch::Methods(matching.iter().map(|(route, _)| route.method.as_str()).collect()),
    }
}

/// The part of `path` in the braces of `pattern`; none if it does not match.
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
            RouteMatch::Route(route, part) => Some((route.action, part)),
            RouteMatch::Methods(_) | RouteMatch::Nothing => None,
        };
        assert_eq!(found, expected, "{method} {path}");
    }

    #[test]
    fn a_path_names_its_route_and_its_part() {
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
    fn a_wrong_method_gets_the_list_of_right_ones() {
        let RouteMatch::Methods(methods) = find(&Method::PATCH, "/admin/v1/workers/7") else { panic!() };
        assert_eq!(methods, ["GET", "DELETE"]);
    }

    #[test]
    fn every_route_is_under_admin_and_unique() {
        for (place, route) in ROUTES.iter().enumerate() {
            assert!(route.path.starts_with("/admin/"), "{}: only /admin/ needs the key", route.path);
            let same = |it: &&Route| (&it.method, it.path) == (&route.method, route.path);
            assert_eq!(ROUTES[place + 1..].iter().filter(same).count(), 0, "{}", route.path);
        }
    }
}
