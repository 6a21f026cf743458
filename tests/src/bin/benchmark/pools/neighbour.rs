//! Rows of a pool beside one that cannot start: none, one that has given up, and one that fails for
//! ever as fast as it may. The same harness is given each in turn by a reload.

use harness_tests::{BOUND, Harness, eventually};
use serde_json::Value;

use super::interpreter::{self, Interpreter};
use super::{bench, load, pool, pool_of};
use crate::load::Told;
use crate::report::{Row, median, row};
use crate::throughput::Effort;

const AGENT: &str = "loop";
const BROKEN: &str = "broken";

/// What stands beside the pool.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// It has given up.
    CrashLooping,
    /// It has no limit.
    Failing,
}

impl Beside {
    const ALL: [Self; 3] = [Self::Nothing, Self::CrashLooping, Self::Failing];

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "a pool by itself",
            Self::CrashLooping => "beside one that has given up",
            Self::Failing => "beside one that fails for ever",
        }
    }

    fn config(self, python: &Interpreter) -> String {
        let works = pool(python, AGENT, "size = 2");
        let broken = python.command("/no/such/worker.py");
        let broken = |settings: &str| pool_of(&broken, BROKEN, settings);
        match self {
            Self::Nothing => works,
            Self::CrashLooping => works + &broken("size = 4"),
            Self::Failing => works + &broken("size = 4\nrestart = { max_failed_starts = 0 }"),
        }
    }

    /// Waits until it is what it is to be.
    fn wait(self, harness: &Harness) {
        let is_there = || {
            let pools = harness.cli(["pools", "--json"]).json();
            let mut pools = pools.as_array().expect("a list of pools").iter();
            let broken = pools.find(|pool| pool["agent"] == BROKEN).cloned();
            self.is(broken.as_ref()).then_some(())
        };
        eventually(self.name(), BOUND, is_there);
    }

    /// Whether a broken pool, if there is one, is what it is to be.
    fn is(self, broken: Option<&Value>) -> bool {
        match self {
            Self::Nothing => broken.is_none(),
            Self::CrashLooping => broken.is_some_and(|pool| pool["state"] == "CRASH_LOOPING"),
            Self::Failing => broken.is_some_and(|pool| {
                pool["state"] != "CRASH_LOOPING" && pool["failed_starts"].as_u64() > Some(0)
            }),
        }
    }
}

/// Requests a second and latency of a pool, with each beside it in turn.
pub(crate) fn all(effort: Effort) -> Vec<Row> {
    let Some(python) = Interpreter::find() else {
        return vec![interpreter::missing("a pool beside a broken one")];
    };
    let config = Beside::Nothing.config(&python);
    let harness = Harness::builder().config(config).start();
    harness.wait_for_full(AGENT);
    let load = load(effort, 2, false);
    let mut measured = [const { Vec::new() }; 3];
    for round in 0..effort.rounds {
        for at in 0..Beside::ALL.len() {
            // Whoever comes first in a round comes last in the next.
            let at = if round % 2 == 0 {
                at
            } else {
                Beside::ALL.len() - 1 - at
            };
            let beside = Beside::ALL[at];
            harness.reload(&beside.config(&python));
            beside.wait(&harness);
            measured[at].push(bench(&harness, AGENT, &load));
        }
    }
    let [alone, ..] = &measured;
    let rows = Beside::ALL.iter().zip(&measured);
    rows.map(|(beside, told)| figure(beside.name(), told, alone))
        .collect()
}

fn figure(name: &str, told: &[Told], alone: &[Told]) -> Row {
    let of = |get: fn(&Told) -> f64| median(told.iter().map(get));
    let ratio = |get: fn(&Told) -> f64| {
        let pairs = told.iter().zip(alone);
        median(pairs.map(|(told, alone)| get(told) / get(alone)))
    };
    let figure = format!(
        "{:.1} k/s, p50 {:.0} us, p99 {:.0} us; {:.2}x, {:.2}x and {:.2}x of those by itself",
        of(|one| one.requests_per_s) / 1e3,
        of(|one| one.p50_us),
        of(|one| one.p99_us),
        ratio(|one| one.requests_per_s),
        ratio(|one| one.p50_us),
        ratio(|one| one.p99_us),
    );
    row(format!("{name}, 2 in flight"), figure, "")
}
