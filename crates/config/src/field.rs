//! Where a knob's value lives and how it is written.
//!
//! A field is a way to reach the value, which serves for reading and for writing, and the bounds within
//! which it makes sense. The kinds are few, so they are an enum: a new knob is a row, not code.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use maitre_discover::Source;
use maitre_discover::kubernetes::Api;
use maitre_net::tls::ClientAuth;
use maitre_net::worker_url::WorkerUrl;
use maitre_policy::Name;
use maitre_proxy::Collector;
use maitre_proxy::secret;
use maitre_proxy::settings::{By, Sense};
use maitre_queue::Class;

use super::cluster::{self, Via};
use super::queue::{Secret, class, tenant};
use super::secrets::{Hidden, SaltBy, key};
use super::{Config, Format, form};

type At<T> = fn(&mut Config) -> &mut T;

#[derive(Debug)]
pub(super) enum Field {
    Socket(At<SocketAddr>),
    Workers(At<Vec<WorkerUrl>>),
    Sources(At<Vec<Source>>),
    Sockets(At<Vec<SocketAddr>>),
    /// None if empty.
    Api(At<Option<Api>>),
    Strategy(At<Name>),
    Strategies(At<BTreeMap<String, Name>>),
    Names(At<Vec<Name>>),
    Folders(At<BTreeMap<String, PathBuf>>),
    /// In order of precedence.
    Classes(At<Vec<Class>>),
    ClassName(At<String>),
    Tenants(At<BTreeMap<Secret, tenant::Written>>),
    Keys(At<Vec<key::Written>>),
    /// Kept as a hash.
    Secret(At<Option<secret::Secret>>),
    /// Kept as it is, and not shown.
    Hidden(At<Option<Hidden>>),
    SaltBy(At<SaltBy>),
    By(At<By>),
    Sense(At<Sense>),
    ClientAuth(At<ClientAuth>),
    /// None if empty.
    File(At<Option<PathBuf>>),
    /// None if empty.
    Collector(At<Option<Collector>>),
    /// Their values are secrets.
    Headers(At<Vec<(HeaderName, HeaderValue)>>),
    Via(At<Via>),
    /// Of routers: host and port.
    Addresses(At<Vec<String>>),
    /// None if empty.
    Address(At<Option<String>>),
    RouterName(At<String>),
    Switch(At<bool>),
    Paths(At<Vec<String>>),
    /// Of addresses.
    Beginnings(At<Vec<String>>),
    Path(At<String>),
    Header(At<HeaderName>),
    Cookie(At<String>),
    Text(At<String>),
    Size(At<usize>, RangeInclusive<usize>),
    Count(At<usize>, RangeInclusive<usize>),
    Count32(At<u32>, RangeInclusive<u32>),
    Count64(At<u64>, RangeInclusive<u64>),
    Ratio(At<f64>, RangeInclusive<f64>),
    Time(At<Duration>, RangeInclusive<Duration>),
    Level(At<String>),
    Format(At<Format>),
}

