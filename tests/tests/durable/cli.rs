//! `harness run`: each command as a person and as a program uses it.

use harness_tests::{Harness, Process, Signal, Worker};
use serde_json::Value;
use tempfile::TempDir;

fn serve(data: &TempDir) -> Harness {
    Harness::builder()
        .argument("--data")
        .argument(data.path().display().to_string())
        .start()
}

fn lines(text: &str) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).expect("a JSON object a line");
    text.lines().map(parse).collect()
}

#[test]
fn a_run_is_started_watched_listed_and_read_from_its_file() {
    let data = TempDir::new().expect("a folder of its own");
    let harness = serve(&data);
    let _echo = Worker::start(&harness, "echo");
    let told = harness.cli([
        "run", "start", "echo", "hello", "--key", "k", "--label", "team=a", "--json",
    ]);
    assert_eq!(told.code, Some(0), "{told}");
    let run_id = told.json()["run_id"].as_str().expect("an id").to_owned();

    let watched = harness.cli(["run", "watch", &run_id, "--json"]);
    assert_eq!(watched.code, Some(0), "{watched}");
    let entries = lines(&watched.stdout);
    let kinds: Vec<&String> = entries
        .iter()
        .filter_map(|entry| entry["content"].as_object()?.keys().next())
        .collect();
    let expected = [
        "run_started",
        "attempt_started",
        "attempt_ended",
        "run_ended",
    ];
    assert_eq!(kinds, expected);

    let told = harness.cli(["run", "get", &run_id]);
    assert!(told.stdout.contains("SUCCEEDED  \"hello\""), "{told}");
    let again = harness.cli(["run", "start", "echo", "hello", "--key", "k", "--json"]);
    assert_eq!(again.json()["run_id"], run_id.as_str());
    let conflict = harness.cli(["run", "start", "echo", "other", "--key", "k", "--json"]);
    assert_eq!(conflict.code, Some(1), "{conflict}");
    assert_eq!(conflict.json()["error"]["code"], "IDEMPOTENCY_CONFLICT");

    let listed = harness.cli([
        "run",
        "list",
        "--label",
        "team=a",
        "--state",
        "succeeded",
        "--json",
    ]);
    assert_eq!(listed.json()[0]["run_id"], run_id.as_str(), "{listed}");
    let none = harness.cli(["run", "list", "--state", "queued", "--json"]);
    assert_eq!(none.json(), Value::Array(Vec::new()));
    let table = harness.cli(["run", "list"]);
    assert!(table.stdout.contains(&run_id), "{table}");

    let journal = harness.cli(["run", "journal", &run_id, "--json"]);
    assert_eq!(lines(&journal.stdout), entries);
    let file = data.path().join("harness.db").display().to_string();
    // While the harness uses it.
    let read = harness.cli(["run", "journal", &run_id, "--file", &file, "--json"]);
    assert_eq!(lines(&read.stdout), entries, "{read}");
    let all = harness.cli(["run", "journal", "--file", &file]);
    assert_eq!(all.stdout.matches(&run_id).count(), entries.len(), "{all}");
}

#[test]
fn a_run_that_waits_is_cancelled() {
    let data = TempDir::new().expect("a folder of its own");
    let harness = serve(&data);
    let told = harness.cli(["run", "start", "late", "1", "--wait", "--json"]);
    assert_eq!(told.json()["state"], "QUEUED", "{told}");
    let run_id = told.json()["run_id"].as_str().expect("an id").to_owned();
    let told = harness.cli(["run", "cancel", &run_id, "--reason", "enough", "--json"]);
    assert_eq!(told.json()["state"], "CANCELLED", "{told}");
    let unknown = harness.cli([
        "run",
        "get",
        "0190f5b2-6f0e-7c0b-9d3a-2f1f6f1c9a10",
        "--json",
    ]);
    assert_eq!(unknown.json()["error"]["code"], "RUN_NOT_FOUND");
}

#[test]
fn a_file_without_what_is_asked_for_is_told_in_words() {
    let data = TempDir::new().expect("a folder of its own");
    let harness = serve(&data);
    let run = "0190f5b2-6f0e-7c0b-9d3a-2f1f6f1c9a10";
    let folder = data.path().display().to_string();
    let at = |name: &str| data.path().join(name).display().to_string();
    let cases = [
        (folder, "it is a folder: name a file in it"),
        (at("none.db"), "No such file"),
        (at("harness.lock"), "it holds no journal"),
        (at("harness.db"), "it holds no journal of run"),
    ];
    for (file, why) in cases {
        let told = harness.cli(["run", "journal", run, "--file", &file]);
        assert_eq!(told.code, Some(1), "{told}");
        assert!(
            told.stderr.contains(&file) && told.stderr.contains(why),
            "{told}"
        );
    }
}

#[test]
fn without_a_data_folder_it_says_what_to_do() {
    let harness = Harness::start();
    let told = harness.cli(["run", "start", "echo", "1"]);
    assert_eq!(told.code, Some(1), "{told}");
    assert!(told.stderr.contains("--data"), "{told}");
}

#[test]
fn runs_are_listed_by_when_they_were_made() {
    let data = TempDir::new().expect("a folder of its own");
    let harness = serve(&data);
    let told = harness.cli(["run", "start", "echo", "hello", "--wait", "--json"]);
    let run = told.json();
    let made = run["create_time"].as_str().expect("when it was made");
    for (option, listed) in [("--created-from", 1), ("--created-before", 0)] {
        let told = harness.cli(["run", "list", option, made, "--json"]);
        let runs = told.json();
        assert_eq!(
            runs.as_array().map(Vec::len),
            Some(listed),
            "{option}: {told}"
        );
    }
    let told = harness.cli(["run", "list", "--created-from", "yesterday"]);
    assert_eq!(told.code, Some(2), "{told}");
    assert!(told.stderr.contains("2026-12-24T18:00:00Z"), "{told}");
}

#[test]
fn a_label_that_is_given_twice_is_refused() {
    let data = TempDir::new().expect("a folder of its own");
    let harness = serve(&data);
    let start = ["run", "start", "echo", "--wait"];
    for command in [&start[..], &["run", "list"]] {
        let twice = ["--label", "team=a", "--label", "team=b"];
        let told = harness.cli(command.iter().chain(&twice));
        assert_eq!(told.code, Some(2), "{told}");
        let named = "--label gives team twice, as a and as b";
        assert!(told.stderr.contains(named), "{told}");
    }
    let told = harness.cli(["run", "list", "--json"]);
    assert_eq!(
        told.json().as_array().map(Vec::len),
        Some(0),
        "none was made"
    );
}

#[test]
fn a_watch_that_breaks_says_where_to_go_on() {
    let data = TempDir::new().expect("a folder of its own");
    let mut harness = serve(&data);
    let told = harness.cli(["run", "start", "echo", "hello", "--wait", "--json"]);
    let run_id = told.json()["run_id"].as_str().expect("an id").to_owned();
    let watching = harness.command(["run", "watch", &run_id]);
    let mut watching = Process::start("harness run watch", watching);
    watching.wait_for_line("run_started");
    harness.process().signal(Signal::SIGKILL);
    let told = watching.finish();
    assert_eq!(told.stdout.lines().count(), 1, "{told}");
    assert_ne!(told.code, Some(0), "{told}");
    assert!(told.stderr.contains("go on with --from 2"), "{told}");
}
