//! Replies that are on the wire while their run ends: one outcome, the same to caller and journal.

use harness_proto::v1::{ErrorCode, RunState, entry};
use harness_tests::{Asker, Harness, Proxy, Way, error_of};
use tonic::Code;

use crate::{AMPLE, Kind, assert_calm, fill, millis, next_started, reply, wait};

with_each_worker! {
    a_reply_that_the_deadline_overtakes_on_the_wire_changes_nothing,
    around_the_deadline_caller_run_and_journal_tell_one_outcome,
    a_reply_cut_off_on_the_wire_is_a_lost_worker_and_nothing_else,
}

fn a_reply_that_the_deadline_overtakes_on_the_wire_changes_nothing(kind: Kind) {
    let harness = Harness::start();
    let proxy = Proxy::to(harness.address());
    let mut worker = kind.puppet().start_unattached(proxy.address());
    harness.wait_for_ready("puppet", 1);
    let asker = Asker::new(&harness, "puppet");
    let asking = asker.start(&wait(200), millis(900));
    let run_id = next_started(worker.process(), 0);
    proxy.stall(Way::ToHarness);
    let answer = asking.answer();
    let _ = answer.error(Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
    assert_one_outcome(&asker, &run_id, RunState::TimedOut);

    // The reply arrives, and after it the worker's word that nothing is left of its work.
    proxy.flow();
    assert_calm(&harness, &asker, 1);
    assert_one_outcome(&asker, &run_id, RunState::TimedOut);
}

fn around_the_deadline_caller_run_and_journal_tell_one_outcome(kind: Kind) {
    let harness = Harness::start();
    let _worker = kind.puppet().slots(2).start(&harness);
    let asker = Asker::new(&harness, "puppet");
    // Either may win; whatever does is what everybody is told.
    for ms in [250, 294, 296, 298, 300, 350] {
        let answer = asker.ask(&wait(ms), millis(300));
        match &answer.result {
            Ok(answered) => {
                assert!(ms < 310, "answered {ms} ms into a deadline of 300 ms");
                assert_one_outcome(&asker, &answered.run_id, RunState::Succeeded);
            }
            Err(_) => {
                let error = answer.error(Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
                assert_one_outcome(&asker, &error.run_id, RunState::TimedOut);
            }
        }
    }
    assert_calm(&harness, &asker, 2);
}

fn a_reply_cut_off_on_the_wire_is_a_lost_worker_and_nothing_else(kind: Kind) {
    let harness = Harness::start();
    let proxy = Proxy::to(harness.address());
    let _worker = kind.puppet().start_unattached(proxy.address());
    harness.wait_for_ready("puppet", 1);
    let asker = Asker::new(&harness, "puppet");
    proxy.cut_after(Way::ToHarness, 100_000);
    let answer = asker.ask(&fill(1_000_000), AMPLE);
    let error = answer.error_at_once(Code::Aborted, ErrorCode::WorkerLost);
    assert_one_outcome(&asker, &error.run_id, RunState::Failed);
    harness.wait_for_ready("puppet", 1);
    assert_eq!(asker.ask(&reply(1), AMPLE).json(), 1);
}

/// The run stands where its caller was told, and its journal has one end, the same.
#[track_caller]
fn assert_one_outcome(asker: &Asker, run_id: &str, state: RunState) {
    let run = asker.run(run_id);
    assert_eq!(run.state(), state, "{run:?}");
    if state != RunState::Succeeded {
        assert!(!error_of(&run).message.is_empty());
    }
    let (kinds, _) = asker.journal(run_id);
    let ends: Vec<_> = kinds
        .iter()
        .filter_map(|kind| match kind {
            entry::Kind::RunEnded(ended) => Some(ended.outcome.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(ends, [run.outcome], "{kinds:?}");
}
