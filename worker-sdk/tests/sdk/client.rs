//! The caller's side.

use std::error::Error as _;
use std::time::Duration;

use harness_proto::v1;
use prost::Message as _;
use tonic::{Code, Status};
use tonic_types::pb;
use worker_sdk::client::RetryPolicy;
use worker_sdk::{Answer, Error, ErrorKind, Harness, Payload};

use crate::fake::{Asked, Fake, within};

fn answer(json: &'static str) -> v1::AskResponse {
    let payload = v1::Payload {
        content_type: "application/json".to_owned(),
        data: json.into(),
    };
    v1::AskResponse {
        run_id: "run".to_owned(),
        payload: Some(payload),
        attempt: 2,
    }
}

/// Asks, and lets `answer` answer.
async fn ask<R: worker_sdk::payload::FromPayload + Send + 'static>(
    answer: impl FnOnce(Asked) + Send,
) -> Result<Answer<R>, Error> {
    let mut fake = Fake::start().await;
    let harness = Harness::connect(&fake.address).await?;
    let asking = tokio::spawn(harness.ask("echo", "hello").into_future());
    answer(within("ask", fake.asks.recv()).await.unwrap());
    within("answer", asking).await.unwrap()
}

fn refuse(status: Status) -> impl FnOnce(Asked) {
    move |asked| asked.answer.send(Err(status)).unwrap()
}

#[tokio::test]
async fn an_ask_sends_its_timeout_and_a_deadline_a_second_later() {
    let answered = ask::<String>(|asked| {
        assert_eq!(asked.request.agent, "echo");
        assert_eq!(asked.request.payload.as_ref().unwrap().data, "\"hello\"");
        let options = asked.request.options.as_ref().unwrap();
        assert_eq!(options.timeout.unwrap().seconds, 60);
        assert_eq!(asked.grpc_timeout.as_deref(), Some("61000000u"));
        asked.answer.send(Ok(answer("\"hi\""))).unwrap();
    });
    let answered = answered.await.unwrap();
    assert_eq!(
        (answered.value.as_str(), answered.run_id.as_str()),
        ("hi", "run")
    );
    assert_eq!(answered.attempt, 2);
}

#[tokio::test]
async fn options_travel_and_a_raw_answer_is_what_came() {
    let mut fake = Fake::start().await;
    let harness = Harness::lazy(&fake.address).unwrap();
    let ask = harness
        .ask::<Payload>("echo", Payload::text("raw"))
        .timeout(Duration::from_millis(1500))
        .metadata("tenant", "a")
        .selector("gpu", "b")
        .priority(-3)
        .retry(
            RetryPolicy::attempts(4)
                .attempt_timeout(Duration::from_secs(1))
                .backoff(Duration::from_millis(5), Duration::from_millis(9))
                .multiplier(3.0)
                .never_after("Hopeless"),
        )
        .namespace("space")
        .trace_context("00-1-2-01", "k=v")
        .wait_for_agent();
    let asking = tokio::spawn(ask.into_future());
    let asked = within("ask", fake.asks.recv()).await.unwrap();
    let payload = asked.request.payload.unwrap();
    assert_eq!(payload.content_type, "text/plain; charset=utf-8");
    let options = asked.request.options.unwrap();
    assert_eq!(
        options.timeout.unwrap(),
        Duration::from_millis(1500).try_into().unwrap()
    );
    assert_eq!(
        (
            options.metadata["tenant"].as_str(),
            options.selector["gpu"].as_str()
        ),
        ("a", "b")
    );
    let policy = options.retry_policy.unwrap();
    assert_eq!((options.priority, policy.max_attempts), (-3, 4));
    assert_eq!(policy.attempt_timeout.unwrap().seconds, 1);
    let waits = [policy.initial_backoff, policy.max_backoff].map(|wait| wait.unwrap().nanos);
    assert_eq!((waits, policy.multiplier), ([5_000_000, 9_000_000], 3.0));
    assert_eq!(policy.non_retryable_types, ["Hopeless"]);
    assert_eq!(options.parent, None);
    assert_eq!(
        (options.namespace.as_str(), options.wait_for_agent),
        ("space", true)
    );
    assert_eq!(options.trace.unwrap().traceparent, "00-1-2-01");
    asked.answer.send(Ok(answer("{not json"))).unwrap();
    let answered = within("answer", asking).await.unwrap().unwrap();
    assert_eq!(answered.value.data(), b"{not json");
}

