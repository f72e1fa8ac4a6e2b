//! What the admin API needs of the program around the router, which reads the settings and writes the log.

use std::pin::Pin;

use crate::roster::Difference;

/// The result of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Keys whose new values are in force.
    pub changed: Vec<String>,
    /// Keys whose new values need a restart.
    pub restart: Vec<String>,
    pub workers: Difference,
}

pub type Reloading<'a> = Pin<Box<dyn Future<Output = Result<Reloaded, String>> + Send + 'a>>;

pub trait Program: Send + Sync + 'static {
    /// Reads the settings again. They are in force when it returns; on failure nothing has changed.
    fn reload(&self) -> Reloading<'_>;
    /// The settings in force as a TOML file, without secrets.
    fn config(&self) -> String;
    fn log_level(&self) -> String;
    fn set_log_level(&self, level: &str) -> Result<(), String>;
    /// Log lines that were dropped instead of written, since the start.
    fn log_lines_dropped(&self) -> u64;
}

/// A program without settings to read: a test, or the demo.
#[derive(Clone, Copy, Debug)]
pub struct NoProgram;

const NOT_HERE: &str = "this router was started without a configuration file; `maitre serve` reads one";

impl Program for NoProgram {
    fn reload(&self) -> Reloading<'_> {
        Box::pin(async { Err(NOT_HERE.to_owned()) })
    }

    fn config(&self) -> String {
        format!("# {NOT_HERE}\n")
    }

    fn log_level(&self) -> String {
        "off".to_owned()
    }

    fn set_log_level(&self, _: &str) -> Result<(), String> {
        Err(NOT_HERE.to_owned())
    }

    fn log_lines_dropped(&self) -> u64 {
        0
    }
}
