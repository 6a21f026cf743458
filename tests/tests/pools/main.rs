//! Pools with real processes: modes, faults of the JSON Lines dialect, the kill ladder, crash loops,
//! operating them, the example, a long run in which everything goes wrong, and the same of the gRPC
//! dialect.

mod chaos;
mod crash_loops;
mod example;
mod faults;
mod grpc;
mod ladder;
mod metrics;
mod modes;
mod operating;

use std::path::Path;
use std::time::Duration;

use harness_proto::v1::{WatchRunRequest, entry::Kind, watch_run_response};
use harness_tests::raw::{self, SOON, within};
use harness_tests::{BOUND, Harness, eventually, program};
use serde_json::{Value, json};

/// A pool of the agent `jsonl`, whose worker does what its message says, with more settings.
fn pool(settings: &str) -> String {
    pool_of("jsonl", &[], settings)
}

/// The same under another name, with arguments.
fn pool_of(agent: &str, arguments: &[&str], settings: &str) -> String {
    let worker = program("jsonl").display().to_string();
    let command: Vec<&str> = [&*worker]
        .into_iter()
        .chain(arguments.iter().copied())
        .collect();
    pool_with(agent, &command, settings)
}

/// A pool of any command.
fn pool_with(agent: &str, command: &[&str], settings: &str) -> String {
    let command = json!(command);
    format!("[[pool]]\nagent = \"{agent}\"\ncommand = {command}\ndialect = \"jsonl\"\n{settings}\n")
}

/// A harness with these pools, once all of them are full.
#[track_caller]
fn start(config: &str, full: &[&str]) -> Harness {
    let harness = Harness::builder().config(config).start();
    for agent in full {
        harness.wait_for_full(agent);
    }
    harness
}

/// Asks and gives the object that `harness ask --json` tells.
#[track_caller]
fn ask(harness: &Harness, agent: &str, message: &Value, options: &[&str]) -> Value {
    let message = message.to_string();
    let mut arguments = vec!["ask", agent, &message, "--json"];
    arguments.extend(options);
    harness.cli(arguments).json()
}

/// Asks for a reply and gives it.
#[track_caller]
fn reply(harness: &Harness, agent: &str, message: &Value) -> Value {
    let told = ask(harness, agent, message, &[]);
    assert!(told.get("reply").is_some(), "{told}");
    told["reply"].clone()
}

/// Asks for an error of this code and gives it.
#[track_caller]
fn error(harness: &Harness, message: &Value, code: &str, options: &[&str]) -> Value {
    let told = ask(harness, "jsonl", message, options);
    assert_eq!(told["error"]["code"], code, "{told}");
    told["error"].clone()
}

#[track_caller]
fn assert_says(error: &Value, parts: &[&str]) {
    let message = error["message"].as_str().expect("a message");
    for part in parts {
        assert!(message.contains(part), "no {part:?} in {message:?}");
    }
}

/// No process of a pool crashed or failed to start, as its view tells.
#[track_caller]
fn assert_nothing_counted(pool: &Value) {
    assert_eq!(
        (&pool["crashes"], &pool["failed_starts"]),
        (&json!(0), &json!(0)),
        "{pool}"
    );
}

/// The process ids of a pool, as its view tells.
fn pids(pool: &Value) -> Vec<u64> {
    let processes = pool["processes"].as_array().expect("processes");
    let pids = processes.iter().map(|process| process["pid"].as_u64());
    pids.map(|pid| pid.expect("a number")).collect()
}

/// Whether a process is there, and no zombie.
fn lives(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().unwrap_or_default();
    !matches!(state.chars().next(), None | Some('Z' | 'X'))
}

/// The processes whose command line has this text.
fn processes_with(text: &str) -> Vec<u64> {
    let folders = std::fs::read_dir("/proc").expect("procfs").flatten();
    let pids = folders.filter_map(|folder| folder.file_name().to_str()?.parse::<u64>().ok());
    pids.filter(|pid| {
        let line = std::fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline"));
        let line = line.unwrap_or_default();
        String::from_utf8_lossy(&line)
            .replace('\0', " ")
            .contains(text)
            && lives(*pid)
    })
    .collect()
}

#[track_caller]
fn wait_until_gone(pid: u64) {
    eventually(&format!("process {pid} is gone"), BOUND, || {
        (!lives(pid)).then_some(())
    });
}

/// The journal of a run until its work has stopped.
fn journal(harness: &Harness, run_id: &str) -> Vec<Kind> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let channel = raw::connect(harness.address()).await;
        let watch = WatchRunRequest {
            run_id: run_id.to_owned(),
            include_stop: true,
            ..WatchRunRequest::default()
        };
        let opened = raw::runs(&channel).watch_run(watch).await;
        let mut entries = opened.expect("a known run").into_inner();
        let mut kinds = Vec::new();
        while let Some(answer) = within(4 * SOON, entries.message()).await.expect("no error") {
            if let Some(watch_run_response::Event::Entry(entry)) = answer.event {
                kinds.extend(entry.entry.and_then(|entry| entry.kind));
            }
        }
        kinds
    })
}

fn seconds(value: &Value) -> Duration {
    Duration::from_secs_f64(
        value
            .as_f64()
            .unwrap_or_else(|| panic!("{value} is no number")),
    )
}
