//! The log: lines on standard error, at a level that may change at runtime.

use std::io::IsTerminal as _;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use maitre_config::{self as config, Log, LogFormat};

#[derive(Clone)]
pub(crate) struct Handle {
    filter: reload::Handle<EnvFilter, Registry>,
    level: Arc<Mutex<String>>,
}

/// Starts logging. Call once per process.
pub(crate) fn start(log: &Log) -> anyhow::Result<Handle> {
    let (filter, handle) = reload::Layer::new(EnvFilter::try_new(&log.level)?);
    let colours = std::io::stderr().is_terminal();
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(colours).with_target(false);
    let registry = tracing_subscriber::registry().with(filter);
    match log.format {
        LogFormat::Text => registry.with(lines).init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).init(),
    }
    Ok(Handle { filter: handle, level: Arc::new(Mutex::new(log.level.clone())) })
}

impl Handle {
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
