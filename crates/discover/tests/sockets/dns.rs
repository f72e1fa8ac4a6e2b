//! Name servers that answer, change their answers, fail, truncate and fall silent.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use maitre_discover::DiscoverySettings;
use maitre_discover::update::SourceState;

use crate::follower::{Follower, NEVER, SOON, quick};
use crate::name_server::{Data, NameServer, Reply, addresses};

const NAME: &str = "workers.test.";
const SOURCE: &str = "dns:workers.test.:8000";

fn settings(server: &NameServer) -> DiscoverySettings {
    let mut settings = quick();
    settings.dns.servers = vec![server.address];
    settings
}

fn ipv6(last: u16) -> Data {
    Data::Aaaa(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last))
}

#[tokio::test]
async fn addresses_become_workers_and_are_queried_again() {
    let server = NameServer::start().await;
    server.a(NAME, addresses(0, [1, 2]));
    let mut settings = settings(&server);
    settings.grace.gone_after = SOON;
    let mut follower = Follower::new(&["dns:workers.test:8000?events=5557&ranks=2"], settings);
    let worker = |it: u8| format!("http://10.0.0.{it}:8000?events=5557&ranks=2");
    follower.workers(&[&worker(1), &worker(2)]).await;
    server.a(NAME, addresses(0, [2, 3]));
    follower.workers(&[&worker(2), &worker(3)]).await;
}

#[tokio::test]
async fn the_second_family_counts_if_there_is_no_first_or_if_asked_for() {
    let server = NameServer::start().await;
    server.a("six.test.", Reply::Nothing);
    server.aaaa("six.test.", Reply::Records(0, vec![ipv6(1)]));
    server.a(NAME, addresses(0, [1]));
    server.aaaa(NAME, Reply::Records(0, vec![ipv6(2)]));
    let cases = [
        ("dns:six.test:80", &["http://[fd00::1]:80"][..]),
        (SOURCE, &["http://10.0.0.1:8000"]),
        ("dns:workers.test:8000?family=4", &["http://10.0.0.1:8000"]),
        ("dns:workers.test:8000?family=6", &["http://[fd00::2]:8000"]),
        ("dns:workers.test:8000?family=both", &["http://10.0.0.1:8000", "http://[fd00::2]:8000"]),
    ];
    for (source, workers) in cases {
        Follower::new(&[source], settings(&server)).workers(workers).await;
    }
}

#[tokio::test]
async fn a_name_that_vanishes_keeps_its_workers_for_the_grace_period() {
    for vanish in [Reply::Code(3), Reply::Nothing] {
        let server = NameServer::start().await;
        server.a(NAME, addresses(0, [1]));
        server.aaaa(NAME, vanish.clone());
        let mut follower = Follower::new(&[SOURCE], settings(&server));
        follower.workers(&["http://10.0.0.1:8000"]).await;
        server.a(NAME, vanish.clone());
        let status = follower.state(SourceState::Holding).await;
        assert_eq!((status.workers, status.held), (1, 1));
        assert!(status.note.as_ref().unwrap().contains("no records"), "{status:?}");
        server.a(NAME, addresses(0, [1]));
        follower.state(SourceState::Fine).await;

        let mut settings = settings(&server);
        settings.grace.empty_after = SOON;
        let mut follower = Follower::new(&[SOURCE], settings);
        follower.workers(&["http://10.0.0.1:8000"]).await;
        server.a(NAME, vanish);
        follower.workers(&[]).await;
    }
}

#[tokio::test]
async fn a_failing_server_is_a_failure_and_the_list_stays() {
    let server = NameServer::start().await;
    let part = Reply::TruncatedTwice(vec![Data::A(Ipv4Addr::new(10, 0, 0, 9))]);
    let silent = [Reply::Silence, Reply::Garbage, Reply::TruncatedForGood, part];
    for failure in [Reply::Code(2), Reply::Code(5)].into_iter().chain(silent) {
        server.a(NAME, addresses(0, [1]));
        let mut settings = settings(&server);
        settings.grace.empty_after = SOON;
        settings.grace.gone_after = SOON;
        let mut follower = Follower::new(&[SOURCE], settings);
        follower.workers(&["http://10.0.0.1:8000"]).await;
        server.a(NAME, failure.clone());
        let status = follower.state(SourceState::Failing).await;
        assert_eq!((status.workers, status.held), (1, 0), "{failure:?}: {status:?}");
        assert!(status.note.as_ref().unwrap().contains("ask for A of workers.test."), "{status:?}");
        server.a(NAME, addresses(0, [1, 2]));
        follower.workers(&["http://10.0.0.1:8000", "http://10.0.0.2:8000"]).await;
    }
}

