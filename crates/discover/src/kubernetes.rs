//! Workers from Kubernetes: the endpoints of a Service, Pods by their labels, or those of an InferencePool.
//!
//! List everything, then watch for changes from the version of the list. When the server no longer knows that
//! version, list again; objects missing from the new list are gone. A watch ends after a minute and resumes
//! at its version, so a hung watch is noticed. See docs/decisions/021 for why this is not the usual library.

mod account;
mod api;
mod line_buffer;
mod objects;
mod pool;
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
        let ended = match &cluster.kind {
            KubernetesTarget::Pool(name) => {
                let rng = rng.clone();
                pool_round(&cluster, name, (&settings, &account), (&mut backoff, &reporter, rng)).await
            }
            _ => round(&cluster, &[], (&settings, &account), (&mut backoff, &reporter)).await,
        };
        match ended {
            ApiError::Gone => {}
            ApiError::Failed(why) => reporter.send(SourceReport::failure(why)).await,
        }
        sleep(backoff.next()).await;
    }
}

/// Follows the Pods of a pool until the pool changes, or their watch cannot continue.
async fn pool_round(
    cluster: &KubernetesSource,
    name: &str,
    (settings, account): (&KubernetesSettings, &Account),
    (backoff, reporter, rng): (&mut Backoff, &Reporter, Rng),
) -> ApiError {
    let begun = async {
        let client = ApiClient::new(settings, account.clone())?;
        let path = pool::path(&namespace(cluster, account).await?, name);
        let (pool, version) = pool::find(&client, &path, name).await?;
        Ok((client, path, pool, version))
    };
    let (client, path, pool, version) = match begun.await {
        Ok(begun) => begun,
        Err(problem) => return problem,
    };
    let pods = KubernetesSource { kind: KubernetesTarget::Pods(pool.selector.clone()), ..cluster.clone() };
    let changed = pool::until_changed(&client, &path, name, (&pool, version), (settings, rng));
    tokio::select! {
        problem = round(&pods, &pool.ports, (settings, account), (backoff, reporter)) => problem,
        () = changed => ApiError::Gone,
    }
}

/// Lists, then watches until the watch cannot continue. With ports, each of them is a worker on every Pod.
async fn round(
    cluster: &KubernetesSource,
    ports: &[u16],
    (settings, account): (&KubernetesSettings, &Account),
    (backoff, reporter): (&mut Backoff, &Reporter),
) -> ApiError {
    let begun = async {
        let client = ApiClient::new(settings, account.clone())?;
        let path = path(cluster, account).await?;
        let mut store = Store::new(cluster.clone(), ports.to_vec());
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

/// As it is written in a path.
async fn namespace(cluster: &KubernetesSource, account: &Account) -> Result<String, ApiError> {
    Ok(match &cluster.namespace {
        Some(namespace) => escape(namespace),
        None => escape(&account.namespace().await?),
    })
}

/// The path to list and watch, with its selector.
async fn path(cluster: &KubernetesSource, account: &Account) -> Result<String, ApiError> {
    let namespace = namespace(cluster, account).await?;
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
        KubernetesTarget::Pool(name) => pool::path(&namespace, name),
    })
}
