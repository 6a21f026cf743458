//! Pools under `interactive_reattach_window`: the worker of an ask is waited for as long as its
//! process may come back, and no longer.

use std::time::{Duration, Instant};

use harness_proto::v1::ErrorCode;
use harness_tests::{Asker, BOUND, Harness, Signal, eventually};
use serde_json::json;
use tempfile::TempDir;
use tonic::Code;

use super::faults::signal;
use super::serving::ONCE;
use super::{Make, answers, makes, reply};
use crate::{assert_nothing_counted, pids, start, wait_until_gone};

/// Longer than any test waits: nothing is decided by its end.
const LIMITS: &str =
    "[limits]\nheartbeat_interval = \"200ms\"\ninteractive_reattach_window = \"5m\"\n\n";
/// How soon a known death decides.
const AT_ONCE: Duration = Duration::from_secs(5);

#[track_caller]
fn waiting(pool: &str) -> Harness {
    start(&format!("{LIMITS}{pool}"), &["puppet"])
}

/// Suspends the only process in work, until its calls are lost.
#[track_caller]
fn suspend(harness: &Harness) -> u64 {
    let pid = busy(harness);
    signal(pid, Signal::SIGSTOP);
    eventually("its calls are lost", BOUND, || {
        let workers = harness.workers("puppet");
        let mut workers = workers.as_array()?.iter();
        workers.all(|worker| worker["pid"] != pid).then_some(())
    });
    pid
}

/// The only process in work.
#[track_caller]
fn busy(harness: &Harness) -> u64 {
    harness.wait_for_busy("puppet", 1);
    let workers = harness.workers("puppet");
    let mut workers = workers.as_array().expect("workers").iter();
    let busy = workers.find(|worker| worker["slots"][0]["state"] == "BUSY");
    busy.expect("the busy one")["pid"].as_u64().expect("a pid")
}

#[test]
fn an_ask_whose_process_is_killed_is_lost_as_soon_as_the_death_is_known() {
    for make in makes() {
        let harness = waiting(&make.pool("restart = { max_crashes = 10 }"));
        let asker = Asker::new(&harness, "puppet");
        // Its call breaks before the death is known, or after.
        for _ in 0..4 {
            let asking = asker.start(&json!({"do": "hang"}), BOUND);
            signal(busy(&harness), Signal::SIGKILL);
            let killed = Instant::now();
            let lost = asking.answer();
            assert!(killed.elapsed() < AT_ONCE, "{:?}", killed.elapsed());
            let told = lost.error(Code::Aborted, ErrorCode::WorkerLost);
            let died = "died: signal 9 (SIGKILL)";
            assert!(told.message.contains(died), "{make:?}: {}", told.message);
            harness.wait_for_full("puppet");
        }
        assert_eq!(reply(&harness, &answers("and on")), "and on");
    }
}

#[test]
fn an_ask_that_may_be_tried_again_goes_on_in_another_process_as_soon_as_its_own_is_dead() {
    for make in makes() {
        let harness = waiting(&make.pool("size = 2"));
        let asker = Asker::new(&harness, "puppet").retrying(2, Duration::from_millis(10));
        let asking = asker.start(&json!({"do": "wait", "ms": 1000}), BOUND);
        signal(busy(&harness), Signal::SIGKILL);
        let killed = Instant::now();
        let answer = asking.answer().result.expect("a reply");
        assert_eq!(answer.attempt, 2, "{make:?}");
        assert!(killed.elapsed() < AT_ONCE, "{:?}", killed.elapsed());
        harness.wait_for_full("puppet");
    }
}

#[test]
fn an_ask_is_waited_for_no_longer_when_the_process_behind_its_lost_call_dies() {
    let harness = waiting(&Make::Rust.pool(""));
    let asker = Asker::new(&harness, "puppet");
    let asking = asker.start(&json!({"do": "hang"}), BOUND);
    let pid = suspend(&harness);
    signal(pid, Signal::SIGKILL);
    let killed = Instant::now();
    let lost = asking.answer();
    assert!(killed.elapsed() < AT_ONCE, "{:?}", killed.elapsed());
    let told = lost.error(Code::Aborted, ErrorCode::WorkerLost);
    let died = "died: signal 9 (SIGKILL)";
    assert!(told.message.contains(died), "{}", told.message);
    harness.wait_for_full("puppet");
}

