//! Examines a running router: whether it is ready, its metrics, the models it offers.

use std::collections::BTreeSet;

use http::HeaderValue;
use maitre_dialect::{exposition, models};
use maitre_net::address::Address;
use maitre_net::worker_url::WorkerUrl;

use crate::DoctorPlan;
use crate::client::{DoctorClient, Question, short};
use crate::clock;
use crate::facts::{Admin, Router};

/// Maximum characters of the `/readyz` answer that are repeated.
const SAID_BYTES_MAX: usize = 200;

/// None if the plan names no router.
pub(super) async fn look(plan: &DoctorPlan) -> Option<Router> {
    if plan.router.is_none() && plan.admin.is_none() {
        return None;
    }
    let mut router = Router::default();
    if let Some(address) = &plan.admin {
        router.admin = Some(admin(plan, address).await.map_err(|why| format!("{address}: {why}")));
    }
    if let Some(address) = &plan.router {
        router.front = Some(front(plan, address).await.map_err(|why| format!("{address}: {why}")));
    }
    Some(router)
}

fn client(plan: &DoctorPlan, address: &Address, key: Option<HeaderValue>) -> DoctorClient {
    DoctorClient { address: address.clone(), dialer: plan.dialer.clone(), key, timeout: plan.timeout }
}

async fn admin(plan: &DoctorPlan, address: &Address) -> Result<Admin, String> {
    // The key is for the workers: this listener requires none.
    let client = client(plan, address, None);
    let ready = client.ask(Question::get("/readyz")).await.map_err(|it| it.why())?;
    let metrics = client.ask(Question::get("/metrics")).await.map_err(|it| it.why())?;
    let is_ours = exposition::samples(&metrics.body).any(|it| it.name.starts_with("maitre_"));
    if !metrics.is_success() || !is_ours {
        return Err(format!(
            "/metrics answers {} without metrics of Maitre; the admin address of a router has port 8081 by default",
            metrics.status
        ));
    }
    let said = String::from_utf8_lossy(&ready.body[..ready.body.len().min(SAID_BYTES_MAX)]);
    Ok(Admin {
        url: address.to_string(),
        is_ready: ready.is_success(),
        said: short(said.trim()),
        page: metrics.body,
        read_at: clock::since_1970().as_secs_f64(),
    })
}

async fn front(plan: &DoctorPlan, address: &Address) -> Result<Vec<String>, String> {
    let client = client(plan, address, plan.key.clone());
    // An engine has /v1/models too.
    if !client.ask(Question::get("/health")).await.map_err(|it| it.why())?.is_router {
        return Err(
            "this is not a Maitre router; name the address that clients use, by default port 8080".to_owned()
        );
    }
    let page = client.ask(Question::get("/v1/models")).await.map_err(|it| it.why())?;
    if !page.is_success() {
        return Err(format!("/v1/models answers {}", page.status));
    }
    let models = models::parse(&page.body).map_err(|it| it.to_string())?;
    Ok(models.into_iter().map(|it| it.id).collect())
}

/// The workers in a router's metrics, each once whatever its ranks.
pub(super) fn workers(router: &Router) -> Vec<WorkerUrl> {
    let Some(Ok(admin)) = &router.admin else { return Vec::new() };
    let mut ranks: Vec<(String, u32)> = Vec::new();
    let labels: BTreeSet<String> = exposition::samples(&admin.page)
        .filter(|it| it.name == "maitre_worker_state")
        .filter_map(|it| Some(it.label("worker")?.into_owned()))
        .collect();
    for label in labels {
        let url = label.split_once('#').map_or(label.as_str(), |it| it.0);
        match ranks.iter_mut().find(|it| it.0 == url) {
            Some(known) => known.1 += 1,
            None => ranks.push((url.to_owned(), 1)),
        }
    }
    let workers = ranks.into_iter().filter_map(|(url, ranks)| {
        let mut worker: WorkerUrl = url.parse().ok()?;
        worker.options.ranks = ranks;
        Some(worker)
    });
    workers.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_and_ranks_are_read_from_a_routers_metrics() {
        let page = "maitre_worker_state{worker=\"http://a:1\",state=\"ready\"} 1\n\
                    maitre_worker_state{worker=\"http://a:1\",state=\"ejected\"} 0\n\
                    maitre_worker_state{worker=\"http://b:1#0\",state=\"ready\"} 1\n\
                    maitre_worker_state{worker=\"http://b:1#1\",state=\"ready\"} 1\n";
        let admin = Admin { page: page.into(), ..Admin::default() };
        let router = Router { admin: Some(Ok(admin)), front: None };
        let shown: Vec<String> = workers(&router).iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["http://a:1", "http://b:1?ranks=2"]);
    }
}
