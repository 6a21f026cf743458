//! Processes that come and go: workers killed, stopped or there first, a harness that returns.

use harness_proto::v1::ErrorCode;
use harness_tests::{Asker, Harness, Port, Signal, eventually};
use serde_json::json;
use tonic::Code;

use crate::{AMPLE, Kind, SOON, assert_dropped, assert_logged, hang, next_started, reply, wait};

with_each_worker! {
    a_killed_worker_is_told_by_name_at_once,
    a_worker_that_exits_with_a_request_is_lost_at_once,
    an_idle_worker_leaves_on_sigterm,
    a_busy_worker_finishes_on_sigterm,
    a_leaving_harness_lets_the_request_finish,
    a_worker_may_be_there_before_the_harness,
    a_worker_comes_back_to_a_harness_that_left_and_returned,
    a_worker_drops_its_work_with_a_killed_harness_and_comes_back,
}

fn a_killed_worker_is_told_by_name_at_once(kind: Kind) {
    let mut harness = Harness::start();
    let mut worker = kind.puppet().slots(2).start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let name = harness.workers("puppet")[0]["name"].clone();
    let name = name.as_str().expect("workers have names").to_owned();
    let asked = [asker.start(&hang(), AMPLE), asker.start(&hang(), AMPLE)];
    next_started(worker.process(), 1);
    let killed = std::time::Instant::now();
    worker.process().signal(Signal::SIGKILL);
    for asking in asked {
        let answer = asking.answer();
        assert!(killed.elapsed() < SOON, "{:?}", killed.elapsed());
        let error = answer.error(Code::Aborted, ErrorCode::WorkerLost);
        assert!(error.message.contains(&name), "{name}: {}", error.message);
        assert_logged(&mut harness, &error.run_id, &name);
    }
    harness.wait_for_ready("puppet", 0);
    assert_eq!(
        harness.workers("puppet"),
        json!([]),
        "nothing is left of it"
    );
}

fn a_worker_that_exits_with_a_request_is_lost_at_once(kind: Kind) {
    let harness = Harness::start();
    let worker = kind.puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let answer = asker.ask(&json!({"do": "exit", "code": 3}), AMPLE);
    let _ = answer.error_at_once(Code::Aborted, ErrorCode::WorkerLost);
    assert_eq!(worker.finish().code, Some(3));
}

fn an_idle_worker_leaves_on_sigterm(kind: Kind) {
    let harness = Harness::start();
    let worker = kind.puppet().slots(2).start(&harness);
    let left = worker.stop();
    assert_eq!(left.code, Some(0), "{left}");
    harness.wait_for_ready("puppet", 0);
}

fn a_busy_worker_finishes_on_sigterm(kind: Kind) {
    let harness = Harness::start();
    let mut worker = kind.puppet().slots(2).start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let asking = asker.start(&wait(700), AMPLE);
    next_started(worker.process(), 0);
    worker.process().signal(Signal::SIGTERM);
    harness.wait_for_ready("puppet", 0);
    assert!(asking.answer().json().is_null());
    let left = worker.finish();
    assert_eq!(left.code, Some(0), "{left}");
}

fn a_leaving_harness_lets_the_request_finish(kind: Kind) {
    let mut harness = Harness::start();
    let mut worker = kind.puppet().slots(2).start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let asking = asker.start(&wait(700), AMPLE);
    next_started(worker.process(), 0);
    harness.process().signal(Signal::SIGTERM);
    harness.process().wait_for_line("asked to stop");
    // It says so before it does so.
    let late = eventually("it takes nothing more", SOON, || {
        let asked = asker.ask(&reply(1), AMPLE);
        asked.result.is_err().then_some(asked)
    });
    let _ = late.error_at_once(Code::Unavailable, ErrorCode::ShuttingDown);
    assert!(asking.answer().json().is_null());
    let left = harness.finish();
    assert_eq!(left.code, Some(0), "{left}");
}

fn a_worker_may_be_there_before_the_harness(kind: Kind) {
    let port = Port::free();
    let puppet = kind.puppet().env("RUST_LOG", "warn");
    let mut worker = puppet.start_unattached(&port.address());
    worker.process().wait_for_line("away");
    let harness = Harness::builder().listen(port.address()).start();
    harness.wait_for_ready("puppet", 1);
    let asker = Asker::new(&harness, "puppet");
    assert_eq!(asker.ask(&reply(1), AMPLE).json(), 1);
}

fn a_worker_comes_back_to_a_harness_that_left_and_returned(kind: Kind) {
    let port = Port::free();
    let harness = Harness::builder().listen(port.address()).start();
    let _worker = kind.puppet().slots(2).start(&harness);
    let left = harness.stop();
    assert_eq!(left.code, Some(0), "{left}");
    let harness = Harness::builder().listen(port.address()).start();
    harness.wait_for_ready("puppet", 2);
    let asker = Asker::new(&harness, "puppet");
    assert_eq!(asker.ask(&reply(1), AMPLE).json(), 1);
}

fn a_worker_drops_its_work_with_a_killed_harness_and_comes_back(kind: Kind) {
    let port = Port::free();
    let harness = Harness::builder().listen(port.address()).start();
    let mut worker = kind.puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let asking = asker.start(&hang(), AMPLE);
    let run_id = next_started(worker.process(), 0);
    drop(harness);
    assert!(asking.answer().result.is_err());
    assert_dropped(worker.process(), &run_id);
    let harness = Harness::builder().listen(port.address()).start();
    harness.wait_for_ready("puppet", 1);
    let asker = Asker::new(&harness, "puppet");
    assert_eq!(asker.ask(&reply(1), AMPLE).json(), 1);
}
