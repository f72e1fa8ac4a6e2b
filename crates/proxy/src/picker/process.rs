//! One exchange of a gateway's: its request is placed, its response is counted as it passes.
//!
//! In full duplex, the gateway sends on what it is sent back and nothing else. The answer to the request's head waits until
//! the body is here and a worker is picked; the body follows. The response goes back as it comes.

use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use maitre_grpc::ext_proc::{
    BodySendMode, CommonResponse, HttpBody, HttpHeaders, Instruction, PartResponse, ProcessingRequest,
    ProcessingResponse, Shown, TrailersResponse,
};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::Stream;
use tonic::server::StreamingService;
use tonic::{Request, Response, Status, Streaming};

use super::{endpoints, messages};
use crate::body_memory::ConnectionBodies;
use crate::client::Busy;
use crate::lane::Lane;
use crate::request::{
    CarriedResponse, PickedRequest, RequestBody, RequestGuard, pick, receive_carried, refuse_carried,
};
use crate::shown::{ShownBody, ShownStream};

/// Answers that may wait for the gateway to read them. More would only take memory.
const ANSWERS_MAX: usize = 4;

/// The method.
pub(super) struct Process {
    lane: Arc<Lane>,
    /// None once the call has begun.
    busy: Option<Busy>,
    bodies: Arc<ConnectionBodies>,
}

impl Process {
    pub(super) fn new(lane: Arc<Lane>, busy: Busy, bodies: Arc<ConnectionBodies>) -> Process {
        Process { lane, busy: Some(busy), bodies }
    }
}

impl StreamingService<ProcessingRequest> for Process {
    type Response = ProcessingResponse;
    type ResponseStream = Answers;
    type Future = Ready<Result<Response<Answers>, Status>>;

    fn call(&mut self, request: Request<Streaming<ProcessingRequest>>) -> Self::Future {
        let Some(busy) = self.busy.take() else { return ready(Err(Status::internal("called twice"))) };
        let (answer, answers) = mpsc::channel(ANSWERS_MAX);
        let (lane, shown) = (self.lane.clone(), ShownStream::new(request.into_inner()));
        let exchange = Exchange { shown, answer, modes: BodyModes::default(), bodies: self.bodies.clone() };
        ready(Ok(Response::new(Answers { driver: Some(Box::pin(exchange.run(lane, busy))), answers })))
    }
}

/// A running exchange.
type Driver = Pin<Box<dyn Future<Output = Result<(), Status>> + Send>>;

/// The answers of one exchange. Dropped when the gateway resets the stream; the exchange, and its promise, go with it.
pub(super) struct Answers {
    /// None once the exchange is over.
    driver: Option<Driver>,
    answers: mpsc::Receiver<ProcessingResponse>,
}

impl Stream for Answers {
    type Item = Result<ProcessingResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Poll::Ready(Some(answer)) = self.answers.poll_recv(cx) {
            return Poll::Ready(Some(Ok(answer)));
        }
        let Some(driver) = &mut self.driver else { return Poll::Ready(None) };
        let ended = driver.as_mut().poll(cx);
        if let Poll::Ready(Err(status)) = ended {
            self.driver = None;
            return Poll::Ready(Some(Err(status)));
        }
        if ended.is_ready() {
            self.driver = None;
        }
        // None is the end: with the exchange its sender is gone.
        self.answers.poll_recv(cx).map(|it| it.map(Ok))
    }
}

/// How the gateway shows bodies.
#[derive(Clone, Copy)]
struct BodyModes {
    /// Whether responses go on only by what is sent back.
    echoes: bool,
    /// Whether response bodies are shown at all.
    shows: bool,
}

impl Default for BodyModes {
    fn default() -> BodyModes {
        BodyModes { echoes: true, shows: true }
    }
}

impl BodyModes {
    /// Refuses what would end in a request that hangs, or in one that is placed without its prompt.
    fn of(first: &ProcessingRequest) -> Result<BodyModes, Status> {
        if first.observability_mode {
            return Err(Status::invalid_argument("observability_mode: nothing could be picked"));
        }
        // Gateways that do not say are expected to be in full duplex.
        let Some(config) = first.protocol_config else { return Ok(BodyModes::default()) };
        if config.request_body_mode() != BodySendMode::FullDuplexStreamed {
            let what = "request_body_mode is not FULL_DUPLEX_STREAMED: the prompt could not be read";
            return Err(Status::invalid_argument(what));
        }
        match config.response_body_mode() {
            BodySendMode::FullDuplexStreamed => Ok(BodyModes { echoes: true, shows: true }),
            BodySendMode::Streamed => Ok(BodyModes { echoes: false, shows: true }),
            BodySendMode::None => Ok(BodyModes { echoes: false, shows: false }),
            _ => Err(Status::invalid_argument(
                "response_body_mode is neither FULL_DUPLEX_STREAMED nor STREAMED nor NONE: streams would be held back",
            )),
        }
    }
}

struct Exchange {
    shown: ShownStream,
    answer: mpsc::Sender<ProcessingResponse>,
    modes: BodyModes,
    /// Those of the gateway's connection.
    bodies: Arc<ConnectionBodies>,
}

