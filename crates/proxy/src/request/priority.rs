//! The class, the tenant and the deadline of a request, from its headers and its body.
//!
//! Clients use the headers of other gateways, too, so each of these has several names. The first one with a value counts,
//! our own name before others. A bad value in our own header is an error; in another gateway's header it may be valid
//! there, and is ignored. The class is then limited to what the tenant and the key allow.
//!
//! Most requests have none of these headers. For them this is one pass over their headers.

use std::time::Duration;

use http::header::{HeaderMap, HeaderValue};
use maitre_base::{ClassId, Instant, TenantId};
use maitre_dialect::openai::{self, Priority as BodyPriority};
use maitre_queue::{self as queue, settings::tenant};

use crate::keys::{Caller, presented};
use crate::refuse::{Refused, echo};
use crate::settings::{ClientHints, PriorityOrder, TenantBy};

const CLASS: &str = "x-maitre-class";
const DEADLINE: &str = "x-maitre-deadline-ms";

/// Whose request it is, by the names of the inference extension, the newest first.
const FAIRNESS: [&str; 2] = ["x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"];

/// A day, as everywhere in the settings.
const DEADLINE_MS_MAX: f64 = 86_400_000.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Priority {
    pub(super) class: ClassId,
    pub(super) tenant: TenantId,
    /// None: the deadline of its class.
    pub(super) deadline: Option<Instant>,
}

/// What the operator has set, and the caller's key.
#[derive(Clone, Copy)]
pub(super) struct Rules<'a> {
    pub(super) hints: &'a ClientHints,
    pub(super) queue: &'a queue::QueueSettings,
    pub(super) caller: &'a Caller,
    /// A gateway carries the request, and may say whose it is.
    pub(super) is_carried: bool,
}

/// The priority of a request that arrived `at` this moment. `parsed` is None if the body was not parsed.
pub(super) fn priority(
    rules: Rules<'_>,
    at: Instant,
    headers: &HeaderMap,
    parsed: Option<&openai::Request<'_>>,
) -> Result<Priority, Refused> {
    if !rules.queue.enabled {
        // The headers have no effect, so none is refused. The tenant is still needed, for the record.
        let (class, tenant) = (rules.queue.standard, tenant_id(rules, headers, parsed));
        return Ok(Priority { class, tenant, deadline: None });
    }
    let given = PriorityHeaders::read(headers);
    let asked = match given.class(rules.queue)? {
        Some(class) => Some(class),
        None => parsed.and_then(|it| class_of_body(rules, it)),
    };
    let tenant = tenant_id(rules, headers, parsed);
    let deadline = given.deadline()?.map(|it| at + it);
    let best = rules.caller.key().map_or(ClassId(0), |it| it.best);
    Ok(Priority { class: rules.queue.allowed(tenant, asked).max(best), tenant, deadline })
}

