//! `harness drain`, `harness bench` and what ports without a harness are told.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use harness_tests::{Harness, Process, Signal, Worker, command, eventually};

const HANG: &str = r#"{"do": "hang"}"#;

#[test]
fn a_drained_worker_finishes_and_leaves_and_is_shown_as_draining_until_then() {
    let harness = Harness::start();
    let mut puppet = Worker::puppet().start(&harness);
    let asking = Process::start("harness ask", harness.command(["ask", "puppet", HANG]));
    harness.wait_for_busy("puppet", 1);
    let workers = harness.cli(["workers", "--json"]).json();
    let name = workers[0]["name"].as_str().expect("a name").to_owned();
    let drained = harness.cli(["drain", &name, "--reason", "new version"]);
    assert_eq!(drained.code, Some(0), "{drained}");
    assert!(drained.stdout.starts_with(&name), "{drained}");
    assert!(
        drained.stdout.contains("is draining, 1 request in work"),
        "{drained}"
    );
    let workers = harness.cli(["workers"]);
    assert!(workers.stdout.contains("draining"), "{workers}");
    let again = harness.cli(["drain", &name, "--json"]);
    assert_eq!(again.json()["draining"], true, "{again}");
    asking.signal(Signal::SIGINT);
    assert_eq!(asking.finish().code, Some(130));
    eventually("the worker has left", harness_tests::BOUND, || {
        puppet.process().try_wait()
    });
    let gone = harness.cli(["drain", "nobody"]);
    assert_eq!(gone.code, Some(1), "{gone}");
    assert!(gone.stderr.contains("nobody"), "{gone}");
}

#[test]
fn bench_tells_its_figures() {
    let harness = Harness::start();
    let _echo = Worker::example("echo").slots(4).start(&harness);
    for way in [&[][..], &["--many"]] {
        let load = [
            "--inflight",
            "300",
            "--connections",
            "2",
            "--seconds",
            "0.3",
            "--bytes",
            "100",
        ];
        let told = harness.cli([&["bench", "echo", "--json"], &load[..], way].concat());
        assert_eq!((told.code, told.stderr.as_str()), (Some(0), ""), "{told}");
        let told = told.json();
        assert!(told["requests_per_s"].as_f64() > Some(0.0), "{told}");
        assert!(told["p50_us"].as_f64() > Some(0.0), "{told}");
        assert!(told["p99_us"].as_f64() >= told["p50_us"].as_f64(), "{told}");
        assert_eq!(told["errors"], serde_json::json!({}), "{told}");
    }
}

#[test]
fn bench_counts_errors_by_code_beside_the_answers() {
    let config = "[limits]\nqueue_runs = 0\n";
    let harness = Harness::builder().config(config).start();
    let _echo = Worker::start(&harness, "echo");
    let load = ["bench", "echo", "--inflight", "4", "--seconds", "0.3"];
    let told = harness.cli([&load[..], &["--json"]].concat());
    assert_eq!(told.code, Some(0), "{told}");
    assert!(told.json()["errors"]["BUSY"].as_u64() > Some(0), "{told}");
    let text = harness.cli(load);
    assert!(text.stdout.starts_with("requests/s "), "{text}");
    assert!(text.stdout.contains(" BUSY"), "{text}");
}

#[test]
fn ctrl_c_ends_a_bench_which_prints_what_it_has() {
    let harness = Harness::start();
    let _puppet = Worker::puppet().start(&harness);
    let asking = ["bench", "echo", "--seconds", "3600", "--json"];
    let echo = Worker::example("echo").start(&harness);
    let bench = Process::start("harness bench", harness.command(asking));
    harness.wait_for_busy("echo", 1);
    bench.signal(Signal::SIGINT);
    let told = bench.finish();
    assert_eq!(told.code, Some(0), "{told}");
    assert!(told.json()["requests_per_s"].is_number(), "{told}");
    drop(echo);
}

#[test]
fn a_bench_that_can_never_succeed_ends_at_once() {
    let harness = Harness::start();
    let told = harness.cli(["bench", "nobody", "--seconds", "3600", "--json"]);
    assert_eq!(told.code, Some(1), "{told}");
    assert_eq!(told.json()["error"]["code"], "UNKNOWN_AGENT", "{told}");
}

/// A port that answers whatever comes in HTTP/1, until the test ends.
fn http_1() -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("its address").to_string();
    let server = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().expect("a connection");
        let mut preface = [0; 24];
        connection.read_exact(&mut preface).expect("a preface");
        let refusal = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
        connection.write_all(refusal).expect("written");
        // Read until the client has gone.
        let _ = connection.read_to_end(&mut Vec::new());
    });
    (address, server)
}

#[test]
fn a_port_of_another_kind_is_exit_code_3() {
    let (address, server) = http_1();
    let mut ask = command("harness");
    ask.args(["ask", "echo", "hello", "--server", &address]);
    let asked = Process::run("harness ask", ask);
    assert_eq!(asked.code, Some(3), "{asked}");
    server.join().expect("served");
}

#[test]
fn asking_a_port_that_says_nothing_is_no_deadline() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = silent.local_addr().expect("its address").to_string();
    let mut ask = command("harness");
    ask.args([
        "ask",
        "echo",
        "hello",
        "--timeout",
        "300ms",
        "--server",
        &address,
    ]);
    let asked = Process::run("harness ask", ask);
    assert_eq!(asked.code, Some(3), "{asked}");
    assert!(asked.stderr.contains("no harness answers"), "{asked}");
}
