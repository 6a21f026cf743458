//! `harness dev`: an author's worker beside a harness, replaced at each save.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use harness_tests::{BOUND, Finished, Process, Signal, command, eventually, program};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

/// `harness dev` in a folder of its own, in which the worker is a script.
struct Dev {
    process: Process,
    address: String,
    folder: TempDir,
}

impl Dev {
    /// Starts it with a script and waits until it tells how to ask.
    #[track_caller]
    fn start(script: &str) -> Self {
        let folder = TempDir::new().expect("a folder");
        save(folder.path(), script);
        let mut process = Process::start("harness dev", dev(folder.path(), &["sh", "worker.sh"]));
        let line = process.wait_for_line("/v1/agents/worker/ask");
        let address = line
            .split("http://")
            .nth(1)
            .and_then(|rest| rest.split('/').next());
        Self {
            address: address
                .expect("the address in the line for curl")
                .to_owned(),
            process,
            folder,
        }
    }

    fn save(&self, script: &str) {
        save(self.folder.path(), script);
    }

    fn command(&self, message: &Value) -> Command {
        let mut ask = command("harness");
        ask.args(["ask", "worker", &message.to_string(), "--json"]);
        ask.args(["--server", &self.address]);
        ask
    }

    #[track_caller]
    fn reply(&self, message: &Value) -> Value {
        let told = Process::run("harness ask", self.command(message));
        assert_eq!(told.code, Some(0), "{told}");
        told.json()["reply"].clone()
    }

    #[track_caller]
    fn pid(&self) -> Pid {
        let pid = self.reply(&json!({"do": "pid"}));
        Pid::from_raw(
            pid.as_i64()
                .and_then(|pid| pid.try_into().ok())
                .expect("a pid"),
        )
    }

    /// Waits until it has told so many times that a process is ready.
    #[track_caller]
    fn wait_until_ready(&self, times: usize) {
        eventually("a process is ready", BOUND, || {
            let told = self.process.stderr();
            (told.matches(" is ready to be asked as worker").count() >= times).then_some(())
        });
    }
}

/// The command in a folder, on a free port.
fn dev(folder: &Path, arguments: &[&str]) -> Command {
    let mut dev = command("harness");
    dev.args(["dev", "--listen", "127.0.0.1:0", "--dialect", "jsonl", "--"]);
    dev.args(arguments).current_dir(folder);
    dev
}

fn save(folder: &Path, script: &str) {
    std::fs::write(folder.join("worker.sh"), script).expect("saved");
}

/// A script that says a line and is then a worker that does what its messages say.
fn says(line: &str) -> String {
    format!("echo '{line}' >&2\nexec '{}'\n", program("jsonl").display())
}

#[track_caller]
fn wait_until_gone(pid: Pid) {
    eventually(&format!("process {pid} is gone"), BOUND, || {
        kill(pid, None).is_err().then_some(())
    });
}

#[test]
fn what_it_tells_to_type_asks_the_worker_whose_standard_error_is_shown() {
    let mut dev = Dev::start(&says("hello from \u{1b}[1mversion one\u{1b}[0m"));
    dev.process
        .wait_for_line("hello from \u{1b}[1mversion one\u{1b}[0m");
    let told = dev.process.stderr();
    assert!(told.contains("agent worker on 127.0.0.1:"), "{told}");
    assert!(told.contains("named after worker.sh"), "{told}");
    let lines: Vec<&str> = told.lines().filter(|line| line.starts_with("  ")).collect();
    assert_eq!(lines.len(), 2, "{told}");
    for (line, answer) in lines.iter().zip(["hello\n", "\"hello\""]) {
        let mut shell = Command::new("sh");
        shell.args(["-c", line]);
        let ran = Process::run("a copied line", shell);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), answer), "{ran}");
    }
}

#[test]
fn ctrl_c_ends_everything_and_so_does_a_kill() {
    let dev = Dev::start(&says("one"));
    let pid = dev.pid();
    dev.process.signal(Signal::SIGINT);
    let left = dev.process.finish();
    assert_eq!(left.code, Some(0), "{left}");
    assert!(kill(pid, None).is_err(), "{pid} is left");

    let dev = Dev::start(&says("one"));
    let pid = dev.pid();
    dev.process.signal(Signal::SIGKILL);
    drop(dev.process.finish());
    wait_until_gone(pid);
}

#[test]
fn a_save_starts_another_process_and_the_old_one_finishes_what_it_works_on() {
    let mut dev = Dev::start(&says("version one"));
    dev.wait_until_ready(1);
    let before = dev.pid();
    let long = dev.command(&json!({"do": "wait", "ms": 1_000}));
    let asking = Process::start("harness ask", long);
    eventually("it is in work", BOUND, || {
        let mut agents = command("harness");
        agents.args(["agents", "--json", "--server", &dev.address]);
        let busy = Process::run("harness agents", agents).json()[0]["slots_busy"] == 1;
        busy.then_some(())
    });
    dev.save(&says("version two"));
    dev.process.wait_for_line("worker.sh was saved");
    dev.process.wait_for_line("version two");
    assert_ne!(dev.pid(), before, "asked while the old one still works");
    let asked = asking.finish();
    assert_eq!(
        (asked.code, &asked.json()["reply"]),
        (Some(0), &Value::Null)
    );
    wait_until_gone(before);
}

