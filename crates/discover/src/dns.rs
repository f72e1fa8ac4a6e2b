//! Workers from DNS: the addresses of a name, or the hosts and ports of a service.
//!
//! The query is repeated when the shortest-lived record of the answer expires, within bounds. Nothing is
//! cached in between. The system's configuration is read each time: it is a small file, and it changes.
//!
//! If a worker is missing from an answer, the query is repeated after `recheck`, before the worker counts as gone.
//!
//! A name that does not exist or has no addresses gives an empty list, which `stable_list` holds for a while.
//! A server that fails, refuses, does not answer or truncates its answer even over TCP is a failure. The
//! protocol limits answers to 64 KiB.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::rr::{RData, RecordType};
use maitre_base::Rng;
use maitre_net::address::{Address, Scheme};
use maitre_net::worker_url::{WorkerOptions, WorkerUrl};
use tokio::time::{sleep, timeout};

use crate::backoff::Backoff;
use crate::report::{ReportedWorkers, Reporter, SourceReport};
use crate::settings::DnsSettings;
use crate::source::Family;

/// Attempts at each server.
const ATTEMPTS: usize = 2;
/// For one query, whatever the servers and the search list are.
const QUESTION_MAX: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub(crate) enum DnsQuery {
    Addresses { host: String, port: u16, family: Family, options: WorkerOptions },
    Services { name: String, options: WorkerOptions },
}

/// The result of one query: workers, and how long the answer is valid.
struct DnsReply {
    workers: Vec<WorkerUrl>,
    ttl: Duration,
    note: Option<String>,
}

/// Runs until dropped.
pub(crate) async fn follow(
    question: DnsQuery,
    settings: DnsSettings,
    recheck: Duration,
    rng: Rng,
    reporter: Reporter,
) {
    let mut backoff = Backoff::new(settings.ttl_min, settings.ttl_max, rng);
    let mut last = ReportedWorkers::Failure;
    loop {
        let (report, wait) = match question.ask(&settings).await {
            Ok((report, ttl)) => {
                backoff.reset();
                let ttl = ttl.min(settings.ttl_max);
                let wait = if is_missed(&last, &report.workers) { ttl.min(recheck) } else { ttl };
                last = report.workers.clone();
                (report, wait.max(settings.ttl_min))
            }
            Err(why) => (SourceReport::failure(why), backoff.next()),
        };
        reporter.send(report).await;
        sleep(wait).await;
    }
}

/// Whether a worker of the last answer is missing from this one.
fn is_missed(last: &ReportedWorkers, now: &ReportedWorkers) -> bool {
    let workers = |reported: &ReportedWorkers| match reported {
        ReportedWorkers::List(workers) | ReportedWorkers::Partial(workers) => {
            workers.iter().map(|it| it.address.clone()).collect()
        }
        ReportedWorkers::Census { .. } | ReportedWorkers::Failure => BTreeSet::new(),
    };
    !workers(last).is_subset(&workers(now))
}

impl DnsQuery {
    async fn ask(&self, settings: &DnsSettings) -> Result<(SourceReport, Duration), String> {
        let resolver = resolver(settings).map_err(|error| format!("set up the resolver: {error}"))?;
        match self {
            DnsQuery::Services { name, options } => {
                let reply = ask(&resolver, name, RecordType::SRV, |data| worker(data, 0, options)).await?;
                Ok(reply.report())
            }
            DnsQuery::Addresses { host, port, family, options } => {
                let one = |kind| ask(&resolver, host, kind, |data| worker(data, *port, options));
                match family {
                    Family::V4 => Ok(one(RecordType::A).await?.report()),
                    Family::V6 => Ok(one(RecordType::AAAA).await?.report()),
                    Family::Either => {
                        let first = one(RecordType::A).await?;
                        if !first.workers.is_empty() {
                            return Ok(first.report());
                        }
                        Ok(one(RecordType::AAAA).await?.report())
                    }
                    Family::Both => both(tokio::join!(one(RecordType::A), one(RecordType::AAAA))),
                }
            }
        }
    }
}

