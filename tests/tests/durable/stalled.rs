//! Calls over a store that stalls: each is answered, by its deadline or without one.

use harness_proto::v1::{
    CancelRunRequest, ErrorCode, GetRunRequest, ListRunsRequest, RunState, WatchRunRequest,
};
use harness_server::store::Fault;
use harness_tests::durable::run_of;
use harness_tests::raw::{SOON, eventually, runs, typed, within};
use tonic::{Code, Status};

use super::stores::{Stalled, Working, working};
use super::waiting::due;

/// That a call was told that the store keeps it waiting, and what to do.
fn is_kept_waiting<T>(told: Result<T, Status>, what_to_do: &str) {
    let status = told.err().expect("the store does not say");
    let error = typed(&status, Code::Unavailable, ErrorCode::StoreUnavailable);
    assert!(error.message.contains(what_to_do), "{}", error.message);
}

/// A run at work over a store whose reads stall, until the second is dropped.
async fn unread() -> (Working, Stalled) {
    let working = working().await;
    working.store.begin(0, Fault::StallsReads(None));
    let stalled = Stalled(working.store.clone());
    (working, stalled)
}

#[tokio::test]
async fn who_asks_for_a_run_and_waits_for_nothing_is_told_that_the_store_does_not_say() {
    let (working, _stalled) = unread().await;
    let get = GetRunRequest {
        run_id: working.run.run_id,
        ..GetRunRequest::default()
    };
    let told = within(2 * SOON, runs(&working.channel).get_run(get)).await;
    is_kept_waiting(told, "ask for it with GetRun");
}

#[tokio::test]
async fn who_watches_a_run_that_is_on_disk_only_is_told_that_the_store_does_not_say() {
    let (working, _stalled) = unread().await;
    let watch = WatchRunRequest {
        run_id: uuid::Uuid::now_v7().to_string(),
        ..WatchRunRequest::default()
    };
    let told = within(2 * SOON, runs(&working.channel).watch_run(watch)).await;
    is_kept_waiting(told, "ask for it with GetRun");
}

#[tokio::test]
async fn who_lists_runs_is_told_that_the_store_does_not_say() {
    let (working, _stalled) = unread().await;
    let list = ListRunsRequest::default();
    let [mut with, mut without] = [(); 2].map(|()| runs(&working.channel));
    let told = async { tokio::join!(with.list_runs(due(list.clone())), without.list_runs(list)) };
    let (with, without) = within(2 * SOON, told).await;
    is_kept_waiting(with, "ask again");
    is_kept_waiting(without, "ask again");
}

#[tokio::test]
async fn who_cancels_a_run_is_told_that_the_store_does_not_confirm_it_and_may_cancel_again() {
    let Working {
        harness: _harness,
        store,
        channel,
        run,
        slot: _slot,
        ..
    } = working().await;
    let cancel = || CancelRunRequest {
        run_id: run.run_id.clone(),
        ..CancelRunRequest::default()
    };
    let _stalled = Stalled(store.clone());
    store.begin(0, Fault::StallsReads(None));
    let told = within(SOON, runs(&channel).cancel_run(due(cancel()))).await;
    is_kept_waiting(told, "cancel it again");
    store.end();

    store.begin(0, Fault::Stalls);
    let [mut with, mut without] = [(); 2].map(|()| runs(&channel));
    let told = async { tokio::join!(with.cancel_run(due(cancel())), without.cancel_run(cancel())) };
    let (with, without) = within(2 * SOON, told).await;
    is_kept_waiting(with, "cancel it again");
    is_kept_waiting(without, "cancel it again");
    let stands = run_of(&channel, &run.run_id).await.expect("known");
    assert!(
        stands.outcome.is_none(),
        "its end is not on disk: {stands:?}"
    );

    store.end();
    let is_cancelled = || async {
        let stands = run_of(&channel, &run.run_id).await.expect("known");
        stands.state() == RunState::Cancelled
    };
    eventually(SOON, "the store takes the cancel", is_cancelled).await;
    let told = within(SOON, runs(&channel).cancel_run(cancel())).await;
    let run = told.expect("it is cancelled").into_inner().run;
    assert_eq!(run.expect("a run").state(), RunState::Cancelled);
}
