//! `harness ask` beyond one answer: streamed, many, and what goes with an ask.

use harness_tests::{Finished, Harness, Process, Signal, Worker};
use serde_json::Value;

fn lines(finished: &Finished) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{finished}"));
    finished.stdout.lines().map(parse).collect()
}

fn many(harness: &Harness, input: &str, more: &[&str]) -> Finished {
    let arguments = [&["ask", "puppet", "--many"], more].concat();
    Process::start_with_input("harness ask", harness.command(arguments), input.as_bytes()).finish()
}

#[test]
fn a_stream_prints_pieces_then_the_reply_and_tells_the_rest_on_stderr() {
    let harness = Harness::start();
    let _puppet = Worker::puppet().start(&harness);
    let asked = harness.cli(["ask", "puppet", r#"{"do": "tell"}"#, "--stream"]);
    assert_eq!(asked.code, Some(0), "{asked}");
    assert_eq!(
        asked.stdout, "a piece\n{\"a\":[2],\"b\":1}\ndone\n",
        "{asked}"
    );
    assert_eq!(asked.stderr, "50 % half\nwarn: careful\n", "{asked}");
}

#[test]
fn a_stream_in_json_is_an_object_a_line() {
    let harness = Harness::start();
    let _puppet = Worker::puppet().start(&harness);
    let asked = harness.cli(["ask", "puppet", r#"{"do": "tell"}"#, "--stream", "--json"]);
    assert_eq!(
        (asked.code, asked.stderr.as_str()),
        (Some(0), ""),
        "{asked}"
    );
    let told = lines(&asked);
    assert_eq!(told.len(), 6, "{asked}");
    assert_eq!(told[0]["attempt_started"]["attempt"], 1, "{asked}");
    assert_eq!(told[1]["progress"]["fraction"], 0.5, "{asked}");
    assert_eq!(told[2]["log"]["level"], "WARN", "{asked}");
    assert_eq!(told[3]["output"], "a piece", "{asked}");
    assert_eq!(told[4]["output"]["a"][0], 2, "{asked}");
    assert_eq!(told[5]["reply"], "done", "{asked}");
    assert_eq!(
        told[5]["run_id"].as_str().map(str::len),
        Some(36),
        "{asked}"
    );

    let order = r#"{"do": "fail", "message": "no"}"#;
    let failed = harness.cli(["ask", "puppet", order, "--stream", "--json"]);
    assert_eq!(
        (failed.code, failed.stderr.as_str()),
        (Some(1), ""),
        "{failed}"
    );
    let told = lines(&failed);
    let last = told.last().expect("a line");
    assert_eq!(last["error"]["code"], "AGENT_ERROR", "{failed}");
}

#[test]
fn a_piece_is_printed_while_the_agent_works_and_ctrl_c_cancels_it() {
    let harness = Harness::start();
    let mut puppet = Worker::puppet().start(&harness);
    let order = r#"{"do": "output", "count": 3, "hang": true}"#;
    let command = harness.command(["ask", "puppet", order, "--stream"]);
    let mut asking = Process::start("harness ask", command);
    asking.wait_for_line("3");
    asking.signal(Signal::SIGINT);
    let asked = asking.finish();
    assert_eq!(
        (asked.code, asked.stdout.as_str()),
        (Some(130), "1\n2\n3\n"),
        "{asked}"
    );
    puppet.process().wait_for_line("dropped ");
    harness.wait_for_ready("puppet", 1);
}

#[test]
fn a_stream_that_passes_its_deadline_is_exit_code_4_after_its_pieces() {
    let harness = Harness::start();
    let _puppet = Worker::puppet().start(&harness);
    let order = r#"{"do": "output", "count": 2, "hang": true}"#;
    let asked = harness.cli(["ask", "puppet", order, "--stream", "--timeout", "500ms"]);
    assert_eq!(
        (asked.code, asked.stdout.as_str()),
        (Some(4), "1\n2\n"),
        "{asked}"
    );
    assert!(asked.stderr.contains("deadline passed"), "{asked}");
}

#[test]
fn each_line_of_many_is_answered_as_it_completes() {
    let harness = Harness::start();
    let _puppet = Worker::puppet().slots(2).start(&harness);
    let input = "{\"do\": \"wait\", \"ms\": 400}\n\n{\"do\": \"reply\", \"value\": {\"b\": 1.5}}\n";
    let asked = many(&harness, input, &[]);
    assert_eq!(
        (asked.code, asked.stderr.as_str()),
        (Some(0), ""),
        "{asked}"
    );
    let told = lines(&asked);
    assert_eq!(told.len(), 2, "{asked}");
    assert_eq!(
        (&told[0]["line"], &told[0]["reply"]["b"]),
        (&3.into(), &1.5.into())
    );
    assert_eq!(
        (&told[1]["line"], &told[1]["reply"]),
        (&1.into(), &Value::Null)
    );
    assert_eq!(told[0]["attempt"], 1, "{asked}");
    assert_eq!(
        told[0]["run_id"].as_str().map(str::len),
        Some(36),
        "{asked}"
    );
}

#[test]
fn more_lines_than_the_window_are_all_answered() {
    let harness = Harness::start();
    let _echo = Worker::example("echo").slots(8).start(&harness);
    let input: String = (1..=1000).map(|number| format!("{number}\n")).collect();
    let command = harness.command(["ask", "echo", "--many"]);
    let asked = Process::start_with_input("harness ask", command, input.as_bytes()).finish();
    assert_eq!(
        (asked.code, asked.stderr.as_str()),
        (Some(0), ""),
        "{asked}"
    );
    let mut told = lines(&asked);
    assert!(
        told.iter().all(|answer| answer["line"] == answer["reply"]),
        "{asked}"
    );
    told.sort_by_key(|answer| answer["line"].as_u64());
    let numbers: Vec<u64> = told
        .iter()
        .filter_map(|answer| answer["line"].as_u64())
        .collect();
    assert_eq!(numbers, (1..=1000).collect::<Vec<_>>());
}

#[test]
fn the_exit_code_of_many_is_that_of_the_worst_answer() {
    let harness = Harness::start();
    let _puppet = Worker::puppet().slots(4).start(&harness);
    let good = r#"{"do": "reply", "value": 1}"#;
    let fails = r#"{"do": "fail", "message": "no"}"#;
    let asked = many(&harness, &format!("{good}\n{fails}\nnot json\n"), &[]);
    assert_eq!(asked.code, Some(1), "{asked}");
    assert_eq!(
        asked.stderr,
        "error: 2 of 3 asks were not answered with a reply\n"
    );
    let mut told = lines(&asked);
    told.sort_by_key(|answer| answer["line"].as_u64());
    assert_eq!(told[1]["error"]["code"], "AGENT_ERROR", "{asked}");
    assert_eq!(told[1]["attempt"], 1, "{asked}");
    assert_eq!(told[2]["error"]["code"], "USAGE", "{asked}");

    let hangs = r#"{"do": "hang"}"#;
    let input = format!("{fails}\n{hangs}\n{good}");
    let asked = many(&harness, &input, &["--timeout", "400ms", "--json"]);
    assert_eq!(
        (asked.code, asked.stderr.as_str()),
        (Some(4), ""),
        "{asked}"
    );
    assert_eq!(lines(&asked).len(), 3, "{asked}");
}

#[test]
fn ctrl_c_cancels_all_of_many() {
    let harness = Harness::start();
    let mut puppet = Worker::puppet().slots(2).start(&harness);
    let input = "{\"do\": \"hang\"}\n".repeat(2);
    let command = harness.command(["ask", "puppet", "--many"]);
    let asking = Process::start_with_input("harness ask", command, input.as_bytes());
    harness.wait_for_busy("puppet", 2);
    asking.signal(Signal::SIGINT);
    let asked = asking.finish();
    assert_eq!(asked.code, Some(130), "{asked}");
    assert!(
        asked.stderr.contains("the open runs are cancelled"),
        "{asked}"
    );
    puppet.process().wait_for_line("dropped ");
    harness.wait_for_ready("puppet", 2);
}

#[test]
fn a_harness_lost_is_exit_code_3_and_every_line_read_is_answered() {
    let mut harness = Harness::start();
    let _puppet = Worker::puppet().start(&harness);
    let input = "{\"do\": \"hang\"}\n";
    let command = harness.command(["ask", "puppet", "--many"]);
    let asking = Process::start_with_input("harness ask", command, input.as_bytes());
    harness.wait_for_busy("puppet", 1);
    harness.process().signal(Signal::SIGKILL);
    let asked = asking.finish();
    assert_eq!(asked.code, Some(3), "{asked}");
    assert_eq!(lines(&asked)[0]["error"]["code"], "TRANSPORT", "{asked}");
}

#[test]
fn a_failed_attempt_is_followed_by_another_when_attempts_allow() {
    let harness = Harness::start();
    let _puppet = Worker::puppet().start(&harness);
    let order = r#"{"do": "flaky", "failures": 1}"#;
    let once = harness.cli(["ask", "puppet", order]);
    assert_eq!(once.code, Some(1), "{once}");
    let twice = harness.cli(["ask", "puppet", order, "--attempts", "2"]);
    assert_eq!(
        (twice.code, twice.stdout.as_str()),
        (Some(0), "2\n"),
        "{twice}"
    );
    let streamed = harness.cli(["ask", "puppet", order, "--attempts", "2", "--stream"]);
    assert_eq!(
        (streamed.code, streamed.stdout.as_str()),
        (Some(0), "2\n"),
        "{streamed}"
    );
    assert!(
        streamed.stderr.starts_with("attempt 2 on worker "),
        "{streamed}"
    );

    let hang = r#"{"do": "hang"}"#;
    let limit = ["--attempt-timeout", "200ms", "--json"];
    let late = harness.cli([&["ask", "puppet", hang][..], &limit].concat());
    assert_eq!(late.json()["error"]["code"], "ATTEMPT_TIMEOUT", "{late}");
}

#[test]
fn select_chooses_the_worker_by_its_labels() {
    let harness = Harness::start();
    let order = r#"{"do": "reply", "value": 1}"#;
    let plain = Worker::puppet().start(&harness);
    let ask = ["ask", "puppet", order, "--select", "gpu=a100", "--timeout"];
    let none = harness.cli([&ask[..], &["300ms"]].concat());
    assert_eq!(none.code, Some(4), "{none}");
    assert!(none.stderr.contains("gpu=a100"), "{none}");
    drop(plain);
    let _labelled = Worker::puppet()
        .env("PUPPET_LABEL", "gpu=a100")
        .start(&harness);
    let found = harness.cli([&ask[..], &["5s"]].concat());
    assert_eq!(
        (found.code, found.stdout.as_str()),
        (Some(0), "1\n"),
        "{found}"
    );
}

#[test]
fn a_higher_priority_goes_first() {
    let harness = Harness::start();
    let mut puppet = Worker::puppet().start(&harness);
    let hang = r#"{"do": "hang"}"#;
    let holding = Process::start("harness ask", harness.command(["ask", "puppet", hang]));
    puppet.process().wait_for_line("started ");
    let queue = |value: &str, priority: &str, queued: u64| {
        let order = format!(r#"{{"do": "reply", "value": {value}}}"#);
        let command = harness.command(["ask", "puppet", &order, "--priority", priority, "--json"]);
        let asking = Process::start("harness ask", command);
        harness_tests::eventually("it is queued", harness_tests::BOUND, || {
            (harness.agent("puppet")?["queued"] == queued).then_some(())
        });
        asking
    };
    let low = queue("1", "-5", 1);
    let high = queue("2", "5", 2);
    holding.signal(Signal::SIGINT);
    let run_id = |finished: Finished| {
        let run_id = finished.json()["run_id"].as_str().map(str::to_owned);
        run_id.unwrap_or_else(|| panic!("{finished}"))
    };
    let (low, high) = (run_id(low.finish()), run_id(high.finish()));
    let told = puppet.process().stderr();
    let place = |run: &str| told.find(&format!("started {run}"));
    assert!(place(&high) < place(&low), "{told}");
}

#[test]
fn an_agent_that_waits_for_itself_is_told_so() {
    let harness = Harness::start();
    let _puppet = Worker::puppet().start(&harness);
    let inner = r#"{"do": "reply", "value": 1}"#;
    let order = format!(r#"{{"do": "ask", "agent": "puppet", "request": {inner}}}"#);
    let asked = harness.cli(["ask", "puppet", &order]);
    assert_eq!(asked.code, Some(1), "{asked}");
    assert!(
        asked.stderr.contains("BUSY") && asked.stderr.contains("puppet -> "),
        "{asked}"
    );
}

#[test]
fn what_cannot_go_together_is_a_mistake() {
    let harness = Harness::start();
    for (arguments, part) in [
        (&["ask", "a", "--stream", "--many"][..], "--many"),
        (&["ask", "a", "1", "--many"], "--many"),
        (&["ask", "a", "--priority", "101"], "100"),
        (&["ask", "a", "--attempts", "17"], "16"),
        (&["ask", "a", "--select", "x"], "KEY=VALUE"),
        (
            &["ask", "a", "--meta", "k=1", "--meta", "k=2"],
            "--meta gives k twice, as 1 and as 2",
        ),
        (
            &["ask", "a", "--many", "--select", "k=1", "--select", "k=1"],
            "--select gives k twice",
        ),
        (&["bench", "a", "--seconds", "0"], "more than 0"),
        (&["bench", "a", "--bytes", "1"], "--bytes"),
    ] {
        let refused = harness.cli(arguments);
        assert_eq!(
            (refused.code, refused.stdout.as_str()),
            (Some(2), ""),
            "{refused}"
        );
        assert!(refused.stderr.contains(part), "{refused}");
    }
}
