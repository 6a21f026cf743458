//! No process of a worker outlives the harness, however it ends, or its own end.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::PathBuf;
use std::time::Duration;

use harness_server::supervisor::isolation::User;
use harness_server::supervisor::process::{Exit, Process as WorkerProcess, Signal as Rung};
use harness_tests::guarded::{self, marked};
use harness_tests::{BOUND, Process, Signal, command, eventually, program};
use nix::unistd::geteuid;
use tempfile::TempDir;

/// What the issue gives it: no process is alive so long after the harness.
const AFTER_DEATH: Duration = Duration::from_secs(1);

/// A holder with a mark and a guardian of its own, by which its processes are found.
struct Held {
    holder: Process,
    mark: String,
    guard: PathBuf,
    #[expect(dead_code, reason = "holds the guardian's program")]
    folder: TempDir,
}

impl Held {
    fn start(count: usize, script: &str) -> Self {
        let folder = TempDir::new().expect("a folder");
        let guard = folder.path().join("guard");
        guarded::link(&program("harness"), &guard);
        let mark = uuid::Uuid::new_v4().to_string();
        let mut holder = command("holder");
        holder
            .args(["hold", &count.to_string(), "sh", "-c", script])
            .env("HOLDER_GUARD", &guard)
            .env("HOLDER_MARK", &mark);
        let holder = Process::start("holder", holder);
        Self {
            holder,
            mark,
            guard,
            folder,
        }
    }

    fn alive(&self) -> Vec<(u32, String)> {
        marked(&self.mark, &self.guard)
    }

    fn kill(&self, within: Duration) {
        self.holder.signal(Signal::SIGKILL);
        eventually("no process of a worker is alive", within, || {
            self.alive().is_empty().then_some(())
        });
    }
}

#[test]
fn a_killed_harness_leaves_neither_child_nor_setsid_grandchild() {
    let script = "sleep 1000 & setsid sh -c 'sleep 1000 & setsid sleep 1000 & wait' & wait";
    let held = Held::start(2, script);
    // Two guardians, and of each worker: two shells and three sleeps.
    eventually("all of them run", BOUND, || {
        (held.alive().len() == 12).then_some(())
    });
    held.kill(AFTER_DEATH);
}

#[test]
fn a_harness_killed_at_any_moment_leaves_nothing() {
    // Starts and ends happen all the time.
    let script = "sleep 1000 & setsid sleep 1000 & sleep 0.0$(($$ % 10))";
    let mut seen = 0;
    for round in 0..25 {
        let held = Held::start(3, script);
        eventually("one has started", BOUND, || {
            held.holder.stdout().contains("started").then_some(())
        });
        std::thread::sleep(moment(round));
        seen += held.alive().len();
        held.kill(AFTER_DEATH);
    }
    assert!(seen > 100, "there was something to kill: {seen}");
}

/// A moment in the life of some ten workers, another each time.
fn moment(round: u64) -> Duration {
    Duration::from_micros(RandomState::new().hash_one(round) % 300_000)
}

#[test]
fn a_harness_killed_before_its_first_worker_runs_leaves_nothing() {
    for round in 0..20_u64 {
        let held = Held::start(3, "setsid sleep 1000 & sleep 1000");
        std::thread::sleep(moment(round) / 10);
        held.kill(AFTER_DEATH);
    }
}

#[test]
fn a_stopped_worker_does_not_outlive_the_harness_either() {
    let held = Held::start(1, "setsid sh -c 'kill -STOP $$' & kill -STOP $$");
    eventually("it is stopped", BOUND, || {
        let alive = held.alive();
        let stopped = alive.iter().filter(|(pid, _)| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.contains(") T ")
        });
        (stopped.count() == 2).then_some(())
    });
    held.kill(AFTER_DEATH);
}

/// How long the end of one that multiplies may take: its 150 processes keep all processors busy,
/// beside whatever else runs there.
const CAUGHT: Duration = Duration::from_secs(60);

/// A worker of `script` in bash, which multiplies; none without root: a bomb needs a limit.
async fn bomb(script: &str, uid: u32) -> Option<(WorkerProcess, String)> {
    if !geteuid().is_root() {
        return None;
    }
    let mark = uuid::Uuid::new_v4().to_string();
    let mut launch = guarded::launch(["bash", "-c", script]);
    launch.env.push(("MARK".into(), mark.clone().into()));
    launch.isolation.processes = Some(150);
    launch.isolation.user = Some(User {
        name: "nobody in particular".to_owned(),
        uid,
        gid: uid,
        groups: vec![uid],
    });
    let started = WorkerProcess::start(launch).await;
    // Nobody hears what it says of its limit.
    let (process, _streams) = started.expect("started");
    Some((process, mark))
}

fn count(mark: &str) -> usize {
    marked(mark, "/no/such/program".as_ref()).len()
}

#[tokio::test]
async fn a_fork_bomb_is_caught_by_kill() {
    // Each has a process group of its own.
    let script = "exec 2>/dev/null; f() { set -m; while :; do f & done; }; f";
    let Some((mut process, mark)) = bomb(script, 61_001).await else {
        return;
    };
    eventually("it has gone off", BOUND, || {
        (count(&mark) > 100).then_some(())
    });
    process.signal(Rung::Kill);
    let reaped = tokio::time::timeout(CAUGHT, process.reaped()).await;
    assert_eq!(reaped.expect("in time"), Exit::Signal(9));
    assert_eq!(count(&mark), 0);
}

#[tokio::test]
async fn processes_that_hop_from_parent_to_child_are_caught_by_kill() {
    // Each starts the next, in a group of its own, and ends.
    let script = "exec 2>/dev/null; f() { set -m; f & }; f; f; f; \
                  while :; do sleep 1000; done";
    let Some((mut process, mark)) = bomb(script, 61_002).await else {
        return;
    };
    let mut seen = BTreeSet::new();
    eventually("they hop", BOUND, || {
        seen.extend(marked(&mark, "/no/such/program".as_ref()));
        (seen.len() > 50).then_some(())
    });
    process.signal(Rung::Kill);
    let reaped = tokio::time::timeout(CAUGHT, process.reaped()).await;
    assert_eq!(reaped.expect("in time"), Exit::Signal(9));
    assert_eq!(count(&mark), 0);
}
