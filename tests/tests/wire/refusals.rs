//! What a worker may not send: each bad hello and each bad frame over a real socket, with the end
//! it gets and what its run's caller is told.

use std::time::Duration;

use harness_proto::v1::{
    self, Append, Entry, ErrorCode, Hello, Leave, Reply, Resume, WorkerHeartbeat,
    attach_request::Frame, entry, hello, reply,
};
use harness_server::Limits;
use harness_tests::raw::{
    Embedded, RawSlot, SOON, asking, eventually, hello as minimal, output, payload, reason, typed,
};
use tonic::Code;

#[tokio::test]
async fn each_bad_hello_is_refused_with_its_reason() {
    let limits = Limits {
        hello_timeout: Duration::from_millis(200),
        ..Limits::default()
    };
    let harness = Embedded::with(limits).await;
    let cases: [(Option<Frame>, Code, &str); 8] = [
        (None, Code::DeadlineExceeded, "NO_HELLO"),
        (
            Some(Frame::Leave(Leave {})),
            Code::InvalidArgument,
            "INVALID_HELLO",
        ),
        (
            Some(Frame::Hello(Hello {
                protocol_version: 2,
                ..minimal("a")
            })),
            Code::FailedPrecondition,
            "UNSUPPORTED_PROTOCOL",
        ),
        (
            Some(Frame::Hello(minimal("Not A Name"))),
            Code::InvalidArgument,
            "INVALID_HELLO",
        ),
        (
            Some(Frame::Hello(Hello {
                worker: None,
                ..minimal("a")
            })),
            Code::InvalidArgument,
            "INVALID_HELLO",
        ),
        (
            Some(with_schema("{")),
            Code::InvalidArgument,
            "INVALID_HELLO",
        ),
        (
            Some(with_schema("{\"$ref\":\"http://127.0.0.1:1/\"}")),
            Code::InvalidArgument,
            "INVALID_HELLO",
        ),
        (
            Some(Frame::Hello(Hello {
                previous: Some(hello::Previous::Resume(Resume::default())),
                ..minimal("a")
            })),
            Code::Aborted,
            "NOT_YOURS",
        ),
    ];
    let channel = harness.connect().await;
    for (frame, code, expected) in cases {
        let mut slot = RawSlot::open(channel.clone()).await;
        if let Some(frame) = frame {
            slot.send(frame).await;
        }
        let end = slot.end().await;
        assert_eq!(
            (end.code(), reason(&end).as_str()),
            (code, expected),
            "{}",
            end.message()
        );
    }
}

fn with_schema(text: &str) -> Frame {
    let mut hello = minimal("a");
    if let Some(agent) = &mut hello.agent {
        agent.request_schema = text.to_owned().into();
    }
    Frame::Hello(hello)
}

/// What a frame that breaks a rule looks like, given the request in the slot.
type Bad = fn(&v1::Request) -> Option<Frame>;

/// Each with the reason of the end it gets.
const BAD_FRAMES: [(Bad, &str); 7] = [
    (|_| Some(Frame::Hello(minimal("odd"))), "PROTOCOL_VIOLATION"),
    (|_| None, "PROTOCOL_VIOLATION"),
    (|request| Some(output(request, 2, 1)), "PROTOCOL_VIOLATION"),
    (
        |request| Some(append(request, entry::Kind::Step(v1::Step::default()))),
        "PROTOCOL_VIOLATION",
    ),
    (
        |request| {
            Some(append(
                request,
                entry::Kind::RunEnded(v1::RunEnded::default()),
            ))
        },
        "PROTOCOL_VIOLATION",
    ),
    (|_| Some(heartbeat_of_another_run()), "WRONG_ATTEMPT"),
    (
        |request| Some(reply_of_attempt(request, 9)),
        "WRONG_ATTEMPT",
    ),
];

fn append(request: &v1::Request, kind: entry::Kind) -> Frame {
    Frame::Append(Append {
        run_id: request.run_id.clone(),
        attempt: 1,
        worker_seq: 1,
        entry: Some(Entry { kind: Some(kind) }),
    })
}

fn heartbeat_of_another_run() -> Frame {
    let run_id = uuid::Uuid::now_v7().to_string();
    Frame::Heartbeat(WorkerHeartbeat { run_id, attempt: 1 })
}