/// If one of the two queries failed, the other gives a partial answer.
fn both(
    replies: (Result<DnsReply, String>, Result<DnsReply, String>),
) -> Result<(SourceReport, Duration), String> {
    match replies {
        (Ok(mut one), Ok(other)) => {
            one.workers.extend(other.workers);
            one.ttl = one.ttl.min(other.ttl);
            one.note = one.note.and(other.note);
            Ok(one.report())
        }
        (Ok(reply), Err(note)) | (Err(note), Ok(reply)) => Ok((
            SourceReport { workers: ReportedWorkers::Partial(reply.workers), note: Some(note) },
            reply.ttl,
        )),
        (Err(note), Err(_)) => Err(note),
    }
}

fn resolver(settings: &DnsSettings) -> Result<TokioResolver, NetError> {
    let mut builder = if settings.servers.is_empty() {
        TokioResolver::builder_tokio()?
    } else {
        let servers = settings.servers.iter().map(name_server).collect();
        let config = ResolverConfig::from_name_servers(servers);
        TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
    };
    let options = builder.options_mut();
    options.cache_size = 0;
    options.timeout = settings.timeout;
    options.attempts = ATTEMPTS;
    builder.build()
}

fn name_server(address: &SocketAddr) -> NameServerConfig {
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut it| {
        it.port = address.port();
        it
    });
    NameServerConfig::new(address.ip(), true, connections.into())
}

async fn ask(
    resolver: &TokioResolver,
    name: &str,
    kind: RecordType,
    worker: impl Fn(&RData) -> Option<Result<WorkerUrl, String>>,
) -> Result<DnsReply, String> {
    let question = format!("ask for {kind} of {name}");
    match timeout(QUESTION_MAX, resolver.lookup(name, kind)).await {
        Err(_) => Err(format!("{question}: no answer within {QUESTION_MAX:?}")),
        Ok(Ok(lookup)) => reply(&lookup, worker).map_err(|error| format!("{question}: {error}")),
        Ok(Err(NetError::Dns(DnsError::NoRecordsFound(none)))) => {
            // Use the server's validity if it sends one; otherwise query again at the minimum interval.
            let ttl = Duration::from_secs(none.negative_ttl.unwrap_or(0).into());
            let note = Some(format!("{question}: {} and no records", none.response_code));
            Ok(DnsReply { workers: Vec::new(), ttl, note })
        }
        Ok(Err(error)) => Err(format!("{question}: {error}")),
    }
}

fn reply(
    lookup: &Lookup,
    worker: impl Fn(&RData) -> Option<Result<WorkerUrl, String>>,
) -> Result<DnsReply, String> {
    let workers: Result<Vec<WorkerUrl>, String> =
        lookup.answers().iter().filter_map(|it| worker(&it.data)).collect();
    let workers = workers?;
    let ttl = lookup.answers().iter().map(|it| it.ttl).min().unwrap_or(0);
    let note = workers.is_empty().then(|| "the answer names no worker".to_owned());
    Ok(DnsReply { workers, ttl: Duration::from_secs(ttl.into()), note })
}

/// The worker that a record names; none if the record is of another type, or declares that there is no
/// service.
fn worker(data: &RData, port: u16, options: &WorkerOptions) -> Option<Result<WorkerUrl, String>> {
    let (host, port) = match data {
        RData::A(address) => (address.0.to_string(), port),
        RData::AAAA(address) => (address.0.to_string(), port),
        RData::SRV(service) if service.target.is_root() => return None,
        RData::SRV(service) => (service.target.to_ascii(), service.port),
        _ => return None,
    };
    let address = Address::new(Scheme::Http, host.strip_suffix('.').unwrap_or(&host), port);
    let worker = address.map(|address| WorkerUrl { address, options: options.clone() });
    Some(worker.map_err(|error| error.to_string()))
}

impl DnsReply {
    fn report(self) -> (SourceReport, Duration) {
        (SourceReport { workers: ReportedWorkers::List(self.workers), note: self.note }, self.ttl)
    }
}
