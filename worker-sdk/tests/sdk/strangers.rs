//! Ports behind which there is no harness.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tonic::Status;
use worker_sdk::{Error, ErrorKind, Harness};

use crate::fake::{Fake, within};

async fn asked(harness: &Harness, timeout: Duration) -> Error {
    let ask = harness.ask::<String>("echo", &1).timeout(timeout);
    within("answer", ask.into_future()).await.unwrap_err()
}

#[tokio::test]
async fn a_port_that_takes_the_connection_and_says_nothing_is_no_harness() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let harness = Harness::lazy(&address).unwrap();
    let error = asked(&harness, Duration::from_millis(50)).await;
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
    assert!(error.message().contains("no harness answers"), "{error}");
    let error = within("end", Harness::connect(&address)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
}

#[tokio::test]
async fn a_port_that_hangs_up_at_once_is_no_harness() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let closing = tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            drop(connection);
        }
    });
    let error = within("end", Harness::connect(&address)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
    closing.abort();
}

#[tokio::test]
async fn what_an_http_1_server_says_is_the_transports_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let mut preface = [0; 24];
            let _ = connection.read_exact(&mut preface).await;
            let refusal = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
            let _ = connection.write_all(refusal).await;
            // Closed when the client has gone.
            let _ = connection.read_to_end(&mut Vec::new()).await;
        }
    });
    let harness = Harness::lazy(&address).unwrap();
    let error = asked(&harness, Duration::from_secs(10)).await;
    assert_eq!(error.kind(), ErrorKind::Transport, "{error:?}");
    server.abort();
}

#[tokio::test]
async fn an_internal_error_that_is_not_the_harnesss_own_is_the_transports() {
    let mut fake = Fake::start().await;
    let harness = Harness::connect(&fake.address).await.unwrap();
    let asking = tokio::spawn(async move { asked(&harness, Duration::from_secs(10)).await });
    let one = within("ask", fake.asks.recv()).await.unwrap();
    one.answer
        .send(Err(Status::internal("h2 protocol error")))
        .unwrap();
    let error = within("answer", asking).await.unwrap();
    assert_eq!(error.kind(), ErrorKind::Transport, "{error:?}");
}
