//! The harness is killed at random moments, again and again, under durable runs with steps, and
//! some of its workers with it. After each restart what was acknowledged goes on; nothing recorded
//! happens twice.
//!
//! Its workers are bare peers and processes of the SDK, side by side: what the one has begun the
//! other may go on with. `HARNESS_KILLS=500` says how often, `./tests/run soak` does. Which moments
//! they are is chance: what fails is told with all that is needed to see why.

mod checks;
mod stage;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use harness_tests::step_log::StepLog;
use harness_tests::{Harness, Port, Signal, Worker};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use stage::Stage;

use super::steady;

/// Kills when nothing else is said.
const KILLS: u64 = 25;

/// Of so many kills one takes a worker of the SDK along, whose harness may live on for a moment.
const WORKER_KILL_EVERY: u64 = 3;

/// Workers of each kind, each with one slot.
const WORKERS: usize = 2;

/// How long all that was acknowledged may take to end after the last kill.
const BOUND: Duration = Duration::from_secs(60);

/// Chance that needs no crate.
fn below(limit: u64) -> u64 {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    (high ^ low) % limit.max(1)
}

fn serve(port: &Port, data: &Path) -> Harness {
    Harness::builder()
        .listen(port.address())
        .argument("--data")
        .argument(data.display().to_string())
        .config("[limits]\nreattach_window = \"500ms\"\nheartbeat_interval = \"300ms\"\n")
        .start()
}

fn kills() -> u64 {
    let told = std::env::var("HARNESS_KILLS").ok();
    let told = told.map(|text| text.parse().expect("HARNESS_KILLS must be a number"));
    told.unwrap_or(match std::env::var_os("HARNESS_SOAK") {
        Some(_) => 500,
        None => KILLS,
    })
}

fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime must start")
}

/// The workers, of both kinds, and the file that all of them write.
struct Workers {
    address: String,
    log: PathBuf,
    steppers: Vec<Worker>,
    bare: Vec<JoinHandle<()>>,
    bare_stop: CancellationToken,
    killed: u64,
}

impl Workers {
    fn start(runtime: &Runtime, address: &str, log: PathBuf) -> Self {
        let bare_stop = CancellationToken::new();
        let noted = Arc::new(StepLog::open(&log, "bare"));
        let bare = (0..WORKERS).map(|at| {
            let worker = steady::Worker::new(address.to_owned(), at == 0, noted.clone());
            runtime.spawn(steady::work(worker, bare_stop.clone()))
        });
        let bare = bare.collect();
        let stepper = |_| Worker::stepper(&log).start_unattached(address);
        let steppers = (0..WORKERS).map(stepper).collect();
        Self {
            address: address.to_owned(),
            log,
            steppers,
            bare,
            bare_stop,
            killed: 0,
        }
    }

    /// One process is killed wherever it is, and another comes in its place.
    fn kill_one(&mut self) {
        let mut oldest = self.steppers.remove(0);
        oldest.process().signal(Signal::SIGKILL);
        drop(oldest);
        let next = Worker::stepper(&self.log).start_unattached(&self.address);
        self.steppers.push(next);
        self.killed += 1;
    }

    /// The processes leave in order: none of them has ended by itself.
    fn leave(self, runtime: &Runtime) {
        for worker in self.steppers {
            let left = worker.stop();
            assert_eq!(left.code, Some(0), "{left}");
        }
        self.bare_stop.cancel();
        for worker in self.bare {
            runtime.block_on(worker).expect("a worker must not panic");
        }
    }
}

/// Kills and restarts the harness as often as it is to be.
fn kill(
    runtime: &Runtime,
    stage: &Stage,
    port: &Port,
    data: &Path,
    workers: &mut Workers,
) -> Harness {
    let mut harness = serve(port, data);
    for kill in 1..=kills() {
        std::thread::sleep(Duration::from_millis(30 + below(250)));
        stage.follow_newest(runtime);
        let takes_worker = kill % WORKER_KILL_EVERY == 0;
        if takes_worker {
            workers.kill_one();
            std::thread::sleep(Duration::from_millis(below(50)));
        }
        harness.process().signal(Signal::SIGKILL);
        drop(harness);
        harness = serve(port, data);
    }
    harness
}

#[test]
fn nothing_acknowledged_is_lost_and_no_recorded_step_runs_twice_whenever_it_is_killed() {
    let (port, data) = (Port::free(), TempDir::new().expect("a folder of its own"));
    let logged = TempDir::new().expect("a folder of its own");
    let log = logged.path().join("steps");
    let runtime = runtime();
    let stage = Stage::new(port.address());
    let began = Instant::now();
    let mut workers = Workers::start(&runtime, &port.address(), log.clone());
    let starting: Vec<_> = (0..2)
        .map(|_| runtime.spawn(stage.clone().starts()))
        .collect();
    let harness = kill(&runtime, &stage, &port, data.path(), &mut workers);
    stage.stop_starting();
    runtime.block_on(async {
        for task in starting.into_iter() {
            let ended = tokio::time::timeout(BOUND, task).await.expect("in time");
            ended.expect("no panic");
        }
        checks::runs(&stage, &log, BOUND).await;
        for task in stage.take_following() {
            let ended = tokio::time::timeout(BOUND, task).await.expect("in time");
            ended.expect("no panic");
        }
        checks::followers(&stage, BOUND).await;
    });
    let (killed, address) = (workers.killed, harness.address().to_owned());
    assert_eq!(address, port.address());
    workers.leave(&runtime);
    drop(harness);
    checks::tell(&stage, &log, (kills(), killed), began.elapsed());
}
