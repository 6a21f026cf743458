//! A puppet that reaches its harness through a proxy, for the cases in which that misbehaves.

use harness_tests::{Asker, BOUND, Harness, Proxy, Worker, eventually};

use crate::{AMPLE, Kind, reply};

/// More than one, since all slots of a worker share its connection.
pub(crate) const SLOTS: u64 = 2;

/// A harness, a proxy to it and a puppet behind that.
#[track_caller]
pub(crate) fn behind_proxy(kind: Kind, config: &str) -> (Harness, Proxy, Worker) {
    let harness = Harness::builder().config(config).start();
    let proxy = Proxy::to(harness.address());
    let puppet = kind.puppet().slots(SLOTS);
    let worker = puppet.start_unattached(proxy.address());
    harness.wait_for_ready("puppet", SLOTS);
    assert_eq!(proxy.accepted(), 1);
    (harness, proxy, worker)
}

/// The worker has made one more connection and all its slots work.
#[track_caller]
pub(crate) fn assert_back(harness: &Harness, proxy: &Proxy, before: usize) {
    eventually("the worker dials again", BOUND, || {
        (proxy.accepted() > before).then_some(())
    });
    harness.wait_for_ready("puppet", SLOTS);
    let asker = Asker::new(harness, "puppet");
    assert_eq!(asker.ask(&reply(1), AMPLE).json(), 1);
}
