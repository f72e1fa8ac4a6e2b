//! Accepts connections of a listener, each in a task of its own. All of them end with the listener.

use std::future::Future;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Serves for ever.
pub(crate) async fn accept<F>(listener: TcpListener, mut serve: impl FnMut(TcpStream) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(stream));
                }
                // Out of descriptors, or the client has disconnected: neither is fatal. Yielding keeps a persistent
                // error from starving the connections that would resolve it.
                Err(_) => tokio::task::yield_now().await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}
