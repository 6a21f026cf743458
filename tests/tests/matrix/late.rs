//! Workers that read late: whatever lies unread before the end of a call, the end reaches its code.

use harness_proto::v1::ErrorCode;
use harness_tests::{Asker, Harness};
use serde_json::json;
use tonic::Code;

use crate::{Kind, SOON, millis, next_started, reply};

with_each_worker! {
    an_end_behind_heartbeats_reaches_code_that_sleeps,
}

fn an_end_behind_heartbeats_reaches_code_that_sleeps(kind: Kind) {
    // Five of them before the deadline, each a frame before the end.
    let heartbeats = "[limits]\nheartbeat_interval = \"200ms\"\n";
    let harness = Harness::builder().config(heartbeats).start();
    let mut worker = kind.puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let dozing = asker.start(&json!({"do": "doze", "ms": 2_400}), millis(1_100));
    let run_id = next_started(worker.process(), 0);
    let answer = dozing.answer();
    let _ = answer.error(Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
    crate::assert_says(worker.process(), &format!("told {run_id}"), SOON);
    let owed = &harness.workers("puppet")[0]["unreleased"][0];
    assert_eq!(owed["run_id"], run_id, "told while it slept");
    harness.wait_for_ready("puppet", 1);
    assert_eq!(asker.ask(&reply(1), crate::AMPLE).json(), 1);
}
