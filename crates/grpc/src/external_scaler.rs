//! KEDA's external scalers (`externalscaler.ExternalScaler`): KEDA asks how many workers there should be.

use std::collections::HashMap;

pub const IS_ACTIVE: &str = "/externalscaler.ExternalScaler/IsActive";
pub const STREAM_IS_ACTIVE: &str = "/externalscaler.ExternalScaler/StreamIsActive";
pub const GET_METRIC_SPEC: &str = "/externalscaler.ExternalScaler/GetMetricSpec";
pub const GET_METRICS: &str = "/externalscaler.ExternalScaler/GetMetrics";

/// The scaled object, and the metadata that its author wrote.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ScaledObjectRef {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// `metadata` of the trigger.
    #[prost(map = "string, string", tag = "3")]
    pub scaler_metadata: HashMap<String, String>,
}

/// Whether there should be any worker.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct IsActiveResponse {
    #[prost(bool, tag = "1")]
    pub result: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct GetMetricSpecResponse {
    #[prost(message, repeated, tag = "1")]
    pub metric_specs: Vec<MetricSpec>,
}

/// A metric, and how much of it one worker takes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MetricSpec {
    #[prost(string, tag = "1")]
    pub metric_name: String,
    #[prost(int64, tag = "2")]
    pub target_size: i64,
    /// Newer versions read this instead, if it is above zero.
    #[prost(double, tag = "3")]
    pub target_size_float: f64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct GetMetricsRequest {
    #[prost(message, optional, tag = "1")]
    pub scaled_object_ref: Option<ScaledObjectRef>,
    #[prost(string, tag = "2")]
    pub metric_name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct GetMetricsResponse {
    #[prost(message, repeated, tag = "1")]
    pub metric_values: Vec<MetricValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct MetricValue {
    #[prost(string, tag = "1")]
    pub metric_name: String,
    #[prost(int64, tag = "2")]
    pub metric_value: i64,
    /// Newer versions read this instead, if it is above zero.
    #[prost(double, tag = "3")]
    pub metric_value_float: f64,
}
