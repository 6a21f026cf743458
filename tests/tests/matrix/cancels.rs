//! Runs that are cancelled, by their id or by a hang-up, while they back off, and by their id in
//! every other state. Hang-ups in the other states are in `hang_ups`.

use harness_proto::v1::{ErrorCode, RunState};
use harness_tests::{Asker, BOUND, Harness, Worker, error_of, eventually};
use serde_json::json;
use tonic::Code;

use crate::{AMPLE, Kind, assert_calm, assert_dropped, hang, next_started, reply, started};

with_each_worker! {
    a_cancel_by_id_while_running_stops_the_work,
    a_cancel_by_id_while_queued_reaches_no_worker,
    a_cancel_by_id_while_backing_off_ends_the_run,
    a_hang_up_while_backing_off_ends_the_run,
}

fn a_cancel_by_id_while_running_stops_the_work(kind: Kind) {
    let harness = Harness::start();
    let mut worker = kind.puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let asking = asker.start(&hang(), AMPLE);
    let run_id = next_started(worker.process(), 0);
    let run = asker.cancel(&run_id, "not needed");
    assert_eq!(run.state(), RunState::Cancelled);
    let error = asking.answer().error(Code::Cancelled, ErrorCode::Cancelled);
    assert!(error.message.contains("not needed"), "{}", error.message);
    assert_dropped(worker.process(), &run_id);
    assert_calm(&harness, &asker, 1);
}

fn a_cancel_by_id_while_queued_reaches_no_worker(kind: Kind) {
    let harness = Harness::start();
    let mut worker = kind.puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let holder = asker.start(&hang(), AMPLE);
    next_started(worker.process(), 0);
    let queued = asker.stream(&reply(1), AMPLE);
    harness.wait_for_queued("puppet", 1);
    let run_id = queued.run_id().to_owned();
    let run = asker.cancel(&run_id, "not needed");
    assert_eq!((run.state(), run.attempt), (RunState::Cancelled, 0));
    let (_, told) = queued.rest();
    assert_eq!(told.expect_err("cancelled").code(), Code::Cancelled);
    holder.hang_up();
    assert_calm(&harness, &asker, 1);
    assert!(!started(worker.process()).contains(&run_id));
}

/// An ask of the agent `typed` that fails each time it is tried, and waits for long in between.
fn backing_off(kind: Kind) -> (Harness, Worker, Asker) {
    let harness = Harness::start();
    let worker = kind.puppet().typed().start(&harness);
    // No wait is longer than what is left of the timeout: such a run would fail at once.
    let asker = Asker::new(&harness, "typed").retrying(16, AMPLE / 2);
    (harness, worker, asker)
}

/// Waits until a run has been tried and waits to be tried again.
#[track_caller]
fn wait_until_it_backs_off(asker: &Asker, worker: &mut Worker) -> String {
    let run_id = next_started(worker.process(), 0);
    eventually("the run backs off", BOUND, || {
        let run = asker.run(&run_id);
        (run.state() == RunState::Queued && run.attempt > 0).then_some(())
    });
    run_id
}

/// It is over, and what was tried of it is all there will ever be.
#[track_caller]
fn assert_over(harness: &Harness, asker: &Asker, worker: &mut Worker, run_id: &str) {
    eventually("the run is cancelled", BOUND, || {
        (asker.run(run_id).state() == RunState::Cancelled).then_some(())
    });
    let run = asker.run(run_id);
    assert_eq!(error_of(&run).code(), ErrorCode::Cancelled);
    harness.wait_for_ready("typed", 1);
    let number = json!({"number": 5});
    assert_eq!(asker.ask(&number, AMPLE).json(), number);
    let tried = started(worker.process());
    assert_eq!(
        tried.iter().filter(|tried| *tried == run_id).count(),
        run.attempt as usize
    );
    harness.wait_for_queued("typed", 0);
}

fn a_cancel_by_id_while_backing_off_ends_the_run(kind: Kind) {
    let (harness, mut worker, asker) = backing_off(kind);
    let asking = asker.start(&json!({"number": 101}), AMPLE);
    let run_id = wait_until_it_backs_off(&asker, &mut worker);
    asker.cancel(&run_id, "not needed");
    let answer = asking.answer();
    let error = answer.error(Code::Cancelled, ErrorCode::Cancelled);
    assert_eq!(error.run_id, run_id);
    assert_over(&harness, &asker, &mut worker, &run_id);
}

fn a_hang_up_while_backing_off_ends_the_run(kind: Kind) {
    let (harness, mut worker, asker) = backing_off(kind);
    let asking = asker.start(&json!({"number": 101}), AMPLE);
    let run_id = wait_until_it_backs_off(&asker, &mut worker);
    asking.hang_up();
    assert_over(&harness, &asker, &mut worker, &run_id);
}
