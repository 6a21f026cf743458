//! Pools under `interactive_reattach_window`: the worker of an ask is waited for as long as its
//! process may come back, and no longer.

use std::time::{Duration, Instant};

use harness_proto::v1::ErrorCode;
use harness_tests::{Asker, BOUND, Harness, Signal, eventually};
use serde_json::json;
use tempfile::TempDir;
use tonic::Code;

use super::faults::signal;
use super::{Make, answers, makes, pid, reply};
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

/// Suspends the only process of the pool, until its calls are lost.
#[track_caller]
fn suspend(harness: &Harness, pid: u64) {
    signal(pid, Signal::SIGSTOP);
    eventually("its calls are lost", BOUND, || {
        (harness.workers("puppet") == json!([])).then_some(())
    });
}

#[test]
fn an_ask_whose_process_is_killed_is_lost_as_soon_as_the_death_is_known() {
    for make in makes() {
        let harness = waiting(&make.pool("restart = { max_crashes = 10 }"));
        let asker = Asker::new(&harness, "puppet");
        // Its call breaks before the death is known, or after.
        for _ in 0..4 {
            let asking = asker.start(&json!({"do": "hang"}), BOUND);
            harness.wait_for_busy("puppet", 1);
            signal(pid(&harness), Signal::SIGKILL);
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
        harness.wait_for_busy("puppet", 1);
        let workers = harness.workers("puppet");
        let mut workers = workers.as_array().expect("workers").iter();
        let busy = workers.find(|worker| worker["slots"][0]["state"] == "BUSY");
        let busy = busy.expect("the busy one")["pid"].as_u64();
        signal(busy.expect("a pid"), Signal::SIGKILL);
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
    harness.wait_for_busy("puppet", 1);
    let pid = pid(&harness);
    suspend(&harness, pid);
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
    harness.wait_for_busy("puppet", 1);
    let pid = pid(&harness);
    suspend(&harness, pid);
    signal(pid, Signal::SIGCONT);
    harness.wait_for_busy("puppet", 1);
    std::fs::write(gates.path().join("1"), "").expect("written");
    assert_eq!(asking.answer().json(), 1);
    let view = harness.wait_for_full("puppet");
    assert_eq!(pids(&view), [pid]);
    assert_nothing_counted(&view);
}

#[test]
fn a_process_for_one_request_answers_it_and_ends_though_asks_are_waited_for() {
    let once = "mode = \"per-request\"\nsize = 2\nstop = { cancel_grace = \"5s\" }";
    for make in makes() {
        let harness = waiting(&make.pool(once));
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