#[test]
fn a_worker_that_does_not_start_is_told_once_and_started_again_at_the_next_save() {
    let mut dev = Dev::start("echo 'no such module' >&2\nexit 3\n");
    dev.process
        .wait_for_line("the process did not start: exit code 3; save a file");
    let told = dev.process.stderr();
    assert_eq!(told.matches("no such module\n").count(), 1, "{told}");
    let asked = Process::run("harness ask", dev.command(&json!(1)));
    assert_eq!(asked.json()["error"]["code"], "CRASH_LOOP", "{asked}");
    dev.save(&says("mended"));
    dev.process.wait_for_line("mended");
    dev.wait_until_ready(1);
    assert_eq!(dev.reply(&json!("and on")), "and on");
}

#[test]
fn a_process_that_dies_or_hangs_is_told_and_replaced() {
    let mut dev = Dev::start(&says("one"));
    dev.wait_until_ready(1);
    let crashed = Process::run(
        "harness ask",
        dev.command(&json!({"do": "crash", "code": 7})),
    );
    assert_eq!(crashed.json()["error"]["code"], "WORKER_LOST", "{crashed}");
    dev.process.wait_for_line("the process died: exit code 7");
    dev.wait_until_ready(2);
    let mut hang = dev.command(&json!({"do": "hang"}));
    hang.args(["--timeout", "200ms"]);
    assert_eq!(Process::run("harness ask", hang).code, Some(4));
    dev.process
        .wait_for_line("was ended by SIGTERM: its request was cancelled");
    dev.wait_until_ready(3);
}

#[test]
fn a_worker_that_dials_back_is_what_it_expects_and_all_it_prints_is_shown() {
    let folder = TempDir::new().expect("a folder");
    let puppet = program("puppet").display().to_string();
    let prints =
        |what: &str| format!("echo '{what} out'; echo '{what} err' >&2\nexec '{puppet}'\n");
    save(folder.path(), &prints("one"));
    let mut dev = command("harness");
    dev.args(["dev", "--agent", "puppet", "--listen", "127.0.0.1:0", "--"]);
    dev.args(["sh", "worker.sh"]).current_dir(folder.path());
    let mut dev = Process::start("harness dev", dev);
    for line in ["one out", "one err", "is ready to be asked as puppet"] {
        dev.wait_for_line(line);
    }
    let line = dev.wait_for_line(" ask puppet hello --server ");
    let address = line.rsplit(' ').next().unwrap_or_default();
    let ask = || {
        let mut ask = command("harness");
        ask.args([
            "ask",
            "puppet",
            r#"{"do": "reply", "value": 5}"#,
            "--server",
            address,
        ]);
        Process::run("harness ask", ask).stdout
    };
    assert_eq!(ask(), "5\n");
    save(folder.path(), "exit 3\n");
    dev.wait_for_line("the process did not start: exit code 3");
    let told = dev.wait_for_line("until then process ");
    assert!(told.contains("--dialect jsonl"), "{told}");
    assert_eq!(ask(), "5\n", "the process before");
    save(folder.path(), &prints("two"));
    dev.wait_for_line("two out");
    dev.signal(Signal::SIGINT);
    let left = dev.finish();
    assert_eq!(left.code, Some(0), "{left}");
}

#[test]
fn a_worker_has_the_environment_of_its_author() {
    let folder = TempDir::new().expect("a folder");
    save(
        folder.path(),
        "echo \"key: $API_KEY, harness: $HARNESS_ADDRESS.\" >&2\nexec cat >&2\n",
    );
    let mut dev = dev(folder.path(), &["sh", "worker.sh"]);
    dev.env("API_KEY", "secret")
        .env("HARNESS_ADDRESS", "127.0.0.1:1");
    let mut dev = Process::start("harness dev", dev);
    dev.wait_for_line("key: secret, harness: .");
}

#[test]
fn what_cannot_be_run_or_watched_is_told_before_anything_starts() {
    let folder = TempDir::new().expect("a folder");
    save(folder.path(), "");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let run = |arguments: &[&str]| -> Finished {
        let mut dev = command("harness");
        dev.arg("dev").args(arguments).current_dir(folder.path());
        Process::start("harness dev", dev).finish_within(Duration::from_secs(10))
    };
    for (arguments, code, part) in [
        (&[][..], 2, "<COMMAND>..."),
        (&["--"], 2, "<COMMAND>..."),
        (&["--", "no-such-program"], 2, "in no folder of PATH"),
        (&["--", "worker.sh"], 2, "with ./ before it"),
        (&["--", "./worker.sh"], 2, "chmod +x"),
        (&["--watch", "nowhere", "--", "sh"], 2, "nowhere"),
        (
            &["--agent", "No", "--listen", "127.0.0.1:0", "--", "sh"],
            2,
            "must match",
        ),
        (&["--dialect", "xml", "--", "sh"], 2, "jsonl"),
        (
            &["--listen", &address, "--dialect", "jsonl", "--", "sh"],
            1,
            "is in use",
        ),
    ] {
        let refused = run(arguments);
        assert_eq!(refused.code, Some(code), "{arguments:?}: {refused}");
        assert_eq!(
            refused.stderr.lines().count(),
            1,
            "{arguments:?}: {refused}"
        );
        assert!(refused.stderr.contains(part), "no {part:?} in {refused}");
    }
}
