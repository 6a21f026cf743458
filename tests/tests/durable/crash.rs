//! The harness is killed at random moments, again and again, under durable runs with steps. After
//! each restart what was acknowledged goes on; nothing recorded happens twice.
//!
//! `HARNESS_KILLS=500` says how often, `./tests/run soak` does. Which moments they are is chance: what
//! fails is told with all that is needed to see why.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use harness_proto::v1::{StartRunRequest, entry, watch_run_response};
use harness_tests::durable::{journal, kind_of, kinds, run_of, start, watch};
use harness_tests::raw::runs;
use harness_tests::{Harness, Port, Signal};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use uuid::Uuid;

use super::steady::{Log, STEPS, Worker, work};

/// Kills when nothing else is said.
const KILLS: u64 = 25;

/// Workers, each with one slot.
const WORKERS: usize = 4;

/// How long all that was acknowledged may take to end after the last kill.
const BOUND: Duration = Duration::from_secs(60);

/// What everybody in the test knows.
#[derive(Clone)]
struct Stage {
    address: String,
    stop: CancellationToken,
    acknowledged: Arc<Mutex<BTreeMap<String, String>>>,
    watched: Arc<Mutex<HashMap<String, Vec<u64>>>>,
}

/// Chance that needs no crate.
fn below(limit: u64) -> u64 {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    (high ^ low) % limit.max(1)
}

fn channel(address: &str) -> Channel {
    Endpoint::from_shared(format!("http://{address}"))
        .expect("a valid address")
        .connect_timeout(Duration::from_secs(1))
        .tcp_nodelay(true)
        .connect_lazy()
}

