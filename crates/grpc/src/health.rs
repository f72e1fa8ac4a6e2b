//! gRPC's own health checks (`grpc.health.v1`).

pub const CHECK: &str = "/grpc.health.v1.Health/Check";
pub const WATCH: &str = "/grpc.health.v1.Health/Watch";

#[derive(Clone, PartialEq, prost::Message)]
pub struct HealthCheckRequest {
    /// Empty: the whole server.
    #[prost(string, tag = "1")]
    pub service: String,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub status: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}