fn reply_of_attempt(request: &v1::Request, attempt: u32) -> Frame {
    Frame::Reply(Reply {
        run_id: request.run_id.clone(),
        attempt,
        worker_seq: 1,
        outcome: Some(reply::Outcome::Value(payload("1"))),
    })
}

#[tokio::test]
async fn each_bad_frame_fails_the_run_and_ends_the_call_with_its_reason() {
    let harness = Embedded::start().await;
    for (number, (bad, expected)) in BAD_FRAMES.into_iter().enumerate() {
        let mut slot = RawSlot::attach(harness.connect().await, minimal("odd")).await;
        let asked = asking(&harness, "odd", SOON).await;
        let request = slot.request().await;
        match bad(&request) {
            Some(frame) => slot.send(frame).await,
            None => slot.send_unknown().await,
        }
        let end = slot.end().await;
        let code = match expected {
            "WRONG_ATTEMPT" => Code::FailedPrecondition,
            _ => Code::InvalidArgument,
        };
        assert_eq!(
            (end.code(), reason(&end).as_str()),
            (code, expected),
            "case {number}: {end:?}"
        );
        let status = asked.await.expect("no panic").expect_err("failed");
        let _ = typed(&status, Code::Internal, ErrorCode::ProtocolViolation);
    }
}

#[tokio::test]
async fn a_reply_without_a_request_names_both() {
    let harness = Embedded::start().await;
    let mut slot = RawSlot::attach(harness.connect().await, minimal("eager")).await;
    slot.send(Frame::Reply(Reply {
        run_id: uuid::Uuid::now_v7().to_string(),
        attempt: 3,
        worker_seq: 1,
        outcome: Some(reply::Outcome::Value(payload("1"))),
    }))
    .await;
    let end = slot.end().await;
    assert_eq!(
        (end.code(), reason(&end).as_str()),
        (Code::FailedPrecondition, "WRONG_ATTEMPT")
    );
    assert!(end.message().contains("attempt 3") && end.message().contains("no request"));
}

#[tokio::test]
async fn frames_over_the_limit_end_the_call_and_not_the_connection() {
    let harness = Embedded::start().await;
    let channel = harness.connect().await;
    let mut neighbour = RawSlot::attach(channel.clone(), minimal("echo")).await;
    for bytes in [4 << 20, 6 << 20] {
        let mut slot = RawSlot::attach(channel.clone(), minimal("big")).await;
        let asked = asking(&harness, "big", SOON).await;
        let request = slot.request().await;
        slot.reply(&request, &format!("\"{}\"", "x".repeat(bytes)))
            .await;
        let end = slot.end().await;
        assert_eq!(end.code(), Code::ResourceExhausted, "{bytes}: {end:?}");
        assert_eq!(reason(&end), "FRAME_TOO_LARGE");
        let status = asked.await.expect("no panic").expect_err("too large");
        let error = typed(&status, Code::ResourceExhausted, ErrorCode::PayloadTooLarge);
        assert!(error.message.contains("limit"), "{}", error.message);
    }
    let asked = asking(&harness, "echo", SOON).await;
    let request = neighbour.request().await;
    neighbour.reply(&request, "1").await;
    assert!(asked.await.expect("no panic").is_ok());
}

#[tokio::test]
async fn a_worker_beyond_its_slots_is_told_so() {
    let limits = Limits {
        worker_slots: 2,
        ..Limits::default()
    };
    let harness = Embedded::with(limits).await;
    let channel = harness.connect().await;
    let hello = minimal("echo");
    let _first = RawSlot::attach(channel.clone(), hello.clone()).await;
    let second = RawSlot::attach(channel.clone(), hello.clone()).await;
    let mut third = RawSlot::open(channel.clone()).await;
    third.send(Frame::Hello(hello.clone())).await;
    let end = third.end().await;
    assert_eq!(
        (end.code(), reason(&end).as_str()),
        (Code::ResourceExhausted, "TOO_MANY")
    );
    drop(second);
    eventually(SOON, "the place is free again", || {
        let (channel, hello) = (channel.clone(), hello.clone());
        async move {
            let mut slot = RawSlot::open(channel).await;
            slot.send(Frame::Hello(hello)).await;
            slot.inbound.message().await.is_ok()
        }
    })
    .await;
}
