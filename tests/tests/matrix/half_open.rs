//! Connections that carry nothing any more and do not say so. At the full level heartbeats notice
//! on both sides; at the minimal one HTTP/2 keepalive does, and behind a proxy that answers PINGs
//! itself nothing but the run's deadline.

use std::time::Duration;

use harness_proto::v1::ErrorCode;
use harness_tests::{Asker, Harness, Proxy, Way, Worker};
use tonic::Code;

use crate::behind_proxy::{assert_back, behind_proxy};
use crate::{AMPLE, Kind, SOON, assert_dropped, assert_logged, hang, millis, next_started};

with_each_worker! {
    a_half_open_connection_loses_the_worker_and_it_comes_back,
}

with_full_level_workers! {
    heartbeats_notice_a_connection_stalled_both_ways_on_both_sides,
    heartbeats_notice_a_connection_stalled_to_the_harness,
    heartbeats_notice_a_connection_stalled_to_the_worker,
    heartbeats_notice_a_half_open_connection_while_idle,
    heartbeats_notice_a_proxy_that_answers_pings_and_drops_the_calls,
}

fn a_half_open_connection_loses_the_worker_and_it_comes_back(kind: Kind) {
    let keepalive = "[limits]\nkeepalive_interval = \"300ms\"\nkeepalive_timeout = \"1s\"\n";
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

/// HTTP/2 keepalive is at its 10 s, or its PINGs are answered: only heartbeats can notice so soon.
const HEARTBEATS: &str = "[limits]\nheartbeat_interval = \"500ms\"\n";
const INTERVAL: Duration = Duration::from_millis(500);

/// Each side notices within three intervals, and a second for a busy machine.
#[track_caller]
fn assert_heartbeats_notice(
    config: &str,
    kind: Kind,
    break_it: impl FnOnce(&Proxy),
) -> (Harness, Proxy, Worker) {
    let (mut harness, proxy, mut worker) = behind_proxy(kind, config);
    let asker = Asker::new(&harness, "puppet");
    let asking = asker.start(&hang(), AMPLE);
    let run_id = next_started(worker.process(), 0);
    break_it(&proxy);
    let answer = asking.answer();
    assert!(answer.took < INTERVAL * 3 + SOON, "{:?}", answer.took);
    let _ = answer.error(Code::Aborted, ErrorCode::WorkerLost);
    assert_dropped(worker.process(), &run_id);
    assert_logged(&mut harness, &run_id, "was lost");
    // The broken connection is left as it is: the worker makes another one by itself.
    assert_back(&harness, &proxy, 1);
    (harness, proxy, worker)
}

fn heartbeats_notice_a_connection_stalled_both_ways_on_both_sides(kind: Kind) {
    assert_heartbeats_notice(HEARTBEATS, kind, |proxy| proxy.stall(Way::Both));
}

fn heartbeats_notice_a_connection_stalled_to_the_harness(kind: Kind) {
    assert_heartbeats_notice(HEARTBEATS, kind, |proxy| proxy.stall(Way::ToHarness));
}

fn heartbeats_notice_a_connection_stalled_to_the_worker(kind: Kind) {
    assert_heartbeats_notice(HEARTBEATS, kind, |proxy| proxy.stall(Way::ToPeer));
}

fn heartbeats_notice_a_half_open_connection_while_idle(kind: Kind) {
    let (harness, proxy, _worker) = behind_proxy(kind, HEARTBEATS);
    proxy.stall(Way::Both);
    assert_back(&harness, &proxy, 1);
}

fn heartbeats_notice_a_proxy_that_answers_pings_and_drops_the_calls(kind: Kind) {
    // Keepalive would notice sooner than three heartbeats if its PINGs were not answered.
    let config = HEARTBEATS.to_owned() + PINGS;
    let (_harness, proxy, _worker) =
        assert_heartbeats_notice(&config, kind, |proxy| proxy.swallow(Way::Both));
    assert!(proxy.pings() > 0, "the harness pinged and was answered");
}

const PINGS: &str = "keepalive_interval = \"200ms\"\nkeepalive_timeout = \"700ms\"\n";

#[test]
fn a_proxy_that_answers_pings_costs_a_minimal_worker_its_slots_until_it_lets_go() {
    if Worker::minimal_puppet().is_none() {
        return;
    }
    let config = format!("[limits]\n{PINGS}");
    let (harness, proxy, mut worker) = behind_proxy(Kind::Minimal, &config);
    let asker = Asker::new(&harness, "puppet");
    let asking = asker.start(&hang(), millis(1_500));
    let run_id = next_started(worker.process(), 0);
    proxy.swallow(Way::Both);
    // The deadline is all that watches, and it is kept.
    let answer = asking.answer();
    let _ = answer.error(Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
    assert!(proxy.pings() > 0, "the harness pinged and was answered");
    let owed = &harness.workers("puppet")[0]["unreleased"][0];
    assert_eq!(owed["run_id"], run_id, "nobody can have told it");
    proxy.cut();
    assert_dropped(worker.process(), &run_id);
    assert_back(&harness, &proxy, 1);
}
