//! The types of values that knobs have, besides numbers.
//!
//! A type that reads itself is one `public`; one of a few words is a `OneOf`; a text with a rule is a `Word`.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue};
use maitre_discover::WorkerSource;
use maitre_discover::api_address::ApiAddress;
use maitre_dispatch::programs::ProgramRule;
use maitre_net::tls::ClientAuth;
use maitre_net::worker_url::WorkerUrl;
use maitre_policy::Name;
use maitre_policy::split::SplitRule;
use maitre_proxy::settings::{BrokenStreams, PriorityOrder, TenantBy};
use maitre_proxy::{Collector, Secret};
use tracing_subscriber::filter::LevelFilter;

use crate::field::{ByModel, List, twice};
use crate::form::{Custom, ItemTable, OneOf, Optional, Secrecy, Word, public};
use crate::{LogFormat, form, options};

pub(crate) const TENANT_BY: OneOf<TenantBy> =
    OneOf("BY", &[("key", TenantBy::Key), ("header", TenantBy::Header), ("adapter", TenantBy::Adapter)]);
pub(crate) const PRIORITY_ORDER: OneOf<PriorityOrder> = OneOf(
    "ORDER",
    &[("lower-first", PriorityOrder::LowerFirst), ("higher-first", PriorityOrder::HigherFirst)],
);
pub(crate) const SPLIT_RULE: OneOf<SplitRule> =
    OneOf("RULE", &[("price", SplitRule::Price), ("always", SplitRule::Always), ("never", SplitRule::Never)]);
pub(crate) const PROGRAM_RULE: OneOf<ProgramRule> = OneOf(
    "MEMORY",
    &[
        ("off", ProgramRule::Off),
        ("working-set", ProgramRule::WorkingSet),
        ("thunder-agent", ProgramRule::ThunderAgent),
        ("cache-ttl", ProgramRule::CacheTtl),
    ],
);
pub(crate) const ON_OFF: OneOf<bool> = OneOf("STATE", &[("off", false), ("on", true)]);
pub(crate) const BROKEN_STREAMS: OneOf<BrokenStreams> =
    OneOf("STATE", &[("off", BrokenStreams::End), ("on", BrokenStreams::Continue)]);
pub(crate) const CLIENT_AUTH: OneOf<ClientAuth> =
    OneOf("AUTH", &[("required", ClientAuth::Required), ("optional", ClientAuth::Optional)]);
pub(crate) const LOG_FORMAT: OneOf<LogFormat> =
    OneOf("FORMAT", &[("text", LogFormat::Text), ("json", LogFormat::Json)]);

pub(crate) const URL_PATH: Word =
    Word { name: "PATH", is_valid: is_path, wrong: "is not a path; write it as in \"/health\"" };
/// A path, or the beginning of many if it ends in `*`.
pub(crate) const PATH_PATTERN: Word = Word {
    name: "PATH",
    is_valid: |text| {
        let fixed = text.strip_suffix('*').unwrap_or(text);
        is_path(fixed) && !fixed.contains(['*', '?'])
    },
    wrong: "is not a path; write \"/pooling\" or, for all below it, \"/pooling/*\"",
};
/// What a browser sends as `origin`, or `*`.
pub(crate) const ORIGIN: Word = Word {
    name: "ORIGIN",
    is_valid: |text| {
        let is_origin = |(scheme, host): (&str, &str)| {
            let is_plain =
                |it: char| it.is_ascii_graphic() && !it.is_ascii_uppercase() && !"/*?#@,".contains(it);
            !scheme.is_empty() && !host.is_empty() && scheme.chars().chain(host.chars()).all(is_plain)
        };
        text == "*" || text.split_once("://").is_some_and(is_origin)
    },
    wrong: "is not an origin; write \"https://app.example.com\", in lower case and without a path, or \"*\"",
};
/// An address of a worker, or the beginning of many if it ends in `*`.
pub(crate) const URL_PATTERN: Word = Word {
    name: "URL",
    is_valid: |text| {
        let fixed = text.strip_suffix('*').unwrap_or(text);
        let is_url = fixed.starts_with("http://") || fixed.starts_with("https://");
        (is_url || text == "*") && !fixed.contains(['*', '?', ' '])
    },
    wrong: "is not a URL; write \"http://10.0.0.7:8000\" or \"http://10.0.0.*\"",
};
pub(crate) const COOKIE: Word = Word {
    name: "NAME",
    // The names of cookies and of headers consist of the same letters (RFC 6265, section 4.1.1).
    is_valid: |text| HeaderName::try_from(text).is_ok(),
    wrong: "is not the name of a cookie; write it as in \"maitre_session\"",
};
pub(crate) const MODEL_NAME: Word = Word {
    name: "MODEL",
    is_valid: |text| !text.is_empty() && text.len() <= 256 && !text.contains(char::is_control),
    wrong: "is not a model; write a name as workers list it, such as \"meta-llama/Llama-3.1-8B\"",
};
/// Chosen: no topic is a tenth of 1024 bytes.
pub(crate) const FREE_TEXT: Word = Word {
    name: "TEXT",
    is_valid: |text| text.len() <= 1_024 && !text.contains(char::is_control),
    wrong: "is too long or not printable; write at most 1024 bytes",
};
pub(crate) const LOG_LEVEL: Word = Word {
    name: "LEVEL",
    is_valid: is_log_level,
    wrong: "is not a level; write off, error, warn, info, debug or trace, or by module \"info,hyper=warn\"",
};

