//! Processes for which time leaps: a worker that is stopped (SIGSTOP) past its liveness and goes on
//! later, with a reply nobody waits for any more; a harness that is stopped past deadlines; a
//! worker whose wall clock jumps about.

use std::time::Instant;

use harness_proto::v1::ErrorCode;
use harness_tests::{Asker, BOUND, Harness, Signal, Worker, error_of, eventually};
use tonic::Code;

use crate::{
    AMPLE, Kind, assert_calm, assert_dropped, assert_logged, hang, millis, next_started, reply,
    started, wait,
};

with_each_worker! {
    a_suspended_worker_is_lost_and_its_late_reply_is_refused,
    a_deadline_passes_on_time_while_the_worker_is_suspended,
    a_harness_suspended_past_deadlines_answers_them_when_it_goes_on,
    a_harness_suspended_past_its_heartbeats_gets_its_workers_back,
}

/// The full level is watched by heartbeats, the minimal one by HTTP/2 keepalive.
const WATCHFUL: &str = "[limits]\nheartbeat_interval = \"400ms\"\n\
                        keepalive_interval = \"300ms\"\nkeepalive_timeout = \"1s\"\n";

fn a_suspended_worker_is_lost_and_its_late_reply_is_refused(kind: Kind) {
    let mut harness = Harness::builder().config(WATCHFUL).start();
    let mut worker = kind.puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let asking = asker.start(&wait(200), AMPLE);
    let run_id = next_started(worker.process(), 0);
    worker.process().signal(Signal::SIGSTOP);
    let answer = asking.answer();
    assert!(answer.took < millis(3_000), "{:?}", answer.took);
    let error = answer.error(Code::Aborted, ErrorCode::WorkerLost);
    assert_eq!(error.run_id, run_id);
    assert_logged(&mut harness, &run_id, "was lost");
    harness.wait_for_ready("puppet", 0);

    // By now the work is over for it, and its reply is what it says first.
    worker.process().signal(Signal::SIGCONT);
    harness.wait_for_ready("puppet", 1);
    assert_eq!(asker.ask(&reply(1), AMPLE).json(), 1);
    assert_eq!(started(worker.process()).len(), 2);
    assert_eq!(error_of(&asker.run(&run_id)).code(), ErrorCode::WorkerLost);
}

fn a_deadline_passes_on_time_while_the_worker_is_suspended(kind: Kind) {
    let harness = Harness::start();
    let mut worker = kind.puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let asking = asker.start(&hang(), millis(500));
    let run_id = next_started(worker.process(), 0);
    worker.process().signal(Signal::SIGSTOP);
    let answer = asking.answer();
    let _ = answer.error(Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
    let workers = harness.workers("puppet");
    assert_eq!(workers[0]["unreleased"][0]["run_id"], run_id, "{workers}");

    // It hears of the end when it goes on, and says released.
    worker.process().signal(Signal::SIGCONT);
    assert_dropped(worker.process(), &run_id);
    harness.wait_for_ready("puppet", 1);
    let workers = harness.workers("puppet");
    assert_eq!(workers[0]["unreleased"], serde_json::json!([]), "{workers}");
}

/// Stops a harness until so much has passed since `from`.
#[track_caller]
fn suspend(harness: &mut Harness, from: Instant, until: u64) {
    harness.process().signal(Signal::SIGSTOP);
    eventually("time passes without it", BOUND, || {
        (from.elapsed() > millis(until)).then_some(())
    });
    harness.process().signal(Signal::SIGCONT);
}

fn a_harness_suspended_past_deadlines_answers_them_when_it_goes_on(kind: Kind) {
    let mut harness = Harness::start();
    let mut worker = kind.puppet().slots(2).start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let begun = Instant::now();
    let running = [
        asker.start(&hang(), millis(700)),
        asker.start(&hang(), millis(900)),
    ];
    next_started(worker.process(), 1);
    let queued = asker.start(&reply(1), millis(800));
    harness.wait_for_queued("puppet", 1);
    suspend(&mut harness, begun, 1_300);
    for asking in running.into_iter().chain([queued]) {
        let answer = asking.answer();
        let _ = answer.error(Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
    }
    for run_id in started(worker.process()) {
        assert_dropped(worker.process(), &run_id);
    }
    assert_calm(&harness, &asker, 2);
}

fn a_harness_suspended_past_its_heartbeats_gets_its_workers_back(kind: Kind) {
    let mut harness = Harness::builder().config(WATCHFUL).start();
    let _worker = kind.puppet().slots(2).start(&harness);
    // Each side has heard nothing for far too long when it goes on.
    suspend(&mut harness, Instant::now(), 1_800);
    let asker = Asker::new(&harness, "puppet");
    assert_calm(&harness, &asker, 2);
}

#[track_caller]
fn assert_keeps_time_by_another_clock(kind: Kind, there: bool) {
    if !there {
        return;
    }
    let harness = Harness::builder().config(WATCHFUL).start();
    // Every look at it is decades from the one before.
    let puppet = kind.puppet().slots(2).env("PUPPET_WALL_CLOCK", "jumps");
    let mut worker = puppet.start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let told = asker.ask(&serde_json::json!({"do": "context"}), millis(9_000));
    let left = told.json()["time_left_ms"].as_u64().expect("a number");
    assert!((8_000..=9_000).contains(&left), "{left}");
    assert!(asker.ask(&wait(700), AMPLE).json().is_null());
    let answer = asker.ask(&hang(), millis(700));
    let error = answer.error(Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
    assert_dropped(worker.process(), &error.run_id);
    assert_calm(&harness, &asker, 2);
}

#[test]
fn a_minimal_worker_whose_wall_clock_jumps_keeps_every_deadline() {
    let there = Worker::minimal_puppet().is_some();
    assert_keeps_time_by_another_clock(Kind::Minimal, there);
}

#[test]
fn a_full_worker_whose_wall_clock_jumps_keeps_every_deadline() {
    let there = Worker::full_puppet().is_some();
    assert_keeps_time_by_another_clock(Kind::Full, there);
}
