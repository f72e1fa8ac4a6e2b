//! The routers in front of the same fleet, as a line or two: who is there, and what each does.
//!
//! Nothing where a router is alone. What is wrong between them is told apart from the line, so that it can stand where
//! the eye goes first. The page has a table of them; here workers and decisions need the room.

use crate::operator::api::{Cluster, Router};
use crate::operator::show;

/// Lines for all of them. Those that are lost come early, so that they are not what is left out.
pub(super) const LINES_MAX: usize = 2;

/// Each router in a few words, after how many there are.
pub(super) fn items(cluster: &Cluster) -> Vec<String> {
    let (live, lost): (Vec<&Router>, Vec<&Router>) = cluster.routers.iter().partition(|it| it.is_live());
    let mut count = format!("{} live", live.len());
    if !lost.is_empty() {
        count.push_str(&format!(", {} lost", lost.len()));
    }
    let (here, others): (Vec<&Router>, Vec<&Router>) = live.into_iter().partition(|it| it.is_self);
    let all = here.into_iter().chain(lost).chain(others);
    let head = ["routers".to_owned(), format!("{count}, via {}", cluster.via)];
    head.into_iter().chain(all.map(item)).collect()
}

fn item(router: &Router) -> String {
    let heard = || router.heard_ms.map_or_else(String::new, |it| format!(" for {}", show::millis(it)));
    let lag = || router.lag_ms.map_or_else(String::new, |it| format!(", lag {}", show::millis(it)));
    let share = show::percent_or_unknown(router.share);
    match (router.is_live(), router.is_self) {
        (true, true) => format!("{} (this one) {share}, {} open", router.name, router.open),
        (true, false) => format!("{} {share}, {} open{}", router.name, router.open, lag()),
        (false, _) => format!("{} lost{}", router.name, heard()),
    }
}

/// What is not as it should be between them.
pub(super) fn trouble(cluster: &Cluster) -> Option<String> {
    let mut said = Vec::new();
    match (&cluster.trouble, cluster.connected) {
        (Some(why), false) => said.push(format!("not connected to other routers: {why}")),
        (None, false) => said.push("not connected to other routers".to_owned()),
        (Some(why), true) => said.push(format!("other routers: {why}")),
        (None, true) => {}
    }
    if let Some(share) = cluster.limit_share.filter(|&it| it < 1.0) {
        said.push(format!("limits are split: this router lets through {}", show::percent(share)));
    }
    (!said.is_empty()).then(|| said.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn cluster(odd: &Value) -> Cluster {
        let mut told = json!({
            "via": "mesh", "name": "a", "connected": true, "trouble": null, "warm": true, "limit_share": 1.0,
            "routers": [
                {"name": "b", "self": false, "state": "live", "lag_ms": 1.24, "served": 5, "open": 2, "share": 0.25, "heard_ms": 90},
                {"name": "a", "self": true, "state": "live", "lag_ms": null, "served": 9, "open": 4, "share": 0.75, "heard_ms": 0},
                {"name": "c", "self": false, "state": "lost", "lag_ms": null, "served": 7, "open": 0, "share": null, "heard_ms": 41_000},
            ],
        });
        told.as_object_mut().unwrap().extend(odd.as_object().unwrap().clone());
        serde_json::from_value(told).unwrap()
    }

    #[test]
    fn this_one_comes_first_and_the_lost_before_the_others() {
        assert_eq!(
            items(&cluster(&json!({}))),
            [
                "routers",
                "2 live, 1 lost, via mesh",
                "a (this one) 75%, 4 open",
                "c lost for 41.0 s",
                "b 25%, 2 open, lag 1.2 ms",
            ]
        );
    }

    #[test]
    fn what_is_wrong_is_told_and_nothing_else() {
        for (odd, expected) in [
            (json!({}), None),
            (json!({"limit_share": null}), None),
            (json!({"trouble": "odd"}), Some("other routers: odd")),
            (json!({"connected": false}), Some("not connected to other routers")),
            (
                json!({"connected": false, "trouble": "refused", "limit_share": 0.334}),
                Some(
                    "not connected to other routers: refused; limits are split: this router lets through 33%",
                ),
            ),
        ] {
            assert_eq!(trouble(&cluster(&odd)).as_deref(), expected, "{odd}");
        }
    }
}
