//! `maitre drain`: takes a worker out of a running router, and waits until it is empty.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use clap::{Arg, ArgMatches, Command};
use maitre_console::clock::Stopwatch;
use maitre_console::{flag, out};
use maitre_net::address::Address;
use maitre_views::cluster::ClusterView;
use maitre_views::text::escaped;
use maitre_views::worker::{WorkerList, WorkerView};
use tokio::time::sleep;

use crate::operator::client::Client;
use crate::operator::not_asked;
use crate::operator::target::{self, KeyPlaces, Target};
use crate::operator::trouble::Trouble;

/// Between two looks at the worker.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Workers that are named when none has the given name.
const SHOWN_MAX: usize = 8;

const HELP: &str = "\
The worker gets no new requests, and keeps those it has until they end. With --hand-over, streams that can be continued
(see `serve --continue`) go on at other workers at once. `maitre drain WORKER --resume` sends it requests again.
Each router drains a worker for itself: with several, drain it at each, with --url. It is empty once none has requests there.
Exit status: 0 if the worker is empty, 1 if it still has requests after --wait, 2 if the router cannot be asked or
has no such worker.";

pub fn command() -> Command {
    Command::new("drain")
        .about("Take a worker out of a running router, without losing a request")
        .after_help(HELP)
        .args(target::args())
        .args([
            flag::switch("hand-over").help("Let other workers go on with its streams"),
            flag::switch("resume").conflicts_with_all(["hand-over", "wait"]).help("Send it requests again"),
            flag::value("wait", "DURATION")
                .default_value("30s")
                .value_parser(maitre_config::duration)
                .help("How long to wait until it is empty"),
            Arg::new("worker")
                .value_name("WORKER")
                .required(true)
                .help("Its URL or its address, as `maitre top` shows it, or its number in the admin API"),
        ])
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let target = match Target::read(matches, &KeyPlaces::from_environment()) {
        Ok(target) => target,
        Err(error) => return Ok(not_asked(&format_args!("{error:#}"))),
    };
    let name: &String = matches.get_one("worker").context("worker")?;
    let wait = *matches.get_one::<Duration>("wait").context("wait")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = Client::new(&target);
    runtime.block_on(async {
        let worker = match find(&client, name).await {
            Ok(worker) => worker,
            Err(trouble) => return Ok(not_asked(&trouble)),
        };
        let act = match (matches.get_flag("resume"), matches.get_flag("hand-over")) {
            (true, _) => "resume",
            (false, true) => "drain?hand_over=true",
            (false, false) => "drain",
        };
        let asked = client.post::<WorkerView>(&path(&worker, act), Bytes::new()).await;
        match asked {
            Err(trouble) => Ok(not_asked(&trouble)),
            Ok(_) if act == "resume" => {
                out::print(&escaped(&format!("{}: gets requests again\n", worker.url)))?;
                Ok(ExitCode::SUCCESS)
            }
            Ok(_) => until_empty(&client, &worker, wait).await,
        }
    })
}

fn path(worker: &WorkerView, act: &str) -> String {
    format!("/admin/v1/workers/{}/{act}", worker.id)
}

async fn find(client: &Client, name: &str) -> Result<WorkerView, Trouble> {
    let WorkerList { workers } = client.get("/admin/v1/workers").await?;
    let known = workers.iter().map(|it| it.url.to_string()).collect::<Vec<String>>();
    let found = workers.into_iter().find(|it| is_called(it, name));
    found.ok_or_else(|| Trouble::refused(&format!("{}: {}", client.url, no_worker(name, &known))))
}

fn is_called(worker: &WorkerView, name: &str) -> bool {
    worker.id.to_string() == name || *worker.url == *canonical(name)
}

/// The name as the router writes its workers: a host and a port become a URL; case and a trailing slash do not matter.
fn canonical(name: &str) -> String {
    let (place, rank) = name.split_once('#').map_or((name, None), |(place, rank)| (place, Some(rank)));
    match (place.parse::<Address>(), rank) {
        (Ok(address), None) => address.to_string(),
        (Ok(address), Some(rank)) => format!("{address}#{rank}"),
        (Err(_), _) => name.to_owned(),
    }
}

fn no_worker(name: &str, known: &[String]) -> String {
    let shown: Vec<&str> = known.iter().take(SHOWN_MAX).map(String::as_str).collect();
    match known.len() {
        0 => format!("no worker {name}: the router has none"),
        all if all > SHOWN_MAX => {
            format!("no worker {name}; there are {}, and {} more", shown.join(", "), all - SHOWN_MAX)
        }
        _ => format!("no worker {name}; there are {}", shown.join(", ")),
    }
}

