//! How many workers each model should have.

use crate::schema::view;
use crate::text::Text;

view! {
    /// What the fleet should be.
    ScalingView {
        models: Vec<ModelScalingView>,
    }

    /// How many workers a model should have, and why.
    ModelScalingView {
        /// Empty for workers that list no models.
        model: Text,
        desired_workers: u32,
        /// Workers that take requests now.
        workers: u32,
        /// The reason for the number: idle, least, first-worker, demand, deadlines, backlog, kv-cache or settling.
        reason: Text,
        ..
        /// The same in plain words.
        because: Text,
        /// Seconds of work that arrive per second.
        load: f64,
        /// The same, at the time when a worker ordered now is ready.
        load_ahead: f64,
        /// Seconds of work that wait for a worker.
        backlog_s: f64,
        /// The part of the KV cache that requests hold and will hold; null if no worker reports its size.
        kv_usage: Option<f64>,
    }
}
