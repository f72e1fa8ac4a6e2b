//! A source of workers, as an operator writes it.
//!
//! ```text
//! file:/etc/maitre/workers
//! dns:workers.example.svc:8000?events=5557
//! srv:_http._tcp.workers.example
//! kubernetes:namespace/service?port=http
//! kubernetes:namespace?pods=app%3Dvllm%2Ctier%3Dgpu&port=8000
//! kubernetes:namespace?pool=vllm
//! ```
//!
//! Options after the `?` that the source itself does not use apply to every worker it names. Settings with
//! several sources in one text separate them by commas, so a comma within a source is written as `%2C`; where
//! a source stands alone a plain comma is accepted.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use maitre_net::worker_url::{BadWorkerOption, WorkerOptions, write_query};

use crate::escape::{escape, unescape};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WorkerSource {
    /// One worker per line.
    File {
        path: PathBuf,
    },
    /// The addresses of a name.
    Dns {
        host: String,
        port: u16,
        family: Family,
        options: WorkerOptions,
    },
    /// The hosts and ports of a service. Priorities and weights are ignored: the router has its own reasons
    /// to prefer a worker.
    Srv {
        name: String,
        options: WorkerOptions,
    },
    Kubernetes(KubernetesSource),
}

/// Which addresses of a name are workers. An engine often has one IPv4 and one IPv6 address, so by default
/// the second kind counts only if there are none of the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4 addresses, or IPv6 addresses if there are none.
    #[default]
    Either,
    V4,
    V6,
    /// All addresses: no engine has two.
    Both,
}

