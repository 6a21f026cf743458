//! Facts about grpcio that the protocol relies on, and what our Python has to show for it: the
//! examples and the code printed in proto/README.md, run as they are. Skipped without Python.

use std::process::Command;
use std::time::Duration;

use harness_proto::v1::ErrorCode;
use harness_tests::{Asker, Finished, Harness, Process, Signal, Worker, python, source};
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::Code;

fn run(mut command: Command, arguments: &[&str]) -> Finished {
    command.args(arguments);
    Process::run("a Python program", command)
}

/// Runs `tests/python/ask.py` to the puppet; what came back.
fn ask(script: Command, harness: &Harness, order: &Value, timeouts: [&str; 2]) -> Value {
    let order = order.to_string();
    let [timeout, grpc_timeout] = timeouts;
    let arguments = [harness.address(), "puppet", &order, timeout, grpc_timeout];
    let asked = run(script, &arguments);
    assert_eq!(asked.code, Some(0), "{asked}");
    asked.json()
}

/// `examples/python/ask.py` as a person runs it.
fn example_ask(harness: &Harness, agent: &str, text: &str) -> Option<Finished> {
    let mut script = python(source("examples/python/ask.py"))?;
    script.env("HARNESS_ADDRESS", harness.address());
    Some(run(script, &[agent, text]))
}

