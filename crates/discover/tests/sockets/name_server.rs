//! A fake name server, UDP and TCP on one port, written by hand so that it can answer wrongly.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::follower::LIMIT;

#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// Records, each with a time to live in seconds.
    Records(u32, Vec<Data>),
    /// `NOERROR`, and no records.
    Nothing,
    /// A code that is an error: 2 SERVFAIL, 3 NXDOMAIN, 5 REFUSED.
    Code(u8),
    Silence,
    Garbage,
    /// Truncated over UDP, complete over TCP.
    Truncated(Vec<Data>),
    /// Truncated over UDP and over TCP too.
    TruncatedTwice(Vec<Data>),
    /// Truncated over UDP, and no server on TCP.
    TruncatedForGood,
}

#[derive(Clone, Debug)]
pub(crate) enum Data {
    A(Ipv4Addr),
    Aaaa(Ipv6Addr),
    /// Port, target.
    Srv(u16, &'static str),
}

const A: u16 = 1;
const AAAA: u16 = 28;
const SRV: u16 = 33;

#[derive(Default)]
struct Zone {
    /// By name (with a final dot) and type.
    replies: HashMap<(String, u16), Reply>,
    asked: HashMap<String, usize>,
}

pub(crate) struct NameServer {
    pub(crate) address: SocketAddr,
    zone: Arc<Mutex<Zone>>,
    asked: watch::Receiver<()>,
    _tasks: JoinSet<()>,
}

impl NameServer {
    pub(crate) async fn start() -> NameServer {
        let (udp, tcp) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            // The same port number is nearly always free.
            if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()).await {
                break (udp, tcp);
            }
        };
        let (address, zone) = (udp.local_addr().unwrap(), Arc::new(Mutex::new(Zone::default())));
        let (tell, asked) = watch::channel(());
        let mut tasks = JoinSet::new();
        tasks.spawn(over_udp(udp, zone.clone(), tell));
        tasks.spawn(over_tcp(tcp, zone.clone()));
        NameServer { address, zone, asked, _tasks: tasks }
    }

    /// Sets the answer from now on; names that are not set do not exist. Returns how often it was queried
    /// before.
    pub(crate) fn a(&self, name: &str, reply: Reply) -> usize {
        let mut zone = self.zone.lock().unwrap();
        zone.replies.insert((name.to_owned(), A), reply);
        zone.asked.get(name).copied().unwrap_or(0)
    }

    pub(crate) fn aaaa(&self, name: &str, reply: Reply) {
        self.zone.lock().unwrap().replies.insert((name.to_owned(), AAAA), reply);
    }

    pub(crate) fn srv(&self, name: &str, reply: Reply) {
        self.zone.lock().unwrap().replies.insert((name.to_owned(), SRV), reply);
    }

    /// How often a name has been queried over UDP.
    pub(crate) fn asked(&self, name: &str) -> usize {
        self.zone.lock().unwrap().asked.get(name).copied().unwrap_or(0)
    }

    /// Waits until the name has been queried this often.
    pub(crate) async fn until_asked(&mut self, name: &str, times: usize) {
        let (zone, mut asked) = (self.zone.clone(), self.asked.clone());
        let enough = asked.wait_for(|()| zone.lock().unwrap().asked.get(name).is_some_and(|it| *it >= times));
        timeout(LIMIT, enough).await.expect("asked often enough").unwrap();
    }
}

pub(crate) fn addresses(ttl: u32, last: impl IntoIterator<Item = u8>) -> Reply {
    Reply::Records(ttl, last.into_iter().map(|it| Data::A(Ipv4Addr::new(10, 0, 0, it))).collect())
}

async fn over_udp(socket: UdpSocket, zone: Arc<Mutex<Zone>>, tell: watch::Sender<()>) {
    let mut buffer = [0; 4096];
    while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
        let question = Question::read(&buffer[..length]);
        let reply = {
            let mut zone = zone.lock().unwrap();
            *zone.asked.entry(question.name.clone()).or_default() += 1;
            zone.reply(&question)
        };
        tell.send_replace(());
        let bytes = match reply {
            Reply::Records(ttl, data) => question.answer(0x8180, ttl, &data),
            Reply::Nothing => question.answer(0x8180, 0, &[]),
            Reply::Code(code) => question.answer(0x8180 | u16::from(code), 0, &[]),
            Reply::Truncated(data) | Reply::TruncatedTwice(data) => question.answer(0x8380, 60, &data[..1]),
            Reply::TruncatedForGood => question.answer(0x8380, 60, &[]),
            Reply::Garbage => vec![0xff; 40],
            Reply::Silence => continue,
        };
        socket.send_to(&bytes, from).await.unwrap();
    }
}

async fn over_tcp(listener: TcpListener, zone: Arc<Mutex<Zone>>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let Ok(length) = stream.read_u16().await else { continue };
        let mut bytes = vec![0; usize::from(length)];
        stream.read_exact(&mut bytes).await.unwrap();
        let question = Question::read(&bytes);
        let reply = zone.lock().unwrap().reply(&question);
        let bytes = match reply {
            Reply::Truncated(data) => Some(question.answer(0x8180, 60, &data)),
            Reply::TruncatedTwice(data) => Some(question.answer(0x8380, 60, &data)),
            _ => None,
        };
        if let Some(bytes) = bytes {
            stream.write_u16(u16::try_from(bytes.len()).unwrap()).await.unwrap();
            stream.write_all(&bytes).await.unwrap();
        }
    }
}

impl Zone {
    fn reply(&self, question: &Question) -> Reply {
        let reply = self.replies.get(&(question.name.clone(), question.kind));
        reply.cloned().unwrap_or(Reply::Code(3))
    }
}

struct Question {
    id: [u8; 2],
    name: String,
    kind: u16,
    /// As received: answers repeat it.
    bytes: Vec<u8>,
}

impl Question {
    fn read(message: &[u8]) -> Question {
        let (mut at, mut name) = (12, String::new());
        while message[at] != 0 {
            let length = usize::from(message[at]);
            name.push_str(&String::from_utf8_lossy(&message[at + 1..at + 1 + length]).to_lowercase());
            name.push('.');
            at += 1 + length;
        }
        let kind = u16::from_be_bytes([message[at + 1], message[at + 2]]);
        Question { id: [message[0], message[1]], name, kind, bytes: message[12..at + 5].to_vec() }
    }

    fn answer(&self, flags: u16, ttl: u32, records: &[Data]) -> Vec<u8> {
        let mut bytes = self.id.to_vec();
        for number in [flags, 1, u16::try_from(records.len()).unwrap(), 0, 0] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(&self.bytes);
        for record in records {
            let (kind, data) = match record {
                Data::A(address) => (A, address.octets().to_vec()),
                Data::Aaaa(address) => (AAAA, address.octets().to_vec()),
                Data::Srv(port, target) => (SRV, service(*port, target)),
            };
            // A pointer to the name in the question.
            bytes.extend([0xc0, 12]);
            bytes.extend(kind.to_be_bytes());
            bytes.extend([0, 1]);
            bytes.extend(ttl.to_be_bytes());
            bytes.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
            bytes.extend(data);
        }
        bytes
    }
}

/// Priority 1, weight 2: both should be ignored.
fn service(port: u16, target: &str) -> Vec<u8> {
    let mut data = vec![0, 1, 0, 2];
    data.extend(port.to_be_bytes());
    for label in target.split('.').filter(|it| !it.is_empty()) {
        data.push(u8::try_from(label.len()).unwrap());
        data.extend(label.as_bytes());
    }
    data.push(0);
    data
}
