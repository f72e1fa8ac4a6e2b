//! Workers from Kubernetes: the endpoints of a Service, or Pods by their labels.
//!
//! List everything, then watch what changes, from the version the list had; when that version is no longer
//! known, list again, and what the new list does not have is gone. A watch ends after a minute and is taken up
//! where it stood, so one that hangs is noticed. See docs/decisions/014 for why this is not the usual library.

mod account;
mod api;
mod lines;
mod objects;
mod store;
mod watch;

use maitre_base::Rng;
use tokio::time::sleep;

use crate::backoff::Backoff;
use crate::escape::escape;
use crate::settings::KubernetesSettings;
use crate::source::{Cluster, Kind};
use crate::tell::{Answer, Tell};
use account::Account;
use api::ApiClient;
use store::{Cause, Store};
use watch::{Lost, Watch};

/// Why the API did not say what we asked.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("{0}")]
    Failed(String),
    /// It no longer knows the version we go by, or the list we are in the middle of.
    #[error("the version asked for is too old")]
    Gone,
}

/// Follows until dropped.
pub(crate) async fn follow(cluster: Cluster, settings: KubernetesSettings, rng: Rng, tell: Tell) {
    let mut backoff = Backoff::new(settings.retry_min, settings.retry_max, rng.clone());
    let account = Account::new(settings.account.clone());
    loop {
        match round(&cluster, &settings, &account, (&mut backoff, &tell)).await {
            Problem::Gone => {}
            Problem::Failed(why) => tell.tell(Answer::failure(why)).await,
        }
        sleep(backoff.next()).await;
    }
}

/// Lists, then watches until that cannot go on.
async fn round(
    cluster: &Cluster,
    settings: &KubernetesSettings,
    account: &Account,
    (backoff, tell): (&mut Backoff, &Tell),
) -> Problem {
    let begun = async {
        let client = ApiClient::new(settings, account.clone())?;
        let path = path(cluster, account).await?;
        let mut store = Store::new(cluster.clone());
        let version = watch::list(&client, &path, &mut store).await?;
        Ok((client, path, store, version))
    };
    let (client, path, store, version) = match begun.await {
        Ok(begun) => begun,
        Err(problem) => return problem,
    };
    tell.tell(store.answer(Cause::Listed)).await;
    let mut watch = Watch { client, path, store, version, backoff, tell };
    match watch.follow(settings.watch).await {
        Lost::Version => Problem::Gone,
        Lost::Thread(why) => Problem::Failed(why),
    }
}

/// The path of what we list and watch, and its selector.
async fn path(cluster: &Cluster, account: &Account) -> Result<String, Problem> {
    let namespace = match &cluster.namespace {
        Some(namespace) => namespace.clone(),
        None => account.namespace().await?,
    };
    let namespace = escape(&namespace);
    Ok(match &cluster.kind {
        Kind::Service(service) => {
            let selector = escape(&format!("kubernetes.io/service-name={service}"));
            format!(
                "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector={selector}"
            )
        }
        Kind::Pods(selector) => {
            format!("/api/v1/namespaces/{namespace}/pods?labelSelector={}", escape(selector))
        }
    })
}
