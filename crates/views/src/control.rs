//! What an operator can change, and the router's replies.

use std::collections::BTreeMap;

use crate::schema::view;
use crate::text::Text;

view! {
    /// A worker to add.
    NewWorker [deny_unknown_fields] {
        /// As in `workers` of the settings, such as `http://10.0.0.9:8000?events=5557`.
        url: String,
    }

    /// A removed worker.
    RemovedWorker {
        /// Its URL.
        removed: Text,
    }

    /// The part of the work a worker should take.
    WorkerWeight [deny_unknown_fields] {
        /// From 0.01 to 100; 1 is a full part.
        weight: f64,
    }

    /// The strategies in use.
    StrategyView {
        /// All known strategies.
        known: Vec<Text>,
        strategy: Text,
        /// Models that use another strategy.
        strategies: BTreeMap<Text, Text>,
    }

    /// Strategies to use; null changes nothing.
    StrategyChange [deny_unknown_fields] {
        ..
        strategy: Option<String>,
        strategies: Option<BTreeMap<String, String>>,
    }

    /// The settings in force.
    ConfigText {
        /// Secrets are left out.
        toml: String,
    }

    /// What a reload changed.
    ReloadReport {
        /// Settings whose new values are in force.
        changed: Vec<Text>,
        /// Settings whose new values need a restart.
        restart: Vec<Text>,
        /// Workers added.
        added: Vec<Text>,
        /// Workers removed.
        removed: Vec<Text>,
    }

    /// The index of cached prefixes.
    IndexView {
        bytes: u64,
        bytes_max: u64,
        workers: Vec<IndexedWorker>,
    }

    /// What the index has of one worker.
    IndexedWorker {
        id: u32,
        url: Text,
        block_tokens: u32,
        /// Blocks that the worker's KV events report.
        reported_blocks: u32,
        /// Blocks that the router predicts from the requests it sent there.
        predicted_blocks: u32,
        trust: Text,
    }

    /// The log level.
    LogLevel [deny_unknown_fields] {
        /// Such as `info` or `maitre_proxy=debug`.
        level: String,
    }

    /// An OpenAPI 3.1 document.
    OpenApiDocument {}
}
