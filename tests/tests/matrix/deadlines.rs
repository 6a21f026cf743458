//! Deadlines in every state of a run: the caller is answered on time and told where the time went,
//! the work stops, and the slot comes back when it has and not before.

use std::time::Instant;

use harness_proto::v1::ErrorCode;
use harness_tests::{Asker, BOUND, Harness, eventually};
use tonic::Code;

use crate::{AMPLE, Kind, assert_dropped, block, hang, millis, next_started, reply, started, wait};

with_each_worker! {
    a_run_without_a_free_slot_waits_for_one,
    a_deadline_while_queued_says_where_the_time_went,
    a_deadline_while_running_stops_the_work,
    a_deadline_while_the_agent_blocks_is_on_time_and_its_slot_stays_away,
}

fn a_run_without_a_free_slot_waits_for_one(kind: Kind) {
    let harness = Harness::start();
    let mut worker = kind.puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let first = asker.start(&wait(500), AMPLE);
    next_started(worker.process(), 0);
    let second = asker.start(&reply(2), AMPLE);
    harness.wait_for_queued("puppet", 1);
    assert!(first.answer().json().is_null());
    assert_eq!(second.answer().json(), 2);
}

fn a_deadline_while_queued_says_where_the_time_went(kind: Kind) {
    let harness = Harness::start();
    let mut worker = kind.puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let holder = asker.start(&hang(), AMPLE);
    next_started(worker.process(), 0);
    let answer = asker.ask(&reply(2), millis(400));
    let error = answer.error(Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
    let message = &error.message;
    assert!(
        message.contains("queued: its only slot is busy"),
        "{message}"
    );
    assert!(answer.took >= millis(400), "{:?}", answer.took);
    holder.hang_up();
    assert_eq!(asker.ask(&reply(3), AMPLE).json(), 3);
    let begun = started(worker.process());
    assert_eq!(begun.len(), 2, "the queued run reached the worker");
    assert!(!begun.contains(&error.run_id));
}

fn a_deadline_while_running_stops_the_work(kind: Kind) {
    let harness = Harness::start();
    let mut worker = kind.puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    for _ in 0..5 {
        let answer = asker.ask(&hang(), millis(300));
        let error = answer.error(Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
        for part in ["running", "worker"] {
            assert!(error.message.contains(part), "{part}: {}", error.message);
        }
        assert!(answer.took >= millis(300), "{:?}", answer.took);
        assert_dropped(worker.process(), &error.run_id);
        // Back without a back-off, so the next question need not wait for its deadline.
        let start = Instant::now();
        assert_eq!(asker.ask(&reply(1), AMPLE).json(), 1);
        assert!(start.elapsed() < millis(1_000), "{:?}", start.elapsed());
    }
    let workers = harness.workers("puppet");
    assert_eq!(workers[0]["unreleased"], serde_json::json!([]), "{workers}");
}

fn a_deadline_while_the_agent_blocks_is_on_time_and_its_slot_stays_away(kind: Kind) {
    let harness = Harness::start();
    let mut worker = kind.puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let blocked = asker.start(&block(1_500), millis(300));
    let run_id = next_started(worker.process(), 0);
    let begun = Instant::now();
    let answer = blocked.answer();
    let error = answer.error(Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
    assert_eq!(error.run_id, run_id);

    let workers = harness.workers("puppet");
    let owed = &workers[0]["unreleased"];
    assert_eq!(owed[0]["run_id"], run_id, "{workers}");
    assert_eq!(owed[0]["code"], "DEADLINE_EXCEEDED", "{workers}");
    assert_eq!(workers[0]["slots"], serde_json::json!([]), "{workers}");
    let shown = harness.cli(["workers"]);
    assert!(shown.stdout.contains("not released"), "{shown}");

    harness.wait_for_ready("puppet", 1);
    // The block had begun at most a poll of the test before `begun`.
    assert!(begun.elapsed() >= millis(1_400), "{:?}", begun.elapsed());
    eventually("the work is released", BOUND, || {
        let workers = harness.workers("puppet");
        workers[0]["unreleased"]
            .as_array()?
            .is_empty()
            .then_some(())
    });
    assert_eq!(asker.ask(&reply(1), AMPLE).json(), 1);
}
