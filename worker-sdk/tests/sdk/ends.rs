//! How calls end, and what the worker does then.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use harness_proto::v1;
use harness_proto::v1::attach_response::Frame as Out;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};
use worker_sdk::context::CancelReason;
use worker_sdk::{Agent, BlockingContext, Context, ErrorKind, agent_fn, blocking_fn};

use crate::fake::{Fake, lease, ours, released, within};
use crate::log;
use crate::subject::{Relay, builder, start};

/// Says when it is dropped.
struct Dropped(mpsc::Sender<()>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.try_send(()).unwrap();
    }
}

/// An agent that works for ever, and the word that a future of it was dropped.
fn endless() -> (impl Agent, mpsc::Receiver<()>) {
    let (dropped, drops) = mpsc::channel(16);
    let agent = agent_fn(move |_: Context, (): ()| {
        let dropped = Dropped(dropped.clone());
        async move {
            let _dropped = dropped;
            std::future::pending::<()>().await;
            Ok(())
        }
    });
    (agent, drops)
}

#[tokio::test]
async fn a_stop_drops_the_future_and_the_next_hello_says_released() {
    let mut fake = Fake::start().await;
    let (agent, mut drops) = endless();
    let _worker = start(builder(agent, &fake.address));
    let mut call = fake.welcomed().await;
    for (run_id, code) in [
        ("late", Code::DeadlineExceeded),
        ("cancelled", Code::Cancelled),
        ("moved", Code::Aborted),
        ("broken", Code::InvalidArgument),
        ("large", Code::ResourceExhausted),
    ] {
        call.request(run_id, "null").await;
        call.end(ours(code, "REASON")).await;
        within("drop", drops.recv()).await;
        call = fake.call().await;
        assert_eq!(released(&call), Some((run_id, 1, &lease(run_id)[..])));
        call.welcome().await;
    }
}

#[tokio::test]
async fn a_lost_connection_stops_the_work_and_the_worker_comes_back_with_released() {
    let mut fake = Fake::start().await;
    let relay = Relay::before(&fake).await;
    let (agent, mut drops) = endless();
    let _worker = start(builder(agent, &relay.address));
    let mut call = fake.welcomed().await;
    call.request("run", "null").await;
    relay.cut();
    within("drop", drops.recv()).await;
    let call = fake.call().await;
    assert_eq!(released(&call), Some(("run", 1, &lease("run")[..])));
}

#[tokio::test]
async fn what_was_released_is_said_until_a_hello_with_it_is_welcomed() {
    let mut fake = Fake::start().await;
    let (agent, _drops) = endless();
    let _worker = start(builder(agent, &fake.address));
    let mut call = fake.welcomed().await;
    call.request("run", "null").await;
    call.end(ours(Code::Cancelled, "CANCELLED")).await;
    for _ in 0..2 {
        let call = fake.call().await;
        assert!(released(&call).is_some());
        call.end(ours(Code::Unavailable, "STORE")).await;
    }
    let mut call = fake.welcomed().await;
    assert!(released(&call).is_some());
    call.welcome().await;
    // The second welcome broke the call; the first one took the word.
    let call = fake.call().await;
    assert!(released(&call).is_none());
}