fn is_path(text: &str) -> bool {
    text.starts_with('/') && text.parse::<PathAndQuery>().is_ok_and(|it| it.as_str() == text)
}

/// A level, or levels by module: `info,hyper=warn`.
///
/// The logging library takes a word that is no level for the name of a module, and logs all of that module. Here a
/// module needs its level, so that `inof` is an error.
fn is_log_level(text: &str) -> bool {
    // The library takes the empty word for a level.
    let is_level = |it: &str| !it.is_empty() && it.parse::<LevelFilter>().is_ok();
    let is_letter = |it: char| it.is_ascii_alphanumeric() || "_-:".contains(it);
    let is_module = |it: &str| !it.is_empty() && it.chars().all(is_letter);
    text.split(',').all(|part| match part.split_once('=') {
        Some((module, level)) => is_module(module) && is_level(level),
        None => is_level(part),
    })
}

pub(crate) const STRATEGY: Custom<Name> = public("STRATEGY", parse, Name::to_string);
pub(crate) const WORKER_SOURCE: Custom<WorkerSource> = public("SOURCE", parse, WorkerSource::to_string);
pub(crate) const KUBERNETES_API: Optional<Custom<ApiAddress>> =
    Optional(public("URL", parse, ApiAddress::to_string));
pub(crate) const COLLECTOR: Optional<Custom<Collector>> =
    Optional(public("URL", parse, Collector::to_string));
pub(crate) const SOCKET: Custom<SocketAddr> = public("ADDRESS", form::socket, SocketAddr::to_string);
pub(crate) const HEADER: Custom<HeaderName> = public("NAME", header, HeaderName::to_string);
pub(crate) const FILE: Optional<Custom<PathBuf>> =
    Optional(public("FILE", file, |it| it.display().to_string()));
const FOLDER: Custom<PathBuf> = public("FOLDER", |text| Ok(text.into()), |it| it.display().to_string());
/// A key of which only the hash is kept.
pub(crate) const KEY_HASH: Optional<Custom<Secret>> =
    Optional(Custom { secrecy: |_| Secrecy::ForFiles, ..public("SECRET", parse, Secret::to_string) });
pub(crate) const WORKER_LIST: List<Custom<WorkerUrl>> = List {
    item: public("URL", parse, WorkerUrl::to_string),
    add: add_worker,
    table: Some(ItemTable { join: options::append, ..ItemTable::new("a worker", "url") }),
};
pub(crate) const HEADER_LIST: List<Custom<(HeaderName, HeaderValue)>> = List {
    item: Custom {
        name: "NAME=VALUE",
        read: secret_header,
        show: |(name, value)| format!("{name}={}", String::from_utf8_lossy(value.as_bytes())),
        secrecy: |_| Secrecy::Hidden,
    },
    add: |list, item, _| {
        if list.iter().any(|it| it.0 == item.0) {
            return Err(twice(item.0.as_str()));
        }
        list.push(item);
        Ok(())
    },
    table: None,
};
pub(crate) const STRATEGY_BY_MODEL: ByModel<Custom<Name>> = ByModel {
    name: "MODEL=STRATEGY",
    value: STRATEGY,
    what: "the name of a strategy",
    // The last one: the name of a model may hold the sign, that of a strategy does not.
    split: |text| text.rsplit_once('='),
    wrong: "names no model and strategy; write \"llama-3=prefix-hash\"",
};
pub(crate) const FOLDER_BY_MODEL: ByModel<Custom<PathBuf>> = ByModel {
    name: "MODEL=FOLDER",
    value: FOLDER,
    what: "the path of a folder",
    split: |text| text.split_once('='),
    wrong: "names no model and folder; write \"llama-3=/models/llama-3\"",
};

/// For types whose errors say what to write.
fn parse<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

fn header(text: &str) -> Result<HeaderName, String> {
    text.parse().map_err(|_| format!("{text:?} is not the name of a header; write it as in \"x-session-id\""))
}

/// A header with its value, which is a secret: no error repeats it.
fn secret_header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let wrong = || "an item is not a header with a value; write \"authorization=Bearer KEY\"".to_owned();
    let (name, value) = text.split_once('=').ok_or_else(wrong)?;
    let name = name.trim().parse().map_err(|_| wrong())?;
    let mut value = value.trim().parse::<HeaderValue>().map_err(|_| wrong())?;
    if !value.to_str().is_ok_and(|it| !it.is_empty()) {
        return Err(wrong());
    }
    value.set_sensitive(true);
    Ok((name, value))
}

/// At most 4096 bytes: Linux's own limit (`PATH_MAX`).
fn file(text: &str) -> Result<PathBuf, String> {
    match text.len() > 4_096 || text.contains(char::is_control) || text.ends_with('/') {
        true => Err(format!("{text:?} is not a file; write it as in \"/var/lib/maitre/trace.jsonl\"")),
        false => Ok(PathBuf::from(text)),
    }
}

/// Compares addresses, not texts: `http://a` and `http://a:80` are one worker.
fn add_worker(list: &mut Vec<WorkerUrl>, worker: WorkerUrl, text: &str) -> Result<(), String> {
    let is_same = |it: &WorkerUrl| {
        let (one, other) = (&it.address, &worker.address);
        one.port() == other.port() && one.host() == other.host()
    };
    if list.iter().any(is_same) {
        return Err(twice(text));
    }
    list.push(worker);
    Ok(())
}

#[cfg(test)]
mod tests;
