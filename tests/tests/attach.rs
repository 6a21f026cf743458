//! The Attach call over a real socket, with peers that have no SDK: every end, every refusal.

use std::time::{Duration, Instant};

use harness_proto::v1::{
    self, Append, Entry, ErrorCode, Hello, Leave, Output, Reply, Resume, WorkerHeartbeat,
    attach_request::Frame, attach_response, entry, hello, reply,
};
use harness_server::Limits;
use harness_tests::raw::{
    Embedded, RawSlot, SOON, admin, ask, details, eventually, full_hello, hello as minimal,
    payload, reason, runs, typed,
};
use tonic::{Code, Status};

/// Asks in the background.
async fn asking(
    harness: &Embedded,
    agent: &str,
    timeout: Duration,
) -> tokio::task::JoinHandle<Result<v1::AskResponse, Status>> {
    let mut client = runs(&harness.connect().await);
    let request = ask(agent, "\"hi\"", timeout);
    tokio::spawn(async move { client.ask(request).await.map(tonic::Response::into_inner) })
}

fn output(request: &v1::Request, worker_seq: u64, bytes: usize) -> Frame {
    let piece = payload(&format!("\"{}\"", "x".repeat(bytes)));
    Frame::Append(Append {
        run_id: request.run_id.clone(),
        attempt: request.attempt,
        worker_seq,
        entry: Some(Entry {
            kind: Some(entry::Kind::Output(Output {
                payload: Some(piece),
            })),
        }),
    })
}

#[tokio::test]
async fn a_question_is_answered_by_the_slot() {
    let harness = Embedded::start().await;
    let mut slot = RawSlot::attach(harness.connect().await, minimal("echo")).await;
    let asked = asking(&harness, "echo", SOON).await;
    let request = slot.request().await;
    assert_eq!(
        (request.attempt, request.lease.len(), request.agent.as_str()),
        (1, 16, "echo")
    );
    assert_eq!(
        request.payload.as_ref().map(|p| &*p.data),
        Some(&b"\"hi\""[..])
    );
    slot.reply(&request, "\"ho\"").await;
    let answer = asked.await.expect("no panic").expect("answered");
    assert_eq!((&answer.run_id, answer.attempt), (&request.run_id, 1));
    assert_eq!(answer.payload.expect("a payload").data, "\"ho\"");
}