#[tokio::test]
async fn a_blocking_agent_stays_away_until_its_thread_has_returned() {
    let mut fake = Fake::start().await;
    let (told, mut tellings) = mpsc::channel(1);
    let (go, went) = std::sync::mpsc::channel::<()>();
    let went = Mutex::new(went);
    let agent = blocking_fn(move |ctx: BlockingContext, (): ()| {
        ctx.output("started")?;
        let error = ctx.sleep(Duration::from_secs(60)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        assert!(ctx.output("too late").is_err());
        told.blocking_send(ctx.cancel_reason()).unwrap();
        went.lock().unwrap().recv().unwrap();
        Ok(())
    });
    let _worker = start(builder(agent, &fake.address));
    let mut call = fake.welcomed().await;
    call.request("run", "null").await;
    call.append().await;
    call.end(ours(Code::DeadlineExceeded, "DEADLINE")).await;
    let reason = within("cancellation", tellings.recv()).await.unwrap();
    assert_eq!(reason, Some(CancelReason::DeadlineExceeded));
    let early = tokio::time::timeout(Duration::from_millis(100), fake.call()).await;
    assert!(
        early.is_err(),
        "the slot came back while its thread still ran"
    );
    go.send(()).unwrap();
    let call = fake.call().await;
    assert!(released(&call).is_some());
}

#[tokio::test]
async fn a_blocking_agent_answers_and_its_panic_is_an_error() {
    let mut fake = Fake::start().await;
    let agent = blocking_fn(|_, number: i64| {
        assert!(number > 0, "too small");
        Ok(number * 2)
    });
    let _worker = start(builder(agent, &fake.address));
    let mut call = fake.welcomed().await;
    call.request("run", "21").await;
    assert_eq!(call.value().await, "42");
    call.request("other", "0").await;
    let error = call.error().await;
    assert_eq!(
        (error.r#type.as_str(), error.message.as_str()),
        ("panic", "too small")
    );
}

#[tokio::test]
async fn a_stop_that_crossed_the_reply_is_released_too() {
    let mut fake = Fake::start().await;
    let _worker = start(builder(
        agent_fn(|_, (): ()| async { Ok(()) }),
        &fake.address,
    ));
    let mut call = fake.welcomed().await;
    call.request("run", "null").await;
    call.reply().await;
    call.end(ours(Code::DeadlineExceeded, "DEADLINE")).await;
    let call = fake.call().await;
    assert_eq!(released(&call), Some(("run", 1, &lease("run")[..])));
}

#[tokio::test]
async fn a_stop_that_crossed_an_unread_request_is_no_reason_to_wait() {
    log::capture();
    let mut fake = Fake::start().await;
    let (agent, _drops) = endless();
    let long = Duration::from_secs(600);
    let _worker = start(builder(agent, &fake.address).reconnect_waits(long, long));
    for (code, reason) in [
        (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"),
        (Code::Cancelled, "CANCELLED"),
        (Code::Aborted, "NOT_ACCEPTED"),
    ] {
        fake.welcomed().await.end(ours(code, reason)).await;
    }
    assert!(released(&fake.call().await).is_none());
    assert!(!log::text().contains("WARN"), "{}", log::text());
}

#[tokio::test]
async fn unavailable_with_retry_info_is_waited_out() {
    let mut fake = Fake::start().await;
    let (agent, _drops) = endless();
    let _worker = start(builder(agent, &fake.address));
    let call = fake.welcomed().await;
    let mut details = ErrorDetails::with_retry_info(Some(Duration::from_millis(300)));
    details.set_error_info("LEAVING", "harness.v1", HashMap::new());
    let ended = Instant::now();
    call.end(Status::with_error_details(
        Code::Unavailable,
        "leaving",
        details,
    ))
    .await;
    fake.call().await;
    assert!(ended.elapsed() >= Duration::from_millis(300));
}

#[tokio::test]
async fn a_call_that_misses_three_heartbeats_is_given_up_with_its_connection() {
    let mut fake = Fake::start().await;
    let (agent, mut drops) = endless();
    let _worker = start(builder(agent, &fake.address));
    let mut call = fake.call().await;
    call.welcome_with(Duration::from_millis(50), v1::SlotLimits::default())
        .await;
    call.request("run", "null").await;
    // Heartbeats of the harness keep it; without them it ends.
    for _ in 0..6 {
        let frame = call.frame().await;
        let v1::attach_request::Frame::Heartbeat(beat) = frame else {
            panic!("{frame:?}");
        };
        assert_eq!(beat.run_id, "run");
        call.send(Out::Heartbeat(v1::HarnessHeartbeat {})).await;
    }
    within("drop", drops.recv()).await;
    let next = fake.call().await;
    assert!(released(&next).is_some());
    // What is silent may be half open: the next call does not go the same way.
    assert!(next.peer.is_some() && next.peer != call.peer);
    // Dropping both halves resets the stream, so the harness sees the end of the old call.
    call.dropped().await;
}

#[tokio::test]
async fn a_refusal_before_the_welcome_ends_the_worker_with_its_kind() {
    for (status, kind) in [
        (
            ours(Code::Unauthenticated, "TOKEN"),
            ErrorKind::Unauthenticated,
        ),
        (
            ours(Code::PermissionDenied, "AGENT"),
            ErrorKind::PermissionDenied,
        ),
        (
            ours(Code::InvalidArgument, "SCHEMA"),
            ErrorKind::InvalidWorker,
        ),
        (
            ours(Code::FailedPrecondition, "UNSUPPORTED_PROTOCOL"),
            ErrorKind::UnsupportedProtocol,
        ),
        (
            Status::unimplemented("no such service"),
            ErrorKind::Unimplemented,
        ),
    ] {
        let mut fake = Fake::start().await;
        let (agent, _drops) = endless();
        let worker = start(builder(agent, &fake.address));
        fake.call().await.end(status).await;
        let error = worker.ended().await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(
            error
                .message()
                .starts_with("the harness refuses this worker: "),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_drained_worker_ends_well() {
    let mut fake = Fake::start().await;
    let (agent, _drops) = endless();
    let worker = start(builder(agent, &fake.address));
    fake.call()
        .await
        .end(ours(Code::FailedPrecondition, "DRAINED"))
        .await;
    worker.ended().await.unwrap();
}

#[tokio::test]
async fn a_worker_that_was_not_heard_comes_back_on_another_connection() {
    let mut fake = Fake::start().await;
    let (agent, mut drops) = endless();
    let _worker = start(builder(agent, &fake.address));
    let mut call = fake.welcomed().await;
    call.request("run", "null").await;
    let peer = call.peer;
    call.end(ours(Code::Unavailable, "HEARTBEATS_MISSED")).await;
    within("drop", drops.recv()).await;
    let next = fake.call().await;
    assert_eq!(released(&next), Some(("run", 1, &lease("run")[..])));
    assert!(next.peer.is_some() && next.peer != peer);
}

#[tokio::test]
async fn a_reset_call_is_opened_again_on_the_connection_it_had() {
    log::capture();
    let mut fake = Fake::start().await;
    let (agent, mut drops) = endless();
    let _worker = start(builder(agent, &fake.address).slots(2));
    let mut reset = fake.welcomed().await;
    let mut other = fake.welcomed().await;
    reset.request("run", "null").await;
    let peer = reset.peer;
    reset.reset().await;
    within("drop", drops.recv()).await;
    let next = fake.welcomed().await;
    assert_eq!(released(&next), Some(("run", 1, &lease("run")[..])));
    assert!(peer.is_some() && next.peer == peer && other.peer == peer);
    other.request("other", "null").await;
    let text = log::text();
    assert!(text.contains("a call was lost"), "{text}");
    assert!(!text.contains("away"), "{text}");
}

#[tokio::test]
async fn a_broken_connection_is_made_again() {
    log::capture();
    let mut fake = Fake::start().await;
    let relay = Relay::before(&fake).await;
    let (agent, _drops) = endless();
    let _worker = start(builder(agent, &relay.address).slots(2));
    let before = [fake.welcomed().await.peer, fake.welcomed().await.peer];
    relay.cut();
    let after = [fake.welcomed().await.peer, fake.welcomed().await.peer];
    assert!(before[0] == before[1] && after[0] == after[1] && before[0] != after[0]);
    let text = log::text();
    assert_eq!(text.matches("the harness is away").count(), 1, "{text}");
    assert!(!text.contains("a call was lost"), "{text}");
}

#[tokio::test]
async fn a_harness_that_is_away_is_one_line_in_the_log() {
    log::capture();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (agent, _drops) = endless();
    let _worker = start(builder(agent, &address).slots(8));
    for _ in 0..20 {
        drop(within("try", listener.accept()).await.unwrap());
    }
    let mut fake = Fake::on(listener);
    let mut calls = Vec::new();
    for _ in 0..8 {
        calls.push(fake.welcomed().await);
    }
    within("line", async {
        while !log::text().contains("the harness is back") {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let text = log::text();
    assert_eq!(text.matches("the harness is away").count(), 1, "{text}");
    assert_eq!(text.matches("the harness is back").count(), 1, "{text}");
}
