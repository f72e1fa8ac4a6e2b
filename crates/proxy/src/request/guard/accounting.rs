//! The end of a request, however it ends: the brain, the metrics, the record, the trace and the log learn of it here.

use std::sync::atomic::Ordering;
use std::time::Duration;

use maitre_base::Instant;
use maitre_dialect::route::Route;
use maitre_dispatch::Event;
use maitre_fleet::estimate::Counted;
use tracing::debug;

use super::{RequestGuard, ResponseSoFar, Scheduled};
use crate::metrics::Hedged;
use crate::outcome::RequestOutcome;
use crate::record::{RecordEnding, RecordedTimes};
use crate::traces::TraceEnding;

impl Drop for RequestGuard {
    fn drop(&mut self) {
        if self.response.outcome == RequestOutcome::Gone && self.busy.is_stalled() {
            self.response.outcome = RequestOutcome::ClientStalled;
        }
        let now = self.lane.state.clock.now();
        self.report_to_brain(now);
        self.count_tokens();
        if let Some(scheduled) = &mut self.scheduled {
            scheduled.leave_queue(now);
        }
        self.count(now);
        self.record();
        self.finish_trace(now);
        self.log(now);
    }
}

impl RequestGuard {
    fn report_to_brain(&self, now: Instant) {
        let (request, response) = (self.number, &self.response);
        if !self.scheduled.as_ref().is_some_and(|it| it.is_open) {
            return;
        }
        let counted = response.usage.map(|it| Counted {
            prompt: it.prompt_tokens,
            cached: it.cached_tokens,
            answer: it.completion_tokens,
        });
        let ended = match response.outcome {
            RequestOutcome::Answered => Event::Finished { request, counted, pieces: response.pieces() },
            RequestOutcome::Declined(_) => Event::Declined { request },
            RequestOutcome::Broke | RequestOutcome::Stalled => Event::BrokeOff { request },
            _ => Event::Left { request },
        };
        self.lane.state.brain.on_at(now, ended);
    }

    /// The prompt tokens that the engine found in its cache, against those that we expected.
    fn count_tokens(&self) {
        let Some(usage) = self.response.usage else { return };
        let (Some(prompt), Some(cached)) = (usage.prompt_tokens, usage.cached_tokens) else { return };
        let scheduled = self.scheduled.as_ref();
        let expected = scheduled.and_then(Scheduled::placement).and_then(|it| it.held);
        self.lane.state.metrics.caches.counted(prompt, cached, expected);
        if let Some(link) = scheduled.and_then(Scheduled::link) {
            link.tally.prompt_tokens.fetch_add(prompt, Ordering::Relaxed);
            link.tally.cached_tokens.fetch_add(cached, Ordering::Relaxed);
        }
    }

    fn count(&mut self, now: Instant) {
        self.stop_awaiting();
        self.count_rest();
        let (state, response) = (&self.lane.state, &self.response);
        let &ResponseSoFar { outcome, usage, chunks, first_chunk, last_chunk, .. } = response;
        if let Some(scheduled) = &mut self.scheduled {
            scheduled.count_wait(&state.metrics);
            if outcome == RequestOutcome::Gone && first_chunk.is_none() {
                state.recent.left_without_token(now, now.since(self.arrived));
            }
        }
        state.metrics.in_flight.dec();
        state.recent.ended(outcome, usage);
        state.metrics.ended(self.route, outcome);
        state.metrics.total.observe(now.since(self.arrived).as_secs_f64());
        if let (Some(first), RequestOutcome::Answered) = (first_chunk, outcome)
            && chunks > 1
        {
            let gaps = last_chunk.since(first).as_secs_f64();
            state.metrics.inter_token.observe(gaps / f64::from(chunks - 1));
        }
    }

    /// Tokens that were not counted as they came. A stream without token counts has about one token in each chunk.
    fn count_rest(&self) {
        let (counts, response) = (&self.lane.counts, &self.response);
        let in_chunks = if response.is_stream { u64::from(response.chunks) } else { 0 };
        let (prompt, answer) =
            response.usage.map_or((None, None), |it| (it.prompt_tokens, it.completion_tokens));
        counts.add_prompt_tokens(prompt.unwrap_or(0).saturating_sub(response.prompt_counted));
        counts.add_answer_tokens(answer.unwrap_or(in_chunks).saturating_sub(response.answer_counted()));
    }

    fn ttft(&self) -> Option<Duration> {
        self.response.first_chunk.map(|first| first.since(self.arrived))
    }

    fn record(&mut self) {
        let entry = self.scheduled.as_mut().and_then(|it| it.entry.take());
        if let (Some(entry), Some(recorder)) = (entry, &self.lane.state.recorder) {
            let ResponseSoFar { outcome, usage, chunks, first_chunk, last_chunk, .. } = self.response;
            let first_chunk = first_chunk.filter(|_| matches!(outcome, RequestOutcome::Answered));
            let times = first_chunk.map(|first| RecordedTimes {
                first_chunk: first.since(self.arrived),
                last_chunk: last_chunk.since(self.arrived),
            });
            recorder.take(entry, RecordEnding { arrived: self.arrived, usage, chunks, times });
        }
    }

    fn finish_trace(&mut self, now: Instant) {
        let Some(trace) = self.trace.take() else { return };
        let Some(traces) = &self.lane.state.traces else { return };
        let response = &self.response;
        traces.take(trace.finish(TraceEnding {
            id: self.id.clone(),
            route: self.route,
            outcome: response.outcome,
            usage: response.usage,
            class: self.class_name().map(str::to_owned),
            waited: self.scheduled.as_ref().map_or(Duration::ZERO, |it| it.waited),
            arrived: self.arrived,
            ended: now,
            chunks: response.first_chunk.map(|first| (first, response.last_chunk)),
        }));
    }

    fn log(&self, now: Instant) {
        let &ResponseSoFar { outcome, usage, .. } = &self.response;
        let scheduled = self.scheduled.as_ref();
        let placement = scheduled.and_then(Scheduled::placement);
        debug!(
            id = self.id.to_str().unwrap_or("-"),
            route = self.route.map_or("other", Route::name),
            outcome = outcome.name(),
            code = outcome.code(),
            worker = scheduled.and_then(Scheduled::link).map(|it| it.url.as_str()),
            why = placement.map(|it| it.why.name()),
            expected_cached_tokens = placement.and_then(|it| it.held).map(|it| it.0),
            class = self.class_name(),
            waited_ms = scheduled.map_or(0, |it| it.waited.as_millis() as u64),
            attempt = placement.map(|it| it.attempt),
            continued = self.response.continuations,
            hedged = self.hedged.map(Hedged::name),
            ttft_ms = self.ttft().map(|it| it.as_millis() as u64),
            total_ms = now.since(self.arrived).as_millis() as u64,
            prompt_tokens = usage.and_then(|it| it.prompt_tokens),
            cached_tokens = usage.and_then(|it| it.cached_tokens),
            output_tokens = usage.and_then(|it| it.completion_tokens),
            "request"
        );
    }
}
