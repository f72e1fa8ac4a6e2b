//! A router on a thread of its own.
//!
//! Several routers on one thread would delay each other's messages. Measured with three of them in a debug build: hundreds
//! of milliseconds instead of one.

use std::thread::JoinHandle;

use anyhow::Context as _;
use maitre_proxy::{NotStarted, Router, RouterSettings};
use tokio::sync::oneshot;

/// Dropping it without `stop` ends the router at once.
pub(crate) struct RouterThread {
    /// Its tasks run there; other threads may query it.
    pub(crate) router: Router,
    thread: Thread,
}

/// Runs until it is dropped.
struct Thread {
    end: Option<oneshot::Sender<()>>,
    handle: Option<JoinHandle<()>>,
}

impl RouterThread {
    /// Tries the settings in turn, as long as their ports are taken.
    pub(crate) async fn start(name: &str, tries: Vec<RouterSettings>) -> anyhow::Result<RouterThread> {
        let (end, ended) = oneshot::channel::<()>();
        let (tell, told) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let body = async move {
            // Whether or not the receiver is still there, the thread runs until it is stopped.
            drop(tell.send(first_that_starts(tries).await));
            let _ = ended.await;
        };
        let handle =
            std::thread::Builder::new().name(name.to_owned()).spawn(move || runtime.block_on(body))?;
        let thread = Thread { end: Some(end), handle: Some(handle) };
        let router = told.await.context("the router did not start")??;
        Ok(RouterThread { router, thread })
    }

    pub(crate) async fn stop(self) {
        self.router.stop().await;
        drop(self.thread);
    }
}

async fn first_that_starts(tries: Vec<RouterSettings>) -> anyhow::Result<Router> {
    let mut taken = None;
    for settings in tries {
        match Router::start(settings).await {
            Err(error @ NotStarted::Listen { .. }) => taken = Some(error),
            started => return Ok(started?),
        }
    }
    Err(taken.context("nothing to start")?.into())
}

impl Drop for Thread {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}
