//! Waiting for the end of a run, with StartRun and with GetRun.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::stores::Stalled;
use harness_proto::v1::{
    AskRequest, ErrorCode, GetRunRequest, Run, RunOptions, RunState, StartRunRequest,
};
use harness_server::Limits;
use harness_server::store::{Fault, Faulty, Memory};
use harness_tests::durable::{run_of, start, started, value};
use harness_tests::raw::{
    Embedded, RawSlot, SOON, eventually, full_hello, payload, proto, runs, typed, within,
};
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

/// Longer than any test: whoever waits so long is answered for another reason.
const LONG: Duration = Duration::from_secs(600);

async fn harness() -> Embedded {
    Embedded::storing(Limits::default(), Some(Arc::new(Memory::default()))).await
}

fn start_and_wait(json: &str, at_most: Duration) -> StartRunRequest {
    StartRunRequest {
        wait_for_end: Some(proto(at_most)),
        options: Some(RunOptions {
            wait_for_agent: true,
            ..RunOptions::default()
        }),
        ..start("echo", json)
    }
}

fn get_and_wait(run_id: &str, at_most: Duration) -> GetRunRequest {
    GetRunRequest {
        run_id: run_id.to_owned(),
        wait_for_end: Some(proto(at_most)),
        ..GetRunRequest::default()
    }
}

/// Makes the call on a task of its own.
fn spawn_get(channel: &Channel, request: GetRunRequest) -> JoinHandle<Result<Run, Status>> {
    let mut client = runs(channel);
    tokio::spawn(async move {
        let answer = client.get_run(request).await?;
        Ok(answer.into_inner().run.expect("a run"))
    })
}

/// Starts a run on a task of its own, which waits for its end.
fn spawn_start(channel: &Channel, request: StartRunRequest) -> JoinHandle<Run> {
    let channel = channel.clone();
    tokio::spawn(async move { started(&channel, request).await })
}

async fn told(call: JoinHandle<Result<Run, Status>>) -> Run {
    let told = within(SOON, call).await.expect("no panic");
    told.expect("a run")
}

#[tokio::test]
async fn who_starts_a_run_and_waits_is_told_its_end() {
    let harness = harness().await;
    let channel = harness.connect().await;
    let mut slot = RawSlot::attach(harness.connect().await, full_hello("echo")).await;
    let starting = spawn_start(&channel, start_and_wait("1", LONG));
    let request = slot.request().await;
    let waiting = spawn_get(&channel, get_and_wait(&request.run_id, LONG));
    slot.reply(&request, "2").await;
    let run = within(SOON, starting).await.expect("no panic");
    assert_eq!((run.state(), run.attempt), (RunState::Succeeded, 1));
    assert_eq!(value(&run), "2");
    // What is told from memory is what is on disk.
    assert_eq!(told(waiting).await, run);
    assert_eq!(run_of(&channel, &run.run_id).await.expect("known"), run);
    assert_eq!(
        told(spawn_get(&channel, get_and_wait(&run.run_id, LONG))).await,
        run
    );
}

#[tokio::test]
async fn when_the_time_is_over_a_run_is_told_as_it_stands_and_goes_on() {
    let harness = harness().await;
    let channel = harness.connect().await;
    let began = Instant::now();
    let wait = Duration::from_millis(300);
    let run = started(&channel, start_and_wait("1", wait)).await;
    assert!(began.elapsed() >= wait);
    assert_eq!(run.state(), RunState::Queued);
    let run = told(spawn_get(&channel, get_and_wait(&run.run_id, wait))).await;
    assert_eq!(run.state(), RunState::Queued);
    // The call's own deadline is kept as well.
    let mut short = Request::new(get_and_wait(&run.run_id, LONG));
    short.set_timeout(Duration::from_secs(2));
    let answer = within(SOON, runs(&channel).get_run(short)).await;
    let answer = answer.expect("an answer before the deadline").into_inner();
    assert_eq!(answer.run.expect("a run").state(), RunState::Queued);
    // Hanging up stops nothing.
    let mut client = runs(&channel);
    let gone = client.get_run(get_and_wait(&run.run_id, LONG));
    assert!(
        tokio::time::timeout(wait, gone).await.is_err(),
        "it waits for longer"
    );
    let mut slot = RawSlot::attach(harness.connect().await, full_hello("echo")).await;
    let request = slot.request().await;
    slot.reply(&request, "2").await;
    let run = told(spawn_get(&channel, get_and_wait(&run.run_id, LONG))).await;
    assert_eq!(run.state(), RunState::Succeeded);
}

#[tokio::test]
async fn one_key_waits_for_one_run() {
    let harness = harness().await;
    let channel = harness.connect().await;
    let keyed = || StartRunRequest {
        idempotency_key: "k".to_owned(),
        ..start_and_wait("1", LONG)
    };
    let start = || spawn_start(&channel, keyed());
    let (first, second) = (start(), start());
    let mut slot = RawSlot::attach(harness.connect().await, full_hello("echo")).await;
    let request = slot.request().await;
    slot.reply(&request, "2").await;
    let first = within(SOON, first).await.expect("no panic");
    let second = within(SOON, second).await.expect("no panic");
    let third = within(SOON, start()).await.expect("no panic");
    assert_eq!(value(&first), "2");
    assert_eq!((&first, &first), (&second, &third));
}

