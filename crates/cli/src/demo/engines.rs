//! Simulated engines on a thread of their own, so that they do not share the router's.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread::JoinHandle;

use anyhow::Context as _;
use maitre_sim::http::{Host, HostConfig};
use tokio::sync::oneshot;

pub(crate) struct Engines {
    pub(crate) addresses: Vec<SocketAddr>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Engines {
    pub(crate) async fn start(count: usize, settings: HostConfig) -> anyhow::Result<Engines> {
        let (stop, stopped) = oneshot::channel::<()>();
        let (started, addresses) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let body = async move {
            let mut hosts = Vec::new();
            for _ in 0..count {
                match Host::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), settings.clone()).await {
                    Ok(host) => hosts.push(host),
                    Err(error) => return drop(started.send(Err(error))),
                }
            }
            // The engines live until they are stopped.
            drop(started.send(Ok(hosts.iter().map(Host::addr).collect())));
            let _ = stopped.await;
        };
        let thread = std::thread::Builder::new().name("engines".to_owned());
        let thread = thread.spawn(move || runtime.block_on(body))?;
        let addresses = addresses.await.context("the engines did not start")??;
        Ok(Engines { addresses, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