/// The gateway no longer reads: the exchange is over.
struct Gone;

impl From<Gone> for Status {
    fn from(_: Gone) -> Status {
        Status::cancelled("the gateway has left")
    }
}

impl Exchange {
    async fn run(mut self, lane: Arc<Lane>, busy: Busy) -> Result<(), Status> {
        let limit = lane.state.settings.load().timeouts.client_header;
        let first = timeout(limit, self.shown.next()).await.map_err(|_| {
            Status::deadline_exceeded("the head of the request exceeded timeouts.client_header")
        })?;
        let Some(first) = first else { return Ok(()) };
        self.modes = BodyModes::of(&first)?;
        let Some(Shown::RequestHeaders(HttpHeaders { headers, end_of_stream })) = first.shown else {
            return Err(Status::invalid_argument("the first message is not the head of a request"));
        };
        let head = headers.unwrap_or_default().headers;
        let Some(mut request) = messages::request(&head) else {
            return Err(Status::invalid_argument("the head of the request has no method or no valid path"));
        };
        let only = endpoints::allowed(&lane.state.brain, first.metadata_context.as_ref());
        let mut guard = RequestGuard::open(lane, busy, self.bodies.clone(), &mut request);
        let limit = guard.time_limit();
        let body = ShownBody::new(&mut self.shown, end_of_stream);
        let request = request.map(|()| RequestBody::Shown(body));
        let received = receive_carried(&mut guard, request, only).await;
        let picked = match received {
            Ok(arrived) => tokio::select! {
                biased;
                picked = pick(&mut guard, &arrived) => picked,
                () = self.shown.ended() => return Ok(()),
            },
            Err(refused) => Err(refused),
        };
        let picked = match picked {
            Ok(picked) => picked,
            Err(refused) => {
                let response = refuse_carried(&mut guard, &refused);
                return Ok(self.answer(messages::refusal(response, refused.code())).await?);
            }
        };
        self.answer(messages::picked(&picked, &head)).await?;
        let explain = picked.explain;
        if !end_of_stream {
            self.send_body(picked).await?;
        }
        match timeout(limit, self.respond(guard, explain)).await {
            Ok(responded) => responded,
            Err(_) => Err(Status::deadline_exceeded("the response exceeded timeouts.total")),
        }
    }

    async fn answer(&self, answer: ProcessingResponse) -> Result<(), Gone> {
        self.answer.send(answer).await.map_err(|_| Gone)
    }

    async fn send_body(&self, picked: PickedRequest) -> Result<(), Gone> {
        let has_trailers = self.shown.has_trailers;
        for (piece, is_last) in messages::pieces(picked.body, has_trailers) {
            let part = CommonResponse::streamed(piece, is_last);
            self.answer(Instruction::RequestBody(part.into()).into()).await?;
        }
        if has_trailers {
            self.answer(Instruction::RequestTrailers(TrailersResponse::default()).into()).await?;
        }
        Ok(())
    }

    /// Passes the response on until it is complete, or the gateway ends the stream.
    async fn respond(&mut self, mut guard: RequestGuard, explain: bool) -> Result<(), Status> {
        let mut response = None;
        while let Some(message) = self.shown.next().await {
            let ProcessingRequest { shown, metadata_context, .. } = message;
            let is_last = match shown {
                Some(Shown::ResponseHeaders(head)) => {
                    let brain = guard.brain().clone();
                    let served =
                        guard.link().and_then(|it| endpoints::served(&brain, metadata_context.as_ref(), &it));
                    let headers = head.headers.unwrap_or_default().headers;
                    let Some(status) = messages::status(&headers) else {
                        return Err(Status::invalid_argument("the head of the response has no status"));
                    };
                    let map = messages::headers(&headers);
                    let begun = CarriedResponse::begin(&mut guard, served, (status, &map), explain);
                    let (begun, added) = begun.unzip();
                    response = begun;
                    self.answer(messages::response_head(&headers, &added.unwrap_or_default())).await?;
                    // Of a body that is not shown, all is known that will be.
                    if !self.modes.shows
                        && let Some(response) = &mut response
                    {
                        response.finish(&mut guard);
                    }
                    head.end_of_stream
                }
                Some(Shown::ResponseBody(HttpBody { body, end_of_stream })) => {
                    if let Some(response) = &mut response {
                        response.feed(&mut guard, &body);
                    }
                    let part = match self.modes.echoes {
                        true => CommonResponse::streamed(body, end_of_stream).into(),
                        false => PartResponse::default(),
                    };
                    self.answer(Instruction::ResponseBody(part).into()).await?;
                    end_of_stream
                }
                Some(Shown::ResponseTrailers(_)) => {
                    self.answer(Instruction::ResponseTrailers(TrailersResponse::default()).into()).await?;
                    true
                }
                Some(Shown::RequestTrailers(_)) => {
                    self.answer(Instruction::RequestTrailers(TrailersResponse::default()).into()).await?;
                    false
                }
                _ => return Err(Status::invalid_argument("a request within a response")),
            };
            if is_last {
                if let Some(response) = &mut response {
                    response.finish(&mut guard);
                }
                return Ok(());
            }
        }
        Ok(())
    }
}
