//! gRPC's health checks: whether the process is there, and whether it can pick.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use maitre_grpc::ext_proc;
use maitre_grpc::health::{HealthCheckRequest, HealthCheckResponse, ServingStatus};
use tokio_stream::Stream;
use tonic::server::{ServerStreamingService, UnaryService};
use tonic::{Request, Response, Status};

use crate::lane::Lane;
use crate::readiness::Readiness;

/// Asks once.
pub(super) struct Check(pub(super) Arc<Lane>);

/// Asks once, and hears of every change.
pub(super) struct Watch(pub(super) Arc<Lane>);

/// What a health check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    /// Whether the process answers.
    Process,
    /// Whether it can pick a worker.
    Picking,
}

impl Subject {
    fn named(service: &str) -> Option<Subject> {
        match service {
            "liveness" => Some(Subject::Process),
            "" | "readiness" | ext_proc::SERVICE => Some(Subject::Picking),
            _ => None,
        }
    }

    fn status(self, lane: &Lane) -> ServingStatus {
        let state = &lane.state;
        let is_ready = || state.brain.read(|brain| state.readiness(brain)) == Readiness::Ready;
        match self {
            Subject::Process => ServingStatus::Serving,
            Subject::Picking if is_ready() => ServingStatus::Serving,
            Subject::Picking => ServingStatus::NotServing,
        }
    }
}

type Answered<T> = std::future::Ready<Result<Response<T>, Status>>;

impl UnaryService<HealthCheckRequest> for Check {
    type Response = HealthCheckResponse;
    type Future = Answered<HealthCheckResponse>;

    fn call(&mut self, request: Request<HealthCheckRequest>) -> Self::Future {
        let service = request.into_inner().service;
        std::future::ready(match Subject::named(&service) {
            Some(subject) => {
                let status = subject.status(&self.0) as i32;
                Ok(Response::new(HealthCheckResponse { status }))
            }
            None => Err(Status::not_found("unknown service")),
        })
    }
}

impl ServerStreamingService<HealthCheckRequest> for Watch {
    type Response = HealthCheckResponse;
    type ResponseStream = Changes;
    type Future = Answered<Changes>;

    fn call(&mut self, request: Request<HealthCheckRequest>) -> Self::Future {
        let subject = Subject::named(&request.into_inner().service);
        let changes = Changes { lane: self.0.clone(), subject, last: None, change: None };
        std::future::ready(Ok(Response::new(changes)))
    }
}

/// The state, and then each other state.
pub(super) struct Changes {
    lane: Arc<Lane>,
    /// None: a service that is not known, and may never be.
    subject: Option<Subject>,
    last: Option<ServingStatus>,
    /// Resolves with a state that is not the last one.
    change: Option<Pin<Box<dyn Future<Output = ServingStatus> + Send>>>,
}

impl Changes {
    fn give(&mut self, status: ServingStatus) -> Poll<Option<Result<HealthCheckResponse, Status>>> {
        (self.last, self.change) = (Some(status), None);
        Poll::Ready(Some(Ok(HealthCheckResponse { status: status as i32 })))
    }
}

impl Stream for Changes {
    type Item = Result<HealthCheckResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let (subject, last) = match (self.subject, self.last) {
            (None, None) => return self.give(ServingStatus::ServiceUnknown),
            (Some(subject), None) => {
                let status = subject.status(&self.lane);
                return self.give(status);
            }
            // Nothing changes any more; the stream stays open, as the protocol wants it.
            (None, Some(_)) | (Some(Subject::Process), Some(_)) => return Poll::Pending,
            (Some(subject), Some(last)) => (subject, last),
        };
        let lane = self.lane.clone();
        let change = self.change.get_or_insert_with(|| Box::pin(changed(lane, subject, last)));
        match change.as_mut().poll(cx) {
            Poll::Ready(status) => self.give(status),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// Waits for another state than this one.
async fn changed(lane: Arc<Lane>, subject: Subject, last: ServingStatus) -> ServingStatus {
    let state = &lane.state;
    let is_ready = last == ServingStatus::Serving;
    let mut draining = std::pin::pin!(state.shutdown.draining());
    tokio::select! {
        () = state.brain.until(|brain| (state.readiness(brain) == Readiness::Ready) != is_ready) => {}
        () = draining.as_mut(), if is_ready => {}
    }
    subject.status(&lane)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_known_by_the_names_that_gateways_ask_for() {
        assert_eq!(Subject::named("liveness"), Some(Subject::Process));
        for name in ["", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"] {
            assert_eq!(Subject::named(name), Some(Subject::Picking), "{name}");
        }
        assert_eq!(Subject::named("other"), None);
    }
}
