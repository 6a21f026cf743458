//! What a worker does after each end of its call (section 3 of the protocol), against a harness
//! that makes them all: back at once with `released`, back later with it, or never again.

use std::time::{Duration, Instant};

use harness_tests::scripted::{Scripted, end};
use harness_tests::{BOUND, eventually};
use tonic::Code;

use crate::{Kind, SOON, assert_dropped, hang, started};

with_each_worker! {
    every_end_of_a_busy_call_stops_the_work_and_brings_the_worker_back_with_released,
    a_refusal_for_good_ends_the_worker,
    a_refusal_that_may_pass_is_tried_again,
}

/// RetryInfo of the ends that carry one.
const LEAST: Duration = Duration::from_secs(1);

/// When the next call comes.
#[derive(Clone, Copy, PartialEq)]
enum Next {
    AtOnce,
    /// After a back-off of the worker's own choice.
    Later,
    /// After a back-off of at least [`LEAST`].
    AfterLeast,
}

const BUSY_ENDS: [(Code, Option<&str>, Next); 14] = [
    (
        Code::DeadlineExceeded,
        Some("DEADLINE_EXCEEDED"),
        Next::AtOnce,
    ),
    (Code::Cancelled, Some("CANCELLED"), Next::AtOnce),
    (Code::Aborted, Some("NOT_ACCEPTED"), Next::AtOnce),
    (Code::Aborted, Some("SUPERSEDED"), Next::AtOnce),
    (Code::Unavailable, Some("LEAVING"), Next::AfterLeast),
    (
        Code::Unavailable,
        Some("HEARTBEATS_MISSED"),
        Next::AfterLeast,
    ),
    (
        Code::Unavailable,
        Some("STORE_UNAVAILABLE"),
        Next::AfterLeast,
    ),
    (
        Code::ResourceExhausted,
        Some("FRAME_TOO_LARGE"),
        Next::Later,
    ),
    (
        Code::InvalidArgument,
        Some("PROTOCOL_VIOLATION"),
        Next::Later,
    ),
    (Code::FailedPrecondition, Some("WRONG_ATTEMPT"), Next::Later),
    (Code::Unauthenticated, Some("UNAUTHENTICATED"), Next::Later),
    (Code::Unavailable, None, Next::Later),
    (Code::Internal, None, Next::Later),
    (Code::Unknown, None, Next::Later),
];

fn every_end_of_a_busy_call_stops_the_work_and_brings_the_worker_back_with_released(kind: Kind) {
    let mut harness = Scripted::start();
    let puppet = kind.puppet().slots(BUSY_ENDS.len() as u64);
    let mut worker = puppet.start_unattached(harness.address());
    let mut calls = Vec::new();
    for number in 0..BUSY_ENDS.len() {
        let call = harness.call();
        assert_eq!(call.released(), None);
        call.welcome();
        call.request(&format!("run-{number}"), &hang());
        calls.push(call);
    }
    eventually("all work", BOUND, || {
        (started(worker.process()).len() == calls.len()).then_some(())
    });
    let ended = Instant::now();
    for (call, (code, reason, next)) in calls.into_iter().zip(BUSY_ENDS) {
        let least = (next == Next::AfterLeast).then_some(LEAST);
        call.end(end(code, reason, least));
    }
    let mut back = Vec::new();
    for _ in BUSY_ENDS {
        let call = harness.call();
        call.welcome();
        let run_id = call.released().expect("released").to_owned();
        let number: usize = run_id["run-".len()..].parse().expect("a number");
        let after = call.at - ended;
        let (code, reason, next) = BUSY_ENDS[number];
        match next {
            Next::AtOnce => assert!(after < SOON, "{code:?} {reason:?}: after {after:?}"),
            Next::AfterLeast => assert!(after >= LEAST, "{code:?} {reason:?}: after {after:?}"),
            Next::Later => {}
        }
        back.push((number, call));
    }
    back.sort_by_key(|(number, _)| *number);
    assert!(
        back.iter()
            .map(|(number, _)| *number)
            .eq(0..BUSY_ENDS.len())
    );
    for number in 0..BUSY_ENDS.len() {
        assert_dropped(worker.process(), &format!("run-{number}"));
    }
}

fn a_refusal_for_good_ends_the_worker(kind: Kind) {
    for (code, reason) in [
        (Code::InvalidArgument, "INVALID_HELLO"),
        (Code::FailedPrecondition, "UNSUPPORTED_PROTOCOL"),
        (Code::Unauthenticated, "UNAUTHENTICATED"),
        (Code::PermissionDenied, "PERMISSION_DENIED"),
        (Code::Unimplemented, "UNIMPLEMENTED"),
    ] {
        let mut harness = Scripted::start();
        let worker = kind.puppet().start_unattached(harness.address());
        harness.call().end(end(code, Some(reason), None));
        let ended = worker.finish();
        assert_eq!(ended.code, Some(1), "{code:?}: {ended}");
        assert!(
            ended.stderr.contains(&format!("the script says {reason}")),
            "{ended}"
        );
        assert!(!harness.has_call(), "{code:?}: it came back");
    }
}

fn a_refusal_that_may_pass_is_tried_again(kind: Kind) {
    let ends = [
        (Code::DeadlineExceeded, Some("NO_HELLO")),
        (Code::ResourceExhausted, Some("TOO_MANY")),
        (Code::Unavailable, Some("LEAVING")),
        (Code::Unavailable, None),
    ];
    let mut harness = Scripted::start();
    let puppet = kind.puppet().slots(ends.len() as u64);
    let _worker = puppet.start_unattached(harness.address());
    let calls: Vec<_> = ends.iter().map(|_| harness.call()).collect();
    for (call, (code, reason)) in calls.into_iter().zip(ends) {
        call.end(end(code, reason, None));
    }
    for _ in ends {
        harness.call().welcome();
    }
}
