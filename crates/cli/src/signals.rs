//! What tells a command to end, SIGTERM and SIGINT, and what tells it to read its settings again, SIGHUP: heard from
//! the moment these are made. Make them before announcing anything, or whoever acts on the announcement may still meet
//! the default, which is to die.

use tokio::signal::unix::{Signal, SignalKind, signal};

pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn new() -> std::io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next one.
    pub(crate) async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

pub(crate) struct HangUps(Signal);

impl HangUps {
    pub(crate) fn new() -> std::io::Result<HangUps> {
        Ok(HangUps(signal(SignalKind::hangup())?))
    }

    pub(crate) async fn wait(&mut self) {
        let _ = self.0.recv().await;
    }
}
