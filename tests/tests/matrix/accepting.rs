//! A request that is written to a worker and never reaches it.

use std::time::{Duration, Instant};

use harness_tests::{Asker, Harness, Proxy, Way};

use crate::{AMPLE, Kind, SOON, assert_logged, reply, started};

const ACCEPT: Duration = Duration::from_secs(1);

with_full_level_workers! {
    a_request_that_never_arrives_goes_to_another_slot_and_costs_no_attempt,
}

fn a_request_that_never_arrives_goes_to_another_slot_and_costs_no_attempt(kind: Kind) {
    let accept = "[limits]\naccept_timeout = \"1s\"\n";
    let mut harness = Harness::builder().config(accept).start();
    let proxy = Proxy::to(harness.address());
    let mut deaf = kind.puppet().start_unattached(proxy.address());
    harness.wait_for_ready("puppet", 1);
    let mut other = kind.puppet().start(&harness);

    // The slot that is free longest gets the run, and its way to the worker carries nothing.
    proxy.stall(Way::ToPeer);
    let asker = Asker::new(&harness, "puppet");
    let asked = Instant::now();
    let answer = asker.ask(&reply(1), AMPLE);
    let took = asked.elapsed();
    assert!(took >= ACCEPT && took < ACCEPT + SOON, "{took:?}");
    // One attempt is all an ask has unless it says otherwise: the first delivery was not counted.
    let answered = answer.result.expect("answered by the other worker");
    assert_eq!(answered.attempt, 2);
    assert_eq!(started(other.process()), [answered.run_id.as_str()]);
    assert_eq!(started(deaf.process()), [""; 0]);
    assert_logged(
        &mut harness,
        &answered.run_id,
        "did not show in time that it has the request",
    );

    // What it now learns is that the request is not its own any more.
    proxy.flow();
    harness.wait_for_ready("puppet", 2);
    assert_eq!(asker.run(&answered.run_id).attempt, 2);
    assert_eq!(started(other.process()).len(), 1);
}