/// Starts runs until it is told to stop, each until it is acknowledged.
async fn starts(stage: Stage) {
    let mut number = 0;
    while !stage.stop.is_cancelled() {
        number += 1;
        let key = format!("{}-{number}", Uuid::new_v4());
        let request = StartRunRequest {
            idempotency_key: key.clone(),
            ..start("steady", &format!("\"{key}\""))
        };
        let channel = channel(&stage.address);
        let run = loop {
            let mut client = runs(&channel);
            let started = client.start_run(request.clone());
            match tokio::time::timeout(Duration::from_secs(2), started).await {
                Ok(Ok(answer)) => break answer.into_inner().run.expect("a run"),
                // Killed under it: it may be made, and the key finds it.
                Ok(Err(_)) | Err(_) => tokio::task::yield_now().await,
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let before = {
            let mut acknowledged = stage
                .acknowledged
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            acknowledged.insert(run.run_id.clone(), key)
        };
        assert!(before.is_none(), "run {} has two keys", run.run_id);
        tokio::time::sleep(Duration::from_millis(below(20))).await;
    }
}

/// Follows a run to its end from number to number, over as many harnesses as it takes.
async fn follows(stage: Stage, run_id: String) {
    let mut seqs: Vec<u64> = Vec::new();
    let mut ended = false;
    let channel = channel(&stage.address);
    loop {
        let next = seqs.last().map_or(1, |last| last + 1);
        let Ok(Ok(mut events)) =
            tokio::time::timeout(Duration::from_secs(2), watch(&channel, &run_id, next)).await
        else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        // An error is a harness that was killed: it goes on with the next.
        while let Ok(Ok(message)) =
            tokio::time::timeout(Duration::from_secs(20), events.message()).await
        {
            let Some(event) = message else {
                assert!(ended, "OK came before run {run_id} has ended");
                let mut watched = stage.watched.lock().unwrap_or_else(PoisonError::into_inner);
                watched.insert(run_id, seqs);
                return;
            };
            if let Some(watch_run_response::Event::Entry(entry)) = event.event {
                seqs.push(entry.seq);
                ended |= matches!(kind_of(&entry), Some(entry::Kind::RunEnded(_)));
            }
        }
    }
}

fn serve(port: &Port, data: &TempDir) -> Harness {
    Harness::builder()
        .listen(port.address())
        .argument("--data")
        .argument(data.path().display().to_string())
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

#[test]
fn nothing_acknowledged_is_lost_and_no_recorded_step_runs_twice_whenever_it_is_killed() {
    let (port, data) = (Port::free(), TempDir::new().expect("a folder of its own"));
    let runtime = runtime();
    let stage = Stage {
        address: port.address(),
        stop: CancellationToken::new(),
        acknowledged: Arc::default(),
        watched: Arc::default(),
    };
    let log = Arc::new(Log::default());
    let working = CancellationToken::new();
    let began = Instant::now();
    let mut harness = serve(&port, &data);
    let workers: Vec<_> = (0..WORKERS)
        .map(|at| {
            let worker = Worker::new(port.address(), at == 0, log.clone());
            runtime.spawn(work(worker, working.clone()))
        })
        .collect();
    let starting: Vec<_> = (0..2)
        .map(|_| runtime.spawn(starts(stage.clone())))
        .collect();
    let mut following = Vec::new();
    for _ in 0..kills() {
        std::thread::sleep(Duration::from_millis(30 + below(250)));
        let newest = {
            let acknowledged = stage
                .acknowledged
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            acknowledged.keys().next_back().cloned()
        };
        if let Some(run_id) = newest {
            following.push(runtime.spawn(follows(stage.clone(), run_id)));
        }
        harness.process().signal(Signal::SIGKILL);
        drop(harness);
        harness = serve(&port, &data);
    }
    stage.stop.cancel();
    runtime.block_on(async {
        for task in starting {
            tokio::time::timeout(BOUND, task)
                .await
                .expect("in time")
                .expect("no panic");
        }
        check(&stage, &log).await;
        for task in following {
            tokio::time::timeout(BOUND, task)
                .await
                .expect("in time")
                .expect("no panic");
        }
        check_followers(&stage).await;
        working.cancel();
        for worker in workers {
            worker.await.expect("a worker must not panic");
        }
    });
    drop(harness);
    tell(&stage, &log, began);
}

/// Says how much was done.
#[expect(
    clippy::print_stderr,
    reason = "the figures of a soak are for a person"
)]
fn tell(stage: &Stage, log: &Log, began: Instant) {
    let runs = stage.acknowledged.lock().map_or(0, |all| all.len());
    eprintln!(
        "{} kills, {runs} runs, {} steps, {:.0} s",
        kills(),
        log.ran(),
        began.elapsed().as_secs_f64()
    );
}

/// Whoever followed a run over the restarts has read what its journal says.
async fn check_followers(stage: &Stage) {
    let channel = channel(&stage.address);
    let watched =
        std::mem::take(&mut *stage.watched.lock().unwrap_or_else(PoisonError::into_inner));
    for (run_id, seqs) in watched {
        let whole = journal(&channel, &run_id, BOUND).await;
        let told: Vec<u64> = whole.iter().map(|entry| entry.seq).collect();
        assert!(
            told.starts_with(&seqs),
            "run {run_id} was watched as {seqs:?}"
        );
    }
}

/// Every run that was acknowledged ends as it must.
async fn check(stage: &Stage, log: &Log) {
    let channel = channel(&stage.address);
    let acknowledged = stage
        .acknowledged
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    assert!(!acknowledged.is_empty(), "runs were started");
    let began = Instant::now();
    for (run_id, key) in &acknowledged {
        let left = BOUND.saturating_sub(began.elapsed());
        let entries = journal(&channel, run_id, left).await;
        let names = kinds(&entries);
        let count = |name: &str| names.iter().filter(|kind| **kind == name).count();
        assert_eq!(names.first(), Some(&"run_started"), "{names:?}");
        assert_eq!(
            (count("run_started"), count("run_ended")),
            (1, 1),
            "{names:?}"
        );
        assert_eq!(
            count("step"),
            STEPS,
            "each step of {run_id} once: {names:?}"
        );
        assert_eq!(
            count("attempt_started"),
            count("attempt_ended"),
            "{names:?}"
        );
        let run = run_of(&channel, run_id).await.expect("it is known");
        assert_eq!(&run.idempotency_key, key);
        assert_eq!(harness_tests::durable::value(&run), format!("\"{key}\""));
    }
    log.check();
    let mut listed = 0;
    let mut page_token = String::new();
    loop {
        let request = harness_proto::v1::ListRunsRequest {
            page_size: 1000,
            page_token,
            ..Default::default()
        };
        let page = runs(&channel)
            .list_runs(request)
            .await
            .expect("a page")
            .into_inner();
        listed += page.runs.len();
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert!(
        listed >= acknowledged.len(),
        "{listed} of {}",
        acknowledged.len()
    );
}
