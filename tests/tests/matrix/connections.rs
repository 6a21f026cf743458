//! Connections that break between a worker and the harness, each in its own way, by a proxy: the
//! worker comes back by itself. Those that break without a word are in `half_open`.

use std::time::Instant;

use harness_proto::v1::ErrorCode;
use harness_tests::{Asker, BOUND, Harness, Proxy, Worker, eventually};
use tonic::Code;

use crate::behind_proxy::{SLOTS, assert_back, behind_proxy};
use crate::{AMPLE, Kind, SOON, assert_dropped, assert_logged, hang, millis, next_started, reply};

with_each_worker! {
    an_idle_worker_comes_back_after_a_reset,
    an_idle_worker_comes_back_after_a_close,
    an_idle_worker_comes_back_after_a_goaway_that_refuses_its_call,
    a_busy_worker_stops_and_comes_back_after_a_reset,
    a_busy_worker_stops_and_comes_back_after_a_close,
    a_busy_worker_stops_and_comes_back_after_a_goaway_that_refuses_its_call,
    an_idle_worker_comes_back_after_its_calls_are_reset,
    a_busy_worker_stops_and_comes_back_after_its_calls_are_reset,
    a_goaway_that_lets_calls_finish_moves_only_the_next_call,
}

/// Streams a peer may open; as the last one of a GOAWAY it lets all of them finish.
const LAST_STREAM: u32 = i32::MAX as u32;

fn an_idle_worker_comes_back_after_a_reset(kind: Kind) {
    let (harness, proxy, _worker) = behind_proxy(kind, "");
    proxy.cut();
    assert_back(&harness, &proxy, 1);
}

fn an_idle_worker_comes_back_after_a_close(kind: Kind) {
    let (harness, proxy, _worker) = behind_proxy(kind, "");
    proxy.close();
    assert_back(&harness, &proxy, 1);
}

fn an_idle_worker_comes_back_after_a_goaway_that_refuses_its_call(kind: Kind) {
    let (harness, proxy, _worker) = behind_proxy(kind, "");
    proxy.go_away(0);
    assert_back(&harness, &proxy, 1);
}

fn a_busy_worker_stops_and_comes_back_after_a_reset(kind: Kind) {
    assert_lost_and_back(kind, Proxy::cut);
}

fn a_busy_worker_stops_and_comes_back_after_a_close(kind: Kind) {
    assert_lost_and_back(kind, Proxy::close);
}

fn a_busy_worker_stops_and_comes_back_after_a_goaway_that_refuses_its_call(kind: Kind) {
    assert_lost_and_back(kind, |proxy| proxy.go_away(0));
}

#[track_caller]
fn assert_lost_and_back(kind: Kind, break_connections: impl FnOnce(&Proxy)) {
    let (harness, proxy, _worker) = assert_lost(kind, break_connections);
    assert_back(&harness, &proxy, 1);
}

#[track_caller]
fn assert_lost(kind: Kind, break_it: impl FnOnce(&Proxy)) -> (Harness, Proxy, Worker) {
    let (mut harness, proxy, mut worker) = behind_proxy(kind, "");
    let asker = Asker::new(&harness, "puppet");
    let asking = asker.start(&hang(), AMPLE);
    let run_id = next_started(worker.process(), 0);
    let broken = Instant::now();
    break_it(&proxy);
    let answer = asking.answer();
    assert!(broken.elapsed() < SOON, "{:?}", broken.elapsed());
    let error = answer.error(Code::Aborted, ErrorCode::WorkerLost);
    assert_eq!(error.run_id, run_id);
    assert_dropped(worker.process(), &run_id);
    assert_logged(&mut harness, &run_id, "was lost");
    (harness, proxy, worker)
}

/// The ids of the slots there are.
fn slots(harness: &Harness) -> Vec<u64> {
    let workers = harness.workers("puppet");
    let slots = workers[0]["slots"].as_array().cloned().unwrap_or_default();
    slots
        .iter()
        .filter_map(|slot| slot["slot_id"].as_u64())
        .collect()
}

/// The worker has opened every call anew, on the connection it has.
#[track_caller]
fn assert_calls_are_new(harness: &Harness, proxy: &Proxy, before: &[u64]) {
    eventually("every slot is a new one", BOUND, || {
        let now = slots(harness);
        let new = now.iter().all(|slot| !before.contains(slot));
        (now.len() as u64 == SLOTS && new).then_some(())
    });
    assert_eq!(proxy.accepted(), 1);
    harness.wait_for_ready("puppet", SLOTS);
    let asker = Asker::new(harness, "puppet");
    assert_eq!(asker.ask(&reply(1), AMPLE).json(), 1);
}

fn an_idle_worker_comes_back_after_its_calls_are_reset(kind: Kind) {
    let (harness, proxy, _worker) = behind_proxy(kind, "");
    let before = slots(&harness);
    proxy.reset_calls();
    assert_calls_are_new(&harness, &proxy, &before);
}

fn a_busy_worker_stops_and_comes_back_after_its_calls_are_reset(kind: Kind) {
    let (harness, proxy, _worker) = assert_lost(kind, Proxy::reset_calls);
    assert_calls_are_new(&harness, &proxy, &[1, 2]);
}

fn a_goaway_that_lets_calls_finish_moves_only_the_next_call(kind: Kind) {
    let (harness, proxy, mut worker) = behind_proxy(kind, "");
    let asker = Asker::new(&harness, "puppet");
    let asking = asker.start(&hang(), millis(500));
    let run_id = next_started(worker.process(), 0);
    proxy.go_away(LAST_STREAM);
    // The call lives on until its own end, which is the run's deadline and no loss.
    let answer = asking.answer();
    let _ = answer.error(Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
    assert_dropped(worker.process(), &run_id);
    assert_back(&harness, &proxy, 1);
    let workers = harness.workers("puppet");
    assert_eq!(workers[0]["unreleased"], serde_json::json!([]), "{workers}");
}
