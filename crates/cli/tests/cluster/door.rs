//! A proxy in front of a router of a mesh, whose connections can be cut and restored.
//!
//! A cut is silent: neither end notices, and sent data waits, as in TCP, until it passes or one end gives up.
//! Or it is a reset: all connections break, and new ones break at once.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    Open,
    Silent,
    Reset,
}

pub(crate) struct Door {
    pub(crate) address: SocketAddr,
    pass: watch::Sender<Pass>,
    target: watch::Sender<Option<SocketAddr>>,
    _task: JoinSet<()>,
}

impl Door {
    /// Until its target is set, every connection is reset.
    pub(crate) async fn new() -> Door {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (pass, passing) = watch::channel(Pass::Open);
        let (target, leads) = watch::channel(None);
        let mut task = JoinSet::new();
        task.spawn(serve(listener, leads, passing));
        Door { address, pass, target, _task: task }
    }

    pub(crate) fn lead_to(&self, target: SocketAddr) {
        self.target.send_replace(Some(target));
    }

    pub(crate) fn set(&self, pass: Pass) {
        self.pass.send_replace(pass);
    }
}

async fn serve(
    listener: TcpListener,
    target: watch::Receiver<Option<SocketAddr>>,
    pass: watch::Receiver<Pass>,
) {
    let mut tasks = JoinSet::new();
    loop {
        let (near, _) = listener.accept().await.unwrap();
        let target = *target.borrow();
        match target {
            Some(target) => drop(tasks.spawn(carry(near, target, pass.clone()))),
            None => reset(&near),
        }
        while tasks.try_join_next().is_some() {}
    }
}

async fn carry(near: TcpStream, target: SocketAddr, mut pass: watch::Receiver<Pass>) {
    // Packets into a cut network arrive only after it is restored.
    if *pass.wait_for(|it| *it != Pass::Silent).await.unwrap() == Pass::Reset {
        return reset(&near);
    }
    let Ok(far) = TcpStream::connect(target).await else { return reset(&near) };
    for stream in [&near, &far] {
        stream.set_nodelay(true).unwrap();
        // When one direction ends, the other ends too, without a clean close.
        reset(stream);
    }
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    tokio::select! {
        () = pump(near_in, far_out, pass.clone()) => (),
        () = pump(far_in, near_out, pass.clone()) => (),
        _ = pass.wait_for(|it| *it == Pass::Reset) => (),
    }
}

/// One direction, while it is open.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut pass: watch::Receiver<Pass>) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(read) = from.read(&mut buffer).await
        && read > 0
        && pass.wait_for(|it| *it == Pass::Open).await.is_ok()
        && to.write_all(&buffer[..read]).await.is_ok()
    {}
}

/// Dropping it resets the other end's connection.
fn reset(stream: &TcpStream) {
    stream.set_zero_linger().unwrap();
}