#[tokio::test]
async fn a_deadline_answers_the_caller_ends_the_call_and_waits_for_released() {
    let harness = Embedded::start().await;
    let hello = minimal("slow");
    let mut slot = RawSlot::attach(harness.connect().await, hello.clone()).await;
    let start = Instant::now();
    let asked = asking(&harness, "slow", Duration::from_millis(300)).await;
    let request = slot.request().await;
    let end = slot.end().await;
    assert_eq!(
        (end.code(), reason(&end).as_str()),
        (Code::DeadlineExceeded, "DEADLINE_EXCEEDED")
    );
    let status = asked.await.expect("no panic").expect_err("timed out");
    let error = typed(&status, Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
    assert!(error.message.contains("running"), "{}", error.message);
    let took = start.elapsed();
    assert!(
        took >= Duration::from_millis(300) && took < Duration::from_millis(1300),
        "{took:?}"
    );

    let mut admin = admin(&harness.connect().await);
    let workers = admin
        .list_workers(v1::ListWorkersRequest::default())
        .await
        .expect("listed");
    let owed = &workers.get_ref().workers[0].unreleased;
    assert_eq!(owed.len(), 1);
    assert_eq!(owed[0].code(), ErrorCode::DeadlineExceeded);

    let released = v1::Released {
        run_id: request.run_id.clone(),
        attempt: request.attempt,
        lease: request.lease.clone(),
    };
    let again = Hello {
        previous: Some(hello::Previous::Released(released)),
        ..hello
    };
    let _slot = RawSlot::attach(harness.connect().await, again).await;
    let workers = admin
        .list_workers(v1::ListWorkersRequest::default())
        .await
        .expect("listed");
    assert!(workers.get_ref().workers[0].unreleased.is_empty());
}

#[tokio::test]
async fn a_released_with_another_lease_proves_nothing() {
    let harness = Embedded::start().await;
    let hello = minimal("slow");
    let mut slot = RawSlot::attach(harness.connect().await, hello.clone()).await;
    let asked = asking(&harness, "slow", Duration::from_millis(50)).await;
    let request = slot.request().await;
    let _ = slot.end().await;
    let _ = asked.await;
    let forged = v1::Released {
        run_id: request.run_id,
        attempt: request.attempt,
        lease: vec![7; 16].into(),
    };
    let again = Hello {
        previous: Some(hello::Previous::Released(forged)),
        ..hello
    };
    let _slot = RawSlot::attach(harness.connect().await, again).await;
    let workers = admin(&harness.connect().await)
        .list_workers(v1::ListWorkersRequest::default())
        .await
        .expect("listed");
    assert_eq!(workers.get_ref().workers[0].unreleased.len(), 1);
}

#[tokio::test]
async fn a_hang_up_reaches_the_worker() {
    let harness = Embedded::start().await;
    let mut slot = RawSlot::attach(harness.connect().await, minimal("slow")).await;
    let asked = asking(&harness, "slow", SOON).await;
    let _ = slot.request().await;
    asked.abort();
    let end = slot.end().await;
    assert_eq!(
        (end.code(), reason(&end).as_str()),
        (Code::Cancelled, "CANCELLED")
    );
}

#[tokio::test]
async fn a_lost_worker_is_answered_at_once_by_name() {
    let harness = Embedded::start().await;
    let mut slot = RawSlot::attach(harness.connect().await, minimal("frail")).await;
    let asked = asking(&harness, "frail", Duration::from_secs(30)).await;
    let _ = slot.request().await;
    let start = Instant::now();
    drop(slot);
    let status = asked.await.expect("no panic").expect_err("lost");
    let error = typed(&status, Code::Aborted, ErrorCode::WorkerLost);
    assert!(error.message.contains("frail-raw"), "{}", error.message);
    assert!(start.elapsed() < Duration::from_secs(1));
}

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

#[tokio::test]
async fn each_bad_frame_fails_the_run_and_ends_the_call_with_its_reason() {
    type Bad = fn(&v1::Request) -> Option<Frame>;
    let wrong = |request: &v1::Request, attempt| {
        Some(Frame::Reply(Reply {
            run_id: request.run_id.clone(),
            attempt,
            worker_seq: 1,
            outcome: Some(reply::Outcome::Value(payload("1"))),
        }))
    };
    let cases: [(Bad, Code, &str); 7] = [
        (
            |_| Some(Frame::Hello(minimal("odd"))),
            Code::InvalidArgument,
            "PROTOCOL_VIOLATION",
        ),
        (|_| None, Code::InvalidArgument, "PROTOCOL_VIOLATION"),
        (
            |request| Some(output(request, 2, 1)),
            Code::InvalidArgument,
            "PROTOCOL_VIOLATION",
        ),
        (
            |request| {
                Some(Frame::Append(Append {
                    run_id: request.run_id.clone(),
                    attempt: 1,
                    worker_seq: 1,
                    entry: Some(Entry {
                        kind: Some(entry::Kind::Step(v1::Step::default())),
                    }),
                }))
            },
            Code::InvalidArgument,
            "PROTOCOL_VIOLATION",
        ),
        (
            |request| {
                Some(Frame::Append(Append {
                    run_id: request.run_id.clone(),
                    attempt: 1,
                    worker_seq: 1,
                    entry: Some(Entry {
                        kind: Some(entry::Kind::RunEnded(v1::RunEnded::default())),
                    }),
                }))
            },
            Code::InvalidArgument,
            "PROTOCOL_VIOLATION",
        ),
        (
            |_| {
                Some(Frame::Heartbeat(WorkerHeartbeat {
                    run_id: uuid::Uuid::now_v7().to_string(),
                    attempt: 1,
                }))
            },
            Code::FailedPrecondition,
            "WRONG_ATTEMPT",
        ),
        (
            |_| Some(Frame::Leave(Leave {})),
            Code::FailedPrecondition,
            "WRONG_ATTEMPT",
        ),
    ];
    let harness = Embedded::start().await;
    for (number, (bad, code, expected)) in cases.into_iter().enumerate() {
        let mut slot = RawSlot::attach(harness.connect().await, minimal("odd")).await;
        let asked = asking(&harness, "odd", SOON).await;
        let request = slot.request().await;
        match bad(&request) {
            Some(Frame::Leave(_)) => slot.send(wrong(&request, 9).expect("a frame")).await,
            Some(frame) => slot.send(frame).await,
            None => slot.send_unknown().await,
        }
        let end = slot.end().await;
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
async fn a_full_worker_that_shows_no_acceptance_loses_the_request_to_another() {
    let limits = Limits {
        accept_timeout: Duration::from_millis(150),
        ..Limits::default()
    };
    let harness = Embedded::with(limits).await;
    let mut deaf = RawSlot::attach(harness.connect().await, full_hello("echo")).await;
    let asked = asking(&harness, "echo", SOON).await;
    let first = deaf.request().await;
    let mut other = RawSlot::attach(harness.connect().await, minimal("echo")).await;
    let end = deaf.end().await;
    assert_eq!(
        (end.code(), reason(&end).as_str()),
        (Code::Aborted, "NOT_ACCEPTED")
    );
    let second = other.request().await;
    assert_eq!((&second.run_id, second.attempt), (&first.run_id, 2));
    assert_ne!(first.lease, second.lease);
    other.reply(&second, "2").await;
    assert_eq!(asked.await.expect("no panic").expect("answered").attempt, 2);
}

#[tokio::test]
async fn three_missed_heartbeats_end_a_full_call_and_a_minimal_one_owes_none() {
    let limits = Limits {
        heartbeat_interval: Duration::from_millis(60),
        ..Limits::default()
    };
    let harness = Embedded::with(limits).await;
    let mut quiet = RawSlot::attach(harness.connect().await, minimal("echo")).await;
    let mut silent = RawSlot::attach(harness.connect().await, full_hello("echo")).await;
    assert!(matches!(
        silent.next().await,
        attach_response::Frame::Heartbeat(_)
    ));
    let end = silent.end().await;
    assert_eq!(
        (end.code(), reason(&end).as_str()),
        (Code::Unavailable, "HEARTBEATS_MISSED")
    );
    assert!(details(&end).retry);
    let asked = asking(&harness, "echo", SOON).await;
    let request = quiet.request().await;
    quiet.reply(&request, "1").await;
    assert!(asked.await.expect("no panic").is_ok());
}

#[tokio::test]
async fn appends_are_acknowledged_to_full_workers_and_nothing_is_written_to_minimal_ones() {
    let limits = Limits {
        heartbeat_interval: Duration::from_millis(500),
        ..Limits::default()
    };
    let harness = Embedded::with(limits).await;
    let mut full = RawSlot::attach(harness.connect().await, full_hello("full")).await;
    let asked = asking(&harness, "full", SOON).await;
    let request = full.request().await;
    for seq in 1..=3 {
        full.send(output(&request, seq, 10)).await;
    }
    full.send(output(&request, 2, 10)).await;
    let mut acknowledged = 0;
    while acknowledged < 3 {
        if let attach_response::Frame::Appended(appended) = full.next().await {
            assert!(appended.worker_seq >= acknowledged);
            acknowledged = appended.worker_seq;
        }
    }
    full.reply_as(&request, 4, reply::Outcome::Value(payload("1")))
        .await;
    assert!(asked.await.expect("no panic").is_ok());

    let mut plain = RawSlot::attach(harness.connect().await, minimal("plain")).await;
    let asked = asking(&harness, "plain", Duration::from_millis(700)).await;
    let request = plain.request().await;
    for seq in 1..=3 {
        plain.send(output(&request, seq, 10)).await;
    }
    let next = tokio::time::timeout(SOON, plain.inbound.message())
        .await
        .expect("the end");
    assert_eq!(
        next.expect_err("the end, no frame before it").code(),
        Code::DeadlineExceeded
    );
    assert!(asked.await.expect("no panic").is_err());
}

#[tokio::test]
async fn a_leaving_worker_finishes_and_gets_nothing_new() {
    let limits = Limits {
        idle_stopping_timeout: Duration::from_millis(100),
        ..Limits::default()
    };
    let harness = Embedded::with(limits).await;
    let mut slot = RawSlot::attach(harness.connect().await, minimal("echo")).await;
    let first = asking(&harness, "echo", SOON).await;
    let request = slot.request().await;
    slot.send(Frame::Leave(Leave {})).await;
    let second = asking(&harness, "echo", Duration::from_millis(400)).await;
    slot.reply(&request, "1").await;
    assert!(first.await.expect("no panic").is_ok());
    slot.end_within(SOON)
        .await
        .expect("an idle stopping slot ends OK");
    let status = second.await.expect("no panic").expect_err("nobody took it");
    let error = typed(&status, Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
    assert!(error.message.contains("no worker"), "{}", error.message);
}

#[tokio::test]
async fn a_half_close_is_answered_ok_and_a_request_that_crossed_it_goes_elsewhere() {
    let harness = Embedded::start().await;
    let mut idle = RawSlot::attach(harness.connect().await, minimal("echo")).await;
    idle.half_close();
    idle.end_within(SOON).await.expect("OK");

    let mut crossed = RawSlot::attach(harness.connect().await, minimal("echo")).await;
    let asked = asking(&harness, "echo", SOON).await;
    let first = crossed.request().await;
    let mut other = RawSlot::attach(harness.connect().await, minimal("echo")).await;
    crossed.half_close();
    let second = other.request().await;
    assert_eq!((&second.run_id, second.attempt), (&first.run_id, 2));
    other.reply(&second, "1").await;
    assert!(asked.await.expect("no panic").is_ok());
}

#[tokio::test]
async fn a_declined_request_goes_to_another_worker_uncounted() {
    let harness = Embedded::start().await;
    let mut first = RawSlot::attach(harness.connect().await, minimal("echo")).await;
    let asked = asking(&harness, "echo", SOON).await;
    let request = first.request().await;
    let mut second = RawSlot::attach(harness.connect().await, minimal("echo")).await;
    first
        .reply_as(&request, 1, reply::Outcome::Declined(v1::Declined {}))
        .await;
    let again = second.request().await;
    assert_eq!(again.attempt, 2);
    second.reply(&again, "1").await;
    assert!(asked.await.expect("no panic").is_ok());
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
async fn a_leaving_harness_ends_idle_calls_at_once_and_busy_ones_after_their_reply() {
    let harness = Embedded::start().await;
    let mut busy = RawSlot::attach(harness.connect().await, minimal("echo")).await;
    let asked = asking(&harness, "echo", SOON).await;
    let request = busy.request().await;
    let mut idle = RawSlot::attach(harness.connect().await, minimal("echo")).await;
    let late = harness.connect().await;
    harness.leave();
    let end = idle.end().await;
    assert_eq!(
        (end.code(), reason(&end).as_str()),
        (Code::Unavailable, "LEAVING")
    );
    assert!(details(&end).retry);
    let status = runs(&late)
        .ask(ask("echo", "1", SOON))
        .await
        .expect_err("leaving");
    let _ = typed(&status, Code::Unavailable, ErrorCode::ShuttingDown);
    busy.reply(&request, "1").await;
    assert!(asked.await.expect("no panic").is_ok());
    assert_eq!(reason(&busy.end().await), "LEAVING");
    harness.left().await;
}

#[tokio::test]
async fn a_leaving_harness_waits_no_longer_than_its_grace() {
    let limits = Limits {
        shutdown_grace: Duration::from_millis(200),
        ..Limits::default()
    };
    let harness = Embedded::with(limits).await;
    let mut busy = RawSlot::attach(harness.connect().await, minimal("echo")).await;
    let asked = asking(&harness, "echo", Duration::from_secs(30)).await;
    let _ = busy.request().await;
    harness.leave();
    assert_eq!(reason(&busy.end().await), "LEAVING");
    let status = asked.await.expect("no panic").expect_err("leaving");
    let _ = typed(&status, Code::Unavailable, ErrorCode::ShuttingDown);
    harness.left().await;
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
