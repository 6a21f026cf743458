//! Asking over a real socket: limits, schemas, unknown and full agents, deadlines, errors.

use std::time::{Duration, Instant};

use harness_proto::v1::{self, AgentInfo, ErrorCode, Hello, RunOptions, reply};
use harness_server::Limits;
use harness_tests::raw::{
    Embedded, RawSlot, SOON, ask, details, hello, payload, refused, runs, typed, within,
};
use tonic::{Code, Request};

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
    let asked = tokio::spawn(async move {
        client
            .ask(v1::AskRequest {
                options: Some(options),
                ..ask("echo", "1", SOON)
            })
            .await
    });
    let request = slot.request().await;
    assert_eq!(
        request.caller.as_ref().map(|c| c.namespace.as_str()),
        Some("other")
    );
    slot.reply(&request, "1").await;
    assert!(asked.await.expect("no panic").is_ok());
}

#[tokio::test]
async fn the_calls_own_deadline_shortens_the_run_and_the_typed_answer_comes_first() {
    let harness = Embedded::start().await;
    let mut slot = RawSlot::attach(harness.connect().await, hello("slow")).await;
    let mut client = runs(&harness.connect().await);
    let mut request = Request::new(ask("slow", "1", Duration::from_secs(30)));
    // Long enough for a margin (2 %) that a busy machine keeps.
    request.set_timeout(Duration::from_secs(3));
    let asked = tokio::spawn(async move { client.ask(request).await });
    let delivered = slot.request().await;
    let left: Duration = delivered
        .time_left
        .expect("time left")
        .try_into()
        .expect("a positive duration");
    assert!(left <= Duration::from_millis(2_940), "{left:?}");
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
        .insert("grpc-timeout", "3S".parse().expect("ascii"));
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
