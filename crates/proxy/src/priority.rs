//! What a request says of itself at the door: how urgent it is, who pays, and until when it waits.
//!
//! Clients come with the habits of the gateways they knew, so each of these goes by several names. Of those that say
//! something the first one counts, ours before others'. With our own a mistake is told; a value of another's name
//! that we cannot read means something elsewhere, and is passed over. What is asked for is then held against what
//! the tenant may have, and the key that was shown.
//!
//! Most requests say nothing. For them this is one walk over their headers.

use std::time::Duration;

use http::header::{HeaderMap, HeaderValue};
use maitre_base::{ClassId, Instant, TenantId};
use maitre_dialect::openai::{self, Priority as Asked};
use maitre_queue::{self as queue, settings::tenant};

use crate::keys::{Caller, presented};
use crate::refuse::{Refused, echo};
use crate::settings::{By, Door, Sense};

const CLASS: &str = "x-maitre-class";
const DEADLINE: &str = "x-maitre-deadline-ms";

/// A day, as everywhere in the settings.
const DEADLINE_MS_MAX: f64 = 86_400_000.0;

/// Where a request stands among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Priority {
    pub(crate) class: ClassId,
    pub(crate) tenant: TenantId,
    /// None: as its class has it.
    pub(crate) deadline: Option<Instant>,
}

/// What the operator has to say about it.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub(crate) door: &'a Door,
    pub(crate) queue: &'a queue::QueueSettings,
    pub(crate) caller: &'a Caller,
}

/// Where a request with these headers stands that arrived `at` this moment. Without a body that was read, the
/// headers say all there is.
pub(crate) fn priority(
    rules: Rules<'_>,
    at: Instant,
    headers: &HeaderMap,
    parsed: Option<&openai::Request<'_>>,
) -> Result<Priority, Refused> {
    if !rules.queue.enabled {
        // Nothing comes of it, so nothing is refused for it. Who asks is still told apart, for the record.
        let (class, tenant) = (rules.queue.standard, who(rules, headers, parsed));
        return Ok(Priority { class, tenant, deadline: None });
    }
    let said = Said::read(headers);
    let asked = match said.class(rules.queue)? {
        Some(class) => Some(class),
        None => parsed.and_then(|it| class_of_body(rules, it)),
    };
    let tenant = who(rules, headers, parsed);
    let deadline = said.deadline()?.map(|it| at + it);
    let best = rules.caller.key().map_or(ClassId(0), |it| it.best);
    Ok(Priority { class: rules.queue.allowed(tenant, asked).max(best), tenant, deadline })
}

