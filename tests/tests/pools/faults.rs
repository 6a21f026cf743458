//! Each way a worker of the JSON Lines dialect can fail: a typed error for its caller, at once, and
//! another process in its place.

use std::time::{Duration, Instant};

use harness_tests::{Asker, BOUND, Harness, Signal};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{
    assert_nothing_counted, assert_says, error, pids, pool, reply, start, wait_until_gone,
};

fn signal(pid: u64, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a process id"));
    kill(pid, signal).unwrap_or_else(|error| panic!("cannot signal {pid}: {error}"));
}

/// Has a message fail, and the pool be whole again with another process.
#[track_caller]
fn fails(harness: &Harness, message: &Value, code: &str, parts: &[&str]) -> Value {
    let before = harness.wait_for_full("jsonl");
    let start = Instant::now();
    let told = error(harness, message, code, &[]);
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    assert_says(&told, parts);
    for pid in pids(&before) {
        wait_until_gone(pid);
    }
    harness.wait_for_full("jsonl");
    assert_eq!(reply(harness, "jsonl", &json!("and on")), "and on");
    told
}

#[test]
fn a_crash_names_the_exit_code_and_the_last_lines_and_is_counted() {
    let harness = start(&pool(""), &["jsonl"]);
    assert_eq!(reply(&harness, "jsonl", &json!("before")), "before");
    let told = fails(
        &harness,
        &json!({"do": "crash", "code": 3}),
        "WORKER_LOST",
        &["died: exit code 3", "about to crash"],
    );
    assert_eq!(told["retryable"], true, "{told}");
    assert_eq!(told["details"]["exit"], "exit code 3", "{told}");
    assert_eq!(
        told["details"]["stderr"],
        json!(["about to crash"]),
        "{told}"
    );
    let view = harness.pool("jsonl");
    assert_eq!(view["crashes"], 1, "{view}");
    assert_eq!(view["last_exit"], "exit code 3");
    assert_eq!(view["last_stderr"], json!(["about to crash"]));
}

#[test]
fn a_killed_worker_is_lost_at_once_and_replaced_and_the_others_go_on() {
    let harness = start(&pool("size = 2"), &["jsonl"]);
    let asker = Asker::new(&harness, "jsonl");
    let lost = asker.start(&json!({"do": "hang"}), BOUND);
    harness.wait_for_busy("jsonl", 1);
    let other = asker.start(&json!({"do": "wait", "ms": 500}), BOUND);
    harness.wait_for_busy("jsonl", 2);
    let workers = harness.workers("jsonl");
    let workers = workers.as_array().expect("workers").iter();
    // The one that has been busy longest.
    let since = |worker: &&Value| {
        let busy = worker["slots"][0]["in_state_for_seconds"].as_f64();
        (busy.expect("a number") * 1e6) as u64
    };
    let pid = workers.max_by_key(since).expect("a worker")["pid"].as_u64();
    let start = Instant::now();
    signal(pid.expect("a pid"), Signal::SIGKILL);
    let lost = lost.answer();
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    let code = harness_proto::v1::ErrorCode::WorkerLost;
    let told = lost.error(tonic::Code::Aborted, code);
    assert!(
        told.message.contains("signal 9 (SIGKILL)"),
        "{}",
        told.message
    );
    assert_eq!(other.answer().json(), json!(null));
    harness.wait_for_full("jsonl");
}

#[test]
fn a_worker_that_kills_itself_or_dies_in_its_reply_is_lost() {
    let harness = start(&pool(""), &["jsonl"]);
    fails(
        &harness,
        &json!({"do": "kill"}),
        "WORKER_LOST",
        &["signal 9 (SIGKILL)"],
    );
    fails(
        &harness,
        &json!({"do": "half_reply"}),
        "WORKER_LOST",
        &["exit code 4"],
    );
    // An exit that says all is well, without a reply, is none.
    fails(
        &harness,
        &json!({"do": "crash", "code": 0}),
        "WORKER_LOST",
        &["exit code 0"],
    );
}

#[test]
fn what_is_no_reply_is_a_broken_dialect_and_says_what_it_was() {
    let harness = start(&pool(""), &["jsonl"]);
    let broken = |message: Value, parts: &[&str]| {
        fails(&harness, &message, "PROTOCOL_VIOLATION", parts);
    };
    broken(
        json!({"do": "write", "line": "hello from print"}),
        &["no JSON reply", "hello from print", "standard error"],
    );
    broken(json!({"do": "write", "line": ""}), &["no JSON reply"]);
    broken(
        json!({"do": "before", "line": "noise"}),
        &["no JSON reply", "noise"],
    );
    broken(json!({"do": "other_id"}), &["answered the id", "another"]);
    broken(json!({"do": "close"}), &["closed its standard output"]);
    let view = harness.pool("jsonl");
    assert_nothing_counted(&view);
}

#[test]
fn a_broken_dialect_is_tried_again_by_policy() {
    let harness = start(&pool(""), &["jsonl"]);
    let order = json!({"do": "write", "line": "noise"});
    let told = error(&harness, &order, "PROTOCOL_VIOLATION", &["--attempts", "2"]);
    assert_says(&told, &["attempt 2 of 2"]);
}

