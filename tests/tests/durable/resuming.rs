//! Calls that break, and harnesses that are started anew, under durable work.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use harness_proto::v1::{
    self, Hello, Leave, Request, RetryPolicy, RunOptions, RunState, StartRunRequest,
    attach_request, attach_response, reply,
};
use harness_server::Limits;
use harness_server::store::{Sqlite, Store};
use harness_tests::durable::{journal, kinds, run_of, start, started, step, value};
use harness_tests::raw::{Embedded, RawSlot, SOON, eventually, full_hello, payload, proto, reason};
use tempfile::TempDir;

fn open(folder: &TempDir) -> Arc<dyn Store> {
    Arc::new(Sqlite::open(folder.path()).expect("a store"))
}

async fn over(folder: &TempDir, window: Duration) -> Embedded {
    let limits = Limits {
        reattach_window: window,
        ..Limits::default()
    };
    Embedded::storing(limits, Some(open(folder))).await
}

/// The last number of the attempt, as the welcome of a resume says it.
async fn resume(harness: &Embedded, hello: Hello, request: &Request) -> (RawSlot, u64) {
    let (slot, resumed) = RawSlot::resume(harness.connect().await, hello, request).await;
    (slot, resumed.last_worker_seq)
}

#[tokio::test]
async fn a_worker_resumes_and_what_it_sends_again_is_taken_once() {
    let folder = TempDir::new().expect("a folder of its own");
    let harness = over(&folder, SOON).await;
    let channel = harness.connect().await;
    let hello = full_hello("echo");
    let mut slot = RawSlot::attach(harness.connect().await, hello.clone()).await;
    let run = started(&channel, start("echo", "1")).await;
    let request = slot.request().await;
    slot.send(step(&request, 1, "first", "1")).await;
    slot.acknowledged(1).await;
    drop(slot);

    let (mut slot, last) = resume(&harness, hello.clone(), &request).await;
    assert_eq!(last, 1);
    slot.send(step(&request, 1, "first", "1")).await;
    slot.send(step(&request, 2, "second", "2")).await;
    slot.reply_as(&request, 3, reply::Outcome::Value(payload("3")))
        .await;
    slot.acknowledged(3).await;
    let entries = journal(&channel, &run.run_id, SOON).await;
    let steps = kinds(&entries)
        .iter()
        .filter(|kind| **kind == "step")
        .count();
    assert_eq!((steps, entries.len()), (2, 6));
    drop(slot);

    // Its reply was taken: that is its acknowledgement, and the slot is free.
    let (mut slot, last) = resume(&harness, hello, &request).await;
    assert_eq!(last, 3);
    let next = started(&channel, start("echo", "4")).await;
    let request = slot.request().await;
    assert_eq!(request.run_id, next.run_id);
    slot.reply(&request, "5").await;
    slot.acknowledged(1).await;
}

#[tokio::test]
async fn steps_go_with_the_next_attempt_to_a_full_level_worker() {
    let folder = TempDir::new().expect("a folder of its own");
    let harness = over(&folder, Duration::ZERO).await;
    let channel = harness.connect().await;
    let mut slot = RawSlot::attach(harness.connect().await, full_hello("echo")).await;
    let run = started(&channel, start("echo", "1")).await;
    let first = slot.request().await;
    slot.send(step(&first, 1, "first", "1")).await;
    slot.acknowledged(1).await;
    drop(slot);

    let _minimal =
        RawSlot::attach(harness.connect().await, harness_tests::raw::hello("echo")).await;
    let mut slot = RawSlot::attach(harness.connect().await, full_hello("echo")).await;
    let second = slot.request().await;
    assert_eq!((&second.run_id, second.attempt), (&run.run_id, 2));
    assert_eq!(second.replay_entries, 1);
    let attach_response::Frame::Entry(entry) = slot.next().await else {
        panic!("an entry follows the request")
    };
    assert_eq!((entry.seq, entry.attempt), (3, 1));
    assert_eq!(kinds(&[entry]), ["step"]);
    slot.reply(&second, "2").await;
    slot.acknowledged(1).await;

    // The first worker comes back to what is over.
    let hello = full_hello("echo");
    let late = RawSlot::not_resumed(harness.connect().await, hello, &first).await;
    assert_eq!(reason(&late), "SUPERSEDED");
}

#[tokio::test]
async fn a_rolling_restart_loses_neither_work_nor_what_waits() {
    let folder = TempDir::new().expect("a folder of its own");
    let harness = over(&folder, SOON).await;
    let channel = harness.connect().await;
    let hello = full_hello("echo");
    let mut slot = RawSlot::attach(harness.connect().await, hello.clone()).await;
    let works = started(&channel, start("echo", "1")).await;
    let request = slot.request().await;
    slot.send(step(&request, 1, "first", "1")).await;
    slot.acknowledged(1).await;
    let waits = started(&channel, start("echo", "2")).await;
    drop(slot);
    harness.left().await;

    let harness = over(&folder, SOON).await;
    let channel = harness.connect().await;
    let (mut slot, last) = resume(&harness, hello, &request).await;
    assert_eq!(last, 1);
    slot.reply_as(&request, 2, reply::Outcome::Value(payload("3")))
        .await;
    let request = slot.request().await;
    assert_eq!(request.run_id, waits.run_id);
    slot.reply(&request, "4").await;
    for (run, answer) in [(works, "3"), (waits, "4")] {
        let entries = journal(&channel, &run.run_id, SOON).await;
        assert_eq!(kinds(&entries).last(), Some(&"run_ended"));
        let run = run_of(&channel, &run.run_id).await.expect("known");
        assert_eq!((value(&run), run.attempt), (answer.to_owned(), 1));
    }
}

