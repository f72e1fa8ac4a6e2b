//! The log: lines on standard error, at a level that may change at runtime.

mod pipe;

use std::io::IsTerminal as _;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use maitre_config::{self as config, Log, LogFormat};

use self::pipe::LogPipe;

#[derive(Clone)]
pub(crate) struct Handle {
    filter: reload::Handle<EnvFilter, Registry>,
    level: Arc<Mutex<String>>,
    pipe: LogPipe,
}

/// Starts logging. Call once per process.
pub(crate) fn start(log: &Log) -> anyhow::Result<Handle> {
    let (filter, handle) = reload::Layer::new(EnvFilter::try_new(&log.level)?);
    let colours = std::io::stderr().is_terminal();
    let pipe = LogPipe::start(std::io::stderr())?;
    let lines = fmt::layer().with_writer(pipe.clone()).with_ansi(colours).with_target(false);
    let registry = tracing_subscriber::registry().with(filter);
    match log.format {
        LogFormat::Text => registry.with(lines).init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).init(),
    }
    Ok(Handle { filter: handle, level: Arc::new(Mutex::new(log.level.clone())), pipe })
}

impl Handle {
    /// Waits until the lines so far are written, for a second at most. Call before the process ends.
    pub(crate) fn flush(&self) {
        self.pipe.flush();
    }

    /// Lines that were dropped because standard error did not take them.
    pub(crate) fn lines_dropped(&self) -> u64 {
        self.pipe.dropped()
    }

    pub(crate) fn level(&self) -> String {
        self.level.lock().clone()
    }

    pub(crate) fn set(&self, level: &str) -> Result<(), String> {
        // As strict as the settings: the library takes a typo such as `inof` for a module, and logs nothing.
        config::level(level)?;
        let wrong = |error: &dyn std::fmt::Display| format!("log by {level:?}: {error}");
        let mut current = self.level.lock();
        if *current == level {
            return Ok(());
        }
        let filter = EnvFilter::try_new(level).map_err(|error| wrong(&error))?;
        self.filter.reload(filter).map_err(|error| wrong(&error))?;
        level.clone_into(&mut current);
        Ok(())
    }
}