#[tokio::test]
async fn the_end_of_an_interactive_run_is_waited_for_too() {
    let harness = harness().await;
    let channel = harness.connect().await;
    let mut slot = RawSlot::attach(harness.connect().await, full_hello("echo")).await;
    let asking = tokio::spawn({
        let mut client = runs(&channel);
        let ask = AskRequest {
            agent: "echo".to_owned(),
            payload: Some(payload("1")),
            ..AskRequest::default()
        };
        async move { client.ask(ask).await }
    });
    let request = slot.request().await;
    let short = get_and_wait(&request.run_id, Duration::from_millis(100));
    assert_eq!(
        told(spawn_get(&channel, short)).await.state(),
        RunState::Running
    );
    let waiting = spawn_get(&channel, get_and_wait(&request.run_id, LONG));
    slot.reply(&request, "2").await;
    assert_eq!(told(waiting).await.state(), RunState::Succeeded);
    let answer = within(SOON, asking).await.expect("no panic");
    answer.expect("an answer");
}

#[tokio::test]
async fn a_harness_that_leaves_tells_those_who_wait_how_their_runs_stand() {
    let limits = Limits {
        shutdown_grace: Duration::from_millis(100),
        ..Limits::default()
    };
    let harness = Embedded::storing(limits, Some(Arc::new(Memory::default()))).await;
    let channel = harness.connect().await;
    let mut slot = RawSlot::attach(harness.connect().await, full_hello("echo")).await;
    let starting = spawn_start(&channel, start_and_wait("1", LONG));
    let request = slot.request().await;
    harness.leave();
    let run = within(SOON, starting).await.expect("no panic");
    assert_eq!(run.run_id, request.run_id);
    assert!(run.outcome.is_none(), "{run:?}");
}

/// A request of a call that is over soon.
pub(super) fn due<T>(request: T) -> Request<T> {
    let mut request = Request::new(request);
    request.set_timeout(Duration::from_secs(3));
    request
}

#[tokio::test]
async fn who_waits_while_the_store_cannot_be_read_is_told_so_in_time() {
    let store = Arc::new(Faulty::over(Arc::new(Memory::default())));
    let harness = Embedded::storing(Limits::default(), Some(store.clone())).await;
    let channel = harness.connect().await;
    let is_read = || async { store.reads() == 2 };
    eventually(SOON, "what there was is read", is_read).await;
    let run = started(&channel, start_and_wait("1", Duration::ZERO)).await;
    let before = store.reads();
    let [mut starts, mut waits, mut asks, mut has_no_deadline] = [(); 4].map(|()| runs(&channel));
    let starting =
        tokio::spawn(async move { starts.start_run(due(start_and_wait("2", LONG))).await });
    let get = get_and_wait(&run.run_id, LONG);
    let waiting = tokio::spawn(async move { waits.get_run(due(get)).await });
    let are_waiting = || async {
        let made = store
            .seen()
            .iter()
            .filter(|step| **step == "enqueue")
            .count();
        (made, store.reads()) == (2, before + 1)
    };
    eventually(SOON, "one is made and one is found", are_waiting).await;
    store.begin(0, Fault::StallsReads(None));
    let _stalled = Stalled(store.clone());

    let get = |at_most| get_and_wait(&run.run_id, at_most);
    let (started, waited, asked, without) = within(2 * SOON, async {
        tokio::join!(
            starting,
            waiting,
            asks.get_run(due(get(LONG))),
            has_no_deadline.get_run(get(Duration::ZERO)),
        )
    })
    .await;
    let waited = waited.expect("no panic").map(drop);
    let refused = [
        started.expect("no panic").map(drop),
        waited,
        asked.map(drop),
        without.map(drop),
    ];
    for told in refused {
        let status = told.expect_err("nobody knows how it stands");
        let error = typed(&status, Code::Unavailable, ErrorCode::StoreUnavailable);
        assert!(error.message.contains("GetRun"), "{}", error.message);
    }
    store.end();
    let stands = run_of(&channel, &run.run_id).await.expect("known");
    assert_eq!(stands.state(), RunState::Queued);
}

#[tokio::test]
async fn a_wait_that_is_none_is_refused_and_the_longest_is_none_too_long() {
    let harness = harness().await;
    let channel = harness.connect().await;
    let negative = |seconds, nanos| prost_types::Duration { seconds, nanos };
    let mut request = start_and_wait("1", LONG);
    request.wait_for_end = Some(negative(-1, 0));
    let refused = within(SOON, runs(&channel).start_run(request)).await;
    let status = refused.expect_err("a negative wait");
    let error = typed(&status, Code::InvalidArgument, ErrorCode::InvalidRequest);
    assert!(error.message.contains("wait_for_end"), "{error:?}");

    let run = started(&channel, start_and_wait("1", Duration::ZERO)).await;
    let mut request = get_and_wait(&run.run_id, LONG);
    request.wait_for_end = Some(negative(0, -1));
    let refused = within(SOON, runs(&channel).get_run(request)).await;
    let _ = typed(
        &refused.expect_err("a negative wait"),
        Code::InvalidArgument,
        ErrorCode::InvalidRequest,
    );

    let mut request = get_and_wait(&run.run_id, LONG);
    request.wait_for_end = Some(negative(315_576_000_000, 0));
    let mut client = runs(&channel);
    let mut waiting = Box::pin(client.get_run(request));
    let is_up = tokio::time::timeout(Duration::from_millis(300), &mut waiting).await;
    assert!(is_up.is_err(), "it waits for longer");
    let cancel = harness_proto::v1::CancelRunRequest {
        run_id: run.run_id.clone(),
        ..Default::default()
    };
    let cancelled = within(SOON, runs(&channel).cancel_run(cancel)).await;
    cancelled.expect("it is cancelled");
    let told = within(SOON, waiting).await.expect("an answer").into_inner();
    assert_eq!(told.run.expect("a run").state(), RunState::Cancelled);
}
