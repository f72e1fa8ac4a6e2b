//! What systemd receives from `maitre serve`, over a real datagram socket.

use tokio::net::UnixDatagram;

use crate::client::within;
use crate::program::{Program, address};

async fn heard(socket: &UnixDatagram) -> String {
    let mut bytes = [0; 256];
    let length = within(socket.recv(&mut bytes)).await.unwrap();
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

#[tokio::test]
async fn the_service_manager_is_notified_of_start_and_stop() {
    // Not in the target folder: a socket's path is limited to 108 bytes.
    let path = std::env::temp_dir().join(format!("maitre-notify-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let socket = UnixDatagram::bind(&path).unwrap();
    let args = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let mut program = Program::start_with(&args, &[("NOTIFY_SOCKET", path.to_str().unwrap())]);
    let ready = heard(&socket).await;
    assert!(ready.lines().any(|it| it == "READY=1"), "{ready:?}");
    // A client that reads this may connect at once.
    let listen = program.until_says(|it| address(it, "listen=")).await;
    within(tokio::net::TcpStream::connect(listen)).await.unwrap();
    program.signal("TERM");
    let stopping = heard(&socket).await;
    assert!(stopping.lines().any(|it| it == "STOPPING=1"), "{stopping:?}");
    assert_eq!(program.until_ends().await.code(), Some(0), "{}", program.said());
    std::fs::remove_file(&path).unwrap();
}

#[tokio::test]
async fn a_missing_socket_does_not_prevent_serving() {
    let args = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let mut program = Program::start_with(&args, &[("NOTIFY_SOCKET", "/nonexistent/notify")]);
    program.until_says(|it| it.contains("NOTIFY_SOCKET").then_some(())).await;
    program.signal("TERM");
    assert_eq!(program.until_ends().await.code(), Some(0), "{}", program.said());
}
