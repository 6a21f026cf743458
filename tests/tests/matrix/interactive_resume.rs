//! Asks over calls that break, under `interactive_reattach_window`: the worker of the SDK goes on with
//! them and comes back. What it does is seen in a file, which must tell of everything once.

use harness_proto::v1::ErrorCode;
use harness_tests::{Asker, BOUND, Proxy, Signal, Worker, eventually};
use serde_json::Value;
use tonic::Code;

use crate::behind_proxy::{SLOTS, assert_back, behind_proxy};
use crate::stages::{LONG, Loss, SHORT, Stages, WATCHFUL, at_work, break_and_resume, suspend};
use crate::{AMPLE, Kind, assert_dropped, assert_says, hang, millis, next_started, reply, started};

#[test]
fn an_ask_whose_call_is_cut_is_answered_by_its_first_attempt_and_its_work_is_done_once() {
    let ways: [Loss; 3] = [
        ("cut", Proxy::cut),
        ("closed", Proxy::close),
        ("reset", Proxy::reset_calls),
    ];
    for (how, breaks) in ways {
        let (harness, proxy, mut worker) = behind_proxy(Kind::Rust, LONG);
        let (asker, stages) = (Asker::new(&harness, "puppet"), Stages::new(2));
        let (asking, _) = at_work(&asker, &mut worker, &stages);
        break_and_resume(&harness, || breaks(&proxy));
        stages.let_on(1);
        stages.let_on(2);
        assert_eq!(asking.answer().json(), 2, "{how}");
        stages.assert_done_once();
        assert_eq!(started(worker.process()).len(), 1, "{how}");
        harness.wait_for_ready("puppet", SLOTS);
    }
}

#[test]
fn without_a_window_the_same_ask_is_lost_with_its_call() {
    let (harness, proxy, mut worker) = behind_proxy(Kind::Rust, "");
    let (asker, stages) = (Asker::new(&harness, "puppet"), Stages::new(2));
    let (asking, run_id) = at_work(&asker, &mut worker, &stages);
    proxy.cut();
    let answer = asking.answer();
    let _ = answer.error(Code::Aborted, ErrorCode::WorkerLost);
    assert!(answer.took < AMPLE / 4, "{:?}", answer.took);
    assert_dropped(worker.process(), &run_id);
    assert_eq!(stages.done(), ["1"]);
    assert_back(&harness, &proxy, 1);
}

#[test]
fn a_streamed_ask_whose_call_is_cut_at_every_stage_brings_each_piece_once() {
    const COUNT: u64 = 6;
    let (harness, proxy, mut worker) = behind_proxy(Kind::Rust, LONG);
    let (asker, stages) = (Asker::new(&harness, "puppet"), Stages::new(COUNT));
    let stream = asker.stream(&stages.order(), AMPLE);
    for number in 1..=COUNT {
        stages.wait_for(&number.to_string());
        break_and_resume(&harness, || {
            // Before the next is written, or about then.
            if number % 2 == 0 && number < COUNT {
                stages.let_on(number);
            }
            proxy.cut();
        });
        stages.let_on(number);
    }
    let (pieces, ended) = stream.rest();
    assert_eq!(pieces, (1..=COUNT).map(Value::from).collect::<Vec<_>>());
    assert_eq!(ended.expect("a reply"), COUNT);
    stages.assert_done_once();
    assert_eq!(started(worker.process()).len(), 1);
    harness.wait_for_ready("puppet", SLOTS);
}

#[test]
fn work_whose_window_is_over_is_lost_and_dropped_and_its_slot_serves_on() {
    let (harness, proxy, mut worker) = behind_proxy(Kind::Rust, SHORT);
    let (asker, stages) = (Asker::new(&harness, "puppet"), Stages::new(1));
    let (asking, run_id) = at_work(&asker, &mut worker, &stages);
    proxy.go_down();
    let answer = asking.answer();
    let _ = answer.error(Code::Aborted, ErrorCode::WorkerLost);
    assert!(answer.took >= millis(500), "{:?}", answer.took);
    // Nobody has told it: it keeps the time itself.
    assert_says(worker.process(), &format!("dropped {run_id}"), BOUND);
    proxy.go_up();
    assert_back(&harness, &proxy, 1);
    assert_eq!(stages.done(), ["1"]);
}

#[test]
fn work_that_ended_while_its_call_was_away_is_dropped_at_the_resume_and_its_slot_serves_on() {
    for hangs_up in [false, true] {
        let (harness, proxy, mut worker) = behind_proxy(Kind::Rust, LONG);
        let (asker, stages) = (Asker::new(&harness, "puppet"), Stages::new(1));
        let asking = asker.start(&stages.order(), millis(1_500));
        stages.wait_for("1");
        let run_id = next_started(worker.process(), 0);
        proxy.go_down();
        harness.wait_for_busy("puppet", 0);
        if hangs_up {
            asking.hang_up();
        } else {
            let answer = asking.answer();
            let _ = answer.error(Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
        }
        proxy.go_up();
        assert_says(worker.process(), &format!("dropped {run_id}"), BOUND);
        assert_back(&harness, &proxy, 1);
        assert_eq!(stages.done(), ["1"], "hangs up: {hangs_up}");
        eventually("nothing is owed", BOUND, || {
            (harness.agent("puppet")?["unreleased"] == 0).then_some(())
        });
    }
}

#[test]
fn a_worker_that_was_suspended_past_its_heartbeats_goes_on_with_its_ask() {
    let (harness, _proxy, mut worker) = behind_proxy(Kind::Rust, WATCHFUL);
    let (asker, stages) = (Asker::new(&harness, "puppet"), Stages::new(2));
    let (asking, _) = at_work(&asker, &mut worker, &stages);
    suspend(&harness, &mut worker);
    worker.process().signal(Signal::SIGCONT);
    harness.wait_for_busy("puppet", 1);
    stages.let_on(1);
    stages.let_on(2);
    assert_eq!(asking.answer().json(), 2);
    stages.assert_done_once();
    assert_eq!(started(worker.process()).len(), 1);
    harness.wait_for_ready("puppet", SLOTS);
}

#[test]
fn a_full_level_worker_that_does_not_resume_costs_its_caller_no_window() {
    if Worker::full_puppet().is_none() {
        return;
    }
    let (harness, proxy, mut worker) = behind_proxy(Kind::Full, LONG);
    let asker = Asker::new(&harness, "puppet");
    let asking = asker.start(&hang(), AMPLE);
    next_started(worker.process(), 0);
    proxy.cut();
    // It comes back saying that its work has stopped.
    let answer = asking.answer();
    let _ = answer.error(Code::Aborted, ErrorCode::WorkerLost);
    assert!(answer.took < AMPLE / 2, "{:?}", answer.took);
    assert_back(&harness, &proxy, 1);
    assert_eq!(asker.ask(&reply(1), AMPLE).json(), 1);
}