impl Field {
    pub(super) fn form(&self) -> &'static str {
        match self {
            Field::Socket(_) | Field::Sockets(_) => "ADDRESS",
            Field::Sources(_) => "SOURCE",
            Field::Workers(_) | Field::Beginnings(_) | Field::Collector(_) | Field::Api(_) => "URL",
            Field::Via(_) => "VIA",
            Field::Addresses(_) | Field::Address(_) => "HOST:PORT",
            Field::Headers(_) => "NAME=VALUE",
            Field::Strategy(_) | Field::Names(_) => "STRATEGY",
            Field::Strategies(_) => "MODEL=STRATEGY",
            Field::Folders(_) => "MODEL=FOLDER",
            Field::Classes(_) => "CLASS",
            Field::Tenants(_) => "TENANT",
            Field::Keys(_) => "KEY",
            Field::Secret(_) | Field::Hidden(_) => "SECRET",
            Field::SaltBy(_) => "SALT",
            Field::By(_) => "BY",
            Field::Sense(_) => "SENSE",
            Field::ClientAuth(_) => "AUTH",
            Field::File(_) => "FILE",
            Field::Switch(_) => "BOOL",
            Field::Paths(_) | Field::Path(_) => "PATH",
            Field::Header(_) | Field::Cookie(_) | Field::ClassName(_) | Field::RouterName(_) => "NAME",
            Field::Text(_) => "TEXT",
            Field::Size(..) => "SIZE",
            Field::Count(..) | Field::Count32(..) | Field::Count64(..) => "COUNT",
            Field::Ratio(..) => "NUMBER",
            Field::Time(..) => "DURATION",
            Field::Level(_) => "LEVEL",
            Field::Format(_) => "FORMAT",
        }
    }

    pub(super) fn is_list(&self) -> bool {
        use Field::{Addresses, Beginnings, Headers, Keys, Names, Paths, Sockets, Sources, Workers};
        self.is_table()
            || matches!(self, Workers(_) | Paths(_) | Names(_) | Beginnings(_) | Keys(_))
            || matches!(self, Sources(_) | Sockets(_) | Headers(_) | Addresses(_))
    }

    /// Whether a file may write this list as a table.
    pub(super) fn is_table(&self) -> bool {
        matches!(self, Field::Strategies(_) | Field::Folders(_) | Field::Classes(_) | Field::Tenants(_))
    }

    /// Empties a list, before its items are set one by one; leaves any other field alone.
    pub(super) fn clear(&self, config: &mut Config) {
        match self {
            Field::Workers(at) => at(config).clear(),
            Field::Strategies(at) => at(config).clear(),
            Field::Names(at) => at(config).clear(),
            Field::Sources(at) => at(config).clear(),
            Field::Sockets(at) => at(config).clear(),
            Field::Folders(at) => at(config).clear(),
            Field::Paths(at) | Field::Beginnings(at) | Field::Addresses(at) => at(config).clear(),
            Field::Headers(at) => at(config).clear(),
            Field::Classes(at) => at(config).clear(),
            Field::Tenants(at) => at(config).clear(),
            Field::Keys(at) => at(config).clear(),
            _ => {}
        }
    }

    /// Sets the value to what `text` says, or adds it if this is a list. On failure nothing has changed,
    /// and the error says what would be accepted.
    pub(super) fn set(&self, config: &mut Config, text: &str) -> Result<(), String> {
        match self {
            Field::Socket(at) => *at(config) = form::socket(text)?,
            Field::Workers(at) => {
                let worker = text.parse::<WorkerUrl>().map_err(|error| error.to_string())?;
                // Not by how it was written: `http://a` and `http://a:80` are one worker.
                let is_same = |it: &WorkerUrl| {
                    let (one, other) = (&it.address, &worker.address);
                    one.port() == other.port() && one.host().eq_ignore_ascii_case(other.host())
                };
                if at(config).iter().any(is_same) {
                    return Err(twice(text));
                }
                at(config).push(worker);
            }
            Field::Strategy(at) => *at(config) = form::strategy(text)?,
            Field::Strategies(at) => {
                let (model, name) = form::model_strategy(text)?;
                if at(config).insert(model.clone(), name).is_some() {
                    return Err(twice(&model));
                }
            }
            Field::Sources(at) => add_once(at(config), form::source(text)?, text)?,
            Field::Sockets(at) => add_once(at(config), form::socket(text)?, text)?,
            Field::Api(at) => *at(config) = form::api(text)?,
            Field::Names(at) => add_once(at(config), form::strategy(text)?, text)?,
            Field::Folders(at) => {
                let (model, folder) = form::model_folder(text)?;
                if at(config).insert(model.clone(), folder).is_some() {
                    return Err(twice(&model));
                }
            }
            Field::Classes(at) => class::add(at(config), text)?,
            Field::ClassName(at) => *at(config) = class::name(text)?,
            Field::Tenants(at) => tenant::add(at(config), text)?,
            Field::Keys(at) => at(config).push(key::read(text)?),
            Field::Secret(at) => *at(config) = form::secret(text)?,
            Field::Hidden(at) => *at(config) = form::hidden(text)?,
            Field::SaltBy(at) => *at(config) = form::salt_by(text)?,
            Field::By(at) => *at(config) = form::by(text)?,
            Field::Sense(at) => *at(config) = form::sense(text)?,
            Field::ClientAuth(at) => *at(config) = form::client_auth(text)?,
            Field::File(at) => *at(config) = form::file(text)?,
            Field::Collector(at) => *at(config) = form::collector(text)?,
            Field::Headers(at) => {
                let (name, value) = form::header_value(text)?;
                if at(config).iter().any(|it| it.0 == name) {
                    return Err(twice(name.as_str()));
                }
                at(config).push((name, value));
            }
            Field::Via(at) => *at(config) = cluster::via(text)?,
            Field::Addresses(at) => add_once(at(config), cluster::address(text)?, text)?,
            Field::Address(at) => *at(config) = cluster::some_address(text)?,
            Field::RouterName(at) => *at(config) = cluster::name(text)?,
            Field::Switch(at) => *at(config) = form::switch(text)?,
            Field::Paths(at) => add_once(at(config), form::pattern(text)?, text)?,
            Field::Beginnings(at) => add_once(at(config), form::beginning(text)?, text)?,
            Field::Path(at) => *at(config) = form::path(text)?,
            Field::Header(at) => *at(config) = form::header(text)?,
            Field::Cookie(at) => *at(config) = form::cookie(text)?,
            Field::Text(at) => *at(config) = form::text(text)?,
            Field::Size(at, range) => *at(config) = form::size(text, range)?,
            Field::Count(at, range) => *at(config) = form::count(text, range)?,
            Field::Count32(at, range) => *at(config) = form::count(text, range)?,
            Field::Count64(at, range) => *at(config) = form::count(text, range)?,
            Field::Ratio(at, range) => *at(config) = form::ratio(text, range)?,
            Field::Time(at, range) => *at(config) = form::duration(text, range)?,
            Field::Level(at) => *at(config) = form::level(text)?,
            Field::Format(at) => *at(config) = form::format(text)?,
        }
        Ok(())
    }

    /// Whether there is a value that `texts` does not tell.
    pub(super) fn hides(&self, config: &Config) -> bool {
        match self {
            Field::Hidden(at) => at(&mut config.clone()).is_some(),
            Field::Headers(at) => !at(&mut config.clone()).is_empty(),
            Field::Via(at) => at(&mut config.clone()).hides(),
            _ => false,
        }
    }

    /// The value as texts that `set` takes: the items of a list, or exactly one. Of what is hidden, that it is there.
    pub(super) fn texts(&self, config: &Config) -> Vec<String> {
        // Fields are reached for writing; reading makes do with a copy rather than a second way in.
        let config = &mut config.clone();
        let text = match self {
            Field::Workers(at) => return at(config).iter().map(WorkerUrl::to_string).collect(),
            Field::Strategies(at) => {
                return at(config).iter().map(|(model, name)| format!("{model}={name}")).collect();
            }
            Field::Folders(at) => {
                let pair = |(model, folder): (&String, &PathBuf)| format!("{model}={}", folder.display());
                return at(config).iter().map(pair).collect();
            }
            Field::Paths(at) | Field::Beginnings(at) | Field::Addresses(at) => return at(config).clone(),
            Field::Sources(at) => return at(config).iter().map(Source::to_string).collect(),
            Field::Sockets(at) => return at(config).iter().map(SocketAddr::to_string).collect(),
            Field::Names(at) => return at(config).iter().map(Name::to_string).collect(),
            Field::Headers(at) => {
                let pair = |(name, value): &(HeaderName, HeaderValue)| {
                    format!("{name}={}", String::from_utf8_lossy(value.as_bytes()))
                };
                return at(config).iter().map(pair).collect();
            }
            Field::Collector(at) => at(config).as_ref().map_or(String::new(), Collector::to_string),
            Field::Classes(at) => return at(config).iter().map(class::show).collect(),
            Field::Tenants(at) => {
                return at(config).iter().map(|(name, written)| tenant::show(name, written)).collect();
            }
            Field::Keys(at) => return at(config).iter().map(key::show).collect(),
            Field::Secret(at) => at(config).as_ref().map_or(String::new(), ToString::to_string),
            Field::Hidden(at) => at(config).as_ref().map_or(String::new(), |it| format!("{it:?}")),
            Field::Via(at) => cluster::show_via(at(config)),
            Field::Address(at) => at(config).clone().unwrap_or_default(),
            Field::SaltBy(at) => form::show_salt_by(*at(config)).to_owned(),
            Field::Socket(at) => at(config).to_string(),
            Field::Api(at) => at(config).as_ref().map_or(String::new(), Api::to_string),
            Field::Strategy(at) => at(config).to_string(),
            Field::File(at) => at(config).as_ref().map_or(String::new(), |it| it.display().to_string()),
            Field::Switch(at) => at(config).to_string(),
            Field::Path(at)
            | Field::RouterName(at)
            | Field::Cookie(at)
            | Field::Text(at)
            | Field::Level(at)
            | Field::ClassName(at) => at(config).clone(),
            Field::By(at) => form::show_by(*at(config)).to_owned(),
            Field::Sense(at) => form::show_sense(*at(config)).to_owned(),
            Field::ClientAuth(at) => form::show_client_auth(*at(config)).to_owned(),
            Field::Header(at) => at(config).to_string(),
            Field::Size(at, _) => form::show_size(*at(config)),
            Field::Count(at, _) => at(config).to_string(),
            Field::Count32(at, _) => at(config).to_string(),
            Field::Count64(at, _) => at(config).to_string(),
            Field::Ratio(at, _) => at(config).to_string(),
            Field::Time(at, _) => form::show_duration(*at(config)),
            Field::Format(at) => form::show_format(*at(config)).to_owned(),
        };
        vec![text]
    }

    pub(super) fn toml(&self, config: &Config) -> String {
        let texts = self.texts(config);
        let quoted = |text: &str| toml::Value::from(text).to_string();
        match self {
            Field::Switch(_)
            | Field::Count(..)
            | Field::Count32(..)
            | Field::Count64(..)
            | Field::Ratio(..) => texts.concat(),
            Field::Strategies(_) | Field::Folders(_) => {
                let pairs = texts.iter().filter_map(|text| match self {
                    Field::Folders(_) => text.split_once('='),
                    _ => text.rsplit_once('='),
                });
                let pairs = pairs.map(|(model, name)| format!("{} = {}", quoted(model), quoted(name)));
                format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
            }
            _ if self.is_list() => toml::Value::from(texts).to_string(),
            _ => quoted(&texts.concat()),
        }
    }
}

fn add_once<T: PartialEq>(list: &mut Vec<T>, item: T, text: &str) -> Result<(), String> {
    if list.contains(&item) {
        return Err(twice(text));
    }
    list.push(item);
    Ok(())
}

fn twice(text: &str) -> String {
    format!("{text:?} is there twice")
}
