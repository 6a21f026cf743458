//! Workers that come back to an ask with which there is nothing to go on, and asks whose worker does
//! not come back.

use std::time::{Duration, Instant};

use harness_proto::v1::{
    self, ErrorCode, GetRunRequest, Hello, Request, RetryPolicy, RunState, hello::Previous,
};
use harness_tests::raw::{
    Embedded, RawSlot, SOON, ask, asking, asking_for, eventually, full_hello, proto, reason, runs,
    typed,
};
use tokio::task::JoinHandle;
use tonic::{Code, Status};
use uuid::Uuid;

use crate::resumed_asks::{WINDOW, assert_answers, assert_noticed, waiting};

type Asked = JoinHandle<Result<v1::AskResponse, Status>>;

/// An ask whose call the harness knows to be lost, and the hello of its worker.
async fn away(harness: &Embedded, asked: v1::AskRequest) -> (Hello, Request, Asked) {
    let hello = full_hello("echo");
    let mut slot = RawSlot::attach(harness.connect().await, hello.clone()).await;
    let asked = asking_for(harness, asked).await;
    let request = slot.request().await;
    drop(slot);
    assert_noticed(harness).await;
    (hello, request, asked)
}

/// How a resume ends that is not welcomed.
async fn missed(harness: &Embedded, hello: &Hello, request: &Request) -> (Code, String) {
    let end = RawSlot::not_resumed(harness.connect().await, hello.clone(), request).await;
    (end.code(), reason(&end))
}

fn told(code: Code, reason: &str) -> (Code, String) {
    (code, reason.to_owned())
}

/// The run is where it should be within a bound.
async fn assert_state(harness: &Embedded, request: &Request, state: RunState) {
    let client = runs(&harness.connect().await);
    let is_there = || async {
        let asked = GetRunRequest {
            run_id: request.run_id.clone(),
            ..GetRunRequest::default()
        };
        let run = client.clone().get_run(asked).await.expect("known");
        run.into_inner().run.expect("a run").state() == state
    };
    eventually(SOON, state.as_str_name(), is_there).await;
}

#[tokio::test]
async fn an_ask_whose_worker_stays_away_for_the_window_is_lost_and_a_late_resume_superseded() {
    let window = Duration::from_millis(300);
    let harness = waiting(window).await;
    let start = Instant::now();
    let (hello, request, asked) = away(&harness, ask("echo", "1", SOON)).await;
    let status = asked.await.expect("no panic").expect_err("lost");
    assert!(start.elapsed() >= window, "{:?}", start.elapsed());
    let _ = typed(&status, Code::Aborted, ErrorCode::WorkerLost);
    let end = missed(&harness, &hello, &request).await;
    assert_eq!(end, told(Code::Aborted, "SUPERSEDED"));
}

#[tokio::test]
async fn an_ask_that_may_be_tried_again_goes_to_another_worker_once_its_window_is_over() {
    let harness = waiting(Duration::from_millis(300)).await;
    let mut twice = ask("echo", "1", 2 * SOON);
    twice.options.get_or_insert_default().retry_policy = Some(RetryPolicy {
        max_attempts: 2,
        initial_backoff: Some(proto(Duration::from_millis(1))),
        max_backoff: Some(proto(Duration::from_millis(1))),
        ..RetryPolicy::default()
    });
    let (hello, first, asked) = away(&harness, twice).await;
    let mut other = RawSlot::attach(harness.connect().await, full_hello("echo")).await;
    let second = other.request().await;
    assert_eq!((&second.run_id, second.attempt), (&first.run_id, 2));
    assert_ne!(second.lease, first.lease);
    let end = missed(&harness, &hello, &first).await;
    assert_eq!(end, told(Code::Aborted, "SUPERSEDED"));
    assert_answers(&other, &second, asked).await;
    let end = missed(&harness, &hello, &first).await;
    assert_eq!(end, told(Code::Aborted, "SUPERSEDED"));
}

#[tokio::test]
async fn a_worker_that_comes_back_after_its_caller_hung_up_is_told_cancelled() {
    let harness = waiting(WINDOW).await;
    let (hello, request, asked) = away(&harness, ask("echo", "1", 2 * SOON)).await;
    asked.abort();
    assert_state(&harness, &request, RunState::Cancelled).await;
    let end = missed(&harness, &hello, &request).await;
    assert_eq!(end, told(Code::Cancelled, "CANCELLED"));
    assert_serves_on(&harness, hello, &request).await;
}

