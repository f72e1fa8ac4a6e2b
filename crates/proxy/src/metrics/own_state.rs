//! What Prometheus sees of the router itself: whether it is ready, how long its certificates last, and their changes.

use maitre_net::tls::Validity;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::MetricLabel;

pub(super) struct OwnState {
    readiness: Family<[MetricLabel; 1], Gauge>,
    begins: Family<[MetricLabel; 1], Gauge>,
    expires: Family<[MetricLabel; 1], Gauge>,
    tls_files: Family<[MetricLabel; 1], Counter>,
}

impl OwnState {
    pub(super) fn new(registry: &mut Registry) -> OwnState {
        let (readiness, tls_files) = (Family::default(), Family::default());
        let (begins, expires) = (Family::default(), Family::default());
        registry.register("readiness", "1 for what /readyz answers now", readiness.clone());
        let help = "When the certificate begins to be valid, in seconds since 1970";
        registry.register("tls_certificate_begins_timestamp_seconds", help, begins.clone());
        let help = "When the certificate expires, in seconds since 1970";
        registry.register("tls_certificate_expires_timestamp_seconds", help, expires.clone());
        registry.register("tls_files_changed", "Changed TLS files, by result", tls_files.clone());
        OwnState { readiness, begins, expires, tls_files }
    }

    pub(super) fn tls_files_changed(&self, result: &'static str) {
        self.tls_files.get_or_create(&[("result", result)]).inc();
    }

    /// Which of the states it is in, and certificates by the section of the settings that names them.
    pub(super) fn set(
        &self,
        states: &[(&'static str, bool)],
        certificates: &[(&'static str, Option<Validity>)],
    ) {
        for &(state, is_now) in states {
            self.readiness.get_or_create(&[("state", state)]).set(i64::from(is_now));
        }
        self.begins.clear();
        self.expires.clear();
        for &(section, validity) in certificates {
            let Some(Validity { begins, ends }) = validity else { continue };
            self.begins.get_or_create(&[("section", section)]).set(begins);
            self.expires.get_or_create(&[("section", section)]).set(ends);
        }
    }
}
