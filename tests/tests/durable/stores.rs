//! Stores that fail, stall and come back: nothing is acknowledged that is not written, asks go on.

use std::sync::Arc;
use std::time::Duration;

use harness_proto::v1::{
    CancelRunRequest, ErrorCode, Hello, Released, Request, Run, RunState, WatchRunRequest,
    attach_response, hello, reply, watch_run_response,
};
use harness_server::Limits;
use harness_server::store::{Fault, Faulty, Memory, StoreError};
use harness_tests::durable::{journal, kinds, run_of, start, started, step, value, watch};
use harness_tests::raw::{
    Embedded, RawSlot, SOON, asking, eventually, full_hello, payload, reason, resuming, runs,
    typed, within,
};
use tonic::Code;
use tonic::transport::Channel;
use tonic_health::pb::health_check_response::ServingStatus;

use super::read_only::health;

/// A fault of a store, which is over when the test is: a read that is stalled would hold up its end.
pub(super) struct Stalled(pub(super) Arc<Faulty>);

impl Drop for Stalled {
    fn drop(&mut self) {
        self.0.end();
    }
}

async fn harness() -> (Embedded, Arc<Faulty>) {
    let store = Arc::new(Faulty::over(Arc::new(Memory::default())));
    let harness = Embedded::storing(Limits::default(), Some(store.clone())).await;
    (harness, store)
}

/// A harness over a store that can fail, and a run of it that is at work.
pub(super) struct Working {
    pub(super) harness: Embedded,
    pub(super) store: Arc<Faulty>,
    pub(super) channel: Channel,
    pub(super) hello: Hello,
    pub(super) slot: RawSlot,
    pub(super) run: Run,
    pub(super) request: Request,
}

pub(super) async fn working() -> Working {
    let (harness, store) = harness().await;
    let channel = harness.connect().await;
    let hello = full_hello("echo");
    let mut slot = RawSlot::attach(harness.connect().await, hello.clone()).await;
    let run = started(&channel, start("echo", "1")).await;
    let request = slot.request().await;
    Working {
        harness,
        store,
        channel,
        hello,
        slot,
        run,
        request,
    }
}

#[tokio::test]
async fn a_short_run_that_finds_a_slot_free_and_is_followed_is_two_commits_and_no_read() {
    let (harness, store) = harness().await;
    let channel = harness.connect().await;
    let mut slot = RawSlot::attach(harness.connect().await, full_hello("echo")).await;
    // At the start the agents are read, and the runs that have not ended.
    let is_read = || async { store.reads() == 2 };
    eventually(SOON, "what there was is read", is_read).await;
    let run = started(&channel, start("echo", "1")).await;
    let next = run.head + 1;
    let mut events = watch(&channel, &run.run_id, next).await.expect("known");
    let request = slot.request().await;
    slot.reply(&request, "2").await;
    let mut told = 0;
    while within(SOON, events.message())
        .await
        .expect("no error")
        .is_some()
    {
        told += 1;
    }
    assert_eq!(told, 2, "attempt_ended and run_ended");
    let kept = ["keep_agent", "forget"];
    let mut steps = store.seen();
    steps.retain(|step| !kept.contains(step));
    assert_eq!((steps, store.reads()), (vec!["enqueue", "finish"], 2));
}

#[tokio::test]
async fn a_store_that_fails_refuses_new_runs_while_asks_go_on() {
    let (harness, store) = harness().await;
    let channel = harness.connect().await;
    let mut slot = RawSlot::attach(harness.connect().await, full_hello("echo")).await;
    for error in [StoreError::Full, StoreError::ReadOnly, StoreError::Corrupt] {
        store.begin(0, Fault::Fails(error.clone()));
        let status = within(SOON, runs(&channel).start_run(start("echo", "1"))).await;
        let status = status.expect_err("nothing is written");
        let told = typed(&status, Code::Unavailable, ErrorCode::StoreUnavailable);
        assert!(
            told.message.contains(&error.to_string()),
            "{}",
            told.message
        );

        let asked = asking(&harness, "echo", SOON).await;
        let request = slot.request().await;
        slot.reply(&request, "2").await;
        within(SOON, asked)
            .await
            .expect("no panic")
            .expect("an answer");
        store.end();
    }
    let run = started(&channel, start("echo", "1")).await;
    let request = slot.request().await;
    assert_eq!(request.run_id, run.run_id);
    slot.reply(&request, "3").await;
    journal(&channel, &run.run_id, SOON).await;
}

