//! The URL of a Redis server, parsed once.
//!
//! It may contain a password, so no message repeats it; what is shown is built from the other parts. The database is
//! a number, and the default port is 6379.

use redis::{ConnectionAddr, IntoConnectionInfo};

/// What is wrong with a URL, without any part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not the URL of a Redis server: {0}; write redis://[user:password@]host[:port][/database], or rediss:// for TLS, \
     with special characters of the password as %XX"
)]
pub struct BadUrl(&'static str);

/// Whether `connect` would accept it.
pub fn check(url: &str) -> Result<(), BadUrl> {
    Server::parse(url).map(drop)
}

#[derive(Clone)]
pub(super) struct Server {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) tls: bool,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
}

impl Server {
    pub(super) fn parse(url: &str) -> Result<Server, BadUrl> {
        let mut url = redis::parse_redis_url(url).ok_or(BadUrl("it is not a valid URL"))?;
        let tls = match url.scheme() {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return Err(BadUrl("its scheme is neither redis:// nor rediss://")),
        };
        if url.fragment().is_some() {
            return Err(BadUrl("it has a part after \"#\""));
        }
        if url.query().is_some() {
            return Err(BadUrl("it has a part after \"?\""));
        }
        // The library accepts rediss:// only with its own TLS built in; we use ours.
        url.set_scheme("redis").map_err(|()| BadUrl("it is not a valid URL"))?;
        let info = url
            .into_connection_info()
            .map_err(|_| BadUrl("its host, database, user or password is invalid"))?;
        let ConnectionAddr::Tcp(host, port) = info.addr() else {
            return Err(BadUrl("it has no host"));
        };
        if host.is_empty() {
            return Err(BadUrl("it has no host"));
        }
        let settings = info.redis_settings();
        Ok(Server {
            host: host.clone(),
            port: *port,
            tls,
            user: settings.username().map(str::to_owned),
            password: settings.password().map(str::to_owned),
            database: settings.db(),
        })
    }
}

/// Without user and password.
impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.tls { "rediss" } else { "redis" };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port)?,
            false => write!(f, "{scheme}://{}:{}", self.host, self.port)?,
        }
        match self.database {
            0 => Ok(()),
            database => write!(f, "/{database}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(url: &str, expected: Result<&str, &'static str>) {
        let server = Server::parse(url).map(|it| it.to_string());
        assert_eq!(server, expected.map(str::to_owned).map_err(BadUrl), "{url}");
    }

    #[test]
    fn display_contains_neither_user_nor_password() {
        check("redis://cache", Ok("redis://cache:6379"));
        check("redis://joe:s3cret@cache:7000/2", Ok("redis://cache:7000/2"));
        check("rediss://:s3cret@10.0.0.1", Ok("rediss://10.0.0.1:6379"));
        check("redis://[::1]:7000", Ok("redis://[::1]:7000"));
        check("valkeys://cache", Ok("rediss://cache:6379"));
    }

    #[test]
    fn the_password_is_percent_decoded() {
        let server = Server::parse("redis://joe:a%23b%40c@cache").unwrap();
        assert_eq!((server.user.as_deref(), server.password.as_deref()), (Some("joe"), Some("a#b@c")));
    }

    #[test]
    fn an_invalid_url_is_rejected_without_repeating_it() {
        check("cache:6379", Err("it is not a valid URL"));
        check("http://cache", Err("it is not a valid URL"));
        check("unix:///run/redis.sock", Err("its scheme is neither redis:// nor rediss://"));
        check("redis://cache/many", Err("its host, database, user or password is invalid"));
        check("redis://", Err("its host, database, user or password is invalid"));
        check("rediss://cache/#insecure", Err("it has a part after \"#\""));
        check("redis://cache?protocol=3", Err("it has a part after \"?\""));
        let message = BadUrl("it is not a valid URL").to_string();
        assert!(message.contains("redis://[user:password@]host[:port][/database]"), "{message}");
    }
}