#[tokio::test]
async fn a_worker_that_comes_back_after_the_deadline_is_told_so() {
    let harness = waiting(WINDOW).await;
    let timeout = Duration::from_secs(3);
    let (hello, request, asked) = away(&harness, ask("echo", "1", timeout)).await;
    let status = asked.await.expect("no panic").expect_err("too late");
    let error = typed(&status, Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
    assert!(error.message.contains("call is lost"), "{}", error.message);
    let end = missed(&harness, &hello, &request).await;
    assert_eq!(end, told(Code::DeadlineExceeded, "DEADLINE_EXCEEDED"));
    assert_serves_on(&harness, hello, &request).await;
}

/// Says that its work has stopped: whatever that proves, it is welcome and gets the next ask.
async fn assert_serves_on(harness: &Embedded, hello: Hello, request: &Request) {
    let released = Hello {
        previous: Some(Previous::Released(v1::Released {
            run_id: request.run_id.clone(),
            attempt: request.attempt,
            lease: request.lease.clone(),
        })),
        ..hello
    };
    let mut slot = RawSlot::attach(harness.connect().await, released).await;
    let asked = asking(harness, "echo", SOON).await;
    let next = slot.request().await;
    assert_answers(&slot, &next, asked).await;
}

#[tokio::test]
async fn an_ask_whose_worker_says_released_is_lost_at_once() {
    let harness = waiting(WINDOW).await;
    let (hello, request, asked) = away(&harness, ask("echo", "1", 2 * SOON)).await;
    assert_serves_on(&harness, hello, &request).await;
    let status = asked.await.expect("no panic").expect_err("lost");
    let _ = typed(&status, Code::Aborted, ErrorCode::WorkerLost);
}

#[tokio::test]
async fn what_was_not_handed_to_who_resumes_it_is_not_theirs_and_the_worker_it_was_goes_on() {
    let harness = waiting(WINDOW).await;
    let (hello, request, asked) = away(&harness, ask("echo", "1", 2 * SOON)).await;
    let mut other_agent = full_hello("upper");
    other_agent.worker.clone_from(&hello.worker);
    let with = |change: fn(&mut Request)| {
        let mut changed = request.clone();
        change(&mut changed);
        changed
    };
    for (hello, request, what) in [
        (&hello, with(|it| it.lease = vec![9; 16].into()), "lease"),
        (&hello, with(|it| it.attempt = 2), "attempt"),
        (
            &hello,
            with(|it| it.run_id = Uuid::now_v7().to_string()),
            "run",
        ),
        (&full_hello("echo"), request.clone(), "worker"),
        (&other_agent, request.clone(), "agent"),
    ] {
        let end = missed(&harness, hello, &request).await;
        assert_eq!(end, told(Code::Aborted, "NOT_YOURS"), "another {what}");
    }
    let again = RawSlot::resume(harness.connect().await, hello, &request);
    let (slot, stands) = again.await;
    assert_eq!(stands.last_worker_seq, 0);
    assert_answers(&slot, &request, asked).await;
}

#[tokio::test]
async fn a_leaving_harness_answers_an_ask_whose_worker_is_away_and_does_not_wait_for_it() {
    let harness = waiting(WINDOW).await;
    let (hello, request, asked) = away(&harness, ask("echo", "1", 2 * SOON)).await;
    // A call in work keeps the harness there, so that a resume is answered by it.
    let mut busy = RawSlot::attach(harness.connect().await, full_hello("upper")).await;
    let kept = asking(&harness, "upper", 2 * SOON).await;
    let held = busy.request().await;
    // A leaving harness takes no connection.
    let channel = harness.connect().await;
    let start = Instant::now();
    harness.leave();
    let status = asked.await.expect("no panic").expect_err("it leaves");
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    let _ = typed(&status, Code::Unavailable, ErrorCode::ShuttingDown);
    let end = RawSlot::not_resumed(channel, hello, &request).await;
    assert_eq!(
        (end.code(), reason(&end)),
        told(Code::Unavailable, "LEAVING")
    );
    assert_answers(&busy, &held, kept).await;
    harness.left().await;
}
