//! Starting, following, listing and cancelling durable runs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use harness_proto::v1::{
    self, ErrorCode, ListRunsRequest, RunFilter, RunOptions, RunState, StartRunRequest,
    attach_response, entry,
};
use harness_server::Limits;
use harness_server::store::{Memory, Sqlite, Store};
use harness_tests::durable::{
    append, journal, kind_of, kinds, run_of, start, started, step, value,
};
use harness_tests::raw::{
    Embedded, RawSlot, SOON, asking, eventually, full_hello, hello, payload, proto, runs, typed,
    within,
};
use tempfile::TempDir;
use tonic::Code;

async fn harness() -> (Embedded, TempDir) {
    let folder = TempDir::new().expect("a folder of its own");
    let store: Arc<dyn Store> = Arc::new(Sqlite::open(folder.path()).expect("a store"));
    (
        Embedded::storing(Limits::default(), Some(store)).await,
        folder,
    )
}

#[tokio::test]
async fn a_durable_run_goes_from_its_start_to_its_journal() {
    let (harness, _folder) = harness().await;
    let channel = harness.connect().await;
    let mut slot = RawSlot::attach(harness.connect().await, full_hello("echo")).await;
    let run = started(
        &channel,
        StartRunRequest {
            idempotency_key: "k1".to_owned(),
            labels: HashMap::from([("team".to_owned(), "a".to_owned())]),
            ..start("echo", "\"hi\"")
        },
    )
    .await;
    assert!(run.durable && run.outcome.is_none());
    assert_eq!(run.state(), RunState::Running);
    assert_eq!(run.labels["team"], "a");

    let request = slot.request().await;
    assert!(request.durable);
    assert_eq!(request.run_id, run.run_id);
    assert_eq!(request.idempotency_key, "k1");
    assert_eq!(
        request.reattach_window,
        Some(proto(Duration::from_secs(10)))
    );
    let output = entry::Kind::Output(v1::Output {
        payload: Some(payload("\"piece\"")),
    });
    slot.send(step(&request, 1, "first", "1")).await;
    slot.send(append(&request, 2, output)).await;
    slot.reply_as(&request, 3, v1::reply::Outcome::Value(payload("\"done\"")))
        .await;
    loop {
        match slot.next().await {
            attach_response::Frame::Appended(appended) if appended.worker_seq == 3 => break,
            attach_response::Frame::Appended(_) | attach_response::Frame::Heartbeat(_) => {}
            other => panic!("expected appended, got {other:?}"),
        }
    }
    // What was acknowledged is there.
    let run = run_of(&channel, &run.run_id)
        .await
        .expect("the run is known");
    assert_eq!((run.state(), run.head), (RunState::Succeeded, 6));
    assert_eq!(value(&run), "\"done\"");
    let entries = journal(&channel, &run.run_id, SOON).await;
    let expected = [
        "run_started",
        "attempt_started",
        "step",
        "output",
        "attempt_ended",
        "run_ended",
    ];
    assert_eq!(kinds(&entries), expected);
    let Some(entry::Kind::RunStarted(asked)) = kind_of(&entries[0]) else {
        panic!("{entries:?}")
    };
    assert_eq!(asked.request, Some(said("\"hi\"")));
}

/// A payload whose media type is said: what is meant is written.
fn said(json: &str) -> v1::Payload {
    v1::Payload {
        content_type: "application/json".to_owned(),
        ..payload(json)
    }
}

#[tokio::test]
async fn one_key_makes_one_run_whatever_became_of_it() {
    let (harness, _folder) = harness().await;
    let channel = harness.connect().await;
    let mut slot = RawSlot::attach(harness.connect().await, full_hello("echo")).await;
    let keyed = |json: &str| StartRunRequest {
        idempotency_key: "k".to_owned(),
        ..start("echo", json)
    };
    let first = started(&channel, keyed("1")).await;
    let again = started(&channel, keyed("1")).await;
    assert_eq!(again.run_id, first.run_id);
    let request = slot.request().await;
    slot.reply(&request, "2").await;
    journal(&channel, &first.run_id, SOON).await;
    let ended = started(&channel, keyed("1")).await;
    assert_eq!(
        (&ended.run_id, value(&ended)),
        (&first.run_id, "2".to_owned())
    );
    let status = within(SOON, runs(&channel).start_run(keyed("other"))).await;
    let status = status.expect_err("another payload");
    let _ = typed(&status, Code::AlreadyExists, ErrorCode::IdempotencyConflict);
    // Its slot was given up: it takes the next.
    let asked = asking(&harness, "echo", SOON).await;
    let request = slot.request().await;
    slot.reply(&request, "3").await;
    within(SOON, asked)
        .await
        .expect("no panic")
        .expect("an answer");
}

