//! The Attach call over a real socket, with peers that have no SDK: every end, every refusal.

use std::time::{Duration, Instant};

use harness_proto::v1::{
    self, ErrorCode, Hello, Leave, attach_request::Frame, attach_response, hello, reply,
};
use harness_server::Limits;
use harness_tests::raw::{
    Embedded, RawSlot, SOON, admin, ask, asking, details, full_hello, hello as minimal, output,
    payload, reason, runs, typed,
};
use tonic::Code;

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
    let worker = &workers.get_ref().workers[0];
    assert!(worker.unreleased.is_empty());
    let attached_for = worker.attached_for.expect("a duration");
    assert!(
        attached_for.seconds > 0 || attached_for.nanos > 200_000_000,
        "counted from its first call: {attached_for:?}"
    );
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
