//! Signals: SIGTERM and SIGINT end a command, SIGHUP reloads settings, or ends a command whose terminal was
//! closed. They are caught once these values exist. Create them before announcing anything: until then a
//! signal kills the process.

use std::fs::{self, File};
use std::pin::Pin;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Sleep, sleep};

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

/// Why SIGHUP was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HangUp {
    /// By somebody who wants a reload.
    Reload,
    /// The terminal that the command was started in has closed.
    TerminalClosed,
}

/// A shell passes the signal on to its commands a moment before the kernel takes the terminal from them.
const SETTLES: Duration = Duration::from_millis(100);

pub(crate) struct HangUps {
    signal: Signal,
    /// Started in a terminal, and not with `nohup`.
    is_attached: bool,
    /// One has come, and its reason will be known at the end of this.
    settling: Option<Pin<Box<Sleep>>>,
}

impl HangUps {
    pub(crate) fn new() -> std::io::Result<HangUps> {
        // Before the signal is caught: after that it is no longer ignored.
        let is_attached = has_terminal() && !is_ignored();
        Ok(HangUps { signal: signal(SignalKind::hangup())?, is_attached, settling: None })
    }

    /// Waits for the next one. Dropped meanwhile, none is lost.
    pub(crate) async fn wait(&mut self) -> HangUp {
        if self.settling.is_none() {
            let _ = self.signal.recv().await;
            self.settling = (self.is_attached && has_terminal()).then(|| Box::pin(sleep(SETTLES)));
        }
        if let Some(settling) = &mut self.settling {
            settling.await;
        }
        self.settling = None;
        match self.is_attached && !has_terminal() {
            true => HangUp::TerminalClosed,
            false => HangUp::Reload,
        }
    }
}

/// Whether this process has a controlling terminal. Services and containers have none; a closed one is taken away.
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

/// Whether the process was started with SIGHUP ignored, as `nohup` does. Known on Linux only.
fn is_ignored() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|it| ignores_hang_ups(&it))
}

fn ignores_hang_ups(status: &str) -> bool {
    let mask = status.lines().find_map(|it| it.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|it| u64::from_str_radix(it.trim(), 16).ok());
    // The lowest bit is signal 1.
    mask.is_some_and(|it| it & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_bit_of_the_mask_is_sighup() {
        let status = |mask: &str| format!("Name:\tmaitre\nSigBlk:\t0000000000000001\nSigIgn:\t{mask}\n");
        assert!(ignores_hang_ups(&status("0000000000001001")));
        assert!(!ignores_hang_ups(&status("0000000000001000")));
        assert!(!ignores_hang_ups("") && !ignores_hang_ups(&status("x")));
    }
}