#[tokio::test]
async fn what_a_run_floods_the_store_with_says_nothing_of_its_health() {
    let Working {
        harness: _harness,
        store,
        channel,
        mut slot,
        request,
        ..
    } = working().await;
    let refuse = |by_run| store.begin(0, Fault::FailsWrites(StoreError::Overloaded { by_run }));
    let is_refused = || async {
        let started = within(SOON, runs(&channel).start_run(start("echo", "2"))).await;
        reason(&started.expect_err("nothing is written"))
    };
    refuse(true);
    slot.send(step(&request, 1, "first", "1")).await;
    assert_eq!(reason(&slot.end().await), "STORE_UNAVAILABLE");
    assert_eq!(health(&channel).await, ServingStatus::Serving);
    // Nobody gets anything in.
    refuse(false);
    assert_eq!(is_refused().await, "STORE_UNAVAILABLE");
    assert_eq!(health(&channel).await, ServingStatus::NotServing);
    refuse(true);
    assert_eq!(is_refused().await, "STORE_UNAVAILABLE");
    assert_eq!(health(&channel).await, ServingStatus::NotServing);
    store.end();
    started(&channel, start("echo", "3")).await;
    assert_eq!(health(&channel).await, ServingStatus::Serving);
}

#[tokio::test]
async fn an_append_that_is_not_written_ends_the_call_and_the_worker_resumes() {
    let Working {
        harness,
        store,
        channel,
        hello,
        mut slot,
        run,
        request,
    } = working().await;
    slot.send(step(&request, 1, "first", "1")).await;
    assert!(matches!(
        slot.next().await,
        attach_response::Frame::Appended(_)
    ));
    store.begin(0, Fault::Fails(StoreError::Full));
    slot.send(step(&request, 2, "second", "2")).await;
    let status = slot.end().await;
    assert_eq!(
        (status.code(), reason(&status)),
        (Code::Unavailable, "STORE_UNAVAILABLE".into())
    );
    store.end();

    let resumed = || async {
        let mut slot = RawSlot::open(harness.connect().await).await;
        let hello = resuming(hello.clone(), &request);
        slot.send(harness_proto::v1::attach_request::Frame::Hello(hello))
            .await;
        let Ok(Some(told)) = within(SOON, slot.inbound.message()).await else {
            return false;
        };
        let Some(attach_response::Frame::Welcome(welcome)) = told.frame else {
            panic!("expected welcome, got {told:?}")
        };
        assert_eq!(welcome.resume.map(|it| it.last_worker_seq), Some(1));
        slot.send(step(&request, 2, "second", "2")).await;
        slot.reply_as(&request, 3, reply::Outcome::Value(payload("3")))
            .await;
        let run = journal(&channel, &run.run_id, SOON).await;
        assert_eq!(run.len(), 6);
        true
    };
    eventually(Duration::from_secs(10), "the worker resumes", resumed).await;
}

#[tokio::test]
async fn a_reply_that_is_not_written_is_asked_for_again() {
    let Working {
        harness,
        store,
        channel,
        hello,
        mut slot,
        run,
        request,
    } = working().await;
    store.begin(0, Fault::Fails(StoreError::Full));
    slot.reply(&request, "1").await;
    assert_eq!(reason(&slot.end().await), "STORE_UNAVAILABLE");
    store.end();
    let stands = run_of(&channel, &run.run_id).await.expect("known");
    assert_eq!(stands.state(), RunState::Running, "nothing was decided");
    let ended = || async {
        let mut slot = RawSlot::open(harness.connect().await).await;
        let hello = resuming(hello.clone(), &request);
        slot.send(harness_proto::v1::attach_request::Frame::Hello(hello))
            .await;
        if !matches!(within(SOON, slot.inbound.message()).await, Ok(Some(_))) {
            return false;
        }
        slot.reply(&request, "1").await;
        journal(&channel, &run.run_id, SOON).await;
        true
    };
    eventually(Duration::from_secs(10), "the worker says it again", ended).await;
    let run = run_of(&channel, &run.run_id).await.expect("known");
    assert_eq!((value(&run), run.attempt), ("1".to_owned(), 1));
}

#[tokio::test]
async fn a_cancel_that_is_not_written_is_told_and_changes_nothing() {
    let Working {
        harness: _harness,
        store,
        channel,
        mut slot,
        run,
        ..
    } = working().await;
    // It is read before it is cancelled.
    store.begin(0, Fault::FailsWrites(StoreError::Full));
    let cancel = harness_proto::v1::CancelRunRequest {
        run_id: run.run_id.clone(),
        ..harness_proto::v1::CancelRunRequest::default()
    };
    let status = within(SOON, runs(&channel).cancel_run(cancel.clone())).await;
    let _ = typed(
        &status.expect_err("nothing is written"),
        Code::Unavailable,
        ErrorCode::StoreUnavailable,
    );
    assert_eq!(reason(&slot.end().await), "STORE_UNAVAILABLE");
    let stands = run_of(&channel, &run.run_id).await.expect("known");
    assert_eq!(stands.state(), RunState::Running);
    store.end();
    // Until the run is read again, which its error says to wait for.
    let cancelled = || async {
        let told = within(SOON, runs(&channel).cancel_run(cancel.clone())).await;
        let run = told.ok().and_then(|told| told.into_inner().run);
        run.is_some_and(|run| run.state() == RunState::Cancelled)
    };
    eventually(SOON, "it is cancelled", cancelled).await;
    assert_eq!(journal(&channel, &run.run_id, SOON).await.len(), 5);
}

