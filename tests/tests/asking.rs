//! Asking over a real socket: limits, schemas, unknown and full agents, deadlines, hang-ups, and
//! what a port says to those who do not speak its protocol.

use std::time::{Duration, Instant};

use harness_proto::v1::{
    self, AgentInfo, AttemptRef, ErrorCode, Hello, RetryPolicy, RunOptions, reply,
};
use harness_server::Limits;
use harness_tests::raw::{
    Embedded, RawSlot, SOON, admin, ask, details, hello, payload, runs, typed, within,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::{Code, Request, Status};

async fn refused(harness: &Embedded, request: v1::AskRequest) -> Status {
    let mut client = runs(&harness.connect().await).max_encoding_message_size(64 << 20);
    within(SOON, client.ask(request))
        .await
        .expect_err("an error")
}

fn with(options: RunOptions) -> v1::AskRequest {
    v1::AskRequest {
        options: Some(options),
        ..ask("echo", "1", SOON)
    }
}

fn schema_hello(agent: &str, request_schema: &str, reply_schema: &str) -> Hello {
    Hello {
        agent: Some(AgentInfo {
            name: agent.to_owned(),
            request_schema: request_schema.to_owned().into(),
            reply_schema: reply_schema.to_owned().into(),
            ..AgentInfo::default()
        }),
        ..hello(agent)
    }
}

fn run_id(metadata: &tonic::metadata::MetadataMap) -> &str {
    let value = metadata
        .get("harness-run-id")
        .expect("the run's id is there");
    value.to_str().expect("the id is text")
}

#[tokio::test]
async fn an_unknown_agent_is_answered_at_once_with_the_near_name() {
    let limits = Limits {
        connecting_timeout: Duration::ZERO,
        ..Limits::default()
    };
    let harness = Embedded::with(limits).await;
    let _slot = RawSlot::attach(harness.connect().await, hello("summarize")).await;
    let start = Instant::now();
    let status = refused(&harness, ask("sumarize", "1", Duration::from_secs(30))).await;
    assert!(start.elapsed() < Duration::from_secs(1));
    let error = typed(&status, Code::NotFound, ErrorCode::UnknownAgent);
    assert!(
        error.message.contains("did you mean \"summarize\""),
        "{}",
        error.message
    );
    assert!(!error.retryable && !details(&status).retry);
}

#[tokio::test]
async fn just_after_the_start_an_unknown_agent_may_be_one_that_connects() {
    let harness = Embedded::start().await;
    let status = refused(&harness, ask("echo", "1", SOON)).await;
    let error = typed(&status, Code::NotFound, ErrorCode::UnknownAgent);
    assert!(error.retryable && details(&status).retry);
    assert!(
        error.message.contains("may still be connecting"),
        "{}",
        error.message
    );
}

#[tokio::test]
async fn whoever_waits_for_an_agent_is_answered_when_it_comes() {
    let harness = Embedded::start().await;
    let mut request = ask("echo", "1", SOON);
    request.options.get_or_insert_default().wait_for_agent = true;
    let mut client = runs(&harness.connect().await);
    let asked = tokio::spawn(async move { client.ask(request).await });
    let mut slot = RawSlot::attach(harness.connect().await, hello("echo")).await;
    let request = slot.request().await;
    slot.reply(&request, "2").await;
    assert!(asked.await.expect("no panic").is_ok());
}

#[tokio::test]
async fn while_no_slot_is_free_the_deadline_says_where_the_time_went() {
    let harness = Embedded::start().await;
    let mut slot = RawSlot::attach(harness.connect().await, hello("echo")).await;
    let mut client = runs(&harness.connect().await);
    let first = tokio::spawn(async move { client.ask(ask("echo", "1", SOON)).await });
    let request = slot.request().await;
    let status = refused(&harness, ask("echo", "2", Duration::from_millis(300))).await;
    let error = typed(&status, Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
    assert!(
        error.message.contains("queued: its only slot is busy"),
        "{}",
        error.message
    );
    slot.reply(&request, "1").await;
    assert!(first.await.expect("no panic").is_ok());
}

#[tokio::test]
async fn a_full_queue_is_busy_at_once_and_says_when_to_come_back() {
    let limits = Limits {
        queue_runs: 0,
        ..Limits::default()
    };
    let harness = Embedded::with(limits).await;
    let mut slot = RawSlot::attach(harness.connect().await, hello("echo")).await;
    let mut client = runs(&harness.connect().await);
    let first = tokio::spawn(async move { client.ask(ask("echo", "1", SOON)).await });
    let request = slot.request().await;
    let status = refused(&harness, ask("echo", "2", SOON)).await;
    let error = typed(&status, Code::ResourceExhausted, ErrorCode::Busy);
    assert!(error.retry_after.is_some() && details(&status).retry);
    slot.reply(&request, "1").await;
    assert!(first.await.expect("no panic").is_ok());
}

#[tokio::test]
async fn schemas_hold_for_requests_and_replies() {
    let harness = Embedded::start().await;
    let hello = schema_hello(
        "typed",
        r#"{"type":"object","required":["text"],"properties":{"text":{"type":"string"}}}"#,
        r#"{"type":"integer"}"#,
    );
    let mut slot = RawSlot::attach(harness.connect().await, hello).await;
    for bad in ["{\"text\": 5}", "{}", "[]", "{"] {
        let status = refused(&harness, ask("typed", bad, SOON)).await;
        let error = typed(&status, Code::InvalidArgument, ErrorCode::InvalidRequest);
        assert!(error.message.contains("request"), "{}", error.message);
    }
    let mut client = runs(&harness.connect().await);
    let mut again = client.clone();
    let request = ask("typed", "{\"text\":\"x\"}", SOON);
    let bad = request.clone();
    let asked = tokio::spawn(async move { client.ask(bad).await });
    let delivered = slot.request().await;
    slot.reply(&delivered, "\"no number\"").await;
    let status = asked
        .await
        .expect("no panic")
        .expect_err("an invalid reply");
    let error = typed(&status, Code::Internal, ErrorCode::InvalidReply);
    assert!(error.message.contains("type"), "{}", error.message);

    let asked = tokio::spawn(async move { again.ask(request).await });
    let delivered = slot.request().await;
    slot.reply(&delivered, "5").await;
    assert!(
        asked.await.expect("no panic").is_ok(),
        "the slot goes on after a bad reply"
    );
}

#[tokio::test]
async fn a_request_goes_to_the_version_whose_schema_takes_it() {
    let harness = Embedded::start().await;
    let old = schema_hello("v", r#"{"type":"string"}"#, "");
    let new = schema_hello("v", r#"{"type":"integer"}"#, "");
    let _old = RawSlot::attach(harness.connect().await, old).await;
    let mut new = RawSlot::attach(harness.connect().await, new).await;
    let mut client = runs(&harness.connect().await);
    let asked = tokio::spawn(async move { client.ask(ask("v", "5", SOON)).await });
    let request = new.request().await;
    new.reply(&request, "6").await;
    assert!(asked.await.expect("no panic").is_ok());
    let status = refused(&harness, ask("v", "[]", SOON)).await;
    let _ = typed(&status, Code::InvalidArgument, ErrorCode::InvalidRequest);
}

#[tokio::test]
async fn the_agents_error_comes_back_with_its_type_details_and_cause() {
    let harness = Embedded::start().await;
    let mut slot = RawSlot::attach(harness.connect().await, hello("echo")).await;
    let mut client = runs(&harness.connect().await);
    let asked = tokio::spawn(async move { client.ask(ask("echo", "1", SOON)).await });
    let request = slot.request().await;
    let error = v1::Error {
        code: ErrorCode::Internal.into(),
        r#type: "Boom".into(),
        message: "it broke".into(),
        retryable: true,
        details: Some(payload("{\"n\":1}")),
        cause: Some(Box::new(v1::Error {
            message: "the disk".into(),
            ..v1::Error::default()
        })),
        ..v1::Error::default()
    };
    slot.reply_as(&request, 1, reply::Outcome::Error(error))
        .await;
    let status = asked
        .await
        .expect("no panic")
        .expect_err("the agent's error");
    let error = typed(&status, Code::Unknown, ErrorCode::AgentError);
    assert_eq!(
        (error.r#type.as_str(), error.message.as_str()),
        ("Boom", "it broke")
    );
    assert!(error.retryable);
    assert_eq!(error.details.expect("details").data, "{\"n\":1}");
    assert_eq!(error.cause.expect("a cause").message, "the disk");
    assert_eq!((error.run_id, error.attempt), (request.run_id, 1));
}

#[tokio::test]
async fn a_large_error_fits_into_the_trailers() {
    let harness = Embedded::start().await;
    let mut slot = RawSlot::attach(harness.connect().await, hello("echo")).await;
    let mut client = runs(&harness.connect().await);
    let asked = tokio::spawn(async move { client.ask(ask("echo", "1", SOON)).await });
    let request = slot.request().await;
    let error = v1::Error {
        message: "x".repeat(100_000),
        ..v1::Error::default()
    };
    slot.reply_as(&request, 1, reply::Outcome::Error(error))
        .await;
    let status = asked
        .await
        .expect("no panic")
        .expect_err("the agent's error");
    let error = typed(&status, Code::Unknown, ErrorCode::AgentError);
    assert!(error.truncated && error.message.len() <= 1024);
}

#[tokio::test]
async fn fields_and_rpcs_that_are_not_served_are_named() {
    let harness = Embedded::start().await;
    let _slot = RawSlot::attach(harness.connect().await, hello("echo")).await;
    let cases = [
        (
            "selector",
            RunOptions {
                selector: [("gpu".to_owned(), "a100".to_owned())].into(),
                ..RunOptions::default()
            },
        ),
        (
            "priority",
            RunOptions {
                priority: 5,
                ..RunOptions::default()
            },
        ),
        (
            "retry_policy",
            RunOptions {
                retry_policy: Some(RetryPolicy::default()),
                ..RunOptions::default()
            },
        ),
        (
            "parent",
            RunOptions {
                parent: Some(AttemptRef::default()),
                ..RunOptions::default()
            },
        ),
    ];
    for (field, options) in cases {
        let status = refused(&harness, with(options)).await;
        let error = typed(&status, Code::Unimplemented, ErrorCode::Unimplemented);
        assert!(error.message.contains(field), "{}", error.message);
    }
    let channel = harness.connect().await;
    let mut runs = runs(&channel);
    let mut admin = admin(&channel);
    let statuses = [
        (
            "AskStream",
            runs.ask_stream(v1::AskStreamRequest::default()).await.err(),
        ),
        ("AskMany", runs.ask_many(tokio_stream::empty()).await.err()),
        (
            "StartRun",
            runs.start_run(v1::StartRunRequest::default()).await.err(),
        ),
        (
            "GetRun",
            runs.get_run(v1::GetRunRequest::default()).await.err(),
        ),
        (
            "ListRuns",
            runs.list_runs(v1::ListRunsRequest::default()).await.err(),
        ),
        (
            "CancelRun",
            runs.cancel_run(v1::CancelRunRequest::default()).await.err(),
        ),
        (
            "WatchRun",
            runs.watch_run(v1::WatchRunRequest::default()).await.err(),
        ),
        (
            "DrainWorker",
            admin
                .drain_worker(v1::DrainWorkerRequest::default())
                .await
                .err(),
        ),
        (
            "ListPools",
            admin
                .list_pools(v1::ListPoolsRequest::default())
                .await
                .err(),
        ),
        (
            "RestartPool",
            admin
                .restart_pool(v1::RestartPoolRequest::default())
                .await
                .err(),
        ),
    ];
    for (rpc, status) in statuses {
        let status = status.unwrap_or_else(|| panic!("{rpc} is not served yet"));
        let error = typed(&status, Code::Unimplemented, ErrorCode::Unimplemented);
        assert!(error.message.contains(rpc), "{}", error.message);
    }
}

#[tokio::test]
async fn bad_requests_say_what_to_do() {
    let harness = Embedded::start().await;
    let _slot = RawSlot::attach(harness.connect().await, hello("echo")).await;
    let pairs = |count: usize, size: usize| {
        (0..count)
            .map(|n| (format!("k{n}"), "v".repeat(size)))
            .collect()
    };
    let negative = prost_types::Duration {
        seconds: -1,
        nanos: 0,
    };
    let cases = [
        (
            with(RunOptions {
                metadata: pairs(65, 1),
                ..RunOptions::default()
            }),
            "keys",
        ),
        (
            with(RunOptions {
                metadata: pairs(2, 5000),
                ..RunOptions::default()
            }),
            "bytes",
        ),
        (
            with(RunOptions {
                metadata: [("harness-x".to_owned(), String::new())].into(),
                ..RunOptions::default()
            }),
            "harness-",
        ),
        (
            with(RunOptions {
                timeout: Some(negative),
                ..RunOptions::default()
            }),
            "timeout",
        ),
        (
            with(RunOptions {
                namespace: "No Name".into(),
                ..RunOptions::default()
            }),
            "namespace",
        ),
        (v1::AskRequest::default(), "agent is empty"),
    ];
    for (request, part) in cases {
        let status = refused(&harness, request).await;
        let error = typed(&status, Code::InvalidArgument, ErrorCode::InvalidRequest);
        assert!(error.message.contains(part), "{part}: {}", error.message);
    }
}

#[tokio::test]
async fn an_ask_reaches_only_its_own_namespace() {
    let harness = Embedded::start().await;
    let other = Hello {
        namespace: "other".into(),
        ..hello("echo")
    };
    let mut slot = RawSlot::attach(harness.connect().await, other).await;
    let status = refused(&harness, ask("echo", "1", SOON)).await;
    let _ = typed(&status, Code::NotFound, ErrorCode::UnknownAgent);
    let mut client = runs(&harness.connect().await);
    let options = RunOptions {
        namespace: "other".into(),
        ..RunOptions::default()
    };
    let asked = tokio::spawn(async move { client.ask(with(options)).await });
    let request = slot.request().await;
    assert_eq!(
        request.caller.as_ref().map(|c| c.namespace.as_str()),
        Some("other")
    );
    slot.reply(&request, "1").await;
    assert!(asked.await.expect("no panic").is_ok());
}

#[tokio::test]
async fn oversize_requests_are_typed_below_and_above_the_transports_limit() {
    let harness = Embedded::start().await;
    let channel = harness.connect().await;
    let mut slot = RawSlot::attach(channel.clone(), hello("echo")).await;
    for bytes in [4 << 20, 8 << 20] {
        let big = format!("\"{}\"", "x".repeat(bytes));
        let mut client = runs(&channel).max_encoding_message_size(64 << 20);
        let status = within(SOON, client.ask(ask("echo", &big, SOON)))
            .await
            .expect_err("too big");
        let error = typed(&status, Code::ResourceExhausted, ErrorCode::PayloadTooLarge);
        assert!(error.message.contains("limit"), "{}", error.message);
    }
    let mut client = runs(&channel);
    let asked = tokio::spawn(async move { client.ask(ask("echo", "1", SOON)).await });
    let request = slot.request().await;
    slot.reply(&request, "1").await;
    assert!(
        asked.await.expect("no panic").is_ok(),
        "the connection's other calls live"
    );
}

#[tokio::test]
async fn a_request_goes_only_to_slots_it_fits() {
    let harness = Embedded::start().await;
    let small = Hello {
        max_receive_bytes: 2048,
        ..hello("echo")
    };
    let _small = RawSlot::attach(harness.connect().await, small).await;
    let big = format!("\"{}\"", "x".repeat(4000));
    let status = refused(&harness, ask("echo", &big, SOON)).await;
    let error = typed(&status, Code::ResourceExhausted, ErrorCode::PayloadTooLarge);
    assert!(error.message.contains("2048"), "{}", error.message);
    let mut large = RawSlot::attach(harness.connect().await, hello("echo")).await;
    let mut client = runs(&harness.connect().await);
    let asked = tokio::spawn(async move { client.ask(ask("echo", &big, SOON)).await });
    let request = large.request().await;
    large.reply(&request, "1").await;
    assert!(asked.await.expect("no panic").is_ok());
}

#[tokio::test]
async fn the_calls_own_deadline_shortens_the_run_and_the_typed_answer_comes_first() {
    let harness = Embedded::start().await;
    let mut slot = RawSlot::attach(harness.connect().await, hello("slow")).await;
    let mut client = runs(&harness.connect().await);
    let mut request = Request::new(ask("slow", "1", Duration::from_secs(30)));
    request.set_timeout(Duration::from_millis(400));
    let asked = tokio::spawn(async move { client.ask(request).await });
    let delivered = slot.request().await;
    let left: Duration = delivered
        .time_left
        .expect("time left")
        .try_into()
        .expect("a positive duration");
    assert!(left <= Duration::from_millis(390), "{left:?}");
    let status = within(SOON, asked)
        .await
        .expect("no panic")
        .expect_err("deadline");
    let error = typed(&status, Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
    assert!(error.message.contains("running"), "{}", error.message);
}

#[tokio::test]
async fn a_raw_grpc_timeout_is_answered_typed_and_never_by_the_library() {
    let harness = Embedded::start().await;
    let mut slot = RawSlot::attach(harness.connect().await, hello("slow")).await;
    let mut client = runs(&harness.connect().await);
    // The header alone, as a client that does not enforce it itself sends it.
    let mut request = Request::new(ask("slow", "1", Duration::from_secs(30)));
    request
        .metadata_mut()
        .insert("grpc-timeout", "300m".parse().expect("ascii"));
    let asked = tokio::spawn(async move { client.ask(request).await });
    let _ = slot.request().await;
    let status = within(SOON, asked)
        .await
        .expect("no panic")
        .expect_err("deadline");
    let _ = typed(&status, Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
    assert_ne!(status.message(), "Timeout expired");
}

#[tokio::test]
async fn the_run_id_is_in_the_initial_metadata_of_answers_and_errors() {
    let harness = Embedded::start().await;
    let mut slot = RawSlot::attach(harness.connect().await, hello("echo")).await;
    let mut client = runs(&harness.connect().await);
    let mut again = client.clone();
    let asked = tokio::spawn(async move { client.ask(ask("echo", "1", SOON)).await });
    let request = slot.request().await;
    slot.reply(&request, "1").await;
    let answer = asked.await.expect("no panic").expect("answered");
    assert_eq!(run_id(answer.metadata()), request.run_id.as_str());
    let status = again
        .ask(ask("echo", "1", Duration::from_millis(50)))
        .await
        .expect_err("late");
    assert_eq!(
        run_id(status.metadata()),
        details(&status).error.expect("typed").run_id.as_str()
    );
}

#[tokio::test]
async fn http_1_is_told_what_this_port_is() {
    let harness = Embedded::start().await;
    let mut stream = TcpStream::connect(&harness.address)
        .await
        .expect("connected");
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
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
