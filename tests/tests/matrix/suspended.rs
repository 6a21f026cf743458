//! A worker that is stopped (SIGSTOP) past its liveness and goes on later, with a reply nobody waits
//! for any more.

use harness_proto::v1::ErrorCode;
use harness_tests::{Asker, Harness, Signal};
use tonic::Code;

use crate::{AMPLE, Kind, hang, millis, next_started, reply, started, wait};

with_both_workers! {
    a_suspended_worker_is_lost_and_its_late_reply_is_refused,
    a_deadline_passes_on_time_while_the_worker_is_suspended,
}

/// The full level is watched by heartbeats, the minimal one by HTTP/2 keepalive.
const WATCHFUL: &str = "[limits]\nheartbeat_interval = \"200ms\"\n\
                        keepalive_interval = \"300ms\"\nkeepalive_timeout = \"300ms\"\n";

fn a_suspended_worker_is_lost_and_its_late_reply_is_refused(kind: Kind) {
    let harness = Harness::builder().config(WATCHFUL).start();
    let mut worker = kind.puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let asking = asker.start(&wait(200), AMPLE);
    let run_id = next_started(worker.process(), 0);
    worker.process().signal(Signal::SIGSTOP);
    let answer = asking.answer();
    assert!(answer.took < millis(3_000), "{:?}", answer.took);
    let error = answer.error(Code::Aborted, ErrorCode::WorkerLost);
    assert_eq!(error.run_id, run_id);
    harness.wait_for_ready("puppet", 0);

    // By now the work is over for it, and its reply is what it says first.
    worker.process().signal(Signal::SIGCONT);
    harness.wait_for_ready("puppet", 1);
    assert_eq!(asker.ask(&reply(1), AMPLE).json(), 1);
    assert_eq!(started(worker.process()).len(), 2);
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
    crate::assert_dropped(worker.process(), &run_id);
    harness.wait_for_ready("puppet", 1);
    let workers = harness.workers("puppet");
    assert_eq!(workers[0]["unreleased"], serde_json::json!([]), "{workers}");
}
