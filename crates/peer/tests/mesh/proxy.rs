//! A path to a router that can be cut and healed. While it is cut, nothing passes and neither end notices.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    is_cut: watch::Sender<bool>,
    /// Connections that are open both ways.
    pub(crate) open: watch::Receiver<usize>,
    _task: JoinSet<()>,
}

impl Proxy {
    /// The target is set later.
    pub(crate) async fn new() -> (Proxy, watch::Sender<Option<SocketAddr>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (is_cut, cut) = watch::channel(false);
        let (told, target) = watch::channel(None);
        let (count, open) = watch::channel(0);
        let mut task = JoinSet::new();
        task.spawn(serve(listener, target, cut, Arc::new(count)));
        (Proxy { address, is_cut, open, _task: task }, told)
    }

    pub(crate) fn cut(&self) {
        self.is_cut.send_replace(true);
    }

    /// Data in transit is lost.
    pub(crate) fn heal(&self) {
        self.is_cut.send_replace(false);
    }
}

async fn serve(
    listener: TcpListener,
    mut target: watch::Receiver<Option<SocketAddr>>,
    cut: watch::Receiver<bool>,
    count: Arc<watch::Sender<usize>>,
) {
    let mut tasks = JoinSet::new();
    loop {
        let (near, _) = listener.accept().await.unwrap();
        let target = target.wait_for(Option::is_some).await.unwrap().unwrap();
        tasks.spawn(carry(near, target, cut.clone(), count.clone()));
    }
}

async fn carry(
    near: TcpStream,
    target: SocketAddr,
    mut cut: watch::Receiver<bool>,
    count: Arc<watch::Sender<usize>>,
) {
    if *cut.borrow() {
        let _ = cut.wait_for(|is_cut| !is_cut).await;
        return;
    }
    let Ok(far) = TcpStream::connect(target).await else { return };
    count.send_modify(|it| *it += 1);
    let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.into_split(), far.into_split());
    let is_cut = tokio::select! {
        () = pump(&mut near_in, &mut far_out) => false,
        () = pump(&mut far_in, &mut near_out) => false,
        _ = cut.wait_for(|is_cut| *is_cut) => true,
    };
    if is_cut {
        // Both ends are held open without data.
        let _ = cut.wait_for(|is_cut| !is_cut).await;
    }
    count.send_modify(|it| *it -= 1);
}

async fn pump(from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(read) = from.read(&mut buffer).await
        && read > 0
        && to.write_all(&buffer[..read]).await.is_ok()
    {}
}