#[test]
fn output_after_a_reply_costs_the_process_its_place_and_no_caller_his_reply() {
    let harness = start(&pool(""), &["jsonl"]);
    for order in [
        json!({"do": "after", "line": "noise"}),
        json!({"do": "later", "ms": 100}),
    ] {
        let before = pids(&harness.wait_for_full("jsonl"));
        assert_eq!(reply(&harness, "jsonl", &order), json!(null));
        wait_until_gone(before[0]);
        harness.wait_for_full("jsonl");
        assert_eq!(reply(&harness, "jsonl", &json!("and on")), "and on");
    }
}

#[test]
fn an_endless_line_and_a_reply_over_the_limit_are_too_large() {
    let limits = "[limits]\npayload_bytes = \"64KiB\"\n";
    let harness = start(&format!("{limits}{}", pool("")), &["jsonl"]);
    let large = |message: Value| {
        let parts = ["bytes, the limit is"];
        fails(&harness, &message, "PAYLOAD_TOO_LARGE", &parts);
    };
    large(json!({"do": "endless"}));
    large(json!({"do": "fill", "bytes": 64 * 1024 + 1}));
    let fits = reply(
        &harness,
        "jsonl",
        &json!({"do": "fill", "bytes": 64 * 1024}),
    );
    assert_eq!(fits.as_str().map(str::len), Some(64 * 1024 - 2));
}

#[test]
fn an_exit_in_good_order_between_requests_is_no_crash() {
    let harness = start(&pool(""), &["jsonl"]);
    for ms in [0, 50, 300] {
        let before = pids(&harness.wait_for_full("jsonl"));
        let order = json!({"do": "exit_after", "code": 0, "ms": ms});
        assert_eq!(reply(&harness, "jsonl", &order), json!(null));
        assert_eq!(reply(&harness, "jsonl", &json!("and on")), "and on");
        wait_until_gone(before[0]);
    }
    let view = harness.wait_for_full("jsonl");
    assert_nothing_counted(&view);
}

#[test]
fn a_crash_between_requests_costs_nobody_a_request_and_is_counted() {
    let harness = start(&pool(""), &["jsonl"]);
    let order = json!({"do": "exit_after", "code": 5, "ms": 50});
    assert_eq!(reply(&harness, "jsonl", &order), json!(null));
    let view = harness.wait_for_pool("jsonl", "a crash", |pool| pool["crashes"] == 1);
    assert_eq!(view["last_exit"], "exit code 5", "{view}");
    assert_eq!(reply(&harness, "jsonl", &json!("and on")), "and on");
}

#[test]
fn a_request_that_kills_every_worker_it_gets_is_poisoned_after_the_third() {
    let harness = start(&pool("size = 2"), &["jsonl"]);
    let order = json!({"do": "crash", "code": 3});
    let told = error(&harness, &order, "POISONED", &["--attempts", "10"]);
    assert_says(&told, &["killed 3 workers", "exit code 3"]);
    assert!(
        told["causes"][0]
            .as_str()
            .is_some_and(|cause| cause.contains("died")),
        "{told}"
    );
    let view = harness.wait_for_full("jsonl");
    assert_eq!(view["crashes"], 3, "{view}");
    assert_eq!(reply(&harness, "jsonl", &json!("and on")), "and on");
}

#[test]
fn a_stopped_worker_is_killed_and_its_late_reply_reaches_nobody() {
    let harness = start(&pool("stop = { term_grace = \"300ms\" }"), &["jsonl"]);
    let pid = pids(&harness.pool("jsonl"))[0];
    signal(pid, Signal::SIGSTOP);
    let told = error(
        &harness,
        &json!(1),
        "DEADLINE_EXCEEDED",
        &["--timeout", "300ms"],
    );
    assert_says(&told, &["running", &format!("jsonl-{pid}")]);
    wait_until_gone(pid);
    let view = harness.wait_for_full("jsonl");
    let stopped = &view["stopped"][0];
    assert!(
        stopped["sigkill_after_seconds"].as_f64() >= Some(0.3),
        "{view}"
    );
    assert_eq!(reply(&harness, "jsonl", &json!(2)), 2);
}

#[test]
fn a_worker_that_comes_back_after_the_deadline_answers_nobody() {
    let harness = start(&pool("stop = { term_grace = \"10s\" }"), &["jsonl"]);
    let pid = pids(&harness.pool("jsonl"))[0];
    signal(pid, Signal::SIGSTOP);
    let told = error(
        &harness,
        &json!(1),
        "DEADLINE_EXCEEDED",
        &["--timeout", "300ms"],
    );
    // It has its request, and SIGTERM, and goes on with both.
    signal(pid, Signal::SIGCONT);
    wait_until_gone(pid);
    assert_eq!(reply(&harness, "jsonl", &json!(2)), 2);
    let run_id = told["run_id"].as_str().expect("a run id");
    let entries = super::journal(&harness, run_id);
    let outcomes = entries
        .iter()
        .filter(|entry| matches!(entry, harness_proto::v1::entry::Kind::RunEnded(_)));
    assert_eq!(outcomes.count(), 1, "{entries:?}");
}
