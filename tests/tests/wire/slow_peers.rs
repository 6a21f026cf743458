//! Peers that send too slowly, too much or too little: every one is answered typed and in time.

use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use harness_proto::v1::{ErrorCode, RunOptions, TraceContext, reply};
use harness_server::Limits;
use harness_tests::raw::{
    Embedded, RawSlot, SOON, ask, asking, hello, payload, reason, refused, typed, within,
};
use prost::Message;
use tokio::net::TcpStream;
use tonic::Code;

/// Opens an Ask by hand and leaves its body to the caller.
async fn open(
    harness: &Embedded,
    timeout: Option<&str>,
) -> (h2::client::ResponseFuture, h2::SendStream<Bytes>) {
    let tcp = TcpStream::connect(&harness.address)
        .await
        .expect("connected");
    let (mut client, connection) = h2::client::handshake(tcp).await.expect("HTTP/2");
    tokio::spawn(connection);
    let mut call = http::Request::post(format!(
        "http://{}/harness.v1.RunService/Ask",
        harness.address
    ))
    .header("content-type", "application/grpc")
    .header("te", "trailers");
    if let Some(timeout) = timeout {
        call = call.header("grpc-timeout", timeout);
    }
    client
        .send_request(call.body(()).expect("valid"), false)
        .expect("open")
}

async fn status(response: h2::client::ResponseFuture, bound: Duration) -> (String, bool) {
    let response = within(bound, response).await.expect("an answer");
    let status = response.headers()["grpc-status"]
        .to_str()
        .expect("text")
        .to_owned();
    (
        status,
        response.headers().contains_key("grpc-status-details-bin"),
    )
}

fn framed(message: &impl Message) -> Bytes {
    let encoded = message.encode_to_vec();
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(u32::try_from(encoded.len()).expect("small"));
    framed.extend_from_slice(&encoded);
    framed.freeze()
}

#[tokio::test]
async fn a_body_that_never_comes_is_answered_at_the_calls_deadline() {
    let harness = Embedded::start().await;
    let (response, _body) = open(&harness, Some("300m")).await;
    assert_eq!(
        status(response, Duration::from_secs(2)).await,
        ("4".to_owned(), true)
    );
}

#[tokio::test]
async fn a_body_that_never_comes_is_not_waited_for_for_ever() {
    let limits = Limits {
        body_timeout: Duration::from_millis(200),
        ..Limits::default()
    };
    let harness = Embedded::with(limits).await;
    let (response, _body) = open(&harness, None).await;
    assert_eq!(
        status(response, Duration::from_secs(2)).await,
        ("4".to_owned(), true)
    );
}

#[tokio::test]
async fn the_calls_deadline_counts_from_its_beginning_not_from_its_body() {
    let harness = Embedded::start().await;
    let _slot = RawSlot::attach(harness.connect().await, hello("slow")).await;
    let start = Instant::now();
    let (response, mut body) = open(&harness, Some("600m")).await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    let request = ask("slow", "1", Duration::from_secs(30));
    body.send_data(framed(&request), true).expect("sent");
    assert_eq!(status(response, SOON).await, ("4".to_owned(), true));
    assert!(
        start.elapsed() < Duration::from_millis(900),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn a_reply_that_is_not_read_is_not_kept_for_ever() {
    let limits = Limits {
        body_timeout: Duration::from_millis(300),
        ..Limits::default()
    };
    let harness = Embedded::with(limits).await;
    let mut slot = RawSlot::attach(harness.connect().await, hello("big")).await;
    let (response, mut body) = open(&harness, None).await;
    body.send_data(framed(&ask("big", "1", SOON)), true)
        .expect("sent");
    let request = slot.request().await;
    slot.reply(&request, &format!("\"{}\"", "x".repeat(1 << 20)))
        .await;
    let mut unread = within(SOON, response).await.expect("headers").into_body();
    // The window takes 64 KiB; nothing of it is given back.
    let ended = within(SOON, async {
        while let Some(data) = unread.data().await {
            if data.is_err() {
                return true;
            }
        }
        false
    })
    .await;
    assert!(ended, "the stream was reset");
}

#[tokio::test]
async fn what_goes_around_a_payload_is_bounded_too() {
    let harness = Embedded::start().await;
    let _slot = RawSlot::attach(harness.connect().await, hello("echo")).await;
    let mut typed_payload = ask("echo", "1", SOON);
    typed_payload.payload = Some(harness_proto::v1::Payload {
        content_type: "x".repeat(1000),
        ..payload("1")
    });
    let mut traced = ask("echo", "1", SOON);
    traced.options = Some(RunOptions {
        trace: Some(TraceContext {
            traceparent: "00-1-2-01".into(),
            tracestate: "x".repeat(1_000_000),
        }),
        ..RunOptions::default()
    });
    for (request, part) in [(typed_payload, "content_type"), (traced, "tracestate")] {
        let status = refused(&harness, request).await;
        let error = typed(&status, Code::InvalidArgument, ErrorCode::InvalidRequest);
        assert!(error.message.contains(part), "{}", error.message);
    }
}

#[tokio::test]
async fn an_error_of_a_worker_is_bounded_like_any_frame() {
    let harness = Embedded::start().await;
    let error = |bytes: usize| {
        reply::Outcome::Error(harness_proto::v1::Error {
            message: "x".repeat(bytes),
            details: Some(payload(&format!("\"{}\"", "y".repeat(100_000)))),
            ..harness_proto::v1::Error::default()
        })
    };
    let mut slot = RawSlot::attach(harness.connect().await, hello("echo")).await;
    let asked = asking(&harness, "echo", SOON).await;
    let request = slot.request().await;
    slot.reply_as(&request, 1, error(200_000)).await;
    let status = asked.await.expect("no panic").expect_err("the error");
    assert!(typed(&status, Code::Unknown, ErrorCode::AgentError).truncated);

    let asked = asking(&harness, "echo", SOON).await;
    let request = slot.request().await;
    slot.reply_as(&request, 1, error(4 << 20)).await;
    assert_eq!(reason(&slot.end().await), "FRAME_TOO_LARGE");
    let status = asked.await.expect("no panic").expect_err("too large");
    let _ = typed(&status, Code::ResourceExhausted, ErrorCode::PayloadTooLarge);
}
