//! Work of one ask that leaves its traces in a file and goes on when a test lets it, and what happens
//! to the calls under it.

use std::fs;

use harness_tests::{Asker, Asking, BOUND, Harness, Proxy, Signal, Worker, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::behind_proxy::SLOTS;
use crate::{AMPLE, next_started, started};

/// Longer than any test waits: nothing is decided by its end.
pub(crate) const LONG: &str = "[limits]\ninteractive_reattach_window = \"5m\"\n";
/// Over before any test stops waiting.
pub(crate) const SHORT: &str = "[limits]\ninteractive_reattach_window = \"500ms\"\n";
/// [`LONG`], with a call that is quickly noticed to be silent.
pub(crate) const WATCHFUL: &str =
    "[limits]\ninteractive_reattach_window = \"5m\"\nheartbeat_interval = \"200ms\"\n";

/// A way to lose all calls, and its name.
pub(crate) type Loss = (&'static str, fn(&Proxy));

/// The work of one ask, stage by stage, and the file it leaves its traces in.
pub(crate) struct Stages {
    folder: TempDir,
    count: u64,
}

impl Stages {
    pub(crate) fn new(count: u64) -> Self {
        let folder = TempDir::new().expect("a folder");
        Self { folder, count }
    }

    /// The order to a puppet.
    pub(crate) fn order(&self) -> Value {
        json!({"do": "stages", "folder": self.folder.path(), "count": self.count})
    }

    /// What the work has done so far, a line each.
    pub(crate) fn done(&self) -> Vec<String> {
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    #[track_caller]
    pub(crate) fn wait_for(&self, line: &str) {
        eventually(&format!("the work comes to {line}"), BOUND, || {
            self.done().iter().any(|done| done == line).then_some(())
        });
    }

    /// Lets the work go on behind this stage.
    pub(crate) fn let_on(&self, number: u64) {
        let file = self.folder.path().join(number.to_string());
        fs::write(file, "").expect("the folder is there");
    }

    /// Each stage was gone through once, to the end.
    #[track_caller]
    pub(crate) fn assert_done_once(&self) {
        let stages = (1..=self.count).map(|number| number.to_string());
        let all: Vec<String> = stages.chain(["done".to_owned()]).collect();
        assert_eq!(self.done(), all);
    }
}

/// The slot that is in work, by its id, and its run.
fn busy(harness: &Harness) -> Option<(u64, Value)> {
    let workers = harness.workers("puppet");
    let slots = workers[0]["slots"].as_array()?.iter();
    let mut busy = slots.filter(|slot| slot["state"] == "BUSY");
    let slot = busy.next()?;
    Some((slot["slot_id"].as_u64()?, slot["run_id"].clone()))
}

/// Breaks the calls under the one run in work and waits until its worker goes on with it in another.
#[track_caller]
pub(crate) fn break_and_resume(harness: &Harness, breaks: impl FnOnce()) {
    let work = || eventually("a slot is in work", BOUND, || busy(harness));
    let (before, run) = work();
    breaks();
    eventually("the work goes on in another call", BOUND, || {
        let (slot, resumed) = busy(harness)?;
        (slot != before).then(|| assert_eq!(resumed, run))
    });
    harness.wait_for_ready("puppet", SLOTS - 1);
}

/// An ask of two stages whose worker is at the first of them.
#[track_caller]
pub(crate) fn at_work<'a>(
    asker: &'a Asker,
    worker: &mut Worker,
    stages: &Stages,
) -> (Asking<'a>, String) {
    let before = started(worker.process()).len();
    let asking = asker.start(&stages.order(), AMPLE);
    stages.wait_for("1");
    (asking, next_started(worker.process(), before))
}

/// Suspends a worker until its calls are lost.
#[track_caller]
pub(crate) fn suspend(harness: &Harness, worker: &mut Worker) {
    worker.process().signal(Signal::SIGSTOP);
    eventually("its calls are lost", BOUND, || {
        (harness.workers("puppet") == json!([])).then_some(())
    });
}
