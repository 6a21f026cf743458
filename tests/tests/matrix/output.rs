//! Ends of calls whose worker writes output as fast as it may, with every buffer full.

use harness_proto::v1::ErrorCode;
use harness_tests::{Asker, BOUND, Harness, Proxy, Way, eventually};
use serde_json::{Value, json};
use tonic::Code;

use crate::{
    AMPLE, Kind, SOON, assert_calm, assert_dropped, assert_logged, millis, next_started, started,
};

with_full_level_workers! {
    a_hang_up_is_immediate_though_all_buffers_are_full_of_output,
    a_cancel_is_immediate_though_all_buffers_are_full_of_output,
    a_deadline_is_immediate_though_all_buffers_are_full_of_output,
    a_deadline_is_immediate_though_the_way_to_the_harness_is_full,
    an_oversize_entry_is_typed_and_the_worker_lives_on,
}

/// More than any buffer on the way takes.
fn flood() -> Value {
    json!({"do": "output", "count": 4_000, "bytes": 16_000})
}

/// Waits until a run's journal does not grow: its caller reads nothing, and everything is full.
#[track_caller]
fn wait_until_full(asker: &Asker, run_id: &str) {
    let mut last = (0, std::time::Instant::now());
    eventually("the output stops", BOUND, || {
        let head = asker.run(run_id).head;
        if head != last.0 {
            last = (head, std::time::Instant::now());
        }
        (head > 20 && last.1.elapsed() > millis(300)).then_some(())
    });
}

fn a_hang_up_is_immediate_though_all_buffers_are_full_of_output(kind: Kind) {
    let harness = Harness::start();
    let mut worker = kind.puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let stream = asker.stream(&flood(), AMPLE);
    let run_id = stream.run_id().to_owned();
    wait_until_full(&asker, &run_id);
    drop(stream);
    assert_dropped(worker.process(), &run_id);
    assert_calm(&harness, &asker, 1);
}

fn a_cancel_is_immediate_though_all_buffers_are_full_of_output(kind: Kind) {
    let harness = Harness::start();
    let mut worker = kind.puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let stream = asker.stream(&flood(), AMPLE);
    let run_id = stream.run_id().to_owned();
    wait_until_full(&asker, &run_id);
    asker.cancel(&run_id, "enough");
    assert_dropped(worker.process(), &run_id);
    let (pieces, told) = stream.rest();
    assert!(pieces.len() > 20, "what was taken is still there to read");
    assert_eq!(told.expect_err("cancelled").code(), Code::Cancelled);
    assert_calm(&harness, &asker, 1);
}

fn a_deadline_is_immediate_though_all_buffers_are_full_of_output(kind: Kind) {
    let harness = Harness::start();
    let mut worker = kind.puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let asked = std::time::Instant::now();
    let stream = asker.stream(&flood(), millis(1_500));
    let run_id = stream.run_id().to_owned();
    wait_until_full(&asker, &run_id);
    eventually("the deadline passes", BOUND, || {
        (asked.elapsed() > millis(1_500)).then_some(())
    });
    assert_dropped(worker.process(), &run_id);
    let (_, told) = stream.rest();
    assert_eq!(told.expect_err("late").code(), Code::DeadlineExceeded);
    assert_calm(&harness, &asker, 1);
}

fn a_deadline_is_immediate_though_the_way_to_the_harness_is_full(kind: Kind) {
    let harness = Harness::start();
    let proxy = Proxy::to(harness.address());
    let mut worker = kind.puppet().start_unattached(proxy.address());
    harness.wait_for_ready("puppet", 1);
    let asker = Asker::new(&harness, "puppet");
    proxy.stall(Way::ToHarness);
    let answer = asker.ask(&flood(), millis(800));
    let error = answer.error(Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
    assert_dropped(worker.process(), &error.run_id);
    proxy.flow();
    assert_calm(&harness, &asker, 1);
}

fn an_oversize_entry_is_typed_and_the_worker_lives_on(kind: Kind) {
    let mut harness = Harness::start();
    let mut worker = kind.puppet().slots(2).start(&harness);
    let asker = Asker::new(&harness, "puppet").retrying(3, millis(10));
    let other = asker.start(&crate::wait(1_000), AMPLE);
    next_started(worker.process(), 0);
    let order = json!({"do": "output", "count": 1, "bytes": (1 << 20) + 1});
    let answer = asker.ask(&order, AMPLE);
    assert!(answer.took < SOON, "{:?}", answer.took);
    if kind == Kind::Rust {
        // The SDK knows the limit and tells the agent before anything is sent.
        let error = answer.error(Code::Unknown, ErrorCode::AgentError);
        assert!(error.message.contains("1048576"), "{}", error.message);
    } else {
        let error = answer.error(Code::ResourceExhausted, ErrorCode::PayloadTooLarge);
        assert!(
            error.message.contains("the limit is 1048576"),
            "{}",
            error.message
        );
        assert_logged(&mut harness, &error.run_id, "the limit is 1048576");
    }
    assert!(other.answer().json().is_null(), "the neighbour goes on");
    assert_eq!(started(worker.process()).len(), 2, "it was tried once");
    assert_calm(&harness, &asker, 2);
}