/// Workers in a Kubernetes cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KubernetesSource {
    /// None: the namespace we run in.
    pub namespace: Option<String>,
    pub kind: KubernetesTarget,
    /// None: the port called `http`, or the only one.
    pub port: Option<Port>,
    pub options: WorkerOptions,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KubernetesTarget {
    /// The endpoints of a Service.
    Service(String),
    /// The Pods with these labels.
    Pods(String),
    /// The Pods that an InferencePool selects, at each of its ports.
    Pool(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Port {
    Number(u16),
    Name(String),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?}: {reason}; write {form}")]
pub struct BadSource {
    text: String,
    reason: String,
    form: &'static str,
}

const FORMS: &str = "file:PATH, dns:HOST:PORT, srv:NAME, kubernetes:NAMESPACE/SERVICE, kubernetes:NAMESPACE?pods=SELECTOR or kubernetes:NAMESPACE?pool=NAME";
const FILE: &str = "file:/a/path";
const DNS: &str = "dns:host:port, with options such as ?events=5557&family=4";
const SRV: &str = "srv:_http._tcp.host, with options such as ?events=5557";
const KUBERNETES: &str = "kubernetes:namespace/service, kubernetes:namespace?pods=app%3Dvllm, and ?port= or &port= \
     with a number or a name; or kubernetes:namespace?pool=name";

/// The longest names that DNS and Kubernetes allow.
const NAME_BYTES_MAX: usize = 253;
/// Chosen: a few dozen labels.
const SELECTOR_BYTES_MAX: usize = 2_048;

impl FromStr for WorkerSource {
    type Err = BadSource;

    fn from_str(text: &str) -> Result<WorkerSource, BadSource> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let (form, read) = match kind {
            "file" => (FILE, file(rest)),
            "dns" => (DNS, dns(rest)),
            "srv" => (SRV, srv(rest)),
            "kubernetes" => (KUBERNETES, kubernetes(rest)),
            _ => (FORMS, Err("it is not a source of workers".to_owned())),
        };
        read.map_err(|reason| BadSource { text: text.to_owned(), reason, form })
    }
}

fn file(path: &str) -> Result<WorkerSource, String> {
    // A relative path could mean different files to `maitre check` and to the service.
    match path.starts_with('/') {
        true => Ok(WorkerSource::File { path: PathBuf::from(path) }),
        false => Err("the path does not begin at the root".to_owned()),
    }
}

fn dns(text: &str) -> Result<WorkerSource, String> {
    let (place, query) = text.split_once('?').unwrap_or((text, ""));
    let (host, port) = place.rsplit_once(':').ok_or("there is no port")?;
    let port = port_number(port).ok_or_else(|| format!("{port:?} is not a port"))?;
    let mut family = Family::Either;
    let options = options(query, |key, value| {
        let known = match (key, value) {
            ("family", "4") => Family::V4,
            ("family", "6") => Family::V6,
            ("family", "both") => Family::Both,
            ("family", "either") => Family::Either,
            ("family", _) => return Err(format!("family is {value:?}, not 4, 6, either or both")),
            _ => return Ok(false),
        };
        family = known;
        Ok(true)
    })?;
    Ok(WorkerSource::Dns { host: dns_name(host)?, port, family, options: checked(options)? })
}

fn srv(text: &str) -> Result<WorkerSource, String> {
    let (name, query) = text.split_once('?').unwrap_or((text, ""));
    Ok(WorkerSource::Srv { name: dns_name(name)?, options: checked(options(query, |_, _| Ok(false))?)? })
}

fn kubernetes(text: &str) -> Result<WorkerSource, String> {
    let (place, query) = text.split_once('?').unwrap_or((text, ""));
    let (namespace, service) = match place.split_once('/') {
        Some((namespace, service)) => (namespace, Some(service)),
        None => (place, None),
    };
    let (mut pods, mut pool, mut port) = (None, None, None);
    let options = options(query, |key, value| match key {
        "pool" => {
            pool = Some(object_name(value)?);
            Ok(true)
        }
        "pods" => {
            pods = Some(selector(value)?);
            Ok(true)
        }
        "port" => {
            port = Some(value.parse::<Port>()?);
            Ok(true)
        }
        _ => Ok(false),
    })?;
    let kind = match (service, pods, pool) {
        (Some(service), None, None) => KubernetesTarget::Service(object_name(service)?),
        (None, Some(pods), None) => KubernetesTarget::Pods(pods),
        (None, None, Some(_)) if port.is_some() => return Err("a pool has its own ports".to_owned()),
        (None, None, Some(pool)) => KubernetesTarget::Pool(pool),
        (None, None, None) => return Err("names neither a service nor pods nor a pool".to_owned()),
        _ => return Err("names more than one of a service, pods and a pool".to_owned()),
    };
    let namespace = if namespace.is_empty() { None } else { Some(object_name(namespace)?) };
    Ok(WorkerSource::Kubernetes(KubernetesSource { namespace, kind, port, options }))
}

/// Parses the text after the `?`. `own` takes the source's own options and returns whether it knows the key.
fn options(
    query: &str,
    mut own: impl FnMut(&str, &str) -> Result<bool, String>,
) -> Result<WorkerOptions, String> {
    let mut options = WorkerOptions::default();
    for pair in query.split('&').filter(|it| !it.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if !own(key, value)? {
            options.set(key, value).map_err(|error| match error {
                BadWorkerOption::Unknown(key) => format!("no option is called {key:?}"),
                error => error.to_string(),
            })?;
        }
    }
    Ok(options)
}

/// Options that no object of the source may complete, as those of Kubernetes can.
fn checked(options: WorkerOptions) -> Result<WorkerOptions, String> {
    options.check().map_err(|error| error.to_string())?;
    Ok(options)
}

fn dns_name(text: &str) -> Result<String, String> {
    let is_plain = |it: u8| it.is_ascii_alphanumeric() || b"-._".contains(&it);
    let is_label = |it: &str| (1..=63).contains(&it.len()) && it.bytes().all(is_plain);
    let labels = text.strip_suffix('.').unwrap_or(text);
    let fits = labels.len() <= NAME_BYTES_MAX && labels.split('.').all(is_label);
    if fits { Ok(text.to_ascii_lowercase()) } else { Err(format!("{text:?} is not a DNS name")) }
}

/// A name that Kubernetes allows: it goes into the path of a URL.
fn object_name(text: &str) -> Result<String, String> {
    let is_plain = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || b"-.".contains(&it);
    let fits = (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_plain);
    let begins = text.starts_with(|it: char| it.is_ascii_alphanumeric());
    if fits && begins { Ok(text.to_owned()) } else { Err(format!("{text:?} is not a Kubernetes name")) }
}

/// Checks only that the selector exists and is not absurd; the API server judges the rest.
fn selector(text: &str) -> Result<String, String> {
    let selector = unescape(text).ok_or_else(|| format!("pods is {text:?}, with a stray %"))?;
    let is_sane = !selector.trim().is_empty() && !selector.chars().any(char::is_control);
    match is_sane && selector.len() <= SELECTOR_BYTES_MAX {
        true => Ok(selector),
        false => Err("pods is empty or too long: every pod would be a worker".to_owned()),
    }
}

fn port_number(text: &str) -> Option<u16> {
    text.parse().ok().filter(|&it| it > 0)
}

impl FromStr for Port {
    type Err = String;

    fn from_str(text: &str) -> Result<Port, String> {
        if let Some(number) = port_number(text) {
            return Ok(Port::Number(number));
        }
        let is_plain = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'-';
        let is_name = (1..=63).contains(&text.len())
            && text.bytes().all(is_plain)
            && text.bytes().any(|it| it.is_ascii_lowercase());
        is_name
            .then(|| Port::Name(text.to_owned()))
            .ok_or_else(|| format!("port is {text:?}, no number or name"))
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Port::Number(number) => write!(f, "{number}"),
            Port::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for WorkerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pairs: Vec<(&str, String)> = Vec::new();
        let options = match self {
            WorkerSource::File { path } => return write!(f, "file:{}", path.display()),
            WorkerSource::Dns { host, port, family, options } => {
                write!(f, "dns:{host}:{port}")?;
                let family = match family {
                    Family::Either => None,
                    Family::V4 => Some("4"),
                    Family::V6 => Some("6"),
                    Family::Both => Some("both"),
                };
                pairs.extend(family.map(|it| ("family", it.to_owned())));
                options
            }
            WorkerSource::Srv { name, options } => {
                write!(f, "srv:{name}")?;
                options
            }
            WorkerSource::Kubernetes(cluster) => {
                write!(f, "kubernetes:{}", cluster.namespace.as_deref().unwrap_or_default())?;
                match &cluster.kind {
                    KubernetesTarget::Service(name) => write!(f, "/{name}")?,
                    KubernetesTarget::Pods(selector) => pairs.push(("pods", escape(selector))),
                    KubernetesTarget::Pool(name) => pairs.push(("pool", name.clone())),
                }
                pairs.extend(cluster.port.iter().map(|it| ("port", it.to_string())));
                &cluster.options
            }
        };
        pairs.extend(options.pairs());
        write_query(f, pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        match (text.parse::<WorkerSource>(), expected) {
            (Ok(source), Ok(shown)) => {
                assert_eq!(source.to_string(), shown);
                assert_eq!(shown.parse(), Ok(source), "what is shown can be read again");
            }
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (actual, expected) => panic!("{text}: {actual:?}, expected {expected:?}"),
        }
    }

    /// A source that is displayed as it was written.
    #[track_caller]
    fn same(text: &str) {
        check(text, Ok(text));
    }

    #[test]
    fn sources_are_displayed_as_written() {
        same("file:/etc/maitre/workers");
        same("dns:workers.example.svc:8000");
        same("dns:workers.example.:8000?family=both&events=5557&replay=5558&ranks=2");
        same("srv:_http._tcp.workers.example?events=off");
        same("kubernetes:inference/vllm");
        same("kubernetes:inference/vllm?port=http&events=5557");
        same("kubernetes:/vllm");
        same("kubernetes:?pods=app%3Dvllm");
        same("kubernetes:inference?pool=vllm");
        same("kubernetes:?pool=vllm&events=5557");
        same("kubernetes:inference?pods=app%3Dvllm%2Ctier%3Dgpu&port=8000&ranks=2");
        check("dns:Workers.EXAMPLE:80?ranks=2&family=4", Ok("dns:workers.example:80?family=4&ranks=2"));
        check("dns:a:1?family=either", Ok("dns:a:1"));
        check(
            "kubernetes:a?port=1&pods=app=vllm,tier%3Dgpu",
            Ok("kubernetes:a?pods=app%3Dvllm%2Ctier%3Dgpu&port=1"),
        );
    }

    #[test]
    fn errors_name_the_accepted_form() {
        check("workers", Err("write file:PATH, dns:HOST:PORT"));
        check("consul:vllm", Err("it is not a source of workers; write file:PATH"));
        check("tier%3Dgpu", Err("it is not a source of workers; write file:PATH"));
        check("file:workers", Err("does not begin at the root; write file:/a/path"));
        check("file:", Err("write file:/a/path"));
        check("dns:workers", Err("there is no port; write dns:host:port"));
        check("dns:workers:0", Err("\"0\" is not a port"));
        check("dns:a..b:80", Err("is not a DNS name"));
        check("dns::80", Err("is not a DNS name"));
        check("dns:a:80?family=5", Err("not 4, 6, either or both"));
        check("dns:a:80?event=5", Err("no option is called \"event\""));
        check("dns:a:80?events=x", Err("a port, tcp://host:port or off"));
        check("dns:a:80?role=decode&bootstrap=1", Err("bootstrap has no effect with role=decode"));
        check("srv:a?role=prefill&transfer=nixl-push", Err("needs engine-id=NAME"));
        same("kubernetes:a/b?role=prefill&transfer=nixl-push");
        check("srv:", Err("is not a DNS name"));
        check("srv:_http._tcp.a:80", Err("is not a DNS name"));
        check("kubernetes:vllm", Err("nor a pool; write kubernetes:namespace/service"));
        check("kubernetes:a/b?pods=c", Err("more than one of"));
        check("kubernetes:a?pool=b&pods=c", Err("more than one of"));
        check("kubernetes:a?pool=b&port=1", Err("its own ports"));
        check("kubernetes:a?pool=", Err("is not a Kubernetes name"));
        check("kubernetes:a/B", Err("\"B\" is not a Kubernetes name"));
        check("kubernetes:a/../b", Err("is not a Kubernetes name"));
        check("kubernetes:a?pods=", Err("every pod"));
        check("kubernetes:a?pods=%2", Err("stray %"));
        check("kubernetes:a/b?port=-", Err("no number or name"));
        check("kubernetes:a/b?port=0", Err("no number or name"));
    }
}