/// The headers that matter here; of repeated ones the first.
#[derive(Default)]
struct PriorityHeaders<'a> {
    class: Option<&'a HeaderValue>,
    /// Names of other gateways, by precedence.
    class_elsewhere: [Option<&'a HeaderValue>; 4],
    urgency: Option<u8>,
    deadline: Option<&'a HeaderValue>,
    deadline_elsewhere: [Option<&'a HeaderValue>; 4],
}

impl<'a> PriorityHeaders<'a> {
    fn read(headers: &'a HeaderMap) -> PriorityHeaders<'a> {
        let mut given = PriorityHeaders::default();
        for (name, value) in headers {
            let slot = match name.as_str() {
                CLASS => &mut given.class,
                "x-gateway-inference-objective" => &mut given.class_elsewhere[0],
                "x-llm-d-inference-objective" => &mut given.class_elsewhere[1],
                "x-smg-priority" => &mut given.class_elsewhere[2],
                "x-request-priority" => &mut given.class_elsewhere[3],
                DEADLINE => &mut given.deadline,
                "x-slo-ttft-ms" => &mut given.deadline_elsewhere[0],
                "x-ttft-slo-ms" => &mut given.deadline_elsewhere[1],
                "x-llm-d-slo-ttft-ms" => &mut given.deadline_elsewhere[2],
                "x-request-timeout-ms" => &mut given.deadline_elsewhere[3],
                "priority" => {
                    // Repeated headers form one dictionary, in which the last value of a key counts.
                    given.urgency = text(value).and_then(urgency).or(given.urgency);
                    continue;
                }
                _ => continue,
            };
            slot.get_or_insert(value);
        }
        given
    }

    fn class(&self, settings: &queue::QueueSettings) -> Result<Option<ClassId>, Refused> {
        let class = |value| text(value).and_then(|it| settings.class(it));
        if let Some(value) = self.class {
            return class(value).map(Some).ok_or_else(|| {
                let names: Vec<&str> = settings.classes.iter().map(|it| it.name.as_str()).collect();
                bad(CLASS, value, format!("one of the classes {}, or its number, from 0", names.join(", ")))
            });
        }
        let elsewhere = self.class_elsewhere.into_iter().flatten().find_map(class);
        // Three is the default (RFC 9218, section 4.1).
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
        Some(BodyPriority::Word(word)) => rules.queue.class(word),
        Some(BodyPriority::Number(number)) => Some(beside_standard(rules, *number)),
        None => None,
    };
    named.or_else(|| match parsed.service_tier.as_deref()? {
        "priority" => Some(ClassId(0)),
        "default" | "scale" => Some(rules.queue.standard),
        "flex" => Some(rules.queue.last()),
        // `auto` among them: the tenant's default.
        _ => None,
    })
}

/// The class that many steps from the standard one, limited to the classes there are.
fn beside_standard(rules: Rules<'_>, number: i64) -> ClassId {
    let later = match rules.hints.body_priority {
        PriorityOrder::LowerFirst => number,
        PriorityOrder::HigherFirst => number.saturating_neg(),
    };
    let place = i64::from(rules.queue.standard.0).saturating_add(later);
    let place = place.clamp(0, i64::from(rules.queue.last().0));
    u8::try_from(place).map_or(rules.queue.last(), ClassId)
}

/// Of a key only its hash is kept.
fn tenant_id(rules: Rules<'_>, headers: &HeaderMap, parsed: Option<&openai::Request<'_>>) -> TenantId {
    tenant_name(rules, headers, parsed).map_or(TenantId(0), tenant)
}

/// What identifies the tenant. Where the router checks keys the key does, unless it is trusted to act for other tenants.
pub(super) fn tenant_name<'a>(
    rules: Rules<'a>,
    headers: &'a HeaderMap,
    parsed: Option<&'a openai::Request<'_>>,
) -> Option<&'a [u8]> {
    let named = || headers.get(&rules.hints.tenant_header).map(HeaderValue::as_bytes);
    let fairness = || FAIRNESS.into_iter().find_map(|it| headers.get(it)).map(HeaderValue::as_bytes);
    if rules.is_carried
        && rules.caller.key().is_none_or(|it| it.trusted)
        && let Some(name) = non_empty(fairness())
    {
        return Some(name);
    }
    let name = match (rules.caller.key(), rules.hints.tenant_by) {
        (Some(key), TenantBy::Header) if key.trusted => non_empty(named()).or(Some(key.tenant.as_bytes())),
        (Some(key), _) => Some(key.tenant.as_bytes()),
        (None, TenantBy::Key) => presented(headers),
        (None, TenantBy::Header) => named(),
        (None, TenantBy::Adapter) => {
            parsed.and_then(|it| Some(it.lora.as_ref().or(it.model.as_ref())?.as_bytes()))
        }
    };
    non_empty(name)
}

fn non_empty(value: Option<&[u8]>) -> Option<&[u8]> {
    value.map(<[u8]>::trim_ascii).filter(|it| !it.is_empty())
}

#[cfg(test)]
mod tests;
