//! How long a session takes in an empty fleet: no call waits, and what the session has computed stays cached.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use maitre_index::prefix::PrefixHash;

use super::{AgentSession, CallPlan, SessionTrace};
use crate::profile::{Profile, Work};

/// The duration of each session, given the prefix chains of its calls.
pub(crate) fn durations(
    trace: &SessionTrace,
    chains: &[Arc<[PrefixHash]>],
    engine: &Profile,
) -> Vec<Duration> {
    let one = |session: &AgentSession| {
        let mut known: HashSet<PrefixHash> = HashSet::new();
        let calls = session.calls().map(|number| {
            let request = &trace.trace.requests[number];
            let prompt = request.prompt_tokens() as u32;
            let held = chains[number].iter().take_while(|it| known.contains(it)).count() as u32;
            known.extend(chains[number].iter());
            // The last token is always computed.
            let cached =
                (held * engine.block_tokens).min((prompt - 1) / engine.block_tokens * engine.block_tokens);
            call_duration(engine, prompt, cached, request.answer_tokens.max(1))
        });
        let calls: Vec<Duration> = calls.collect();
        session_duration(session, &trace.calls, &calls)
    };
    trace.sessions.iter().map(one).collect()
}

/// A call on an idle engine that holds this many tokens of its prompt.
fn call_duration(engine: &Profile, prompt: u32, cached: u32, answer: u32) -> Duration {
    let mut total = engine.overhead;
    let mut computed = cached;
    while computed < prompt {
        let count = (prompt - computed).min(engine.batch_tokens_max.max(1));
        let attended = f64::from(count) * (f64::from(computed) + f64::from(count) / 2.0);
        let work = Work { prefill_tokens: count.into(), attended_tokens: attended, ..Work::default() };
        total += engine.step.duration(&work);
        computed += count;
    }
    for context in prompt + 1..prompt + answer {
        let work = Work { decode_sequences: 1, context_tokens: context.into(), ..Work::default() };
        total += engine.step.duration(&work);
    }
    total
}

/// From the first call to the last answer, with these durations of its calls.
fn session_duration(session: &AgentSession, plans: &[CallPlan], calls: &[Duration]) -> Duration {
    let first = session.calls().start;
    let mut ends = vec![Duration::ZERO; session.threads.len()];
    let mut now = Duration::ZERO;
    for number in session.threads[0].clone() {
        let plan = &plans[number];
        let waits = plan.waits_for.iter().map(|&(it, after)| ends[it as usize] + after);
        now = match plan.waits_for.is_empty() {
            true if number == first => now,
            true => now + plan.think,
            false => waits.fold(now, Duration::max),
        };
        now += calls[number - first];
        for &(thread, after) in &plan.starts {
            let own = session.threads[thread as usize].clone();
            let thinks = own.clone().skip(1).map(|it| plans[it].think);
            let answers = own.map(|it| calls[it - first]);
            ends[thread as usize] = now + after + thinks.sum::<Duration>() + answers.sum::<Duration>();
        }
    }
    ends[0] = now;
    ends.into_iter().max().unwrap_or_default()
}
