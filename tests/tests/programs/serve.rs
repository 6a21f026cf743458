//! `harness serve` and `harness demo` as processes: how they start, what stops them from starting,
//! and how they leave.

use std::collections::BTreeSet;
use std::time::Duration;

use harness_server::{Config, Limits};
use harness_tests::{BOUND, Finished, Harness, Process, Signal, Worker, command, eventually};
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

fn harness(arguments: &[&str]) -> Process {
    let mut harness = command("harness");
    harness.args(arguments);
    Process::start("harness", harness)
}

#[track_caller]
fn assert_refused(finished: &Finished, code: i32, parts: &[&str]) {
    assert_eq!(finished.code, Some(code), "{finished}");
    assert_eq!(finished.stderr.lines().count(), 1, "{finished}");
    for part in parts {
        assert!(finished.stderr.contains(part), "no {part:?} in {finished}");
    }
}

#[test]
fn a_port_in_use_is_one_line_and_exit_code_1() {
    let first = Harness::start();
    let second = harness(&["serve", "--listen", first.address()]).finish();
    assert_refused(&second, 1, &[first.address(), "in use", "--listen"]);
}

#[test]
fn a_wrong_configuration_is_told_with_file_line_and_near_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("harness.toml");
    std::fs::write(&path, "\n[limits]\nhello_timout = \"5s\"\n").unwrap();
    let path = path.to_str().unwrap();
    let refused = harness(&["serve", "--config", path]).finish();
    assert_refused(
        &refused,
        2,
        &["harness.toml: line 3", "did you mean \"hello_timeout\"?"],
    );
    let refused = harness(&["serve", "--config", "/does/not/exist.toml"]).finish();
    assert_refused(&refused, 2, &["cannot read /does/not/exist.toml"]);
}

#[test]
fn the_window_of_asks_is_taken_from_the_configuration_and_a_wrong_one_is_told_with_its_range() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("harness.toml");
    let file = path.to_str().unwrap();
    let set = |value: &str| {
        let text = format!("[limits]\ninteractive_reattach_window = {value}\n");
        std::fs::write(&path, text).unwrap();
    };
    set("\"3s\"");
    let checked = harness(&["check", file]).finish();
    assert_eq!(checked.code, Some(0), "{checked}");
    let mut serving = harness(&["serve", "--config", file, "--listen", "127.0.0.1:0"]);
    serving.wait_for_line("listening on ");
    let key = "limits.interactive_reattach_window";
    for (value, parts) in [
        ("\"367d\"", [key, "must be 0ns to 366 days"]),
        ("\"soon\"", ["line 2", "expected a duration"]),
        ("3", ["line 2", "expected a duration"]),
    ] {
        set(value);
        let serve = ["serve", "--config", file, "--listen", "127.0.0.1:0"];
        for arguments in [&["check", file][..], &serve] {
            let refused = harness(arguments).finish();
            assert_refused(&refused, 2, &parts);
        }
    }
}

#[test]
fn the_configuration_in_the_readme_is_valid_and_tells_the_defaults() {
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let (_, rest) = readme.split_once("```toml\n").expect("a TOML block");
    let (example, _) = rest.split_once("```").expect("its end");
    let told = Config::parse(example).unwrap().limits;
    let shown = |limits: Limits| format!("{limits:?}");
    assert_eq!(shown(told), shown(Limits::default()));
}

#[test]
fn a_configuration_file_is_used() {
    let harness = Harness::builder()
        .config("[limits]\nqueue_runs = 0\n")
        .start();
    let _puppet = Worker::puppet().start(&harness);
    let hang = r#"{"do": "hang"}"#;
    let _asking = Process::start("harness ask", harness.command(["ask", "puppet", hang]));
    harness.wait_for_busy("puppet", 1);
    let busy = harness.cli(["ask", "puppet", hang]);
    assert_eq!(busy.code, Some(1), "{busy}");
    assert!(busy.stderr.contains("busy"), "{busy}");
}

#[test]
fn a_unix_socket_serves_callers_and_workers() {
    let harness = Harness::builder().unix().start();
    let _echo = Worker::start(&harness, "echo");
    let asked = harness.cli(["ask", "echo", "hello"]);
    assert_eq!(
        (asked.code, asked.stdout.as_str()),
        (Some(0), "hello\n"),
        "{asked}"
    );
}

#[test]
fn every_address_is_told_and_served() {
    let mut serving = harness(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--listen",
        "127.0.0.1:0",
    ]);
    let addresses = eventually("two addresses", BOUND, || {
        let stderr = serving.stderr();
        let lines = stderr
            .lines()
            .filter_map(|line| line.strip_prefix("listening on "));
        let addresses: Vec<String> = lines.map(str::to_owned).collect();
        (addresses.len() == 2).then_some(addresses)
    });
    for address in addresses {
        let agents = harness(&["agents", "--json", "--server", &address]).finish();
        assert_eq!(agents.code, Some(0), "{agents}");
    }
    assert!(serving.try_wait().is_none());
}

