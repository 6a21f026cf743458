//! Connections that break between a worker and the harness, each in its own way, by a proxy.

use std::time::Instant;

use harness_proto::v1::ErrorCode;
use harness_tests::{Asker, BOUND, Harness, Proxy, Way, Worker, eventually};
use tonic::Code;

use crate::{AMPLE, Kind, SOON, assert_dropped, hang, millis, next_started, reply};

with_both_workers! {
    an_idle_worker_comes_back_after_a_reset,
    an_idle_worker_comes_back_after_a_close,
    an_idle_worker_comes_back_after_a_goaway_that_refuses_its_call,
    a_busy_worker_stops_and_comes_back_after_a_reset,
    a_busy_worker_stops_and_comes_back_after_a_close,
    a_busy_worker_stops_and_comes_back_after_a_goaway_that_refuses_its_call,
    a_goaway_that_lets_calls_finish_moves_only_the_next_call,
    a_half_open_connection_loses_the_worker_and_it_comes_back,
}

/// More than one, since all slots of a worker share its connection.
const SLOTS: u64 = 2;

/// Streams a peer may open; as the last one of a GOAWAY it lets all of them finish.
const LAST_STREAM: u32 = i32::MAX as u32;

/// A harness, a proxy to it and a puppet behind that.
fn behind_proxy(kind: Kind, config: &str) -> (Harness, Proxy, Worker) {
    let harness = Harness::builder().config(config).start();
    let proxy = Proxy::to(harness.address());
    let puppet = kind.puppet().slots(SLOTS);
    let worker = puppet.start_unattached(proxy.address());
    harness.wait_for_ready("puppet", SLOTS);
    assert_eq!(proxy.accepted(), 1);
    (harness, proxy, worker)
}

/// The worker has made one more connection and all its slots work.
#[track_caller]
fn assert_back(harness: &Harness, proxy: &Proxy, before: usize) {
    eventually("the worker dials again", BOUND, || {
        (proxy.accepted() > before).then_some(())
    });
    harness.wait_for_ready("puppet", SLOTS);
    let asker = Asker::new(harness, "puppet");
    assert_eq!(asker.ask(&reply(1), AMPLE).json(), 1);
}

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
    let (harness, proxy, mut worker) = behind_proxy(kind, "");
    let asker = Asker::new(&harness, "puppet");
    let asking = asker.start(&hang(), AMPLE);
    let run_id = next_started(worker.process(), 0);
    let broken = Instant::now();
    break_connections(&proxy);
    let answer = asking.answer();
    assert!(broken.elapsed() < SOON, "{:?}", broken.elapsed());
    let error = answer.error(Code::Aborted, ErrorCode::WorkerLost);
    assert_eq!(error.run_id, run_id);
    assert_dropped(worker.process(), &run_id);
    assert_back(&harness, &proxy, 1);
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

fn a_half_open_connection_loses_the_worker_and_it_comes_back(kind: Kind) {
    let keepalive = "[limits]\nkeepalive_interval = \"300ms\"\nkeepalive_timeout = \"300ms\"\n";
    let (harness, proxy, mut worker) = behind_proxy(kind, keepalive);
    let asker = Asker::new(&harness, "puppet");
    let asking = asker.start(&hang(), AMPLE);
    let run_id = next_started(worker.process(), 0);
    proxy.stall(Way::Both);
    let answer = asking.answer();
    assert!(answer.took < millis(3_000), "{:?}", answer.took);
    let _ = answer.error(Code::Aborted, ErrorCode::WorkerLost);
    harness.wait_for_ready("puppet", 0);
    // What the harness did since reaches the worker now.
    proxy.flow();
    assert_dropped(worker.process(), &run_id);
    assert_back(&harness, &proxy, 1);
}

const HEARTBEATS: &str = "[limits]\nheartbeat_interval = \"200ms\"\n";

/// HTTP/2 keepalive is at its 10 s; only the heartbeats of the full level can notice so soon.
#[track_caller]
fn assert_heartbeats_notice(way: Way) {
    let (harness, proxy, mut worker) = behind_proxy(Kind::Rust, HEARTBEATS);
    let asker = Asker::new(&harness, "puppet");
    let asking = asker.start(&hang(), AMPLE);
    let run_id = next_started(worker.process(), 0);
    proxy.stall(way);
    let answer = asking.answer();
    assert!(answer.took < millis(3_000), "{:?}", answer.took);
    let _ = answer.error(Code::Aborted, ErrorCode::WorkerLost);
    assert_dropped(worker.process(), &run_id);
    // The stalled connection is left as it is: the worker makes another one by itself.
    assert_back(&harness, &proxy, 1);
}

#[test]
fn heartbeats_notice_a_connection_stalled_both_ways_on_both_sides() {
    assert_heartbeats_notice(Way::Both);
}

#[test]
fn heartbeats_notice_a_connection_stalled_to_the_harness() {
    assert_heartbeats_notice(Way::ToHarness);
}

#[test]
fn heartbeats_notice_a_connection_stalled_to_the_worker() {
    assert_heartbeats_notice(Way::ToPeer);
}

#[test]
fn heartbeats_notice_a_half_open_connection_while_idle() {
    let (harness, proxy, _worker) = behind_proxy(Kind::Rust, HEARTBEATS);
    proxy.stall(Way::Both);
    assert_back(&harness, &proxy, 1);
}
