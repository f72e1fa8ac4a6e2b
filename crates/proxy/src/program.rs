//! What only the program around the router can do for an operator: it has read the settings, and it writes the log.

use std::pin::Pin;

use crate::roster::Difference;

/// What became of settings that were read again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Keys whose new values are in force.
    pub changed: Vec<String>,
    /// Keys whose new values wait for the next start.
    pub restart: Vec<String>,
    pub workers: Difference,
}

pub type Reloading<'a> = Pin<Box<dyn Future<Output = Result<Reloaded, String>> + Send + 'a>>;

pub trait Program: Send + Sync + 'static {
    /// Reads the settings again; in force when it returns, or nothing has changed and it says why.
    fn reload(&self) -> Reloading<'_>;
    /// The settings in force as a file would have them, secrets left out.
    fn config(&self) -> String;
    fn log_level(&self) -> String;
    fn set_log_level(&self, level: &str) -> Result<(), String>;
}

/// A program that has no settings to read again: a test, or the demo.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

const NOT_HERE: &str = "this router was started without a configuration of its own; `maitre serve` has one";

impl Program for Plain {
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
}
