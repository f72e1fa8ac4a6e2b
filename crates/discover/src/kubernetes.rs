//! Workers from Kubernetes: the endpoints of a Service, or Pods by their labels.
//!
//! List everything, then watch for changes from the version of the list. When the server no longer knows that
//! version, list again; objects missing from the new list are gone. A watch ends after a minute and resumes
//! at its version, so a hung watch is noticed. See docs/decisions/021 for why this is not the usual library.

mod account;
mod api;
mod line_buffer;
mod objects;
mod store;
mod watch;

use maitre_base::Rng;
use tokio::time::sleep;

use crate::backoff::Backoff;
use crate::escape::escape;
use crate::report::{Reporter, SourceReport};
use crate::settings::KubernetesSettings;
use crate::source::{KubernetesSource, KubernetesTarget};
use account::Account;
use api::ApiClient;
use store::{ChangeKind, Store};
use watch::{ObjectWatch, WatchEnd};

/// Why a request to the API failed.
#[derive(Debug, thiserror::Error)]
enum ApiError {
    #[error("{0}")]
    Failed(String),
    /// The version we watch from, or the list we page through, has expired.
    #[error("the version asked for is too old")]
    Gone,
}

/// Runs until dropped.
pub(crate) async fn follow(
    cluster: KubernetesSource,
    settings: KubernetesSettings,
    rng: Rng,
    reporter: Reporter,
) {
    let mut backoff = Backoff::new(settings.retry_min, settings.retry_max, rng.clone());
    let account = Account::new(settings.account.clone());
    loop {
        match round(&cluster, &settings, &account, (&mut backoff, &reporter)).await {
            ApiError::Gone => {}
            ApiError::Failed(why) => reporter.send(SourceReport::failure(why)).await,
        }
        sleep(backoff.next()).await;
    }
}

/// Lists, then watches until the watch cannot continue.
async fn round(
    cluster: &KubernetesSource,
    settings: &KubernetesSettings,
    account: &Account,
    (backoff, reporter): (&mut Backoff, &Reporter),
) -> ApiError {
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
    reporter.send(store.answer(ChangeKind::Listed)).await;
    let mut watch = ObjectWatch { client, path, store, version, backoff, reporter };
    match watch.follow(settings.watch).await {
        WatchEnd::VersionTooOld => ApiError::Gone,
        WatchEnd::Unreadable(why) => ApiError::Failed(why),
    }
}

/// The path to list and watch, with its selector.
async fn path(cluster: &KubernetesSource, account: &Account) -> Result<String, ApiError> {
    let namespace = match &cluster.namespace {
        Some(namespace) => namespace.clone(),
        None => account.namespace().await?,
    };
    let namespace = escape(&namespace);
    Ok(match &cluster.kind {
        KubernetesTarget::Service(service) => {
            let selector = escape(&format!("kubernetes.io/service-name={service}"));
            format!(
                "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector={selector}"
            )
        }
        KubernetesTarget::Pods(selector) => {
            format!("/api/v1/namespaces/{namespace}/pods?labelSelector={}", escape(selector))
        }
    })
}
