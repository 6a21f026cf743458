//! Facts about the transport that the protocol relies on: each test fails without the setting or
//! the care it is about.

use std::future::poll_fn;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use harness_proto::v1::{AttachRequest, ListAgentsRequest, attach_request::Frame};
use harness_server::Limits;
use harness_tests::http2::{
    ACK, END_HEADERS, GOAWAY, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS, call_headers, put_frame,
};
use harness_tests::raw::{Embedded, RawSlot, SOON, ask, eventually, hello, runs, within};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CANCEL: u32 = 8;

#[tokio::test]
async fn a_thousand_slots_and_asks_beside_them_share_one_connection() {
    let harness = Embedded::start().await;
    let channel = harness.connect().await;
    let hello = hello("echo");
    let mut slots = Vec::new();
    for _ in 0..1_000 {
        slots.push(RawSlot::attach(channel.clone(), hello.clone()).await);
    }
    let mut client = runs(&channel);
    let asked = tokio::spawn(async move { client.ask(ask("echo", "1", SOON)).await });
    // The slot that is free longest is the first.
    let request = slots[0].request().await;
    slots[0].reply(&request, "2").await;
    assert!(asked.await.expect("no panic").is_ok());
}

#[tokio::test]
async fn a_burst_of_hang_ups_leaves_the_other_calls_of_its_connection_alone() {
    let harness = Embedded::start().await;
    let channel = harness.connect().await;
    let mut slot = RawSlot::attach(channel.clone(), hello("echo")).await;
    let mut client = runs(&channel);
    let innocent = tokio::spawn(async move { client.ask(ask("echo", "1", SOON)).await });
    let request = slot.request().await;

    let mut burst = tokio::task::JoinSet::new();
    for _ in 0..3_000 {
        let mut client = runs(&channel);
        burst.spawn(async move { client.ask(ask("echo", "2", SOON)).await.is_ok() });
    }
    // Each is polled once, so that its call is under way, then all hang up together.
    tokio::task::yield_now().await;
    burst.shutdown().await;

    slot.reply(&request, "1").await;
    let answer = within(SOON, innocent).await.expect("no panic");
    assert!(answer.is_ok(), "the innocent call was answered: {answer:?}");
    let mut client = runs(&channel);
    let after = tokio::spawn(async move { client.ask(ask("echo", "3", SOON)).await });
    let request = slot.request().await;
    slot.reply(&request, "3").await;
    assert!(
        after.await.expect("no panic").is_ok(),
        "the slot of the connection lives too"
    );
}

#[tokio::test]
async fn the_harness_pings_a_quiet_peer_and_drops_one_that_does_not_answer() {
    let limits = Limits {
        keepalive_interval: Duration::from_millis(100),
        keepalive_timeout: Duration::from_millis(200),
        ..Limits::default()
    };
    let harness = Embedded::with(limits).await;
    let mut stream = TcpStream::connect(&harness.address)
        .await
        .expect("connected");
    stream.write_all(PREFACE).await.expect("written");
    stream.write_all(&SETTINGS).await.expect("written");
    let mut pinged = false;
    within(SOON, async {
        while let Some((kind, ..)) = read_frame(&mut stream).await {
            pinged |= kind == PING;
        }
    })
    .await;
    assert!(pinged, "pinged, then closed");
}

#[tokio::test]
async fn the_end_of_a_call_is_not_stuck_behind_a_request_the_worker_does_not_read() {
    let harness = Embedded::start().await;
    let tcp = TcpStream::connect(&harness.address)
        .await
        .expect("connected");
    let (mut client, connection) = h2::client::Builder::new()
        .initial_window_size(65_535)
        .initial_connection_window_size(1 << 20)
        .handshake::<_, Bytes>(tcp)
        .await
        .expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let call = http::Request::post(format!(
        "http://{}/harness.v1.WorkerService/Attach",
        harness.address
    ))
    .header("content-type", "application/grpc")
    .header("te", "trailers")
    .body(())
    .expect("a valid request");
    let (response, mut frames) = client.send_request(call, false).expect("the call opens");
    frames
        .send_data(grpc_frame(&Frame::Hello(hello("deaf"))), false)
        .expect("sent");
    let mut inbound = within(SOON, response).await.expect("headers").into_body();
    // The welcome is read, so that the request is written; nothing after it is.
    let welcome = within(SOON, inbound.data())
        .await
        .expect("a frame")
        .expect("welcome");
    assert!(!welcome.is_empty());

    let big = format!("\"{}\"", "x".repeat(300_000));
    let mut caller = runs(&harness.connect().await);
    let start = Instant::now();
    let status = caller
        .ask(ask("deaf", &big, Duration::from_millis(300)))
        .await
        .expect_err("the deadline");
    assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
    let reset = within(Duration::from_secs(2), poll_fn(|cx| frames.poll_reset(cx))).await;
    assert!(reset.is_ok(), "the stream was reset: {reset:?}");
    // What the worker has never seen it owes no released for.
    let admin = harness.connect().await;
    eventually(SOON, "nothing is owed", || {
        let mut admin = harness_tests::raw::admin(&admin);
        async move {
            let agents = admin.list_agents(ListAgentsRequest::default()).await;
            agents.is_ok_and(|agents| agents.get_ref().agents[0].unreleased == 0)
        }
    })
    .await;
    assert!(start.elapsed() < Duration::from_secs(2));
    connection.abort();
}

