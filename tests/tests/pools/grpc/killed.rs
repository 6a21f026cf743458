//! SIGKILL of the harness at any moment, with a pool of processes that dial back under load: a
//! second later nothing of it is alive.
#![cfg(target_os = "linux")]

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::process::Command;
use std::time::Duration;

use harness_tests::guarded::{link, marked};
use harness_tests::{BOUND, Process, Signal, eventually, program};
use tempfile::TempDir;
use uuid::Uuid;

use super::{Make, pool_with};

/// Moments at which it is killed. As many are in `programs::orphans`, with processes that start and
/// end all the time.
const MOMENTS: u64 = 25;

/// What the issue gives it: no process is alive so long after the harness.
const AFTER_DEATH: Duration = Duration::from_secs(1);

/// A harness whose processes and guardians are found by a mark and a program of their own.
struct Marked {
    harness: Process,
    mark: String,
    binary: std::path::PathBuf,
    address: String,
    #[expect(dead_code, reason = "holds the program")]
    folder: TempDir,
}

impl Marked {
    fn start(make: Make) -> Self {
        let folder = TempDir::new().expect("a folder");
        let binary = folder.path().join("harness");
        link(&program("harness"), &binary);
        let mark = Uuid::new_v4().to_string();
        let command = make.command().expect("a make that is here");
        let settings = "size = 3\nstop = { cancel_grace = \"50ms\", term_grace = \"50ms\" }\nrestart = { max_crashes = 0 }";
        let config = pool_with("puppet", &command, &[("MARK", &mark)], settings);
        let file = folder.path().join("harness.toml");
        std::fs::write(&file, config).expect("written");
        let mut serve = Command::new(&binary);
        serve
            .args(["serve", "--listen", "127.0.0.1:0", "--config"])
            .arg(&file);
        let mut harness = Process::start("harness serve", serve);
        let line = harness.wait_for_line("listening on ");
        let address = line.rsplit(' ').next().unwrap_or_default().to_owned();
        Self {
            harness,
            mark,
            binary,
            address,
            folder,
        }
    }

    fn alive(&self) -> Vec<(u32, String)> {
        let own = self.harness.pid();
        let mut alive = marked(&self.mark, &self.binary);
        alive.retain(|(pid, _)| *pid != own);
        alive
    }

    /// Asks without an end: answers, deadlines, crashes, and processes below the workers.
    fn load(&self) -> Vec<Process> {
        let orders = [
            r#"{"do":"reply","value":1}"#.to_owned(),
            r#"{"do":"exit","code":3}"#.to_owned(),
            r#"{"do":"hang_with_child","seconds":"1000","setsid":true}"#.to_owned(),
            r#"{"do":"hang_with_child","seconds":"1000","setsid":false}"#.to_owned(),
        ];
        let ask = |order: &String| {
            let script = format!(
                "while :; do '{}' ask puppet '{order}' --timeout 100ms >/dev/null 2>&1 || :; done",
                program("harness").display()
            );
            let mut shell = Command::new("sh");
            shell
                .args(["-c", &script])
                .env("HARNESS_ADDRESS", &self.address);
            Process::start("a caller", shell)
        };
        orders.iter().map(ask).collect()
    }
}

/// A moment in the life of some processes, another each time.
fn moment(round: u64) -> Duration {
    Duration::from_micros(RandomState::new().hash_one(round) % 400_000)
}

#[test]
fn a_harness_killed_at_any_moment_under_load_leaves_nothing() {
    let mut seen = 0;
    for round in 0..MOMENTS {
        let marked = Marked::start(Make::Rust);
        let callers = marked.load();
        // Some are killed before the first process has started.
        if round % 5 != 0 {
            eventually("a process runs", BOUND, || {
                (marked.alive().len() > 3).then_some(())
            });
        }
        std::thread::sleep(moment(round));
        seen += marked.alive().len();
        marked.harness.signal(Signal::SIGKILL);
        eventually("no process of a pool is alive", AFTER_DEATH, || {
            marked.alive().is_empty().then_some(())
        });
        drop(callers);
    }
    assert!(seen > 100, "there was something to kill: {seen}");
}

#[test]
fn no_worker_of_any_make_outlives_the_harness() {
    for make in super::makes() {
        let marked = Marked::start(make);
        eventually("all of them run", BOUND, || {
            // Three guardians and three workers.
            (marked.alive().len() == 6).then_some(())
        });
        marked.harness.signal(Signal::SIGKILL);
        eventually("no process of a pool is alive", AFTER_DEATH, || {
            marked.alive().is_empty().then_some(())
        });
    }
}