#[tokio::test]
async fn a_run_waits_for_its_worker_and_its_start() {
    let (harness, _folder) = harness().await;
    let channel = harness.connect().await;
    let waiting = StartRunRequest {
        options: Some(RunOptions {
            wait_for_agent: true,
            metadata: HashMap::from([("who".to_owned(), "me".to_owned())]),
            ..RunOptions::default()
        }),
        ..start("echo", "\"hi\"")
    };
    let run = started(&channel, waiting.clone()).await;
    assert_eq!((run.state(), run.head), (RunState::Queued, 1));
    let soon = std::time::SystemTime::now() + Duration::from_millis(700);
    let later = StartRunRequest {
        start_time: Some(soon.into()),
        ..waiting
    };
    let later = started(&channel, later).await;
    let mut slot = RawSlot::attach(harness.connect().await, hello("echo")).await;
    for run in [run, later] {
        let request = slot.request().await;
        assert_eq!(request.run_id, run.run_id);
        assert_eq!(request.payload, Some(said("\"hi\"")), "read from the disk");
        assert_eq!(request.metadata["who"], "me");
        slot.reply(&request, "1").await;
        journal(&channel, &run.run_id, SOON).await;
    }
    assert!(std::time::SystemTime::now() >= soon);
}

#[tokio::test]
async fn a_cancel_reaches_a_run_wherever_it_is_and_is_in_its_journal() {
    let (harness, _folder) = harness().await;
    let channel = harness.connect().await;
    let mut slot = RawSlot::attach(harness.connect().await, full_hello("echo")).await;
    let works = started(&channel, start("echo", "1")).await;
    slot.request().await;
    let waits = started(&channel, start("echo", "2")).await;
    for run in [&waits, &works] {
        let request = v1::CancelRunRequest {
            run_id: run.run_id.clone(),
            reason: "enough".to_owned(),
            ..v1::CancelRunRequest::default()
        };
        for _ in 0..2 {
            let told = within(SOON, runs(&channel).cancel_run(request.clone())).await;
            let told = told.expect("the run is known").into_inner().run;
            assert_eq!(told.expect("a run").state(), RunState::Cancelled);
        }
        let entries = journal(&channel, &run.run_id, SOON).await;
        assert!(kinds(&entries).contains(&"cancel_requested"));
    }
    assert_eq!(slot.end().await.code(), Code::Cancelled);
}

#[tokio::test]
async fn runs_are_listed_in_pages_newest_first() {
    let (harness, _folder) = harness().await;
    let channel = harness.connect().await;
    let mut made = Vec::new();
    for at in 0..5 {
        let request = StartRunRequest {
            options: Some(RunOptions {
                wait_for_agent: true,
                ..RunOptions::default()
            }),
            labels: HashMap::from([("odd".to_owned(), (at % 2).to_string())]),
            ..start("echo", "1")
        };
        made.push(started(&channel, request).await.run_id);
    }
    made.reverse();
    let mut listed = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = ListRunsRequest {
            page_size: 2,
            page_token,
            ..ListRunsRequest::default()
        };
        let page = within(SOON, runs(&channel).list_runs(request)).await;
        let page = page.expect("a page").into_inner();
        listed.extend(page.runs.into_iter().map(|run| run.run_id));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(listed, made);
    let count = async |filter: RunFilter| {
        let request = ListRunsRequest {
            filter: Some(filter),
            ..ListRunsRequest::default()
        };
        let page = within(SOON, runs(&channel).list_runs(request)).await;
        page.expect("a page").into_inner().runs.len()
    };
    let odd = RunFilter {
        labels: HashMap::from([("odd".to_owned(), "1".to_owned())]),
        ..RunFilter::default()
    };
    assert_eq!(count(odd).await, 2);
    let ended = RunFilter {
        states: vec![RunState::Succeeded.into()],
        ..RunFilter::default()
    };
    assert_eq!(count(ended).await, 0);
}

#[tokio::test]
async fn without_a_store_start_run_says_what_to_do() {
    let harness = Embedded::start().await;
    let channel = harness.connect().await;
    let status = runs(&channel).start_run(start("echo", "1")).await;
    let status = status.expect_err("there is no store");
    let error = typed(&status, Code::Unimplemented, ErrorCode::Unimplemented);
    assert!(error.message.contains("--data"), "{}", error.message);
}

#[tokio::test]
async fn an_agent_is_known_to_the_harness_that_comes_after() {
    let store: Arc<dyn Store> = Arc::new(Memory::default());
    let harness = Embedded::storing(Limits::default(), Some(store.clone())).await;
    drop(RawSlot::attach(harness.connect().await, hello("echo")).await);
    // Its store is closed when it has left, so the next one has what it knew.
    let kept = || async { store.agents().is_ok_and(|agents| !agents.is_empty()) };
    eventually(SOON, "the agent is remembered", kept).await;
    let next: Arc<dyn Store> = Arc::new(Memory::default());
    let (agent, seen) = store.agents().expect("readable").remove(0);
    next.write(
        harness_server::store::Step::KeepAgent { agent, seen },
        Box::new(|outcome| assert!(outcome.is_ok())),
    );
    let harness = Embedded::storing(Limits::default(), Some(next)).await;
    let channel = harness.connect().await;
    let known = || async { runs(&channel).start_run(start("echo", "1")).await.is_ok() };
    eventually(SOON, "the agent is known", known).await;
}
