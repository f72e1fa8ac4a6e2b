//! Notifies systemd that the router serves, and that it stops: one datagram each, to the socket in
//! `NOTIFY_SOCKET`. Without `Type=notify` the variable is not set, and nothing is sent.
//!
//! systemd's library does the same; for two datagrams it is not worth a dependency. Not included: watchdog
//! pings. The thread that would send them does not notice a lane that hangs.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::net::UnixDatagram;

const VARIABLE: &str = "NOTIFY_SOCKET";

/// The states that systemd knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceState {
    /// Both listeners are open.
    Ready,
    /// A signal arrived; open requests are being finished.
    Stopping,
}

impl ServiceState {
    fn message(self) -> &'static str {
        match self {
            ServiceState::Ready => "READY=1\nSTATUS=serving\n",
            ServiceState::Stopping => "STOPPING=1\nSTATUS=draining\n",
        }
    }
}

/// The socket of systemd; none if `NOTIFY_SOCKET` is not set.
#[derive(Debug)]
pub(crate) struct Notify(Option<OsString>);

impl Notify {
    pub(crate) fn from_environment() -> Notify {
        Notify(std::env::var_os(VARIABLE).filter(|it| !it.is_empty()))
    }

    /// Never waits: a socket whose owner does not read is an error like any other.
    pub(crate) fn send(&self, state: ServiceState) -> io::Result<()> {
        match &self.0 {
            Some(socket) => send(socket, state.message().as_bytes()),
            None => Ok(()),
        }
    }
}

fn send(socket: &OsStr, message: &[u8]) -> io::Result<()> {
    let ours = UnixDatagram::unbound()?;
    ours.set_nonblocking(true)?;
    let sent = match abstract_name(socket) {
        Some(name) => send_to_abstract(&ours, name, message)?,
        None => ours.send_to(message, socket)?,
    };
    if sent == message.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// An abstract socket, which has no file, is written with an `@`.
fn abstract_name(socket: &OsStr) -> Option<&[u8]> {
    socket.as_encoded_bytes().strip_prefix(b"@")
}

#[cfg(target_os = "linux")]
fn send_to_abstract(ours: &UnixDatagram, name: &[u8], message: &[u8]) -> io::Result<usize> {
    use std::os::linux::net::SocketAddrExt as _;
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
    ours.send_to_addr(message, &address)
}

#[cfg(not(target_os = "linux"))]
fn send_to_abstract(_: &UnixDatagram, _: &[u8], _: &[u8]) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_socket_nothing_is_sent() {
        assert!(Notify(None).send(ServiceState::Ready).is_ok());
    }

    #[test]
    fn a_missing_socket_is_an_error_without_waiting() {
        let nowhere = Notify(Some("/nonexistent/notify".into()));
        assert!(nowhere.send(ServiceState::Ready).is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_abstract_socket_receives_both() {
        use std::os::linux::net::SocketAddrExt as _;
        use std::os::unix::net::SocketAddr;

        let name = format!("maitre-notify-{}", std::process::id());
        let theirs = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let notify = Notify(Some(format!("@{name}").into()));
        for (state, expected) in [(ServiceState::Ready, "READY=1"), (ServiceState::Stopping, "STOPPING=1")] {
            notify.send(state).unwrap();
            let mut bytes = [0; 256];
            let length = theirs.recv(&mut bytes).unwrap();
            let text = std::str::from_utf8(&bytes[..length]).unwrap();
            assert!(text.lines().any(|it| it == expected), "{text}");
        }
    }
}
