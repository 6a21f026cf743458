//! What a port says to those who do not speak its protocol.

use std::time::Duration;

use harness_server::Limits;
use harness_tests::raw::{Embedded, SOON, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn http_1_is_told_what_this_port_is() {
    let harness = Embedded::start().await;
    let mut stream = TcpStream::connect(&harness.address)
        .await
        .expect("connected");
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .await
        .expect("written");
    let mut answer = String::new();
    within(SOON, stream.read_to_string(&mut answer))
        .await
        .expect("read");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(
        answer.contains("Harness") && answer.contains("gRPC"),
        "{answer}"
    );
}

#[tokio::test]
async fn tls_bytes_and_noise_are_closed_within_a_second() {
    let harness = Embedded::start().await;
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"\x00\xff\x00\xff noise\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(&harness.address)
            .await
            .expect("connected");
        stream.write_all(bytes).await.expect("written");
        let mut answer = Vec::new();
        let closed = within(Duration::from_secs(1), stream.read_to_end(&mut answer)).await;
        assert!(closed.is_ok() || answer.is_empty(), "closed, not left open");
    }
}

#[tokio::test]
async fn a_connection_that_never_begins_is_closed() {
    let limits = Limits {
        hello_timeout: Duration::from_millis(200),
        ..Limits::default()
    };
    let harness = Embedded::with(limits).await;
    for beginning in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n"] {
        let mut stream = TcpStream::connect(&harness.address)
            .await
            .expect("connected");
        stream.write_all(beginning).await.expect("written");
        let mut answer = Vec::new();
        let _ = within(Duration::from_secs(2), stream.read_to_end(&mut answer)).await;
    }
}