#[track_caller]
fn assert_end_is_seen_while_the_agent_sleeps(appends: &str) {
    let Some(mut script) = python(source("tests/python/end_while_asleep.py")) else {
        return;
    };
    let harness = Harness::start();
    script.args([harness.address(), "sleeper", appends, "2"]);
    let worker = Process::start("a sleeping worker", script);
    harness.wait_for_ready("sleeper", 1);
    let asker = Asker::new(&harness, "sleeper");
    let answer = asker.ask(&json!(null), Duration::from_millis(500));
    let _ = answer.error(Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
    let slept = worker.finish();
    assert_eq!(slept.code, Some(0), "{slept}");
    let told = slept.json();
    assert_eq!(told["code"], "DEADLINE_EXCEEDED", "{told}");
    let seconds = |name: &str| told[name].as_f64().expect("a time");
    let late = seconds("ended") - seconds("time_left");
    assert!(late < 0.5, "seen {late} s after the deadline: {told}");
    assert!(seconds("ended") < seconds("woke") - 0.5, "{told}");
}

#[test]
fn the_end_of_a_call_is_seen_while_the_agent_sleeps() {
    assert_end_is_seen_while_the_agent_sleeps("0");
}

#[test]
fn the_end_of_a_call_is_seen_while_the_agent_sleeps_after_output() {
    assert_end_is_seen_while_the_agent_sleeps("5");
}

/// The typed answer has 2 % of the call's deadline to arrive in: 120 ms, which a busy machine keeps.
const CALL_DEADLINE: &str = "6";

#[test]
fn a_call_deadline_earlier_than_the_timeout_is_answered_typed() {
    let script = source("tests/python/ask.py");
    let (Some(running), Some(queued)) = (python(&script), python(&script)) else {
        return;
    };
    let harness = Harness::start();
    let mut puppet = Worker::puppet().start(&harness);
    let hang = json!({"do": "hang"}).to_string();
    let start = |mut script: Command| {
        script.args([harness.address(), "puppet", &hang, "30", CALL_DEADLINE]);
        Process::start("ask.py", script)
    };
    let running = start(running);
    puppet.process().wait_for_line("started ");
    let queued = start(queued);
    for (asking, state) in [(running, "running"), (queued, "queued")] {
        let told = asking.finish().json();
        assert_eq!(told["status"], "DEADLINE_EXCEEDED", "{told}");
        assert_eq!(told["code"], "ERROR_CODE_DEADLINE_EXCEEDED", "{told}");
        assert_eq!(told["reason"], "DEADLINE_EXCEEDED", "{told}");
        let message = told["message"].as_str().expect("a message");
        assert!(message.contains(state), "{told}");
    }
}

#[test]
fn a_large_agent_error_keeps_its_status_and_details() {
    let Some(script) = python(source("tests/python/ask.py")) else {
        return;
    };
    let harness = Harness::start();
    let _puppet = Worker::puppet().start(&harness);
    let order = json!({"do": "fail", "message": "é".repeat(50_000)});
    let told = ask(script, &harness, &order, ["20", "21"]);
    assert_eq!(told["status"], "UNKNOWN", "{told}");
    assert_eq!(told["code"], "ERROR_CODE_AGENT_ERROR", "{told}");
    assert_eq!(told["truncated"], true, "{told}");
    let message = told["message"].as_str().expect("a message");
    assert!(message.starts_with("éé") && message.len() <= 1024, "{told}");
}

#[test]
fn a_large_reply_reaches_a_grpcio_caller_whole() {
    let Some(script) = python(source("tests/python/ask.py")) else {
        return;
    };
    let harness = Harness::start();
    let _puppet = Worker::puppet().start(&harness);
    // grpcio takes messages of 4 MiB unless it is told otherwise; the largest payload fits.
    let bytes = (4 << 20) - (64 << 10);
    let order = json!({"do": "fill", "bytes": bytes});
    let told = ask(script, &harness, &order, ["20", "21"]);
    assert_eq!(told["reply"].as_str().map(str::len), Some(bytes));
}

#[test]
fn the_asking_example_prints_answers_and_typed_errors() {
    let Some(worker) = Worker::python() else {
        return;
    };
    let harness = Harness::start();
    let _shout = worker.start(&harness);
    assert_shouts_and_tells_errors(&harness);
}

#[test]
fn the_python_examples_work_over_a_unix_socket() {
    let Some(worker) = Worker::python() else {
        return;
    };
    let harness = Harness::builder().unix().start();
    let _shout = worker.start(&harness);
    assert_shouts_and_tells_errors(&harness);
}

#[track_caller]
fn assert_shouts_and_tells_errors(harness: &Harness) {
    let asked = example_ask(harness, "shout", "hello").expect("Python is there");
    assert_eq!(asked.code, Some(0), "{asked}");
    assert_eq!((&*asked.stdout, &*asked.stderr), ("HELLO!\n", ""));
    let asked = example_ask(harness, "shuot", "hello").expect("Python is there");
    assert_eq!((asked.code, &*asked.stdout), (Some(1), ""), "{asked}");
    let told = &asked.stderr;
    assert!(told.starts_with("ERROR_CODE_UNKNOWN_AGENT: "), "{asked}");
    assert!(told.contains("did you mean \"shout\"?"), "{asked}");
}

#[test]
fn the_asking_example_tells_its_deadline() {
    let Some(worker) = Worker::python() else {
        return;
    };
    let harness = Harness::start();
    let mut shout = worker.start(&harness);
    shout.process().signal(Signal::SIGSTOP);
    let asked = example_ask(&harness, "shout", "hello").expect("Python is there");
    assert_eq!((asked.code, &*asked.stdout), (Some(1), ""), "{asked}");
    let told = &asked.stderr;
    assert!(
        told.starts_with("ERROR_CODE_DEADLINE_EXCEEDED: "),
        "{asked}"
    );
    assert!(told.contains("running"), "{asked}");
}

/// The first Python block of a section of proto/README.md.
fn printed(section: &str) -> String {
    let readme = std::fs::read_to_string(source("proto/README.md")).expect("the protocol's text");
    let section = readme.split(section).nth(1).expect("the section");
    let block = section.split("```python\n").nth(1).expect("a block");
    block.split("```").next().unwrap_or_default().to_owned()
}

fn script(folder: &TempDir, name: &str, text: &str) -> Option<Command> {
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("the script must be written");
    python(path)
}

/// What the block on asking takes for granted.
const IMPORTS: &str = "\
import sys
import grpc
from grpc_status import rpc_status
from harness.v1 import envelope_pb2 as envelope
from harness.v1 import run_service_pb2 as wire
from harness.v1 import run_service_pb2_grpc as service
stub = service.RunServiceStub(grpc.insecure_channel(sys.argv[1]))
";

#[test]
fn the_worker_and_the_ask_printed_in_the_protocol_run() {
    let folder = TempDir::new().expect("a folder");
    let worker = printed("\n## 10. Write a worker in another language");
    let ask = IMPORTS.to_owned() + &printed("\n## 11. Asking from any client");
    let (Some(mut worker), Some(before), Some(after)) = (
        script(&folder, "worker.py", &worker),
        script(&folder, "ask.py", &ask),
        script(&folder, "ask.py", &ask),
    ) else {
        return;
    };
    let harness = Harness::start();
    let unknown = run(before, &[harness.address()]);
    assert_eq!(unknown.code, Some(0), "{unknown}");
    assert!(
        unknown.stdout.starts_with("ERROR_CODE_UNKNOWN_AGENT "),
        "{unknown}"
    );

    worker.arg(harness.address());
    let _worker = Process::start("the printed worker", worker);
    harness.wait_for_ready("echo", 1);
    let answered = run(after, &[harness.address()]);
    assert_eq!(
        (answered.code, &*answered.stdout),
        (Some(0), "b'\"hello\"'\n")
    );
}
