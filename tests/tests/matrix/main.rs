//! Each case of the protocol's life, written once and run with both workers: the Rust SDK at the
//! full level and `examples/python/worker.py` at the minimal one. Everything is a process of its
//! own and every ask is made by an [`Asker`](harness_tests::Asker), which holds it to its deadline.

use std::time::Duration;

use harness_tests::{BOUND, Process, Worker, WorkerBuilder, eventually};
use serde_json::{Value, json};

/// Makes two tests of each case, so that a failure names the worker.
macro_rules! with_both_workers {
    ($($case:ident,)*) => {$(
        mod $case {
            #[test]
            fn with_the_rust_worker() {
                super::$case(crate::Kind::Rust);
            }

            #[test]
            fn with_the_python_worker() {
                if harness_tests::Worker::python_puppet().is_some() {
                    super::$case(crate::Kind::Python);
                }
            }
        }
    )*};
}

mod answers;
mod connections;
mod deadlines;
mod hang_ups;
mod leaving;
mod refusals;
mod storms;
mod suspended;

/// The timeout of what is answered long before.
const AMPLE: Duration = Duration::from_secs(20);
/// How soon a worker hears what concerns it.
const SOON: Duration = Duration::from_secs(1);

/// Which worker a case runs with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rust,
    Python,
}

impl Kind {
    fn puppet(self) -> WorkerBuilder {
        match self {
            Self::Rust => Worker::puppet(),
            Self::Python => Worker::python_puppet().expect("asked before the case began"),
        }
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
    let line = format!("dropped {run_id}");
    eventually(&line, SOON, || {
        let stderr = worker.stderr();
        stderr.lines().any(|said| said == line).then_some(())
    });
}
