//! Signals: SIGTERM and SIGINT end a command, SIGHUP reloads settings. They are caught once these values
//! exist. Create them before announcing anything: until then a signal kills the process.

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