#[test]
fn serve_leaves_with_0_on_sigterm_and_on_ctrl_c() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let harness = Harness::start();
        let _echo = Worker::start(&harness, "echo");
        let left = harness.stop_with(signal);
        assert_eq!(left.code, Some(0), "{signal}: {left}");
        assert_eq!(left.stdout, "", "{left}");
    }
}

#[test]
fn serve_outlives_whoever_read_its_log() {
    let program = harness_tests::program("harness").display().to_string();
    let script = r#"
        exec 3< <("$0" serve --listen 127.0.0.1:0 2>&1 & echo $!; wait $!; echo "left with $?" >&2)
        told=$!
        read -r pid <&3; read -r line <&3; exec 3<&-
        echo "$line"; kill "$pid"; wait "$told"
    "#;
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", script, &program]);
    let mut shell = Process::start("a shell that reads one line", shell);
    shell.wait_for_line("listening on ");
    assert_eq!(shell.wait_for_line("left with "), "left with 0");
}

#[test]
fn a_second_signal_ends_serve_at_once() {
    let mut harness = Harness::start();
    let mut puppet = Worker::puppet().start(&harness);
    let hang = r#"{"do": "hang"}"#;
    let _asking = Process::start("harness ask", harness.command(["ask", "puppet", hang]));
    puppet.process().wait_for_line("started ");
    harness.process().signal(Signal::SIGTERM);
    harness.process().wait_for_line("asked to stop");
    let left = harness.stop();
    assert_eq!(left.code, Some(143), "{left}");
}

#[test]
fn the_demo_tells_its_story_and_its_lines_work() {
    let mut demo = harness(&["demo"]);
    demo.wait_for_line(" pools");
    let story = demo.stdout();
    let mut rest = story.as_str();
    for part in [
        "answered: hello",
        "ask research",
        "it says: Let me look.",
        "answered after 3 model calls and 2 tool calls",
        "step model turn-1",
        r#"step tool/search call_1_0: {"titles":["Nile"]}"#,
        "step tool/read call_2_0: The Nile",
        "step model turn-3",
        "request is with process",
        "deadline: caller answered",
        "SIGTERM",
        "SIGKILL",
        "nothing of process",
        "slot READY again",
    ] {
        let Some((_, after)) = rest.split_once(part) else {
            panic!("no {part:?}, or not in its turn, in {story}");
        };
        rest = after;
    }
    let lines: Vec<&str> = story
        .lines()
        .filter(|line| line.contains("/harness "))
        .collect();
    assert_eq!(lines.len(), 4, "{story}");
    for (line, code, printed) in [
        (lines[0], 0, "hello"),
        (lines[1], 0, "The Amazon carries"),
        (lines[2], 4, "deadline passed"),
        (lines[3], 0, "hang"),
    ] {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", line]);
        let ran = Process::run("a copied line", shell);
        assert_eq!(ran.code, Some(code), "{line}: {ran}");
        assert!(ran.to_string().contains(printed), "{line}: {ran}");
    }

    let children = processes_in(&story);
    assert_eq!(children.len(), 5, "{story}");
    demo.signal(Signal::SIGINT);
    let left = demo.finish();
    assert_eq!(left.code, Some(0), "{left}");
    for pid in children {
        assert_eq!(kill(pid, None), Err(Errno::ESRCH), "{pid} is still there");
    }
}

#[test]
fn a_killed_demo_leaves_no_process_behind() {
    let mut demo = harness(&["demo"]);
    demo.wait_for_line(" pools");
    let processes = processes_in(&demo.stdout());
    demo.signal(Signal::SIGKILL);
    drop(demo.finish());
    for pid in processes {
        let what = format!("process {pid} ends");
        eventually(&what, BOUND, || (!is_running(pid)).then_some(()));
    }
}

#[test]
fn demo_exit_ends_with_0() {
    let told = harness(&["demo", "--exit"]).finish_within(Duration::from_secs(15));
    assert_eq!(told.code, Some(0), "{told}");
    assert!(told.stdout.contains("slot READY again"), "{told}");
    assert!(!told.stdout.contains("Ctrl-C"), "{told}");
}

/// The process ids a demo has told.
fn processes_in(story: &str) -> BTreeSet<Pid> {
    let told = story.split("process ").skip(1);
    let digits = told.filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
    let pids = digits.filter_map(|digits| digits.parse().ok());
    pids.map(Pid::from_raw).collect()
}

/// An orphan that has ended may wait as a zombie for an init that reaps nobody.
fn is_running(pid: Pid) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    match state {
        Ok(state) => !state.contains(") Z "),
        Err(_) => kill(pid, None).is_ok(),
    }
}