#[tokio::test]
async fn an_error_in_the_details_is_what_the_caller_gets() {
    let cause = v1::Error {
        r#type: "Socket".to_owned(),
        message: "reset".to_owned(),
        ..Default::default()
    };
    let told = v1::Error {
        code: v1::ErrorCode::AgentError.into(),
        r#type: "RateLimited".to_owned(),
        message: "slow down".to_owned(),
        retryable: true,
        retry_after: Some(Duration::from_secs(2).try_into().unwrap()),
        details: Some(v1::Payload {
            content_type: String::new(),
            data: "7".into(),
        }),
        cause: Some(Box::new(cause)),
        run_id: "run".to_owned(),
        attempt: 3,
        truncated: true,
    };
    let error = ask::<String>(refuse(with_details(Code::Unknown, &told)))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AgentError);
    assert_eq!(
        (error.code_name(), error.agent_type()),
        ("AGENT_ERROR", "RateLimited")
    );
    assert_eq!(
        (error.to_string().as_str(), error.message()),
        ("slow down", "slow down")
    );
    assert!(error.retryable() && error.truncated());
    assert_eq!(error.retry_after(), Some(Duration::from_secs(2)));
    assert_eq!(error.details().unwrap().to_json::<i32>().unwrap(), 7);
    assert_eq!((error.run_id(), error.attempt()), ("run", 3));
    assert_eq!(error.source().unwrap().to_string(), "Socket: reset");
}

#[tokio::test]
async fn an_unknown_code_counts_by_its_grpc_status_and_is_not_retryable() {
    let told = v1::Error {
        code: 999,
        message: "new".to_owned(),
        retryable: true,
        ..Default::default()
    };
    let status = with_details(Code::PermissionDenied, &told);
    let error = ask::<String>(refuse(status)).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.unknown_code()),
        (ErrorKind::PermissionDenied, Some(999))
    );
    assert!(!error.retryable());
}

fn with_details(code: Code, told: &v1::Error) -> Status {
    let any = prost_types::Any {
        type_url: "type.googleapis.com/harness.v1.Error".to_owned(),
        value: told.encode_to_vec(),
    };
    let details = pb::Status {
        code: code as i32,
        message: told.message.clone(),
        details: vec![any],
    };
    Status::with_details(code, told.message.clone(), details.encode_to_vec().into())
}

#[tokio::test]
async fn statuses_without_details_are_told_apart() {
    for (status, kind) in [
        // What a tonic server makes of an elapsed grpc-timeout.
        (
            Status::cancelled("Timeout expired"),
            ErrorKind::DeadlineExceeded,
        ),
        (Status::cancelled("a proxy gave up"), ErrorKind::Cancelled),
        (
            Status::deadline_exceeded("late"),
            ErrorKind::DeadlineExceeded,
        ),
        (Status::unimplemented(""), ErrorKind::Unimplemented),
        (Status::unavailable("bad gateway"), ErrorKind::Transport),
    ] {
        assert_eq!(
            ask::<String>(refuse(status)).await.unwrap_err().kind(),
            kind
        );
    }
}

#[tokio::test]
async fn a_harness_that_never_answers_is_deadline_exceeded() {
    let mut fake = Fake::start().await;
    let harness = Harness::connect(&fake.address).await.unwrap();
    let ask = harness
        .ask::<String>("echo", &1)
        .timeout(Duration::from_millis(10));
    let asking = tokio::spawn(ask.into_future());
    let asked = within("ask", fake.asks.recv()).await.unwrap();
    let error = within("answer", asking).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
    drop(asked);
}

#[tokio::test]
async fn dropping_an_ask_hangs_up() {
    let mut fake = Fake::start().await;
    let harness = Harness::connect(&fake.address).await.unwrap();
    let asking = tokio::spawn(harness.ask::<String>("echo", &1).into_future());
    let mut asked = within("ask", fake.asks.recv()).await.unwrap();
    asking.abort();
    within("hang-up", asked.answer.closed()).await;
}

#[tokio::test]
async fn an_answer_of_another_type_is_a_decode_error_that_names_the_run() {
    let answered = ask::<u32>(|asked| asked.answer.send(Ok(answer("\"text\""))).unwrap());
    let error = answered.await.unwrap_err();
    assert_eq!((error.kind(), error.run_id()), (ErrorKind::Decode, "run"));
}

#[tokio::test]
async fn an_address_where_nothing_answers_is_unreachable_with_its_cause() {
    let eager = Harness::connect("http://127.0.0.1:1").await.unwrap_err();
    let harness = Harness::lazy("127.0.0.1:1").unwrap();
    let lazy = harness.ask::<String>("echo", &1).await.unwrap_err();
    let folder = tempfile::tempdir().unwrap();
    let path = format!("unix:{}/none.sock", folder.path().display());
    let unix = Harness::connect(&path).await.unwrap_err();
    for (error, address, why) in [
        (eager, "http://127.0.0.1:1", "refused"),
        (lazy, "http://127.0.0.1:1", "refused"),
        (unix, path.as_str(), "No such file"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
        assert!(error.retryable());
        assert_eq!(
            error.to_string(),
            format!("no harness answers at {address}")
        );
        let mut chain = String::new();
        let mut next = error.source();
        while let Some(cause) = next {
            chain.push_str(&cause.to_string());
            next = cause.source();
        }
        assert!(chain.contains(why), "{chain}");
    }
}