fn grpc_frame(frame: &Frame) -> Bytes {
    let message = AttachRequest {
        frame: Some(frame.clone()),
    }
    .encode_to_vec();
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).expect("a small message"));
    framed.extend_from_slice(&message);
    framed.freeze()
}

#[tokio::test]
async fn calls_reset_before_the_harness_saw_them_do_not_end_the_connection() {
    let harness = Embedded::start().await;
    let mut stream = TcpStream::connect(&harness.address)
        .await
        .expect("connected");
    let mut burst = BytesMut::from(PREFACE);
    burst.extend_from_slice(&SETTINGS);
    let headers = call_headers("RunService/Ask");
    for number in 0..500_u32 {
        let id = 2 * number + 1;
        put_frame(&mut burst, HEADERS, END_HEADERS, id, &headers);
        put_frame(&mut burst, RST_STREAM, 0, id, &CANCEL.to_be_bytes());
    }
    put_frame(&mut burst, PING, 0, 0, b"are you?");
    stream.write_all(&burst).await.expect("written");
    let alive = within(SOON, async {
        loop {
            let (kind, flags, _) = read_frame(&mut stream).await?;
            match (kind, flags) {
                (GOAWAY, _) => return None,
                (PING, ACK) => return Some(()),
                _ => {}
            }
        }
    });
    assert!(
        alive.await.is_some(),
        "the connection answers after the burst"
    );
}

/// Type, flags and payload of the next frame; none when the connection is closed.
async fn read_frame(stream: &mut TcpStream) -> Option<(u8, u8, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.ok()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload).await.ok()?;
    Some((head[3], head[4], payload))
}

#[tokio::test]
async fn garbage_in_a_call_is_answered_typed() {
    let harness = Embedded::start().await;
    // A known rpc with bytes that are no message: field 1 says 100 bytes, one comes.
    let status = raw_call(&harness, "RunService/Ask", &[0x0a, 100, 1]).await;
    assert_eq!(status.0, "3", "{status:?}");
    assert!(status.1, "typed");
    let status = raw_call(&harness, "RunService/NoSuch", &[]).await;
    assert_eq!(status.0, "12", "{status:?}");
    assert!(status.1, "typed");
}

/// Calls with raw bytes; the gRPC status and whether it has details.
async fn raw_call(harness: &Embedded, rpc: &str, message: &[u8]) -> (String, bool) {
    let tcp = TcpStream::connect(&harness.address)
        .await
        .expect("connected");
    let (mut client, connection) = h2::client::handshake(tcp).await.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let call = http::Request::post(format!("http://{}/harness.v1.{rpc}", harness.address))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .expect("a valid request");
    let (response, mut body) = client.send_request(call, false).expect("the call opens");
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).expect("a small message"));
    framed.extend_from_slice(message);
    body.send_data(framed.freeze(), true).expect("sent");
    let response = within(SOON, response).await.expect("headers");
    let status = response.headers()["grpc-status"]
        .to_str()
        .expect("text")
        .to_owned();
    let typed = response.headers().contains_key("grpc-status-details-bin");
    connection.abort();
    (status, typed)
}

#[tokio::test]
async fn a_caller_that_vanishes_frees_the_slot() {
    let harness = Embedded::start().await;
    let mut slot = RawSlot::attach(harness.connect().await, hello("echo")).await;
    let channel = harness.connect().await;
    let mut client = runs(&channel);
    let asked = tokio::spawn(async move { client.ask(ask("echo", "1", SOON)).await });
    let _ = slot.request().await;
    asked.abort();
    drop(channel);
    let _ = slot.end().await;
    let admin = harness.connect().await;
    eventually(SOON, "no slot is busy", || {
        let mut admin = harness_tests::raw::admin(&admin);
        async move {
            let agents = admin.list_agents(ListAgentsRequest::default()).await;
            agents.is_ok_and(|agents| agents.get_ref().agents[0].slots_busy == 0)
        }
    })
    .await;
}
