//! What the harness refuses in place of a worker or a caller: agents nobody knows or serves, more
//! than its queue holds, payloads against a schema, payloads over the limit.

use harness_proto::v1::ErrorCode;
use harness_tests::{Asker, Harness};
use serde_json::json;
use tonic::Code;

use crate::{AMPLE, Kind, assert_logged, fill, hang, millis, next_started, reply, started, wait};

with_each_worker! {
    an_unknown_agent_is_told_at_once_with_the_near_name,
    an_agent_without_a_worker_is_waited_for_until_the_deadline,
    a_full_queue_is_busy_at_once,
    a_request_against_the_schema_reaches_no_worker,
    a_reply_against_the_schema_reaches_no_caller,
    an_oversize_request_is_typed_and_the_worker_lives_on,
    an_oversize_reply_is_typed_and_the_worker_lives_on,
}

/// The largest payload, and the largest frame around it.
const PAYLOAD_BYTES: usize = (4 << 20) - (64 << 10);
const FRAME_BYTES: usize = 4 << 20;

fn an_unknown_agent_is_told_at_once_with_the_near_name(kind: Kind) {
    let harness = Harness::start();
    let _worker = kind.puppet().start(&harness);
    let answer = Asker::new(&harness, "pupet").ask(&reply(1), AMPLE);
    let error = answer.error_at_once(Code::NotFound, ErrorCode::UnknownAgent);
    assert!(
        error.message.contains("did you mean \"puppet\"?"),
        "{}",
        error.message
    );
}

fn an_agent_without_a_worker_is_waited_for_until_the_deadline(kind: Kind) {
    let harness = Harness::start();
    let left = kind.puppet().start(&harness).stop();
    assert_eq!(left.code, Some(0), "{left}");
    let asker = Asker::new(&harness, "puppet");
    let answer = asker.ask(&reply(1), millis(400));
    let error = answer.error(Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
    assert!(answer.took >= millis(400), "{:?}", answer.took);
    assert!(error.message.contains("no worker"), "{}", error.message);
    // One that comes in time is in time.
    let waiting = asker.start(&reply(2), AMPLE);
    harness.wait_for_queued("puppet", 1);
    let _worker = kind.puppet().start_unattached(harness.address());
    assert_eq!(waiting.answer().json(), 2);
}

fn a_full_queue_is_busy_at_once(kind: Kind) {
    let small = "[limits]\nqueue_runs = 1\n";
    let harness = Harness::builder().config(small).start();
    let mut worker = kind.puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let running = asker.start(&hang(), AMPLE);
    next_started(worker.process(), 0);
    let queued = asker.start(&reply(2), AMPLE);
    harness.wait_for_queued("puppet", 1);
    let answer = asker.ask(&reply(3), AMPLE);
    let error = answer.error_at_once(Code::ResourceExhausted, ErrorCode::Busy);
    assert!(error.retry_after.is_some(), "{error:?}");
    running.hang_up();
    assert_eq!(queued.answer().json(), 2);
    assert_eq!(asker.ask(&reply(4), AMPLE).json(), 4);
    assert_eq!(started(worker.process()).len(), 3, "the refused one ran");
}

fn a_request_against_the_schema_reaches_no_worker(kind: Kind) {
    let harness = Harness::start();
    let mut worker = kind.puppet().typed().start(&harness);
    let asker = Asker::new(&harness, "typed");
    let answer = asker.ask(&json!({"number": "five"}), AMPLE);
    let error = answer.error_at_once(Code::InvalidArgument, ErrorCode::InvalidRequest);
    for part in ["/number", "integer"] {
        assert!(error.message.contains(part), "{part}: {}", error.message);
    }
    let answer = asker.ask_text("{\"number\": 5", AMPLE);
    let _ = answer.error_at_once(Code::InvalidArgument, ErrorCode::InvalidRequest);
    assert_eq!(started(worker.process()), [""; 0]);
    let answer = asker.ask(&json!({"number": 5}), AMPLE);
    assert_eq!(answer.json(), json!({"number": 5}));
}

fn a_reply_against_the_schema_reaches_no_caller(kind: Kind) {
    let harness = Harness::start();
    let mut worker = kind.puppet().typed().start(&harness);
    let asker = Asker::new(&harness, "typed");
    let answer = asker.ask(&json!({"number": 101}), AMPLE);
    let error = answer.error_at_once(Code::Internal, ErrorCode::InvalidReply);
    for part in ["/number", "maximum"] {
        assert!(error.message.contains(part), "{part}: {}", error.message);
    }
    assert_eq!(started(worker.process()), [error.run_id]);
    let answer = asker.ask(&json!({"number": 100}), AMPLE);
    assert_eq!(answer.json(), json!({"number": 100}), "the slot goes on");
}

fn an_oversize_request_is_typed_and_the_worker_lives_on(kind: Kind) {
    let harness = Harness::start();
    let mut worker = kind.puppet().slots(2).start(&harness);
    let asker = Asker::new(&harness, "puppet").retrying(3, millis(10));
    let other = asker.start(&wait(700), AMPLE);
    next_started(worker.process(), 0);
    for bytes in [PAYLOAD_BYTES, 2 * FRAME_BYTES] {
        let answer = asker.ask(&reply("x".repeat(bytes)), AMPLE);
        let error = answer.error(Code::ResourceExhausted, ErrorCode::PayloadTooLarge);
        assert!(error.message.contains("limit"), "{}", error.message);
    }
    assert!(other.answer().json().is_null(), "the neighbour goes on");
    assert_eq!(started(worker.process()).len(), 1);
    harness.wait_for_ready("puppet", 2);
}

fn an_oversize_reply_is_typed_and_the_worker_lives_on(kind: Kind) {
    let mut harness = Harness::start();
    let mut worker = kind.puppet().slots(2).start(&harness);
    let asker = Asker::new(&harness, "puppet").retrying(3, millis(10));
    let largest = asker.ask(&fill(PAYLOAD_BYTES), AMPLE).bytes();
    assert_eq!(largest.len(), PAYLOAD_BYTES);
    let other = asker.start(&wait(700), AMPLE);
    next_started(worker.process(), 1);
    // Over the limit in a frame that may be sent, and in one that may not.
    for bytes in [PAYLOAD_BYTES + 1, FRAME_BYTES + 1, 2 * FRAME_BYTES] {
        let answer = asker.ask(&fill(bytes), AMPLE);
        let error = answer.error(Code::ResourceExhausted, ErrorCode::PayloadTooLarge);
        let message = &error.message;
        for part in ["bytes", "the limit is 41"] {
            assert!(message.contains(part), "{part}: {message}");
        }
        if bytes > FRAME_BYTES {
            assert_logged(&mut harness, &error.run_id, "the limit is 41");
        }
    }
    assert_eq!(started(worker.process()).len(), 5, "each was tried once");
    assert!(other.answer().json().is_null(), "the neighbour goes on");
    // The same process, with both its slots.
    harness.wait_for_ready("puppet", 2);
    let pid = worker.process().pid();
    assert_eq!(harness.workers("puppet")[0]["pid"], pid);
}