#[tokio::test]
async fn a_store_that_stalls_holds_acknowledgements_back_and_nothing_else() {
    let Working {
        harness,
        store,
        channel,
        mut slot,
        run,
        request,
        ..
    } = working().await;
    let mut other = RawSlot::attach(harness.connect().await, full_hello("other")).await;
    store.begin(0, Fault::Stalls);
    slot.send(step(&request, 1, "first", "1")).await;
    slot.reply_as(&request, 2, reply::Outcome::Value(payload("2")))
        .await;
    let stalled = || async {
        let seen = store.seen();
        seen.contains(&"append") && seen.contains(&"finish")
    };
    eventually(SOON, "both are on their way", stalled).await;
    let stands = run_of(&channel, &run.run_id).await.expect("known");
    assert_eq!((stands.state(), stands.head), (RunState::Running, 2));
    let asked = asking(&harness, "other", SOON).await;
    let theirs = other.request().await;
    other.reply(&theirs, "1").await;
    within(SOON, asked)
        .await
        .expect("no panic")
        .expect("an answer");
    store.end();
    loop {
        match slot.next().await {
            attach_response::Frame::Appended(told) if told.worker_seq == 2 => break,
            attach_response::Frame::Appended(_) | attach_response::Frame::Heartbeat(_) => {}
            other => panic!("expected appended, got {other:?}"),
        }
    }
    let run = run_of(&channel, &run.run_id).await.expect("known");
    assert_eq!(run.state(), RunState::Succeeded);
}

#[tokio::test]
async fn who_follows_to_the_stop_is_told_it_although_it_is_not_on_disk_yet() {
    let Working {
        harness,
        store,
        channel,
        hello,
        mut slot,
        run,
        request,
    } = working().await;
    // The end is written, and nothing behind it.
    store.begin(1, Fault::Stalls);
    let cancel = CancelRunRequest {
        run_id: run.run_id.clone(),
        ..CancelRunRequest::default()
    };
    let cancelled = within(SOON, runs(&channel).cancel_run(cancel)).await;
    cancelled.expect("it is cancelled");
    assert_eq!(slot.end().await.code(), Code::Cancelled);
    let released = hello::Previous::Released(Released {
        run_id: request.run_id.clone(),
        attempt: request.attempt,
        lease: request.lease.clone(),
    });
    let hello = Hello {
        previous: Some(released),
        ..hello
    };
    let _slot = RawSlot::attach(harness.connect().await, hello).await;
    let noted = || async { store.seen().iter().filter(|step| **step == "note").count() == 2 };
    eventually(SOON, "stopping and stopped are on their way", noted).await;

    let request = WatchRunRequest {
        run_id: run.run_id,
        include_stop: true,
        ..WatchRunRequest::default()
    };
    let events = within(SOON, runs(&channel).watch_run(request)).await;
    let mut events = events.expect("the run is known").into_inner();
    let mut entries = Vec::new();
    while let Some(told) = within(SOON, events.message()).await.expect("no error") {
        let Some(watch_run_response::Event::Entry(entry)) = told.event else {
            panic!("an entry comes next: {told:?}")
        };
        entries.push(entry);
        if kinds(&entries).last() == Some(&"run_ended") {
            store.end();
        }
    }
    let told = kinds(&entries);
    assert!(
        told.ends_with(&["run_ended", "attempt_stopping", "attempt_stopped"]),
        "{told:?}"
    );
}

#[tokio::test]
async fn a_run_that_ends_while_the_unfinished_ones_are_read_is_not_taken_in_again() {
    let store = Arc::new(Faulty::over(Arc::new(Memory::default())));
    store.begin(0, Fault::StallsReads(Some("agents")));
    let _stalled = Stalled(store.clone());
    let limits = Limits {
        reattach_window: Duration::ZERO,
        ..Limits::default()
    };
    let harness = Embedded::storing(limits, Some(store.clone())).await;
    let channel = harness.connect().await;
    let mut slot = RawSlot::attach(harness.connect().await, full_hello("echo")).await;
    let run = started(&channel, start("echo", "1")).await;
    let request = slot.request().await;
    store.begin(0, Fault::StallsReads(Some("unfinished")));
    let is_read = || async { store.reads() == 2 };
    eventually(SOON, "it is read as it runs", is_read).await;
    slot.reply(&request, "2").await;
    journal(&channel, &run.run_id, SOON).await;
    let before = store.reads();
    store.end();
    // Its extent; the next ones are read when those before are taken in.
    let are_taken_in = || async { store.reads() == before + 2 };
    eventually(SOON, "all are taken in", are_taken_in).await;
    // Were it here again, its worker would have been lost by now.
    let next = started(&channel, start("echo", "3")).await;
    let request = slot.request().await;
    slot.reply(&request, "4").await;
    journal(&channel, &next.run_id, SOON).await;
    let mut steps = store.seen();
    steps.retain(|step| !["keep_agent", "forget"].contains(step));
    assert_eq!(steps, ["enqueue", "finish", "enqueue", "finish"]);
}