/// Waits until the worker has no request of any router. Each router drains only its own: a worker that another router
/// still sends requests to is not empty, and stopping it would break them.
async fn until_empty(client: &Client, worker: &WorkerView, wait: Duration) -> anyhow::Result<ExitCode> {
    let began = Stopwatch::start();
    let mut has_warned = false;
    loop {
        let now: WorkerView = match client.get(&format!("/admin/v1/workers/{}", worker.id)).await {
            Ok(now) => now,
            Err(trouble) => return Ok(not_asked(&trouble)),
        };
        let took = began.elapsed();
        let seconds = took.as_secs_f64();
        let Some(left) = left(now.requests, now.other_routers.requests) else {
            let note = elsewhere(client.get("/admin/v1/cluster").await.ok().flatten());
            out::print(&escaped(&format!("{}: empty after {seconds:.1} s{note}\n", worker.url)))?;
            return Ok(ExitCode::SUCCESS);
        };
        if took >= wait {
            out::print(&escaped(&format!("{}: {left} left after {seconds:.1} s\n", worker.url)))?;
            return Ok(ExitCode::FAILURE);
        }
        if now.requests == now.other_routers.requests && !has_warned {
            has_warned = true;
            out::print(&escaped(&format!("{}: waiting for {left}\n", worker.url)))?;
        }
        sleep(LOOK_EVERY).await;
    }
}

/// The other routers, which know nothing of this drain.
fn elsewhere(cluster: Option<ClusterView>) -> String {
    let routers = cluster.map(|it| it.routers).unwrap_or_default();
    let live = routers.iter().filter(|it| !it.is_self && *it.state == *"live");
    let names: Vec<&str> = live.map(|it| &*it.name).take(SHOWN_MAX).collect();
    if names.is_empty() {
        String::new()
    } else {
        format!("; drain it at {} too, unless you have", names.join(", "))
    }
}

/// The requests at the worker, of which `elsewhere` are other routers'. None if there is none.
fn left(requests: u32, elsewhere: u32) -> Option<String> {
    let plural = |count| if count == 1 { "" } else { "s" };
    match (requests, elsewhere) {
        (0, _) => None,
        (_, 0) => Some(format!("{requests} request{}", plural(requests))),
        _ => Some(format!(
            "{requests} request{}, {elsewhere} from other routers (drain it at each router: --url)",
            plural(requests)
        )),
    }
}

#[cfg(test)]
mod tests {
    use maitre_views::cluster::RouterView;

    use super::*;

    #[test]
    fn a_worker_with_requests_of_other_routers_is_not_empty() {
        assert_eq!(left(0, 0), None);
        assert_eq!(left(1, 0).unwrap(), "1 request");
        let expected = "2 requests, 2 from other routers (drain it at each router: --url)";
        assert_eq!(left(2, 2).unwrap(), expected);
        assert!(left(5, 2).unwrap().starts_with("5 requests, 2 from other routers"));
    }

    #[test]
    fn other_routers_that_may_still_send_to_it_are_named() {
        let router = |name: &'static str, is_self, state: &'static str| {
            let (name, state) = (name.into(), state.into());
            RouterView { name, is_self, state, ..RouterView::default() }
        };
        let routers = vec![router("a", true, "live"), router("b", false, "live"), router("c", false, "lost")];
        let cluster = ClusterView { routers, ..ClusterView::default() };
        assert_eq!(elsewhere(Some(cluster)), "; drain it at b too, unless you have");
        assert_eq!(elsewhere(Some(ClusterView::default())), "");
        assert_eq!(elsewhere(None), "");
    }

    #[test]
    fn a_worker_has_the_names_that_other_commands_show() {
        for (name, expected) in [
            ("127.0.0.1:29001", "http://127.0.0.1:29001"),
            ("http://A:1/", "http://a:1"),
            ("a:1#2", "http://a:1#2"),
            ("https://a", "https://a:443"),
            ("7", "7"),
            ("nobody", "nobody"),
        ] {
            assert_eq!(canonical(name), expected);
        }
    }

    #[test]
    fn the_known_workers_are_named_if_there_is_no_such_one() {
        let known: Vec<String> = (1..=10).map(|it| format!("http://a:{it}")).collect();
        for (known, expected) in [
            (&known[..0], "no worker x: the router has none"),
            (&known[..2], "no worker x; there are http://a:1, http://a:2"),
            (&known[..], "http://a:8, and 2 more"),
        ] {
            let said = no_worker("x", known);
            assert!(said.contains(expected), "{said}");
        }
    }
}
