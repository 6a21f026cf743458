//! Plain HTTP on the same port: asking, streaming, health; and the standard gRPC services.

use std::time::Duration;

use harness_proto::v1::{self, reply};
use harness_tests::raw::{Embedded, RawSlot, SOON, eventually, hello, output, within};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// An HTTP/1 answer.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

async fn http(harness: &Embedded, head: &str, body: &str) -> Answer {
    let mut stream = TcpStream::connect(&harness.address)
        .await
        .expect("connected");
    let length = body.len();
    let request = format!(
        "{head} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.expect("written");
    let mut answer = String::new();
    within(2 * SOON, stream.read_to_string(&mut answer))
        .await
        .expect("read");
    let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .expect("a status");
    let body = match head.to_lowercase().contains("transfer-encoding: chunked") {
        true => unchunked(body),
        false => body.to_owned(),
    };
    Answer {
        status,
        head: head.to_lowercase(),
        body,
    }
}

fn unchunked(body: &str) -> String {
    let (mut rest, mut whole) = (body, String::new());
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a chunk size");
        whole.push_str(&after[..size]);
        rest = after[size..].trim_start_matches("\r\n");
    }
    whole
}

fn posting(harness: &Embedded, path: &str, body: &str) -> JoinHandle<Answer> {
    let (address, head, body) = (
        harness.address.clone(),
        format!("POST {path}"),
        body.to_owned(),
    );
    tokio::spawn(async move {
        let harness = Embedded::at(address);
        http(&harness, &head, &body).await
    })
}

#[tokio::test]
async fn a_post_is_answered_with_the_reply_and_its_run() {
    let harness = Embedded::start().await;
    let mut slot = RawSlot::attach(harness.connect().await, hello("echo")).await;
    let posted = posting(&harness, "/v1/agents/echo/ask?timeout=2s", "{\"n\":1}");
    let request = slot.request().await;
    assert_eq!(
        request.payload.as_ref().map(|p| &*p.data),
        Some(&b"{\"n\":1}"[..])
    );
    slot.reply(&request, "{\"m\":2}").await;
    let answer = posted.await.expect("no panic");
    assert_eq!((answer.status, answer.json()), (200, json!({"m": 2})));
    assert!(
        answer.head.contains("content-type: application/json"),
        "{}",
        answer.head
    );
    assert!(
        answer
            .head
            .contains(&format!("harness-run-id: {}", request.run_id))
    );
}

#[tokio::test]
async fn errors_are_the_same_codes_as_json_with_a_mapped_status() {
    let harness = Embedded::start().await;
    let mut slot = RawSlot::attach(harness.connect().await, hello("echo")).await;
    let cases = [
        ("/v1/agents/ecko/ask", "1", 404, "UNKNOWN_AGENT"),
        ("/v1/agents/echo/ask", "{", 400, "INVALID_REQUEST"),
        (
            "/v1/agents/echo/ask?timeout=soon",
            "1",
            400,
            "INVALID_REQUEST",
        ),
        (
            "/v1/agents/echo/ask?tiemout=1s",
            "1",
            400,
            "INVALID_REQUEST",
        ),
        (
            "/v1/agents/echo/ask?timeout=100ms",
            "1",
            504,
            "DEADLINE_EXCEEDED",
        ),
    ];
    for (path, body, status, code) in cases {
        let answer = http(&harness, &format!("POST {path}"), body).await;
        let error = &answer.json()["error"];
        assert_eq!(
            (answer.status, &error["code"]),
            (status, &json!(code)),
            "{path}: {error}"
        );
    }
    let _ = slot.request().await;
    let _ = slot.end().await;
    let big = format!("\"{}\"", "x".repeat(4 << 20));
    let answer = http(&harness, "POST /v1/agents/echo/ask", &big).await;
    assert_eq!(
        (answer.status, &answer.json()["error"]["code"]),
        (413, &json!("PAYLOAD_TOO_LARGE"))
    );

    let mut slot = RawSlot::attach(harness.connect().await, hello("echo")).await;
    let posted = posting(&harness, "/v1/agents/echo/ask", "1");
    let request = slot.request().await;
    let error = v1::Error {
        r#type: "Boom".into(),
        message: "no".into(),
        ..v1::Error::default()
    };
    slot.reply_as(&request, 1, reply::Outcome::Error(error))
        .await;
    let answer = posted.await.expect("no panic");
    let error = &answer.json()["error"];
    assert_eq!(
        (answer.status, &error["code"], &error["type"]),
        (500, &json!("AGENT_ERROR"), &json!("Boom"))
    );
}

#[tokio::test]
async fn hanging_up_on_a_post_reaches_the_worker() {
    let harness = Embedded::start().await;
    let mut slot = RawSlot::attach(harness.connect().await, hello("echo")).await;
    let posted = posting(&harness, "/v1/agents/echo/ask", "1");
    let _ = slot.request().await;
    posted.abort();
    assert_eq!(harness_tests::raw::reason(&slot.end().await), "CANCELLED");
}

