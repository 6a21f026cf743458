//! Callers that hang up, in every state of a run: the worker hears of it, and nothing runs on.

use std::time::Instant;

use harness_tests::{Asker, BOUND, Harness, Proxy, Way, eventually};

use crate::{AMPLE, Kind, assert_dropped, block, hang, millis, next_started, reply, started};

with_each_worker! {
    a_hang_up_while_running_stops_the_work,
    a_hang_up_while_queued_reaches_no_worker,
    a_hang_up_while_the_agent_blocks_keeps_the_slot_away,
    a_caller_whose_connection_is_reset_has_hung_up,
    a_caller_whose_connection_is_half_open_has_hung_up,
}

fn a_hang_up_while_running_stops_the_work(kind: Kind) {
    let harness = Harness::start();
    let mut worker = kind.puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    for round in 0..3 {
        let asking = asker.start(&hang(), AMPLE);
        let run_id = next_started(worker.process(), round);
        asking.hang_up();
        assert_dropped(worker.process(), &run_id);
    }
    harness.wait_for_ready("puppet", 1);
    assert_eq!(asker.ask(&reply(1), AMPLE).json(), 1);
}

fn a_hang_up_while_queued_reaches_no_worker(kind: Kind) {
    let harness = Harness::start();
    let mut worker = kind.puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let holder = asker.start(&hang(), AMPLE);
    let held = next_started(worker.process(), 0);
    let queued = asker.start(&hang(), AMPLE);
    harness.wait_for_queued("puppet", 1);
    queued.hang_up();
    harness.wait_for_queued("puppet", 0);
    holder.hang_up();
    assert_dropped(worker.process(), &held);
    assert_eq!(asker.ask(&reply(1), AMPLE).json(), 1);
    let begun = started(worker.process());
    assert_eq!(begun.len(), 2, "the queued run reached the worker");
}

fn a_hang_up_while_the_agent_blocks_keeps_the_slot_away(kind: Kind) {
    let harness = Harness::start();
    let mut worker = kind.puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let asking = asker.start(&block(1_200), AMPLE);
    let run_id = next_started(worker.process(), 0);
    let begun = Instant::now();
    asking.hang_up();
    eventually("the run is not released", BOUND, || {
        let workers = harness.workers("puppet");
        let owed = &workers[0]["unreleased"][0];
        (owed["run_id"] == run_id && owed["code"] == "CANCELLED").then_some(())
    });
    assert_eq!(harness.workers("puppet")[0]["slots"], serde_json::json!([]));
    harness.wait_for_ready("puppet", 1);
    assert!(begun.elapsed() >= millis(1_100), "{:?}", begun.elapsed());
    assert_eq!(asker.ask(&reply(1), AMPLE).json(), 1);
}

fn a_caller_whose_connection_is_reset_has_hung_up(kind: Kind) {
    let harness = Harness::start();
    let mut worker = kind.puppet().start(&harness);
    let proxy = Proxy::to(harness.address());
    let caller = Asker::at(proxy.address(), "puppet");
    let asking = caller.start(&hang(), AMPLE);
    let run_id = next_started(worker.process(), 0);
    proxy.cut();
    assert_dropped(worker.process(), &run_id);
    assert!(asking.answer().result.is_err());
    harness.wait_for_ready("puppet", 1);
}

fn a_caller_whose_connection_is_half_open_has_hung_up(kind: Kind) {
    let keepalive = "[limits]\nkeepalive_interval = \"200ms\"\nkeepalive_timeout = \"200ms\"\n";
    let harness = Harness::builder().config(keepalive).start();
    let mut worker = kind.puppet().start(&harness);
    let proxy = Proxy::to(harness.address());
    let caller = Asker::at(proxy.address(), "puppet");
    let asking = caller.start(&hang(), AMPLE);
    let run_id = next_started(worker.process(), 0);
    proxy.stall(Way::Both);
    assert_dropped(worker.process(), &run_id);
    drop(proxy);
    assert!(asking.answer().result.is_err());
    harness.wait_for_ready("puppet", 1);
}
