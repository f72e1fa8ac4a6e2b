//! Why a Redis server is unusable at the moment, in terms that an operator can act on.
//!
//! No message repeats what was sent. A server echoes the start of input it does not understand, so only known or
//! short printable parts of its errors are passed on.

use redis::{ErrorKind, RedisError};
use std::io;
use std::time::Duration;

/// Maximum characters of the server's own text.
const DETAIL_CHARS_MAX: usize = 160;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RedisFailure {
    #[error("connect: {0}")]
    Connect(String),
    #[error(
        "TLS: {0}; the certificate must be issued by a public authority for this host name; for a server \
         without TLS write redis://"
    )]
    Tls(String),
    #[error("no reply within {0:?}")]
    Timeout(Duration),
    #[error("the connection was lost")]
    Broken,
    #[error(
        "it closes every connection: it may be in protected mode (set a password there, or bind it to loopback), have too many \
         clients, or want TLS (rediss://)"
    )]
    Closed,
    #[error("the server does not speak the Redis protocol; check host and port")]
    NotRedis,
    #[error("a reply was too long; another program writes to keys of this cluster")]
    TooLong,
    #[error("its stream was emptied and restarted at an earlier time")]
    Emptied,
    #[error("it rejects the user or the password of the URL in cluster.via")]
    Password,
    #[error("{}", explain(code, detail))]
    Server { code: String, detail: String },
}

impl RedisFailure {
    pub(super) fn connecting(error: io::Error) -> RedisFailure {
        RedisFailure::Connect(error.to_string())
    }

    /// `used_up`: the reply exceeded its limit.
    pub(super) fn of(error: RedisError, used_up: bool) -> RedisFailure {
        if used_up {
            return RedisFailure::TooLong;
        }
        match error.kind() {
            ErrorKind::Io => RedisFailure::Broken,
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => RedisFailure::NotRedis,
            _ => match error.into_server_errors().as_deref() {
                Some([(_, first), ..]) => RedisFailure::Server {
                    code: first.code().to_owned(),
                    detail: first.details().unwrap_or_default().to_owned(),
                },
                _ => RedisFailure::Broken,
            },
        }
    }

    /// Maps a rejected login to `Password`, whatever the server calls it. A server that closes the connection instead says
    /// why, but what we write meanwhile often resets the connection before that is read.
    pub(super) fn on_login(self) -> RedisFailure {
        match &self {
            RedisFailure::Broken => RedisFailure::Closed,
            RedisFailure::Server { code, .. } if code == "WRONGPASS" => RedisFailure::Password,
            // The text of Redis 5.
            RedisFailure::Server { detail, .. } if detail == "invalid password" => RedisFailure::Password,
            _ => self,
        }
    }

    pub(super) fn is_wrong_type(&self) -> bool {
        matches!(self, RedisFailure::Server { code, .. } if code == "WRONGTYPE")
    }
}

fn explain(code: &str, detail: &str) -> String {
    match code {
        "NOAUTH" => "it requires a password; write it into the URL: redis://:password@host".into(),
        "NOPERM" => {
            format!("the user lacks a permission ({}); allow it all keys maitre:* with XADD, XREAD, EXPIRE, TIME, SET, \
                     GETRANGE, ZADD, ZREVRANGE, ZREMRANGEBYSCORE and ZREMRANGEBYRANK", short(detail))
        }
        "READONLY" | "UNBLOCKED" => "it rejects writes: it is a replica, perhaps since a failover".into(),
        "LOADING" => "it is still loading its data".into(),
        "MISCONF" => "it takes no writes: it cannot save to its disk, and is configured to stop then".into(),
        "OOM" => "it rejects writes: its memory is full (maxmemory)".into(),
        "MASTERDOWN" => "it is a replica that lost its master".into(),
        "MOVED" | "ASK" | "CLUSTERDOWN" | "CROSSSLOT" => {
            "it is part of a Redis Cluster; use a standalone server, which is enough for many routers".into()
        }
        "DENIED" => "it is in protected mode: set a password, or bind it to loopback".into(),
        "WRONGTYPE" => {
            "a key of this cluster has the wrong type: another program uses the same names; choose another \
             cluster.group"
                .into()
        }
        "ERR" if detail.starts_with("unknown command") => {
            "it does not know a command that we need: it is older than Redis 5, which has streams, or its configuration hides it"
                .into()
        }
        "ERR" if detail.contains("without any password configured") => {
            "the URL in cluster.via has a password, but the server has none; remove it".into()
        }
        "ERR" if detail.starts_with("The ID specified in XADD") || detail.contains("exhausted") => {
            "the stream of this cluster has an entry from the future, after which nothing can be written; delete its \
             key, maitre:<group>:stream"
                .into()
        }
        _ => format!("it replied {} {}", short(code), short(detail)),
    }
}

fn short(words: &str) -> String {
    words.chars().filter(|it| !it.is_control()).take(DETAIL_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server's error line, and text that our message must contain.
    #[track_caller]
    fn check(line: &str, expected: &str) {
        let error =
            redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap().extract_error().unwrap_err();
        let said = RedisFailure::of(error, false).on_login().to_string();
        assert!(said.contains(expected), "{line}: {said}");
    }

    #[test]
    fn each_server_error_says_what_to_do() {
        check("NOAUTH Authentication required.", "requires a password");
        check(
            "WRONGPASS invalid username-password pair or user is disabled.",
            "rejects the user or the password",
        );
        check("ERR invalid password", "rejects the user or the password");
        check(
            "ERR AUTH <password> called without any password configured for the default user.",
            "remove it",
        );
        check("NOPERM this user has no permissions to run the 'xadd' command", "keys maitre:*");
        check("READONLY You can't write against a read only replica.", "replica");
        check("LOADING Redis is loading the dataset in memory", "still loading");
        check("MISCONF Redis is configured to save RDB snapshots", "its disk");
        check("OOM command not allowed when used memory > 'maxmemory'.", "maxmemory");
        check("MOVED 3999 127.0.0.1:6381", "Redis Cluster");
        check("WRONGTYPE Operation against a key holding the wrong kind of value", "cluster.group");
        check("ERR unknown command 'XADD', with args beginning with: 'maitre'", "older than Redis 5");
        check("ERR max number of clients reached", "it replied ERR max number of clients reached");
    }

    #[test]
    fn long_server_errors_are_shortened() {
        let failure = RedisFailure::Server { code: "ERR".into(), detail: "x\u{7}".repeat(10_000) };
        let said = failure.to_string();
        assert!(said.chars().count() < 200 && !said.contains('\u{7}'), "{said}");
    }
}
