//! `examples/python-jsonl`: the files of the article, unchanged, in both modes.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use harness_tests::{BOUND, Harness, Process, source};
use serde_json::json;

use super::{ask, assert_nothing_counted, assert_says, journal, pids, wait_until_gone};

/// Whether there is a Python to run it with; there must be with CI=true.
fn has_python() -> bool {
    let mut python = Command::new("python3");
    let found = python.arg("--version").output().is_ok();
    let ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(found || !ci, "python3 is missing, and CI=true");
    found
}

/// A harness over a copy of the example, in this mode, its agent changed.
fn start(mode: &str, change: impl Fn(String) -> String) -> Option<Harness> {
    if !has_python() {
        return None;
    }
    let example = source("examples/python-jsonl");
    let read = |file: &str| fs::read_to_string(example.join(file)).expect("a file of the example");
    let config =
        read("harness.toml").replace("mode = \"per-request\"", &format!("mode = \"{mode}\""));
    assert!(config.contains(mode));
    let harness = Harness::builder().config("").start();
    let put = |file: &str, text: String| {
        let path: &Path = &harness.folder().join(file);
        fs::write(path, text).expect("written");
    };
    put("worker.py", read("worker.py"));
    put("agent.py", change(read("agent.py")));
    harness.reload(&config);
    harness_tests::eventually("the pool", BOUND, || {
        let pools = harness.cli(["pools", "--json"]).json();
        pools
            .as_array()
            .is_some_and(|pools| pools.len() == 1)
            .then_some(())
    });
    harness.wait_for_full("article");
    Some(harness)
}

#[test]
fn the_articles_worker_answers_in_both_modes_one_process_a_request() {
    for mode in ["per-request", "reuse"] {
        let Some(harness) = start(mode, |agent| agent) else {
            return;
        };
        for _ in 0..4 {
            let asked = harness.cli(["ask", "article", "hello"]);
            assert_eq!(asked.code, Some(0), "{mode}: {asked}");
            assert_eq!(asked.stdout, "Agent received: hello\n");
        }
        let asks: String = (0..12).map(|n| format!("\"{n}\"\n")).collect();
        let command = harness.command(["ask", "article", "--many"]);
        let asked = Process::start_with_input("harness ask --many", command, asks.as_bytes());
        let asked = asked.finish_within(2 * BOUND);
        assert_eq!(asked.code, Some(0), "{mode}: {asked}");
        for number in 0..12 {
            let expected = format!("Agent received: {number}");
            assert!(asked.stdout.contains(&expected), "{mode}: {asked}");
        }
        let view = harness.wait_for_full("article");
        assert_nothing_counted(&view);
        assert_eq!(view["last_exit"], "exit code 0", "{mode}: {view}");
    }
}

#[test]
fn an_exception_of_the_articles_agent_is_its_error() {
    let raise = |agent: String| {
        agent.replace(
            "return f\"Agent received: {message}\"",
            "raise ValueError(\"no idea\")",
        )
    };
    let Some(harness) = start("per-request", raise) else {
        return;
    };
    let told = ask(&harness, "article", &json!("hello"), &[]);
    assert_eq!(told["error"]["code"], "AGENT_ERROR", "{told}");
    assert_eq!(told["error"]["message"], "no idea");
}

#[test]
fn the_articles_failure_test_gives_a_deadline_error_on_time_and_a_fresh_process() {
    let sleep = |agent: String| {
        let start = "def reply(self, message: str) -> str:\n";
        assert!(agent.contains(start));
        let sleeps = format!("{start}        time.sleep(10)\n");
        format!("import time\n{}", agent.replace(start, &sleeps))
    };
    for mode in ["per-request", "reuse"] {
        let Some(harness) = start(mode, sleep) else {
            return;
        };
        let before = pids(&harness.pool("article"));
        let start = Instant::now();
        let told = ask(
            &harness,
            "article",
            &json!("hello"),
            &["--timeout", "500ms"],
        );
        let took = start.elapsed();
        assert_eq!(told["error"]["code"], "DEADLINE_EXCEEDED", "{told}");
        assert_says(&told["error"], &["0.5", "running"]);
        let due = Duration::from_millis(500);
        assert!(
            took >= due && took < due + Duration::from_secs(1),
            "{took:?}"
        );

        let run = told["error"]["run_id"].as_str().expect("a run id");
        journal(&harness, run);
        let after = pids(&harness.wait_for_full("article"));
        let killed: Vec<&u64> = before.iter().filter(|pid| !after.contains(pid)).collect();
        let [killed] = killed[..] else {
            panic!("one process is replaced: {before:?} {after:?}");
        };
        wait_until_gone(*killed);
    }
}
