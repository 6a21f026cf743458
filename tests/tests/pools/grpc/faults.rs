//! Each way a process that dials back can fail its request or its pool.

use std::time::{Duration, Instant};

use harness_proto::v1::ErrorCode;
use harness_tests::{Asker, BOUND, Harness, Signal};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::json;
use tempfile::TempDir;
use tonic::Code;

use super::{Make, answers, fails, makes, pid, pool_with, reply, sh};
use crate::{ask, assert_says, pids, start, wait_until_gone};

pub(super) fn signal(pid: u64, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a process id"));
    kill(pid, signal).unwrap_or_else(|error| panic!("cannot signal {pid}: {error}"));
}

#[test]
fn a_process_that_exits_with_a_request_is_lost_by_name_with_its_last_line_and_replaced() {
    for make in makes() {
        let harness = start(&make.pool(""), &["puppet"]);
        assert_eq!(reply(&harness, &answers("before")), "before");
        let before = pid(&harness);
        let start = Instant::now();
        let told = fails(
            &harness,
            &json!({"do": "exit", "code": 3}),
            "WORKER_LOST",
            &[],
        );
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "{:?}",
            start.elapsed()
        );
        let run = told["run_id"].as_str().expect("a run");
        assert_says(&told, &["died: exit code 3", &format!("started {run}")]);
        assert_eq!(
            (&told["retryable"], &told["details"]["exit"]),
            (&json!(true), &json!("exit code 3"))
        );
        assert_eq!(
            told["details"]["stderr"],
            json!([format!("started {run}")]),
            "{make:?}"
        );
        wait_until_gone(before);
        let view = harness.wait_for_full("puppet");
        assert_eq!(
            (&view["crashes"], &view["failed_starts"]),
            (&json!(1), &json!(0)),
            "{view}"
        );
        assert_eq!(view["last_exit"], "exit code 3");
        assert_eq!(reply(&harness, &answers("and on")), "and on");
    }
}

#[test]
fn a_killed_process_is_lost_at_once_and_replaced_and_the_others_go_on() {
    for make in makes() {
        let harness = start(&make.pool("size = 2"), &["puppet"]);
        let asker = Asker::new(&harness, "puppet");
        let lost = asker.start(&json!({"do": "hang"}), BOUND);
        harness.wait_for_busy("puppet", 1);
        let workers = harness.workers("puppet");
        let workers = workers.as_array().expect("workers").iter();
        let busy = |worker: &&serde_json::Value| worker["slots"][0]["state"] == "BUSY";
        let busy = workers.clone().find(busy).expect("the busy one")["pid"].as_u64();
        let other = asker.start(&json!({"do": "wait", "ms": 500}), BOUND);
        harness.wait_for_busy("puppet", 2);
        let start = Instant::now();
        signal(busy.expect("a pid"), Signal::SIGKILL);
        let lost = lost.answer();
        assert!(
            start.elapsed() < Duration::from_secs(2),
            "{:?}",
            start.elapsed()
        );
        let told = lost.error(Code::Aborted, ErrorCode::WorkerLost);
        assert!(
            told.message.contains("signal 9 (SIGKILL)"),
            "{make:?}: {}",
            told.message
        );
        assert_eq!(other.answer().json(), json!(null));
        harness.wait_for_full("puppet");
    }
}

#[test]
fn a_stopped_process_is_killed_and_its_late_reply_reaches_nobody() {
    for make in makes() {
        let settings = "stop = { cancel_grace = \"100ms\", term_grace = \"300ms\" }";
        let harness = start(&make.pool(settings), &["puppet"]);
        let pid = pid(&harness);
        signal(pid, Signal::SIGSTOP);
        let told = fails(
            &harness,
            &answers("late"),
            "DEADLINE_EXCEEDED",
            &["--timeout", "300ms"],
        );
        assert_says(&told, &["running"]);
        wait_until_gone(pid);
        let view = harness.wait_for_full("puppet");
        let stopped = &view["stopped"][0];
        assert!(
            stopped["sigkill_after_seconds"].as_f64() >= Some(0.4),
            "{make:?}: {view}"
        );
        assert_eq!(reply(&harness, &answers("and on")), "and on");
    }
}

#[test]
fn a_process_that_comes_back_after_the_deadline_answers_nobody_and_serves_on() {
    let settings = "stop = { cancel_grace = \"10s\" }";
    for make in makes() {
        let harness = start(&make.pool(settings), &["puppet"]);
        let pid = pid(&harness);
        signal(pid, Signal::SIGSTOP);
        let told = fails(
            &harness,
            &answers("late"),
            "DEADLINE_EXCEEDED",
            &["--timeout", "300ms"],
        );
        signal(pid, Signal::SIGCONT);
        assert_eq!(reply(&harness, &answers("and on")), "and on");
        assert_eq!(pids(&harness.wait_for_full("puppet")), [pid], "{make:?}");
        let run = told["run_id"].as_str().expect("a run id");
        let entries = crate::journal(&harness, run);
        let outcomes = entries
            .iter()
            .filter(|entry| matches!(entry, harness_proto::v1::entry::Kind::RunEnded(_)));
        assert_eq!(outcomes.count(), 1, "{make:?}: {entries:?}");
    }
}

#[test]
fn a_request_that_kills_every_process_it_gets_is_poisoned_after_the_third() {
    for make in makes() {
        let harness = start(&make.pool("size = 2"), &["puppet"]);
        let order = json!({"do": "exit", "code": 3});
        let told = fails(&harness, &order, "POISONED", &["--attempts", "10"]);
        assert_says(&told, &["killed 3 workers", "exit code 3"]);
        let view = harness.wait_for_full("puppet");
        assert_eq!(view["crashes"], 3, "{make:?}: {view}");
        assert_eq!(reply(&harness, &answers("and on")), "and on");
    }
}

