//! What a caller may not send, and what is not served: each answer is typed and says what to do.

use harness_proto::v1::{self, AttemptRef, ErrorCode, Hello, RetryPolicy, RunOptions};
use harness_tests::raw::{Embedded, RawSlot, SOON, ask, hello, refused, runs, typed, within};
use tonic::Code;

fn with(options: RunOptions) -> v1::AskRequest {
    v1::AskRequest {
        options: Some(options),
        ..ask("echo", "1", SOON)
    }
}

#[tokio::test]
async fn rpcs_that_are_not_served_are_named() {
    let harness = Embedded::start().await;
    let channel = harness.connect().await;
    let mut runs = runs(&channel);
    let statuses = [
        (
            "StartRun",
            runs.start_run(v1::StartRunRequest::default()).await.err(),
        ),
        (
            "ListRuns",
            runs.list_runs(v1::ListRunsRequest::default()).await.err(),
        ),
    ];
    for (rpc, status) in statuses {
        let status = status.unwrap_or_else(|| panic!("{rpc} is not served yet"));
        let error = typed(&status, Code::Unimplemented, ErrorCode::Unimplemented);
        assert!(error.message.contains(rpc), "{}", error.message);
    }
}

fn bad_placings() -> [(v1::AskRequest, &'static str); 3] {
    [
        (
            with(RunOptions {
                priority: 101,
                ..RunOptions::default()
            }),
            "-100 to 100",
        ),
        (
            with(RunOptions {
                retry_policy: Some(RetryPolicy {
                    max_attempts: 17,
                    ..RetryPolicy::default()
                }),
                ..RunOptions::default()
            }),
            "max_attempts",
        ),
        (
            with(RunOptions {
                parent: Some(AttemptRef {
                    run_id: uuid::Uuid::now_v7().to_string(),
                    attempt: 1,
                }),
                ..RunOptions::default()
            }),
            "does not run now",
        ),
    ]
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
    for (request, part) in cases.into_iter().chain(bad_placings()) {
        let status = refused(&harness, request).await;
        let error = typed(&status, Code::InvalidArgument, ErrorCode::InvalidRequest);
        assert!(error.message.contains(part), "{part}: {}", error.message);
    }
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