#[tokio::test]
async fn a_streamed_post_brings_server_sent_events() {
    let harness = Embedded::start().await;
    let mut slot = RawSlot::attach(harness.connect().await, hello("echo")).await;
    let posted = posting(&harness, "/v1/agents/echo/ask?stream&timeout=3s", "1");
    let request = slot.request().await;
    slot.send(output(&request, 1, 2)).await;
    slot.reply_as(
        &request,
        2,
        reply::Outcome::Value(harness_tests::raw::payload("3")),
    )
    .await;
    let answer = posted.await.expect("no panic");
    assert!(
        answer.head.contains("content-type: text/event-stream"),
        "{}",
        answer.head
    );
    let names: Vec<&str> = answer
        .body
        .lines()
        .filter_map(|line| line.strip_prefix("event: "))
        .collect();
    assert_eq!(
        names,
        ["run", "attempt_started", "output", "reply"],
        "{}",
        answer.body
    );
    assert!(answer.body.contains("data: \"xx\"\n") && answer.body.contains("data: 3\n"));

    let failed = http(&harness, "POST /v1/agents/ecko/ask?stream", "1").await;
    assert!(failed.body.contains("event: error") && failed.body.contains("UNKNOWN_AGENT"));
}

#[tokio::test]
async fn the_harness_says_how_it_is() {
    let harness = Embedded::start().await;
    for (path, part) in [("/", "curl"), ("/healthz", "ok"), ("/readyz", "ready")] {
        let answer = http(&harness, &format!("GET {path}"), "").await;
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.body.contains(part), "{path}: {}", answer.body);
    }
    assert_eq!(http(&harness, "GET /nowhere", "").await.status, 404);
    let mut slot = RawSlot::attach(harness.connect().await, hello("echo")).await;
    let posted = posting(&harness, "/v1/agents/echo/ask", "1");
    let request = slot.request().await;
    let mut kept = TcpStream::connect(&harness.address)
        .await
        .expect("connected");
    harness.leave();
    kept.write_all(b"GET /readyz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        .await
        .expect("written");
    let mut answer = String::new();
    within(SOON, kept.read_to_string(&mut answer))
        .await
        .expect("read");
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    slot.reply(&request, "1").await;
    assert_eq!(posted.await.expect("no panic").status, 200);
    harness.left().await;
}

#[tokio::test]
async fn health_is_per_agent_and_can_be_watched() {
    let harness = Embedded::start().await;
    let mut health = HealthClient::new(harness.connect().await);
    let check = |service: &str| HealthCheckRequest {
        service: service.to_owned(),
    };
    let whole = health.check(check("")).await.expect("known").into_inner();
    assert_eq!(whole.status(), ServingStatus::Serving);
    let unknown = health.check(check("echo")).await.expect_err("unknown");
    assert_eq!(unknown.code(), tonic::Code::NotFound);
    let mut watched = health
        .watch(check("echo"))
        .await
        .expect("open")
        .into_inner();
    let mut told = Vec::new();
    let mut next = async || {
        let answer = within(SOON, watched.message())
            .await
            .expect("no error")
            .expect("not the end");
        answer.status()
    };
    told.push(next().await);
    let slot = RawSlot::attach(harness.connect().await, hello("echo")).await;
    told.push(next().await);
    drop(slot);
    told.push(next().await);
    use ServingStatus::{NotServing, ServiceUnknown, Serving};
    assert_eq!(told, [ServiceUnknown, Serving, NotServing]);
}

#[tokio::test]
async fn reflection_lists_the_services() {
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::{ServerReflectionRequest, server_reflection_response};
    let harness = Embedded::start().await;
    let mut client = ServerReflectionClient::new(harness.connect().await);
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let call = client.server_reflection_info(tokio_stream::once(request));
    let mut answers = within(SOON, call).await.expect("open").into_inner();
    let answer = within(SOON, answers.message())
        .await
        .expect("no error")
        .expect("an answer");
    let Some(server_reflection_response::MessageResponse::ListServicesResponse(list)) =
        answer.message_response
    else {
        panic!("a list")
    };
    let names: Vec<String> = list
        .service
        .into_iter()
        .map(|service| service.name)
        .collect();
    for service in [
        "harness.v1.RunService",
        "harness.v1.WorkerService",
        "grpc.health.v1.Health",
    ] {
        assert!(
            names.iter().any(|name| name == service),
            "{service} in {names:?}"
        );
    }
}

#[tokio::test]
async fn a_kept_connection_is_closed_when_it_is_quiet() {
    let limits = harness_server::Limits {
        hello_timeout: Duration::from_millis(200),
        ..harness_server::Limits::default()
    };
    let harness = Embedded::with(limits).await;
    let mut stream = TcpStream::connect(&harness.address)
        .await
        .expect("connected");
    for _ in 0..2 {
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
            .await
            .expect("written");
        let mut some = [0; 512];
        let read = within(SOON, stream.read(&mut some)).await.expect("read");
        assert!(some[..read].starts_with(b"HTTP/1.1 200"));
    }
    eventually(SOON, "it is closed", || {
        let closed = matches!(stream.try_read(&mut [0; 8]), Ok(0));
        async move { closed }
    })
    .await;
}