#[tokio::test]
async fn a_truncated_answer_is_queried_over_tcp() {
    let server = NameServer::start().await;
    let many = (0..200).map(|it| Data::A(Ipv4Addr::new(10, 1, 0, it))).collect();
    server.a(NAME, Reply::Truncated(many));
    let mut follower = Follower::new(&[SOURCE], settings(&server));
    follower.until("all of them", |it| it.workers.len() == 200).await;
}

#[tokio::test]
async fn a_partial_answer_that_loses_most_workers_keeps_them() {
    let server = NameServer::start().await;
    server.a(NAME, addresses(0, [1]));
    server.aaaa(NAME, Reply::Records(0, vec![ipv6(1), ipv6(2)]));
    let mut settings = settings(&server);
    settings.grace.gone_after = SOON;
    let mut follower = Follower::new(&["dns:workers.test:8000?family=both"], settings);
    follower.until("all three", |it| it.workers.len() == 3).await;
    server.aaaa(NAME, Reply::Code(2));
    let status = follower.state(SourceState::Holding).await;
    assert_eq!((status.workers, status.held), (3, 2));
    server.aaaa(NAME, Reply::Records(0, vec![ipv6(1)]));
    follower.workers(&["http://10.0.0.1:8000", "http://[fd00::1]:8000"]).await;
}

#[tokio::test]
async fn a_service_has_hosts_and_ports() {
    let server = NameServer::start().await;
    let name = "_http._tcp.workers.test.";
    server.srv(name, Reply::Records(0, vec![Data::Srv(8001, "b.test"), Data::Srv(8000, "A.test")]));
    let mut follower = Follower::new(&["srv:_http._tcp.workers.test?events=off"], settings(&server));
    follower.workers(&["http://a.test:8000?events=off", "http://b.test:8001?events=off"]).await;
    // The host of a service that is not offered is the root.
    server.srv(name, Reply::Records(0, vec![Data::Srv(0, "")]));
    follower.state(SourceState::Holding).await;
}

#[tokio::test]
async fn records_are_queried_again_when_they_expire_within_bounds() {
    let mut server = NameServer::start().await;
    server.a("short.test.", addresses(0, [1]));
    server.a("long.test.", addresses(1_000, [2]));
    let mut patient = settings(&server);
    patient.dns.ttl_max = NEVER;
    let mut follower = Follower::new(&["dns:short.test:80", "dns:long.test:80"], patient);
    follower.until("both", |it| it.workers.len() == 2).await;
    server.until_asked("short.test.", 20).await;
    assert_eq!(server.asked("long.test."), 1, "its records live for a thousand seconds");
    drop(follower);

    let mut hasty = settings(&server);
    hasty.dns.ttl_max = Duration::from_millis(30);
    let _follower = Follower::new(&["dns:long.test:80"], hasty);
    server.until_asked("long.test.", 5).await;
}

#[tokio::test]
async fn a_missing_worker_is_queried_once_more_before_it_is_gone() {
    let mut server = NameServer::start().await;
    server.a(NAME, addresses(0, [1, 2]));
    let mut settings = settings(&server);
    settings.dns.ttl_max = NEVER;
    settings.grace.gone_after = Duration::from_millis(200);
    let mut follower = Follower::new(&[SOURCE], settings);
    follower.workers(&["http://10.0.0.1:8000", "http://10.0.0.2:8000"]).await;
    // These records live for a thousand seconds; the query is repeated anyway.
    let asked = server.a(NAME, addresses(1_000, [1]));
    server.until_asked(NAME, asked + 2).await;
}

#[tokio::test]
async fn an_answer_of_nearly_64_kib_is_taken_whole() {
    let server = NameServer::start().await;
    let name = "_http._tcp.workers.test.";
    server.srv(name, Reply::Truncated((1..=3_000).map(|it| Data::Srv(it, "a")).collect()));
    let mut follower = Follower::new(&["srv:_http._tcp.workers.test"], settings(&server));
    follower.until("all", |it| it.workers.len() == 3_000).await;
}
