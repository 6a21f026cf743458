//! `examples/python/durable.py` under durable runs: its agent writes lines to a file, each in a step.
//! Skipped without Python.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use harness_tests::durable::{journal, kinds, run_of, start, started, value};
use harness_tests::raw::connect;
use harness_tests::{BOUND, Harness, Proxy, Signal, Worker, eventually};
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;

const LINES: usize = 200;

/// A folder with the harness's data, and the file the agent writes.
struct Setting {
    runtime: Runtime,
    folder: TempDir,
}

impl Setting {
    fn new() -> Self {
        Self {
            runtime: Runtime::new().expect("a runtime"),
            folder: TempDir::new().expect("a folder"),
        }
    }

    fn serve(&self, config: &str, listen: &str) -> Harness {
        let data = self.folder.path().join("data");
        Harness::builder()
            .config(config)
            .argument("--data")
            .argument(data.display().to_string())
            .listen(listen)
            .start()
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("lines")
    }

    fn start(&self, harness: &Harness) -> String {
        let lines: Vec<String> = (1..=LINES).map(|line| line.to_string()).collect();
        let request = json!({"file": self.file(), "lines": lines}).to_string();
        self.runtime.block_on(async {
            let channel = connect(harness.address()).await;
            started(&channel, start("ledger", &request)).await.run_id
        })
    }

    #[track_caller]
    fn wait_for_lines(&self, count: usize) {
        eventually("lines are written", BOUND, || {
            (lines(&self.file()).len() >= count).then_some(())
        });
    }

    /// The run's attempts, once it has answered; every line is in its journal once.
    #[track_caller]
    fn attempts(&self, harness: &Harness, run_id: &str) -> u32 {
        self.runtime.block_on(async {
            let channel = connect(harness.address()).await;
            let entries = journal(&channel, run_id, BOUND).await;
            let steps = kinds(&entries)
                .iter()
                .filter(|kind| **kind == "step")
                .count();
            assert_eq!(steps, 2 * LINES, "a begin and a result for each line");
            let run = run_of(&channel, run_id).await.expect("known");
            let characters: usize = (1..=LINES).map(|line| line.to_string().len()).sum();
            assert_eq!(value(&run), characters.to_string());
            run.attempt
        })
    }
}

/// What was written, the idempotency key first in each line.
fn lines(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn it_resumes_over_cuts_and_a_restart_and_writes_each_line_once() {
    let Some(worker) = Worker::durable_python() else {
        return;
    };
    let setting = Setting::new();
    let config = "[limits]\nshutdown_grace = \"100ms\"\n";
    let mut harness = setting.serve(config, "127.0.0.1:0");
    let address = harness.address().to_owned();
    let proxy = Proxy::to(&address);
    let worker = worker.start_unattached(proxy.address());
    harness.wait_for_ready("ledger", 1);
    let run_id = setting.start(&harness);
    for (at, breaks) in [
        (20, Proxy::cut as fn(&Proxy)),
        (50, Proxy::reset_calls),
        (80, Proxy::close),
    ] {
        setting.wait_for_lines(at);
        breaks(&proxy);
    }
    setting.wait_for_lines(120);
    harness.stop();
    harness = setting.serve(config, &address);
    assert_eq!(setting.attempts(&harness, &run_id), 1);
    let written = lines(&setting.file());
    let expected = (1..=LINES).map(|line| format!("{run_id}/write/{line} {line}"));
    assert_eq!(written, expected.collect::<Vec<_>>());
    harness.wait_for_ready("ledger", 1);
    let left = worker.stop();
    assert_eq!(left.code, Some(0), "{left}");
}

#[test]
fn what_it_has_recorded_when_it_is_killed_is_not_written_again() {
    let (Some(first), Some(second)) = (Worker::durable_python(), Worker::durable_python()) else {
        return;
    };
    let setting = Setting::new();
    let config = "[limits]\nreattach_window = \"200ms\"\n";
    let harness = setting.serve(config, "127.0.0.1:0");
    let mut first = first.start(&harness);
    let run_id = setting.start(&harness);
    setting.wait_for_lines(50);
    first.process().signal(Signal::SIGKILL);
    let _second = second.start_unattached(harness.address());
    assert_eq!(setting.attempts(&harness, &run_id), 2);
    let written = lines(&setting.file());
    let different: BTreeSet<&String> = written.iter().collect();
    assert_eq!(different.len(), LINES);
    // The one that was under way may have been written and not yet recorded: same key, once more.
    assert!(written.len() <= LINES + 1, "{} lines", written.len());
}
