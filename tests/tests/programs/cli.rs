//! The command line, as a person and a script meet it: exit codes, what is on which stream, and
//! what each mistake is told.

use std::time::{Duration, Instant};

use harness_tests::{Finished, Harness, Process, Signal, Worker, command};

const HANG: &str = r#"{"do": "hang"}"#;

fn harness(arguments: &[&str]) -> Finished {
    let mut harness = command("harness");
    harness.args(arguments);
    Process::run("harness", harness)
}

#[track_caller]
fn assert_one_line(finished: &Finished, code: i32, parts: &[&str]) {
    assert_eq!(finished.code, Some(code), "{finished}");
    assert_eq!(finished.stdout, "", "{finished}");
    assert_eq!(finished.stderr.lines().count(), 1, "{finished}");
    for part in parts {
        assert!(finished.stderr.contains(part), "no {part:?} in {finished}");
    }
}

#[test]
fn a_string_is_printed_without_quotes_and_anything_else_as_it_came() {
    let harness = Harness::start();
    let _echo = Worker::start(&harness, "echo");
    for (payload, printed) in [
        (r#""hello""#, "hello\n"),
        ("hello", "hello\n"),
        ("{oops", "{oops\n"),
        ("-5", "-5\n"),
        (
            r#"{"b": 1.50, "a": [1, 2]}"#,
            "{\"b\": 1.50, \"a\": [1, 2]}\n",
        ),
    ] {
        let asked = harness.cli(["ask", "echo", payload]);
        assert_eq!(asked.code, Some(0), "{asked}");
        assert_eq!(asked.stdout, printed);
    }
    let nothing = harness.cli(["ask", "echo"]);
    assert_eq!(nothing.stdout, "null\n", "{nothing}");
    let oops = harness.cli(["ask", "echo", "{oops"]);
    assert!(oops.stderr.contains("sent as a string"), "{oops}");
}

#[test]
fn a_dash_reads_the_payload_from_standard_input() {
    let harness = Harness::start();
    let _echo = Worker::start(&harness, "echo");
    for (input, printed) in [
        ("{\"a\": 1}\n", "{\"a\": 1}\n"),
        ("two\nlines\n", "two\nlines\n"),
    ] {
        let command = harness.command(["ask", "echo", "-"]);
        let asked = Process::start_with_input("harness ask", command, input.as_bytes()).finish();
        assert_eq!(asked.code, Some(0), "{asked}");
        assert_eq!(asked.stdout, printed);
    }
    let command = harness.command(["ask", "echo", "-"]);
    let asked = Process::start_with_input("harness ask", command, b"\xff").finish();
    assert_one_line(&asked, 2, &["standard input", "UTF-8"]);
}

#[test]
fn json_is_one_object_with_the_run_and_the_reply_or_the_error() {
    let harness = Harness::start();
    let _puppet = Worker::puppet().start(&harness);
    let order = r#"{"do": "reply", "value": {"b": [1], "a": "x"}}"#;
    let asked = harness.cli(["ask", "puppet", order, "--json"]);
    assert_eq!(asked.code, Some(0), "{asked}");
    let answer = asked.json();
    assert_eq!(answer["reply"]["a"], "x");
    assert_eq!(answer["attempt"], 1);
    assert_eq!(answer["run_id"].as_str().map(str::len), Some(36));

    let order = r#"{"do": "fail", "type": "TooHot", "message": "no", "retryable": true}"#;
    let asked = harness.cli(["ask", "puppet", order, "--json"]);
    assert_eq!(
        (asked.code, asked.stderr.as_str()),
        (Some(1), ""),
        "{asked}"
    );
    let error = &asked.json()["error"];
    assert_eq!(error["code"], "AGENT_ERROR", "{asked}");
    assert_eq!(error["type"], "TooHot", "{asked}");
    assert_eq!(error["message"], "no", "{asked}");
    assert_eq!(error["retryable"], true, "{asked}");
    assert_eq!(error["attempt"], 1, "{asked}");
}

#[test]
fn meta_reaches_the_agent() {
    let harness = Harness::start();
    let _puppet = Worker::puppet().start(&harness);
    let order = r#"{"do": "context"}"#;
    let asked = harness.cli([
        "ask",
        "puppet",
        order,
        "--meta",
        "tenant=blue",
        "--meta",
        "k=a=b",
    ]);
    assert_eq!(asked.code, Some(0), "{asked}");
    let metadata = &asked.json()["metadata"];
    assert_eq!(metadata["tenant"], "blue");
    assert_eq!(metadata["k"], "a=b");
}

#[test]
fn an_agents_error_is_one_line_and_exit_code_1() {
    let harness = Harness::start();
    let _puppet = Worker::puppet().start(&harness);
    let order = r#"{"do": "fail", "type": "TooHot", "message": "line one\nline two"}"#;
    let asked = harness.cli(["ask", "puppet", order]);
    assert_one_line(&asked, 1, &["error: TooHot: line one\\nline two"]);
    let verbose = harness.cli(["ask", "puppet", order, "-v"]);
    assert!(verbose.stderr.contains("code: AGENT_ERROR"), "{verbose}");
    assert!(verbose.stderr.contains("attempt 1"), "{verbose}");
}

#[test]
fn a_request_that_fails_the_schema_is_told_where() {
    let harness = Harness::start();
    let _count = Worker::start(&harness, "count-words");
    let asked = harness.cli(["ask", "count-words", r#"{"text": "one two"}"#]);
    assert_eq!(asked.json()["words"], 2, "{asked}");
    let asked = harness.cli(["ask", "count-words", r#"{"text": 5}"#]);
    assert_one_line(&asked, 1, &["/text", "string"]);
}

#[test]
fn an_unknown_agent_is_told_at_once_with_the_near_name() {
    let harness = Harness::start();
    let empty = harness.cli(["ask", "echo", "hello"]);
    assert_one_line(&empty, 1, &["\"echo\" is unknown", "no agent is connected"]);
    let _echo = Worker::start(&harness, "echo");
    let near = harness.cli(["ask", "ecco", "hello"]);
    assert_one_line(&near, 1, &["did you mean \"echo\"?", "connected: echo"]);
    let json = harness.cli(["ask", "ecco", "hello", "--json"]);
    assert_eq!(json.json()["error"]["code"], "UNKNOWN_AGENT", "{json}");
}

#[test]
fn wait_waits_for_a_worker() {
    let harness = Harness::start();
    let command = harness.command(["ask", "echo", "hello", "--wait"]);
    let asking = Process::start("harness ask --wait", command);
    let echo = Worker::example("echo").start_unattached(harness.address());
    let asked = asking.finish();
    assert_eq!(
        (asked.code, asked.stdout.as_str()),
        (Some(0), "hello\n"),
        "{asked}"
    );
    drop(echo);
}

#[test]
fn a_deadline_is_exit_code_4_and_says_where_the_time_went() {
    let harness = Harness::start();
    let mut puppet = Worker::puppet().start(&harness);
    let start = Instant::now();
    let asked = harness.cli(["ask", "puppet", HANG, "--timeout", "300ms"]);
    assert_one_line(&asked, 4, &["queued", "running", "worker"]);
    assert!(
        start.elapsed() < Duration::from_millis(1300),
        "{:?}",
        start.elapsed()
    );
    puppet.process().wait_for_line("dropped ");
    harness.wait_for_ready("puppet", 1);

    let asked = harness.cli(["ask", "nobody", "--wait", "--timeout", "300ms"]);
    assert_one_line(&asked, 4, &["queued", "no worker of agent \"nobody\""]);
}

#[test]
fn ctrl_c_cancels_the_run() {
    let harness = Harness::start();
    let mut puppet = Worker::puppet().start(&harness);
    let asking = Process::start("harness ask", harness.command(["ask", "puppet", HANG]));
    puppet.process().wait_for_line("started ");
    asking.signal(Signal::SIGINT);
    let asked = asking.finish();
    assert_one_line(&asked, 130, &["stopped by SIGINT", "the run is cancelled"]);
    puppet.process().wait_for_line("dropped ");
    harness.wait_for_ready("puppet", 1);
}

#[test]
fn nobody_reachable_is_exit_code_3_with_the_command_that_starts_a_harness() {
    // A port that was free a moment ago and that nobody was given since.
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    drop(socket);
    for command in [&["agents"][..], &["workers"], &["ask", "echo", "hello"]] {
        let asked = harness(&[command, &["--server", &address]].concat());
        let start = format!("serve --listen {address}");
        assert_one_line(&asked, 3, &["no harness answers", &address, &start]);
    }
    let verbose = harness(&["agents", "-v", "--server", &address]);
    assert!(
        verbose.stderr.contains("caused by: Connection refused"),
        "{verbose}"
    );
    let json = harness(&["agents", "--json", "--server", &address]);
    assert_eq!(json.code, Some(3), "{json}");
    assert_eq!(json.json()["error"]["code"], "UNREACHABLE", "{json}");
}

#[test]
fn a_port_that_says_nothing_is_no_harness() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let asked = harness(&["agents", "--server", &address]);
    assert_one_line(&asked, 3, &["no harness answers", &address]);
}

#[test]
fn mistakes_are_one_line_and_exit_code_2() {
    for (arguments, part) in [
        (&["serve", "--lisen", "x"][..], "'--listen'"),
        (&["ask"], "<AGENT>"),
        (&["ask", "echo", "--timeout", "5"], "500ms"),
        (&["ask", "echo", "--timeout", "0s"], "longer than nothing"),
        (&["ask", "echo", "--meta", "novalue"], "KEY=VALUE"),
        (
            &["ask", "echo", "--server", "localhost"],
            "the port is missing",
        ),
        (&["serve", "--listen", "localhost"], "host:port"),
        (&["serve", "--listen", "0.0.0.0:0"], "--insecure"),
        (&["srve"], "'serve'"),
    ] {
        assert_one_line(&harness(arguments), 2, &["error: ", part]);
    }
}

#[test]
fn help_and_version_are_data() {
    let help = harness(&["--help"]);
    assert_eq!((help.code, help.stderr.as_str()), (Some(0), ""), "{help}");
    assert!(help.stdout.contains("Exit codes:"), "{help}");
    assert!(!help.stdout.contains("demo-worker"), "{help}");
    let version = harness(&["--version"]);
    assert_eq!(
        version.stdout,
        format!("harness {}\n", env!("CARGO_PKG_VERSION"))
    );
    assert_eq!(harness(&[]).code, Some(2));
}

#[test]
fn a_closed_standard_output_is_no_failure() {
    let harness = Harness::start();
    let _echo = Worker::start(&harness, "echo");
    let line = format!("'{}' agents | true; echo ${{PIPESTATUS[0]}}", program());
    let mut shell = std::process::Command::new("bash");
    shell
        .args(["-c", &line])
        .env("HARNESS_ADDRESS", harness.address());
    let shown = Process::run("harness agents | true", shell);
    assert_eq!(shown.stdout, "0\n", "{shown}");
    assert_eq!(shown.stderr, "", "{shown}");
}

fn program() -> String {
    harness_tests::program("harness").display().to_string()
}

#[test]
fn an_empty_harness_tells_how_to_start_a_worker() {
    let harness = Harness::start();
    let agents = harness.cli(["agents"]);
    assert_eq!(
        (agents.code, agents.stdout.as_str()),
        (Some(0), ""),
        "{agents}"
    );
    let address = harness.address();
    let lines: Vec<&str> = agents.stderr.lines().skip(1).map(str::trim).collect();
    assert_eq!(
        lines[0],
        format!("HARNESS_ADDRESS={address} cargo run -q --bin echo")
    );
    assert_eq!(
        lines[1],
        format!("{} ask echo '\"hello\"' --server {address}", program())
    );
    let json = harness.cli(["agents", "--json"]);
    assert_eq!((json.stdout.as_str(), json.stderr.as_str()), ("[]\n", ""));
}

#[test]
fn agents_and_workers_tell_who_is_there_and_busy() {
    let harness = Harness::start();
    let _puppet = Worker::puppet().slots(2).start(&harness);
    let _asking = Process::start("harness ask", harness.command(["ask", "puppet", HANG]));
    harness.wait_for_busy("puppet", 1);
    let agents = harness.cli(["agents"]);
    let row: Vec<&str> = agents
        .stdout
        .lines()
        .nth(1)
        .unwrap_or("")
        .split_whitespace()
        .collect();
    assert_eq!(row[..6], ["puppet", "1", "1", "0", "0", "1"], "{agents}");
    let workers = harness.cli(["workers"]);
    assert!(workers.stdout.contains("1 READY; BUSY for "), "{workers}");
    let json = harness.cli(["workers", "puppet", "--json"]).json();
    assert_eq!(json[0]["slots"].as_array().map(Vec::len), Some(2), "{json}");
    let none = harness.cli(["workers", "other"]);
    assert_eq!((none.code, none.stdout.as_str()), (Some(0), ""), "{none}");
}