#[test]
fn an_ask_goes_on_in_its_process_when_that_was_suspended_past_its_heartbeats() {
    let harness = waiting(&Make::Rust.pool(""));
    let asker = Asker::new(&harness, "puppet");
    let gates = TempDir::new().expect("a folder");
    let order = json!({"do": "stages", "folder": gates.path(), "count": 1});
    let asking = asker.start(&order, BOUND);
    let pid = suspend(&harness);
    signal(pid, Signal::SIGCONT);
    harness.wait_for_busy("puppet", 1);
    std::fs::write(gates.path().join("1"), "").expect("written");
    assert_eq!(asking.answer().json(), 1);
    let view = harness.wait_for_full("puppet");
    assert_eq!(pids(&view), [pid]);
    assert_nothing_counted(&view);
}

#[test]
fn an_ask_goes_on_in_its_process_when_the_harness_was_suspended_past_its_heartbeats() {
    let settings = "stop = { cancel_grace = \"100ms\", term_grace = \"100ms\" }";
    let mut harness = waiting(&Make::Rust.pool(settings));
    let gates = TempDir::new().expect("a folder");
    let order = json!({"do": "stages", "folder": gates.path(), "count": 1});
    let harness_pid = harness.process().pid();
    for _ in 0..3 {
        let asker = Asker::new(&harness, "puppet");
        let asking = asker.start(&order, BOUND);
        let pid = busy(&harness);
        signal(harness_pid.into(), Signal::SIGSTOP);
        let stopped = Instant::now();
        eventually("the process gives its call up", BOUND, || {
            (stopped.elapsed() > Duration::from_millis(1_000)).then_some(())
        });
        signal(harness_pid.into(), Signal::SIGCONT);
        harness.wait_for_busy("puppet", 1);
        let resumed = Instant::now();
        eventually("it would have been killed by now", BOUND, || {
            (resumed.elapsed() > Duration::from_millis(500)).then_some(())
        });
        std::fs::write(gates.path().join("1"), "").expect("written");
        assert_eq!(asking.answer().json(), 1);
        std::fs::remove_file(gates.path().join("1")).expect("there");
        let view = harness.wait_for_full("puppet");
        assert_eq!(pids(&view), [pid], "{view}");
        assert_nothing_counted(&view);
    }
}

#[test]
fn a_process_for_one_request_answers_it_and_ends_though_asks_are_waited_for() {
    for make in makes() {
        let harness = waiting(&make.pool(ONCE));
        let mut seen = Vec::new();
        for _ in 0..4 {
            let pid = reply(&harness, &json!({"do": "pid"}));
            seen.push(pid.as_u64().expect("a pid"));
        }
        for (number, pid) in seen.iter().enumerate() {
            assert!(!seen[..number].contains(pid), "{make:?}: {seen:?}");
            wait_until_gone(*pid);
        }
        let view = harness.wait_for_full("puppet");
        assert_nothing_counted(&view);
        assert_eq!(view["last_exit"], "exit code 0", "{make:?}");
    }
}

#[test]
fn a_process_for_one_request_may_not_come_back_to_it_and_its_ask_does_not_wait() {
    let harness = waiting(&Make::Rust.pool(ONCE));
    let asker = Asker::new(&harness, "puppet");
    let asking = asker.start(&json!({"do": "hang"}), BOUND);
    let pid = suspend(&harness);
    signal(pid, Signal::SIGCONT);
    let goes_on = Instant::now();
    let lost = asking.answer();
    let _ = lost.error(Code::Aborted, ErrorCode::WorkerLost);
    assert!(goes_on.elapsed() < 2 * AT_ONCE, "{:?}", goes_on.elapsed());
    wait_until_gone(pid);
    harness.wait_for_full("puppet");
    assert_eq!(reply(&harness, &answers("and on")), "and on");
}