#[tokio::test]
async fn a_run_whose_worker_is_gone_is_delivered_again_after_a_restart() {
    let folder = TempDir::new().expect("a folder of its own");
    let harness = over(&folder, SOON).await;
    let channel = harness.connect().await;
    let mut slot = RawSlot::attach(harness.connect().await, full_hello("echo")).await;
    let run = started(&channel, start("echo", "1")).await;
    slot.request().await;
    drop(slot);
    harness.left().await;

    let harness = over(&folder, Duration::from_millis(200)).await;
    let channel = harness.connect().await;
    let mut slot = RawSlot::attach(harness.connect().await, full_hello("echo")).await;
    let request = slot.request().await;
    assert_eq!((&request.run_id, request.attempt), (&run.run_id, 2));
    slot.reply(&request, "1").await;
    let ended = || async {
        let run = run_of(&channel, &run.run_id).await;
        run.is_ok_and(|run| run.state() == RunState::Succeeded)
    };
    eventually(SOON, "it ends", ended).await;
}

/// The only label that matters here.
fn labels() -> HashMap<String, String> {
    HashMap::from([("place".to_owned(), "here".to_owned())])
}

/// A run of two attempts, which only slots with the label get.
fn twice(timeout: Option<Duration>, backoff: Duration) -> StartRunRequest {
    StartRunRequest {
        options: Some(RunOptions {
            selector: labels(),
            timeout: timeout.map(proto),
            retry_policy: Some(RetryPolicy {
                max_attempts: 2,
                initial_backoff: Some(proto(backoff)),
                max_backoff: Some(proto(backoff)),
                ..RetryPolicy::default()
            }),
            ..RunOptions::default()
        }),
        ..start("echo", "1")
    }
}

fn with_label(mut hello: Hello) -> Hello {
    hello.worker.as_mut().expect("a worker").labels = labels();
    hello
}

/// Has the first attempt of a run fail with a retryable error, number 2, whose slot gets nothing after
/// it, and waits until the run waits for another, or has ended where it has no time for one.
async fn fails(harness: &Embedded, hello: Hello, start: StartRunRequest, ends: bool) -> Request {
    let channel = harness.connect().await;
    let mut slot = RawSlot::attach(harness.connect().await, with_label(hello)).await;
    let run = started(&channel, start).await;
    let request = slot.request().await;
    assert_eq!(request.run_id, run.run_id);
    slot.send(step(&request, 1, "first", "1")).await;
    slot.send(attach_request::Frame::Leave(Leave {})).await;
    let error = v1::Error {
        message: "it broke".into(),
        retryable: true,
        ..v1::Error::default()
    };
    slot.reply_as(&request, 2, reply::Outcome::Error(error))
        .await;
    let failed = || async {
        let run = run_of(&channel, &run.run_id).await.expect("known");
        run.state() != RunState::Running && run.outcome.is_some() == ends
    };
    eventually(SOON, "the attempt fails", failed).await;
    request
}

/// That a resume is told of the reply, number 2, and that its slot is free.
async fn is_acknowledged(harness: &Embedded, hello: &Hello, request: &Request) {
    let (mut slot, last) = resume(harness, hello.clone(), request).await;
    assert_eq!(last, 2);
    let other = started(&harness.connect().await, start("echo", "2")).await;
    let next = slot.request().await;
    assert_eq!((&next.run_id, next.attempt), (&other.run_id, 1));
    slot.reply(&next, "3").await;
    slot.acknowledged(1).await;
}

/// Has the first attempt of a run fail, and a resume of it acknowledged, also by a harness that is
/// started anew.
async fn fails_and_is_acknowledged(
    folder: &TempDir,
    hello: &Hello,
    start: StartRunRequest,
    ends: bool,
) -> (Embedded, Request) {
    let harness = over(folder, SOON).await;
    let request = fails(&harness, hello.clone(), start, ends).await;
    is_acknowledged(&harness, hello, &request).await;
    harness.left().await;

    let harness = over(folder, SOON).await;
    is_acknowledged(&harness, hello, &request).await;
    (harness, request)
}

#[tokio::test]
async fn a_reply_that_failed_its_attempt_is_acknowledged_until_the_next_begins() {
    let folder = TempDir::new().expect("a folder of its own");
    // Without the label it is a worker that the run does not wait for.
    let hello = full_hello("echo");
    let again = twice(None, Duration::from_millis(1));
    let (harness, request) = fails_and_is_acknowledged(&folder, &hello, again, false).await;

    let other = with_label(full_hello("echo"));
    let mut other = RawSlot::attach(harness.connect().await, other).await;
    let second = other.request().await;
    assert_eq!((&second.run_id, second.attempt), (&request.run_id, 2));
    let entry = other.next().await;
    assert!(
        matches!(entry, attach_response::Frame::Entry(_)),
        "its step"
    );
    for ended in [false, true] {
        if ended {
            other.reply(&second, "4").await;
            other.acknowledged(1).await;
        }
        let hello = hello.clone();
        let late = RawSlot::not_resumed(harness.connect().await, hello, &request).await;
        assert_eq!(reason(&late), "SUPERSEDED", "ended: {ended}");
    }
}

#[tokio::test]
async fn a_reply_that_left_no_time_for_another_attempt_is_acknowledged() {
    let folder = TempDir::new().expect("a folder of its own");
    // It ends at once, as its back-off is longer, or when its time is over where chance made that short.
    let once = twice(Some(Duration::from_secs(2)), Duration::from_secs(86_400));
    fails_and_is_acknowledged(&folder, &full_hello("echo"), once, true).await;
}
