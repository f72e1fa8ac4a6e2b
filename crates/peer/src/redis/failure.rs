//! Why a Redis server is of no use at the moment, in words an operator can act on.
//!
//! None of them holds what was sent: a server repeats the beginning of what it does not understand, so that of its
//! words only those are passed on that we know, or that are short and printable.

use redis::{ErrorKind, RedisError};
use std::io;
use std::time::Duration;

/// Of the server's own words, so much.
const DETAIL_CHARS_MAX: usize = 160;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    #[error("connect: {0}")]
    Connect(String),
    #[error(
        "TLS: {0}; the certificate must be of an authority that browsers know, and name the host; for a server \
         without TLS write redis://"
    )]
    Tls(String),
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("the connection broke off")]
    Broken,
    #[error("what answers is no Redis server, or another program's answer; look at host and port")]
    Stranger,
    #[error("an answer was too long to be of routers; something else writes to keys of this cluster")]
    TooLong,
    #[error("its stream was emptied and began at an earlier time")]
    Emptied,
    #[error("it refuses the user or the password of the URL in cluster.via")]
    Password,
    #[error("{}", explain(code, detail))]
    Server { code: String, detail: String },
}

impl Failure {
    pub(super) fn connecting(error: io::Error) -> Failure {
        Failure::Connect(error.to_string())
    }

    /// `used_up`: more came than was allowed.
    pub(super) fn of(error: RedisError, used_up: bool) -> Failure {
        if used_up {
            return Failure::TooLong;
        }
        match error.kind() {
            ErrorKind::Io => Failure::Broken,
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Failure::Stranger,
            _ => match error.into_server_errors().as_deref() {
                Some([(_, first), ..]) => Failure::Server {
                    code: first.code().to_owned(),
                    detail: first.details().unwrap_or_default().to_owned(),
                },
                _ => Failure::Broken,
            },
        }
    }

    /// What was refused was the password, whatever else the server calls it.
    pub(super) fn on_entering(self) -> Failure {
        match &self {
            Failure::Server { code, .. } if code == "WRONGPASS" => Failure::Password,
            // As Redis 5 says it.
            Failure::Server { detail, .. } if detail == "invalid password" => Failure::Password,
            _ => self,
        }
    }

    pub(super) fn is_of_type(&self) -> bool {
        matches!(self, Failure::Server { code, .. } if code == "WRONGTYPE")
    }
}

fn explain(code: &str, detail: &str) -> String {
    match code {
        "NOAUTH" => "it asks for a password; write it into the URL: redis://:password@host".into(),
        "NOPERM" => {
            format!("its user may not do that ({}); let it use all keys maitre:*, with XADD, XREAD, EXPIRE, TIME, SET, \
                     GETRANGE, ZADD, ZREVRANGE, ZREMRANGEBYSCORE and ZREMRANGEBYRANK", short(detail))
        }
        "READONLY" | "UNBLOCKED" => "it takes no writes: it is a replica, perhaps since a failover".into(),
        "LOADING" => "it is still loading its data".into(),
        "MISCONF" => "it takes no writes: it cannot save to its disk, and was told to stop then".into(),
        "OOM" => "it takes no writes: its memory is full (maxmemory)".into(),
        "MASTERDOWN" => "it is a replica that lost its master".into(),
        "MOVED" | "ASK" | "CLUSTERDOWN" | "CROSSSLOT" => {
            "it is part of a Redis Cluster; give the URL of a server by itself, which is enough for many routers".into()
        }
        "DENIED" => "it is in protected mode: give it a password, or let it listen on loopback only".into(),
        "WRONGTYPE" => {
            "a key of this cluster holds something else: another program uses the same names; choose another \
             cluster.group"
                .into()
        }
        "ERR" if detail.starts_with("unknown command") => {
            "it does not know a command that we need: it is older than Redis 5, which has streams, or was told to hide it"
                .into()
        }
        "ERR" if detail.contains("without any password configured") => {
            "the URL in cluster.via has a password, and the server asks for none; leave it out".into()
        }
        "ERR" if detail.starts_with("The ID specified in XADD") || detail.contains("exhausted") => {
            "the stream of this cluster has an entry from the future, after which nothing can be written; delete its \
             key, maitre:<group>:stream"
                .into()
        }
        _ => format!("it says {} {}", short(code), short(detail)),
    }
}

fn short(words: &str) -> String {
    words.chars().filter(|it| !it.is_control()).take(DETAIL_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server's line, and words that must be in ours.
    #[track_caller]
    fn check(line: &str, expected: &str) {
        let error =
            redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap().extract_error().unwrap_err();
        let said = Failure::of(error, false).on_entering().to_string();
        assert!(said.contains(expected), "{line}: {said}");
    }

    #[test]
    fn each_refusal_of_a_server_says_what_to_do() {
        check("NOAUTH Authentication required.", "asks for a password");
        check(
            "WRONGPASS invalid username-password pair or user is disabled.",
            "refuses the user or the password",
        );
        check("ERR invalid password", "refuses the user or the password");
        check(
            "ERR AUTH <password> called without any password configured for the default user.",
            "leave it out",
        );
        check("NOPERM this user has no permissions to run the 'xadd' command", "keys maitre:*");
        check("READONLY You can't write against a read only replica.", "replica");
        check("LOADING Redis is loading the dataset in memory", "still loading");
        check("MISCONF Redis is configured to save RDB snapshots", "its disk");
        check("OOM command not allowed when used memory > 'maxmemory'.", "maxmemory");
        check("MOVED 3999 127.0.0.1:6381", "Redis Cluster");
        check("WRONGTYPE Operation against a key holding the wrong kind of value", "cluster.group");
        check("ERR unknown command 'XADD', with args beginning with: 'maitre'", "older than Redis 5");
        check("ERR max number of clients reached", "it says ERR max number of clients reached");
    }

    #[test]
    fn what_a_server_repeats_is_cut_short() {
        let failure = Failure::Server { code: "ERR".into(), detail: "x\u{7}".repeat(10_000) };
        let said = failure.to_string();
        assert!(said.chars().count() < 200 && !said.contains('\u{7}'), "{said}");
    }
}
