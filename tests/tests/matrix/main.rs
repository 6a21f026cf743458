//! Each case of the protocol's life, written once and run with three workers: the Rust SDK and
//! `tests/python/full.py` at the full level, `examples/python/worker.py` at the minimal one.
//! Everything is a process of its own and every ask is made by an [`Asker`](harness_tests::Asker),
//! which holds it to its deadline.

use std::time::Duration;

use harness_tests::{Asker, Asking, BOUND, Harness, Process, Worker, WorkerBuilder, eventually};
use serde_json::{Value, json};

/// A test of a case with each of some workers, so that a failure names the worker.
macro_rules! tests_of {
    ($case:ident: $($name:ident = $kind:ident),*) => {
        mod $case {
            $(#[test]
            fn $name() {
                if crate::Kind::$kind.is_here() {
                    super::$case(crate::Kind::$kind);
                }
            })*
        }
    };
}

/// Makes a test of each case with each worker.
macro_rules! with_each_worker {
    ($($case:ident,)*) => {$(
        tests_of!($case: with_the_rust_worker = Rust, with_the_minimal_worker = Minimal,
            with_the_full_worker = Full);
    )*};
}

/// [`with_each_worker`] for what only a full level worker can do or notice.
macro_rules! with_full_level_workers {
    ($($case:ident,)*) => {$(
        tests_of!($case: with_the_rust_worker = Rust, with_the_full_worker = Full);
    )*};
}

mod accepting;
mod answers;
mod behind_proxy;
mod cancels;
mod connections;
mod crossing;
mod deadlines;
mod ends;
mod half_open;
mod hang_ups;
mod interactive_replies;
mod interactive_resume;
mod late;
mod leaving;
mod output;
mod refusals;
mod slow_readers;
mod stages;
mod storms;
mod suspended;

/// The timeout of what is answered long before.
const AMPLE: Duration = Duration::from_secs(20);
/// How soon a worker hears what concerns it.
const SOON: Duration = Duration::from_secs(1);

/// Which worker a case runs with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The Rust SDK.
    Rust,
    /// `examples/python/worker.py`.
    Minimal,
    /// `tests/python/full.py`.
    Full,
}

impl Kind {
    /// Its puppet; none where there is no Python.
    fn find(self) -> Option<WorkerBuilder> {
        match self {
            Self::Rust => Some(Worker::puppet()),
            Self::Minimal => Worker::minimal_puppet(),
            Self::Full => Worker::full_puppet(),
        }
    }

    fn is_here(self) -> bool {
        self.find().is_some()
    }

    fn puppet(self) -> WorkerBuilder {
        self.find().expect("asked before the case began")
    }
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn hang() -> Value {
    json!({"do": "hang"})
}

fn wait(ms: u64) -> Value {
    json!({"do": "wait", "ms": ms})
}

fn block(ms: u64) -> Value {
    json!({"do": "block", "ms": ms})
}

fn reply(value: impl Into<Value>) -> Value {
    json!({"do": "reply", "value": value.into()})
}

fn fill(bytes: usize) -> Value {
    json!({"do": "fill", "bytes": bytes})
}

/// The runs a puppet has begun, in order.
fn started(worker: &Process) -> Vec<String> {
    let stderr = worker.stderr();
    let lines = stderr
        .lines()
        .filter_map(|line| line.strip_prefix("started "));
    lines.map(str::to_owned).collect()
}

/// Waits until a puppet has begun one more run than `before`; gives its id.
#[track_caller]
fn next_started(worker: &Process, before: usize) -> String {
    eventually("the worker begins a run", BOUND, || {
        started(worker).get(before).cloned()
    })
}

/// A puppet tells within a bound that a run's work has stopped.
#[track_caller]
fn assert_dropped(worker: &Process, run_id: &str) {
    assert_says(worker, &format!("dropped {run_id}"), SOON);
}

/// A puppet writes this line within a bound.
#[track_caller]
fn assert_says(worker: &Process, line: &str, bound: Duration) {
    eventually(line, bound, || {
        let stderr = worker.stderr();
        stderr.lines().any(|said| said == line).then_some(())
    });
}

/// One line of the harness's log names the run and says what happened to it.
#[track_caller]
fn assert_logged(harness: &mut Harness, run_id: &str, what: &str) {
    eventually(&format!("a line with {run_id} and {what}"), BOUND, || {
        let log = harness.process().stderr();
        let mut lines = log.lines();
        lines
            .any(|line| line.contains(run_id) && line.contains(what))
            .then_some(())
    });
}

/// Nothing queued, nothing owed, every slot of the puppets READY and in use.
#[track_caller]
fn assert_calm(harness: &Harness, asker: &Asker, slots: u64) {
    harness.wait_for_queued("puppet", 0);
    harness.wait_for_ready("puppet", slots);
    eventually("nothing is owed", BOUND, || {
        let agent = harness.agent("puppet")?;
        (agent["unreleased"] == 0 && agent["slots_other"] == 0).then_some(())
    });
    let held: Vec<_> = (0..slots).map(|_| asker.start(&hang(), AMPLE)).collect();
    harness.wait_for_busy("puppet", slots);
    Asking::hang_up_all(held);
    assert_eq!(asker.ask(&reply(1), AMPLE).json(), 1);
}
