//! Asks over calls that break, under `interactive_reattach_window`: the worker of the SDK goes on with
//! them and comes back. What it does is seen in a file, which must tell of everything once.

use std::fs;

use harness_proto::v1::ErrorCode;
use harness_tests::{Asker, Asking, BOUND, Harness, Proxy, Signal, Way, Worker, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::Code;

use crate::behind_proxy::{SLOTS, assert_back, behind_proxy};
use crate::{AMPLE, Kind, assert_dropped, assert_says, millis, next_started, reply, started};

/// Longer than any test waits: nothing is decided by its end.
const LONG: &str = "[limits]\ninteractive_reattach_window = \"5m\"\n";
/// Over before any test stops waiting.
const SHORT: &str = "[limits]\ninteractive_reattach_window = \"500ms\"\n";
/// [`LONG`], with a call that is quickly noticed to be silent.
const WATCHFUL: &str =
    "[limits]\ninteractive_reattach_window = \"5m\"\nheartbeat_interval = \"200ms\"\n";

/// The work of one ask, stage by stage, and the file it leaves its traces in.
struct Stages {
    folder: TempDir,
    count: u64,
}

impl Stages {
    fn new(count: u64) -> Self {
        let folder = TempDir::new().expect("a folder");
        Self { folder, count }
    }

    /// The order to a puppet.
    fn order(&self) -> Value {
        json!({"do": "stages", "folder": self.folder.path(), "count": self.count})
    }

    /// What the work has done so far, a line each.
    fn done(&self) -> Vec<String> {
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    #[track_caller]
    fn wait_for(&self, line: &str) {
        eventually(&format!("the work comes to {line}"), BOUND, || {
            self.done().iter().any(|done| done == line).then_some(())
        });
    }

    /// Lets the work go on behind this stage.
    fn let_on(&self, number: u64) {
        let file = self.folder.path().join(number.to_string());
        fs::write(file, "").expect("the folder is there");
    }

    /// Each stage was gone through once, to the end.
    #[track_caller]
    fn assert_done_once(&self) {
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
fn break_and_resume(harness: &Harness, breaks: impl FnOnce()) {
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
fn at_work<'a>(asker: &'a Asker, worker: &mut Worker, stages: &Stages) -> (Asking<'a>, String) {
    let before = started(worker.process()).len();
    let asking = asker.start(&stages.order(), AMPLE);
    stages.wait_for("1");
    (asking, next_started(worker.process(), before))
}

#[test]
fn an_ask_whose_call_is_cut_is_answered_by_its_first_attempt_and_its_work_is_done_once() {
    let ways: [(&str, fn(&Proxy)); 3] = [
        ("cut", Proxy::cut),
        ("closed", Proxy::close),
        ("reset", Proxy::reset_calls),
    ];
    for (how, breaks) in ways {
        let (harness, proxy, mut worker) = behind_proxy(Kind::Rust, LONG);
        let (asker, stages) = (Asker::new(&harness, "puppet"), Stages::new(2));
        let (asking, _) = at_work(&asker, &mut worker, &stages);
        break_and_resume(&harness, || breaks(&proxy));
        stages.let_on(1);
        stages.let_on(2);
        assert_eq!(asking.answer().json(), 2, "{how}");
        stages.assert_done_once();
        assert_eq!(started(worker.process()).len(), 1, "{how}");
        harness.wait_for_ready("puppet", SLOTS);
    }
}

#[test]
fn without_a_window_the_same_ask_is_lost_with_its_call() {
    let (harness, proxy, mut worker) = behind_proxy(Kind::Rust, "");
    let (asker, stages) = (Asker::new(&harness, "puppet"), Stages::new(2));
    let (asking, run_id) = at_work(&asker, &mut worker, &stages);
    proxy.cut();
    let answer = asking.answer();
    let _ = answer.error(Code::Aborted, ErrorCode::WorkerLost);
    assert!(answer.took < AMPLE / 4, "{:?}", answer.took);
    assert_dropped(worker.process(), &run_id);
    assert_eq!(stages.done(), ["1"]);
    assert_back(&harness, &proxy, 1);
}

#[test]
fn a_streamed_ask_whose_call_is_cut_at_every_stage_brings_each_piece_once() {
    const COUNT: u64 = 6;
    let (harness, proxy, mut worker) = behind_proxy(Kind::Rust, LONG);
    let (asker, stages) = (Asker::new(&harness, "puppet"), Stages::new(COUNT));
    let stream = asker.stream(&stages.order(), AMPLE);
    for number in 1..=COUNT {
        stages.wait_for(&number.to_string());
        break_and_resume(&harness, || {
            // Before the next is written, or about then.
            if number % 2 == 0 && number < COUNT {
                stages.let_on(number);
            }
            proxy.cut();
        });
        stages.let_on(number);
    }
    let (pieces, ended) = stream.rest();
    assert_eq!(pieces, (1..=COUNT).map(Value::from).collect::<Vec<_>>());
    assert_eq!(ended.expect("a reply"), COUNT);
    stages.assert_done_once();
    assert_eq!(started(worker.process()).len(), 1);
    harness.wait_for_ready("puppet", SLOTS);
}

#[test]
fn work_that_is_done_while_its_call_is_away_is_answered_after_the_resume() {
    let (harness, proxy, mut worker) = behind_proxy(Kind::Rust, LONG);
    let (asker, stages) = (Asker::new(&harness, "puppet"), Stages::new(1));
    let (asking, _) = at_work(&asker, &mut worker, &stages);
    proxy.go_down();
    harness.wait_for_busy("puppet", 0);
    stages.let_on(1);
    stages.wait_for("done");
    harness.wait_for_ready("puppet", 0);
    proxy.go_up();
    assert_eq!(asking.answer().json(), 1);
    stages.assert_done_once();
    harness.wait_for_ready("puppet", SLOTS);
}

#[test]
fn work_whose_window_is_over_is_lost_and_dropped_and_its_slot_serves_on() {
    let (harness, proxy, mut worker) = behind_proxy(Kind::Rust, SHORT);
    let (asker, stages) = (Asker::new(&harness, "puppet"), Stages::new(1));
    let (asking, run_id) = at_work(&asker, &mut worker, &stages);
    proxy.go_down();
    let answer = asking.answer();
    let _ = answer.error(Code::Aborted, ErrorCode::WorkerLost);
    assert!(answer.took >= millis(500), "{:?}", answer.took);
    // Nobody has told it: it keeps the time itself.
    assert_says(worker.process(), &format!("dropped {run_id}"), BOUND);
    proxy.go_up();
    assert_back(&harness, &proxy, 1);
    assert_eq!(stages.done(), ["1"]);
}

#[test]
fn work_that_ended_while_its_call_was_away_is_dropped_at_the_resume_and_its_slot_serves_on() {
    for hangs_up in [false, true] {
        let (harness, proxy, mut worker) = behind_proxy(Kind::Rust, LONG);
        let (asker, stages) = (Asker::new(&harness, "puppet"), Stages::new(1));
        let asking = asker.start(&stages.order(), millis(1_500));
        stages.wait_for("1");
        let run_id = next_started(worker.process(), 0);
        proxy.go_down();
        harness.wait_for_busy("puppet", 0);
        if hangs_up {
            asking.hang_up();
        } else {
            let answer = asking.answer();
            let _ = answer.error(Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
        }
        proxy.go_up();
        assert_says(worker.process(), &format!("dropped {run_id}"), BOUND);
        assert_back(&harness, &proxy, 1);
        assert_eq!(stages.done(), ["1"], "hangs up: {hangs_up}");
        eventually("nothing is owed", BOUND, || {
            (harness.agent("puppet")?["unreleased"] == 0).then_some(())
        });
    }
}

#[test]
fn a_worker_that_was_suspended_past_its_heartbeats_goes_on_with_its_ask() {
    let (harness, _proxy, mut worker) = behind_proxy(Kind::Rust, WATCHFUL);
    let (asker, stages) = (Asker::new(&harness, "puppet"), Stages::new(2));
    let (asking, _) = at_work(&asker, &mut worker, &stages);
    suspend(&harness, &mut worker);
    worker.process().signal(Signal::SIGCONT);
    harness.wait_for_busy("puppet", 1);
    stages.let_on(1);
    stages.let_on(2);
    assert_eq!(asking.answer().json(), 2);
    stages.assert_done_once();
    assert_eq!(started(worker.process()).len(), 1);
    harness.wait_for_ready("puppet", SLOTS);
}

#[test]
fn work_that_is_done_before_anybody_notices_the_loss_of_its_call_is_answered_too() {
    let losses: [(&str, fn(&Proxy)); 4] = [
        ("stalled both ways", |proxy| proxy.stall(Way::Both)),
        ("stalled to the harness", |proxy| {
            proxy.stall(Way::ToHarness)
        }),
        ("stalled to the worker", |proxy| proxy.stall(Way::ToPeer)),
        ("swallowed", |proxy| proxy.swallow(Way::Both)),
    ];
    for (how, loses) in losses {
        let (harness, proxy, mut worker) = behind_proxy(Kind::Rust, WATCHFUL);
        let (asker, stages) = (Asker::new(&harness, "puppet"), Stages::new(1));
        let (asking, _) = at_work(&asker, &mut worker, &stages);
        loses(&proxy);
        stages.let_on(1);
        assert_eq!(asking.answer().json(), 1, "{how}");
        stages.assert_done_once();
        assert_back(&harness, &proxy, 1);
    }
}

#[test]
fn work_that_is_done_when_its_worker_goes_on_after_it_was_suspended_is_answered_too() {
    let (harness, _proxy, mut worker) = behind_proxy(Kind::Rust, WATCHFUL);
    let (asker, stages) = (Asker::new(&harness, "puppet"), Stages::new(1));
    let (asking, _) = at_work(&asker, &mut worker, &stages);
    suspend(&harness, &mut worker);
    // It is done as soon as it goes on, and may reply on the call that is over.
    stages.let_on(1);
    worker.process().signal(Signal::SIGCONT);
    assert_eq!(asking.answer().json(), 1);
    stages.assert_done_once();
    harness.wait_for_ready("puppet", SLOTS);
}

/// Suspends a worker until its calls are lost.
#[track_caller]
fn suspend(harness: &Harness, worker: &mut Worker) {
    worker.process().signal(Signal::SIGSTOP);
    eventually("its calls are lost", BOUND, || {
        (harness.workers("puppet") == json!([])).then_some(())
    });
}

#[test]
fn an_ask_whose_call_is_cut_under_its_reply_is_answered_once_and_its_slot_serves_on() {
    let (harness, proxy, mut worker) = behind_proxy(Kind::Rust, LONG);
    let asker = Asker::new(&harness, "puppet");
    // From the first byte of the reply's frame to what comes after it.
    for bytes in [1, 9, 20, 40, 60, 80, 100, 120] {
        let (stages, before) = (Stages::new(1), proxy.accepted());
        let (asking, _) = at_work(&asker, &mut worker, &stages);
        proxy.cut_after(Way::ToHarness, bytes);
        stages.let_on(1);
        let answer = asking.answer();
        assert!(answer.took < AMPLE / 2, "{bytes}: {:?}", answer.took);
        assert_eq!(answer.json(), 1, "{bytes}");
        stages.assert_done_once();
        // Where so many bytes have not gone by yet.
        proxy.cut();
        assert_back(&harness, &proxy, before);
    }
}

#[test]
fn a_full_level_worker_that_does_not_resume_costs_its_caller_no_window() {
    if Worker::full_puppet().is_none() {
        return;
    }
    let (harness, proxy, mut worker) = behind_proxy(Kind::Full, LONG);
    let asker = Asker::new(&harness, "puppet");
    let asking = asker.start(&crate::hang(), AMPLE);
    next_started(worker.process(), 0);
    proxy.cut();
    // It comes back saying that its work has stopped.
    let answer = asking.answer();
    let _ = answer.error(Code::Aborted, ErrorCode::WorkerLost);
    assert!(answer.took < AMPLE / 2, "{:?}", answer.took);
    assert_back(&harness, &proxy, 1);
    assert_eq!(asker.ask(&reply(1), AMPLE).json(), 1);
}