/// The values of the headers that count here; of repeated ones the first.
#[derive(Default)]
struct Said<'a> {
    class: Option<&'a HeaderValue>,
    /// Under the names that others have for it, in the order in which they count.
    class_elsewhere: [Option<&'a HeaderValue>; 4],
    urgency: Option<u8>,
    deadline: Option<&'a HeaderValue>,
    deadline_elsewhere: [Option<&'a HeaderValue>; 3],
}

impl<'a> Said<'a> {
    fn read(headers: &'a HeaderMap) -> Said<'a> {
        let mut said = Said::default();
        for (name, value) in headers {
            let slot = match name.as_str() {
                CLASS => &mut said.class,
                "x-gateway-inference-objective" => &mut said.class_elsewhere[0],
                "x-llm-d-inference-objective" => &mut said.class_elsewhere[1],
                "x-smg-priority" => &mut said.class_elsewhere[2],
                "x-request-priority" => &mut said.class_elsewhere[3],
                DEADLINE => &mut said.deadline,
                "x-slo-ttft-ms" => &mut said.deadline_elsewhere[0],
                "x-ttft-slo-ms" => &mut said.deadline_elsewhere[1],
                "x-request-timeout-ms" => &mut said.deadline_elsewhere[2],
                "priority" => {
                    // Lines of this header are one dictionary, in which the last word on a key counts.
                    said.urgency = text(value).and_then(urgency).or(said.urgency);
                    continue;
                }
                _ => continue,
            };
            slot.get_or_insert(value);
        }
        said
    }

    fn class(&self, settings: &queue::QueueSettings) -> Result<Option<ClassId>, Refused> {
        let class = |value| text(value).and_then(|it| settings.class(it));
        if let Some(value) = self.class {
            return class(value).map(Some).ok_or_else(|| {
                let names: Vec<&str> = settings.classes.iter().map(|it| it.name.as_str()).collect();
                bad(CLASS, value, format!("one of the classes {}, or its place from 0", names.join(", ")))
            });
        }
        let elsewhere = self.class_elsewhere.into_iter().flatten().find_map(class);
        // Three is what a request has that says nothing (RFC 9218, section 4.1).
        Ok(elsewhere.or(match self.urgency {
            Some(0..3) => Some(ClassId(0)),
            Some(3) => Some(settings.standard),
            Some(_) => Some(settings.last()),
            None => None,
        }))
    }

    fn deadline(&self) -> Result<Option<Duration>, Refused> {
        let read = |value| text(value).and_then(milliseconds);
        match self.deadline {
            Some(value) => read(value).map(Some).ok_or_else(|| {
                bad(DEADLINE, value, format!("milliseconds until the first token, 1 to {DEADLINE_MS_MAX}"))
            }),
            None => Ok(self.deadline_elsewhere.into_iter().flatten().find_map(read)),
        }
    }
}

fn bad(header: &'static str, value: &HeaderValue, accepted: String) -> Refused {
    Refused::BadHeader { header, value: echo(&String::from_utf8_lossy(value.as_bytes())), accepted }
}

fn text(value: &HeaderValue) -> Option<&str> {
    value.to_str().ok().map(str::trim)
}

/// `u` of a `priority` header such as `u=1, i`.
fn urgency(text: &str) -> Option<u8> {
    let mut members = text.split(',').filter_map(|it| it.split(';').next()?.trim().strip_prefix("u="));
    members.next_back().and_then(|it| it.parse().ok()).filter(|&it| it <= 7)
}

/// A plain number, without a sign or an exponent.
fn milliseconds(text: &str) -> Option<Duration> {
    if !text.bytes().all(|it| it.is_ascii_digit() || it == b'.') {
        return None;
    }
    let number = text.parse::<f64>().ok().filter(|it| (1.0..=DEADLINE_MS_MAX).contains(it))?;
    Some(Duration::from_secs_f64(number / 1_000.0))
}

fn class_of_body(rules: Rules<'_>, parsed: &openai::Request<'_>) -> Option<ClassId> {
    let named = match &parsed.priority {
        Some(Asked::Word(word)) => rules.queue.class(word),
        Some(Asked::Number(number)) => Some(beside_standard(rules, *number)),
        None => None,
    };
    named.or_else(|| match parsed.service_tier.as_deref()? {
        "priority" => Some(ClassId(0)),
        "default" | "scale" => Some(rules.queue.standard),
        "flex" => Some(rules.queue.last()),
        // `auto` among them: whatever was agreed on with who asks.
        _ => None,
    })
}

/// The class so many places from the standard one, as far as there are any.
fn beside_standard(rules: Rules<'_>, number: i64) -> ClassId {
    let later = match rules.door.body_priority {
        Sense::LowerFirst => number,
        Sense::HigherFirst => number.saturating_neg(),
    };
    let place = i64::from(rules.queue.standard.0).saturating_add(later);
    let place = place.clamp(0, i64::from(rules.queue.last().0));
    u8::try_from(place).map_or(rules.queue.last(), ClassId)
}

/// Keys go no further than this: what is kept is a hash.
fn who(rules: Rules<'_>, headers: &HeaderMap, parsed: Option<&openai::Request<'_>>) -> TenantId {
    known_by(rules, headers, parsed).map_or(TenantId(0), tenant)
}

/// What the tenant is known by. Where keys are given out they say it, unless whoever shows one is trusted to speak for
/// others.
pub(crate) fn known_by<'a>(
    rules: Rules<'a>,
    headers: &'a HeaderMap,
    parsed: Option<&'a openai::Request<'_>>,
) -> Option<&'a [u8]> {
    let named = || headers.get(&rules.door.tenant_header).map(HeaderValue::as_bytes);
    let known_by = match (rules.caller.key(), rules.door.tenant_by) {
        (Some(key), By::Header) if key.trusted => said(named()).or(Some(key.tenant.as_bytes())),
        (Some(key), _) => Some(key.tenant.as_bytes()),
        (None, By::Key) => presented(headers),
        (None, By::Header) => named(),
        (None, By::Adapter) => parsed.and_then(|it| Some(it.lora.as_ref().or(it.model.as_ref())?.as_bytes())),
    };
    said(known_by)
}

fn said(value: Option<&[u8]>) -> Option<&[u8]> {
    value.map(<[u8]>::trim_ascii).filter(|it| !it.is_empty())
}

#[cfg(test)]
mod tests;