#[test]
fn a_process_that_dies_before_its_hello_is_a_failed_start_and_for_ever_a_crash_loop() {
    let broken = sh(
        "broken",
        "echo no module named agent >&2; exit 7",
        "size = 2",
    );
    let config = format!("{broken}{}", Make::Rust.pool(""));
    let harness = harness_tests::Harness::builder().config(config).start();
    let view = harness.wait_for_pool("broken", "crash-looping", |pool| {
        pool["state"] == "CRASH_LOOPING"
    });
    assert!(view["failed_starts"].as_u64() >= Some(5), "{view}");
    assert_eq!((&view["ready"], &view["crashes"]), (&json!(0), &json!(0)));
    assert_eq!(view["last_exit"], "exit code 7");
    assert_eq!(view["last_stderr"], json!(["no module named agent"]));
    let told = ask(&harness, "broken", &json!(1), &[]);
    assert_eq!(told["error"]["code"], "CRASH_LOOP", "{told}");
    assert_says(&told["error"], &["exit code 7", "no module named agent"]);
    harness.wait_for_full("puppet");
    assert_eq!(reply(&harness, &answers("and on")), "and on");
}

#[test]
fn a_process_that_never_dials_back_is_ended_after_ready_timeout_and_named() {
    let deaf = sh(
        "deaf",
        "echo not a worker >&2; exec sleep 1000",
        "ready_timeout = \"300ms\"",
    );
    let harness = harness_tests::Harness::builder().config(deaf).start();
    let view = harness.wait_for_pool("deaf", "crash-looping", |pool| {
        pool["state"] == "CRASH_LOOPING" && pool["processes"] == json!([])
    });
    assert_eq!(view["failed_starts"], 5, "{view}");
    assert_eq!(view["last_stderr"], json!(["not a worker"]));
    let stopped = &view["stopped"][0];
    assert_eq!(stopped["reason"], "it was not ready in time", "{view}");
}

#[test]
fn a_worker_of_another_agent_fails_to_start_and_says_what_it_may_offer() {
    let command = Make::Rust.command().expect("there");
    let env = [("PUPPET_AGENT", "typed")];
    let config = pool_with(
        "other",
        &command,
        &env,
        "restart = { max_failed_starts = 1 }",
    );
    let mut harness = harness_tests::Harness::builder().config(config).start();
    let view = harness.wait_for_pool("other", "crash-looping", |pool| {
        pool["state"] == "CRASH_LOOPING"
    });
    let told = view["last_stderr"].to_string();
    assert!(
        told.contains("may offer agent \\\"other\\\"") || told.contains("may offer agent"),
        "{told}"
    );
    let line = harness
        .process()
        .wait_for_line("refused: process 1 of pool other");
    assert!(line.contains("typed"), "{line}");
}

#[test]
fn crashes_of_attached_processes_within_the_window_are_a_crash_loop() {
    let harness = start(
        &Make::Rust.pool("restart = { max_crashes = 3 }"),
        &["puppet"],
    );
    for number in 1..=3 {
        assert_eq!(reply(&harness, &answers("useful")), "useful");
        fails(
            &harness,
            &json!({"do": "exit", "code": 3}),
            "WORKER_LOST",
            &[],
        );
        if number < 3 {
            harness.wait_for_full("puppet");
        }
    }
    let told = fails(&harness, &answers("never"), "CRASH_LOOP", &[]);
    assert_says(&told, &["3 crashes within"]);
}

#[test]
fn a_death_between_requests_costs_nobody_a_request_and_is_counted() {
    let harness = start(&Make::Rust.pool(""), &["puppet"]);
    assert_eq!(reply(&harness, &answers("before")), "before");
    signal(pid(&harness), Signal::SIGKILL);
    assert_eq!(
        harness.wait_for_pool("puppet", "a crash", |pool| pool["crashes"] == 1)["last_exit"],
        "signal 9 (SIGKILL)"
    );
    harness.wait_for_full("puppet");
    assert_eq!(reply(&harness, &answers("and on")), "and on");
}

#[test]
fn a_process_that_dies_while_its_lost_call_is_waited_for_is_waited_for_no_longer() {
    let data = TempDir::new().expect("a folder");
    let limits = "[limits]\nheartbeat_interval = \"200ms\"\nreattach_window = \"5m\"\n\n";
    let harness = Harness::builder()
        .config(format!("{limits}{}", Make::Rust.pool("")))
        .argument("--data")
        .argument(data.path().display().to_string())
        .start();
    harness.wait_for_full("puppet");
    let started = [
        "run",
        "start",
        "puppet",
        "{\"do\": \"hang\"}",
        "--attempts",
        "1",
        "--json",
    ];
    let run = harness.cli(started).json();
    let run_id = run["run_id"].as_str().expect("an id");
    harness.wait_for_busy("puppet", 1);
    let pid = pid(&harness);
    signal(pid, Signal::SIGSTOP);
    // It misses its heartbeats, and might come back.
    harness_tests::eventually("its call is lost", BOUND, || {
        let workers = harness.workers("puppet");
        (workers == json!([])).then_some(())
    });
    let stands = harness.cli(["run", "get", run_id, "--json"]).json();
    assert_eq!(stands["state"], "RUNNING", "{stands}");
    signal(pid, Signal::SIGKILL);
    let ended = harness
        .cli(["run", "get", run_id, "--wait-for-end", "20s", "--json"])
        .json();
    assert_eq!(ended["state"], "FAILED", "{ended}");
    assert_says(&ended["outcome"]["error"], &["died: signal 9 (SIGKILL)"]);
}
