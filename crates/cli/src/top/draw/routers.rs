//! The routers of the cluster in one or two lines; nothing without a cluster.
//!
//! Errors are separate, for the top of the screen. The page has a table of the routers; here workers and decisions need
//! the room.

use maitre_views::cluster::{ClusterView, RouterView};

use crate::operator::format;

/// Lines for all routers. Lost ones come early, so that they are not left out.
pub(super) const LINES_MAX: usize = 2;

/// How many routers there are, and each in a few words.
pub(super) fn items(cluster: &ClusterView) -> Vec<String> {
    let (live, lost): (Vec<&RouterView>, Vec<&RouterView>) =
        cluster.routers.iter().partition(|it| it.is_live());
    let mut count = format!("{} live", live.len());
    if !lost.is_empty() {
        count.push_str(&format!(", {} lost", lost.len()));
    }
    let (here, others): (Vec<&RouterView>, Vec<&RouterView>) = live.into_iter().partition(|it| it.is_self);
    let all = here.into_iter().chain(lost).chain(others);
    let head = ["routers".to_owned(), format!("{count}, via {}", cluster.via)];
    head.into_iter().chain(all.map(item)).collect()
}

fn item(router: &RouterView) -> String {
    let silence =
        || router.last_seen_ms.map_or_else(String::new, |it| format!(" for {}", format::millis(it as f64)));
    let lag = || router.lag_ms.map_or_else(String::new, |it| format!(", lag {}", format::millis(it)));
    let share = format::percent_or_unknown(router.share);
    match (router.is_live(), router.is_self) {
        (true, true) => format!("{} (this one) {share}, {} in flight", router.name, router.in_flight),
        (true, false) => format!("{} {share}, {} in flight{}", router.name, router.in_flight, lag()),
        (false, _) => format!("{} lost{}", router.name, silence()),
    }
}

/// What is wrong in the cluster.
pub(super) fn error(cluster: &ClusterView) -> Option<String> {
    let mut errors = Vec::new();
    match (&cluster.error, cluster.connected) {
        (Some(why), false) => errors.push(format!("not connected to other routers: {why}")),
        (None, false) => errors.push("not connected to other routers".to_owned()),
        (Some(why), true) => errors.push(format!("other routers: {why}")),
        (None, true) => {}
    }
    if let Some(share) = cluster.limit_share.filter(|&it| it < 1.0) {
        errors.push(format!("tenant limits are split: this router admits {}", format::percent(share)));
    }
    (!errors.is_empty()).then(|| errors.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn cluster(odd: &Value) -> ClusterView {
        let mut view = json!({
            "via": "mesh", "name": "a", "connected": true, "error": null, "synced": true, "limit_share": 1.0,
            "routers": [
                {"name": "b", "self": false, "state": "live", "lag_ms": 1.24, "served": 5, "in_flight": 2, "share": 0.25, "last_seen_ms": 90},
                {"name": "a", "self": true, "state": "live", "lag_ms": null, "served": 9, "in_flight": 4, "share": 0.75, "last_seen_ms": 0},
                {"name": "c", "self": false, "state": "lost", "lag_ms": null, "served": 7, "in_flight": 0, "share": null, "last_seen_ms": 41_000},
            ],
        });
        view.as_object_mut().unwrap().extend(odd.as_object().unwrap().clone());
        serde_json::from_value(view).unwrap()
    }

    #[test]
    fn this_router_comes_first_and_lost_ones_before_the_others() {
        assert_eq!(
            items(&cluster(&json!({}))),
            [
                "routers",
                "2 live, 1 lost, via mesh",
                "a (this one) 75%, 4 in flight",
                "c lost for 41.0 s",
                "b 25%, 2 in flight, lag 1.2 ms",
            ]
        );
    }

    #[test]
    fn only_what_is_wrong_is_an_error() {
        for (odd, expected) in [
            (json!({}), None),
            (json!({"limit_share": null}), None),
            (json!({"error": "odd"}), Some("other routers: odd")),
            (json!({"connected": false}), Some("not connected to other routers")),
            (
                json!({"connected": false, "error": "refused", "limit_share": 0.334}),
                Some(
                    "not connected to other routers: refused; tenant limits are split: this router admits 33%",
                ),
            ),
        ] {
            assert_eq!(error(&cluster(&odd)).as_deref(), expected, "{odd}");
        }
    }
}
