//! Rows of durable runs: from StartRun to the end beside interactive asks, appends beside bare SQLite,
//! how soon an entry is seen, and a restart over 10,000 queued runs.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use harness_proto::v1::{ListAgentsRequest, StartRunRequest, entry, watch_run_response};
use harness_server::ids::{AgentKey, Attempt, RunId};
use harness_server::store::{Entry, Fence, NewRun, Sqlite, Stamp, Step, Store};
use harness_tests::durable::{append, kind_of, start, started, watch};
use harness_tests::raw::{RawSlot, admin, connect, full_hello, runs};
use harness_tests::{Port, Process, Signal, eventually, program};
use rusqlite::{Connection, params};
use tempfile::TempDir;
use tonic::transport::Channel;
use uuid::Uuid;

use crate::proc;
use crate::report::{Row, median, row};
use crate::sides::Kind;

/// How long a load goes on.
const LOAD: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(60);
const QUEUED: usize = 10_000;
const AGENT: &str = "echo";

/// All rows; each of its loads so many times.
pub(crate) fn all(rounds: usize) -> Vec<Row> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let mut rows = runtime.block_on(beside_asks(rounds));
    rows.extend([16, 64].map(|group| appends(group, rounds)));
    rows.push(runtime.block_on(watching()));
    rows.push(runtime.block_on(restarting()));
    rows
}

fn serve(port: &Port, data: &Path) -> Process {
    let mut command = Command::new(program("harness"));
    command.args(["serve", "--listen", &port.address(), "--data"]);
    command.arg(data);
    let mut server = Process::start("server", command);
    server.wait_for_line("listening on ");
    server
}

/// One durable run from its start to its end.
async fn durable(channel: &Channel) {
    let run = started(channel, start(AGENT, "\"x\"")).await;
    let mut events = watch(channel, &run.run_id, run.head + 1)
        .await
        .expect("the run is known");
    while let Some(event) = events.message().await.expect("no error") {
        drop(event);
    }
}

async fn ask(channel: &Channel) {
    let asked = harness_tests::raw::ask(AGENT, "\"x\"", PATIENCE);
    runs(channel).ask(asked).await.expect("an answer");
}

/// What a load came to.
struct Measured {
    per_second: f64,
    /// The median latency in milliseconds.
    p50: f64,
}

async fn load(channel: &Channel, at_once: usize, is_durable: bool) -> Measured {
    let until = Instant::now() + LOAD;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..at_once {
        let channel = channel.clone();
        tasks.spawn(async move {
            let mut took = Vec::new();
            while Instant::now() < until {
                let begin = Instant::now();
                match is_durable {
                    true => durable(&channel).await,
                    false => ask(&channel).await,
                }
                took.push(begin.elapsed().as_secs_f64() * 1000.0);
            }
            took
        });
    }
    let took: Vec<f64> = tasks.join_all().await.into_iter().flatten().collect();
    Measured {
        per_second: took.len() as f64 / LOAD.as_secs_f64(),
        p50: median(took.into_iter()),
    }
}

async fn beside_asks(rounds: usize) -> Vec<Row> {
    let (port, data) = (Port::free(), TempDir::new().expect("a folder"));
    let _server = serve(&port, data.path());
    let mut command = Kind::Raw.worker();
    command.arg(port.address());
    let _worker = Process::start("worker", command);
    let channel = connect(&port.address()).await;
    let ready = || async {
        let asked = harness_tests::raw::ask(AGENT, "\"x\"", PATIENCE);
        runs(&channel).ask(asked).await.is_ok()
    };
    harness_tests::raw::eventually(PATIENCE, "the worker answers", ready).await;
    let mut rows = Vec::new();
    for at_once in [1, 64] {
        let (mut asks, mut durable) = (Vec::new(), Vec::new());
        for _ in 0..rounds.max(1) {
            asks.push(load(&channel, at_once, false).await);
            durable.push(load(&channel, at_once, true).await);
        }
        let rate = |of: &[Measured]| median(of.iter().map(|it| it.per_second));
        let p50 = |of: &[Measured]| median(of.iter().map(|it| it.p50));
        let pairs = durable.iter().zip(&asks);
        let ratio = median(pairs.map(|(durable, ask)| durable.per_second / ask.per_second));
        rows.push(row(
            format!("durable StartRun to its end seen by WatchRun, {at_once} in flight"),
            format!(
                "{:.0}/s, p50 {:.2} ms; asks {:.0}/s, p50 {:.2} ms: {:.2}",
                rate(&durable),
                p50(&durable),
                rate(&asks),
                p50(&asks),
                ratio,
            ),
            if at_once == 64 { "0.60 of asks" } else { "" },
        ));
    }
    rows
}

fn content() -> Bytes {
    Bytes::from(vec![b'x'; 128])
}

/// Appends a second through the store and through bare SQLite, `group` at once.
fn appends(group: usize, rounds: usize) -> Row {
    let pairs: Vec<(f64, f64)> = (0..rounds.max(1))
        .map(|_| (bare(group), stored(group)))
        .collect();
    let bare = median(pairs.iter().map(|pair| pair.0));
    let ours = median(pairs.iter().map(|pair| pair.1));
    let ratio = median(pairs.iter().map(|pair| pair.1 / pair.0));
    row(
        format!("appends in groups of {group}"),
        format!(
            "{:.0} k/s, bare SQLite {:.0} k/s: {ratio:.2}",
            ours / 1e3,
            bare / 1e3
        ),
        "0.7 in groups of 64",
    )
}

fn bare(group: usize) -> f64 {
    let folder = TempDir::new().expect("a folder");
    let mut connection = Connection::open(folder.path().join("bare.db")).expect("a file");
    for (pragma, value) in [("journal_mode", "WAL"), ("synchronous", "FULL")] {
        connection
            .pragma_update(None, pragma, value)
            .expect("a setting");
    }
    connection
        .pragma_update(None, "wal_autocheckpoint", 0)
        .expect("a setting");
    connection
        .execute_batch(harness_proto::JOURNAL_SQL)
        .expect("a table");
    let runs: Vec<[u8; 16]> = (0..group).map(|_| *Uuid::now_v7().as_bytes()).collect();
    let content = content();
    let (begin, mut rows) = (Instant::now(), 0_i64);
    while begin.elapsed() < LOAD {
        let transaction = connection.transaction().expect("a transaction");
        for run in &runs {
            transaction
                .prepare_cached("INSERT INTO journal VALUES (?1, ?2, 1, ?2, 0, ?3)")
                .and_then(|mut insert| {
                    insert.execute(params![run, rows / group as i64 + 1, &*content])
                })
                .expect("a row");
            rows += 1;
        }
        transaction.commit().expect("a commit");
    }
    rows as f64 / begin.elapsed().as_secs_f64()
}

fn stored(group: usize) -> f64 {
    let folder = TempDir::new().expect("a folder");
    let store = Sqlite::open(folder.path()).expect("a store");
    let (done, told) = mpsc::channel();
    let write = |step: Step| {
        let done = done.clone();
        store.write(
            step,
            Box::new(move |outcome| {
                outcome.expect("it is written");
                done.send(()).expect("the benchmark waits");
            }),
        );
    };
    let wait = |count: usize| (0..count).for_each(|_| told.recv().expect("it is told"));
    let entry = |seq: u64| Entry {
        seq,
        attempt: Attempt(0),
        worker_seq: seq,
        time: Stamp(0),
        content: content(),
    };
    let runs: Vec<RunId> = (0..group).map(|_| RunId(Uuid::now_v7())).collect();
    for id in &runs {
        write(Step::Enqueue {
            run: Arc::new(NewRun {
                id: *id,
                agent: AgentKey::new("", AGENT),
                key: String::new(),
                priority: 0,
                created: Stamp(0),
                start: None,
                deadline: Stamp(i64::MAX),
                caller: String::new(),
                depth: 0,
                options: Bytes::new(),
                labels: Default::default(),
            }),
            entries: vec![entry(1)],
            first: None,
        });
    }
    wait(group);
    let (begin, mut head) = (Instant::now(), 1);
    while begin.elapsed() < LOAD {
        for run in &runs {
            write(Step::Append {
                fence: Fence {
                    run: *run,
                    attempt: Attempt(0),
                    head,
                },
                entries: vec![entry(head + 1)],
                replayed: None,
            });
        }
        wait(group);
        head += 1;
    }
    (head - 1) as f64 * group as f64 / begin.elapsed().as_secs_f64()
}

/// How long after a worker has sent an entry it is acknowledged, and seen by who follows the run.
async fn watching() -> Row {
    const ENTRIES: u64 = 500;
    let (port, data) = (Port::free(), TempDir::new().expect("a folder"));
    let _server = serve(&port, data.path());
    let mut slot = RawSlot::attach(connect(&port.address()).await, full_hello(AGENT)).await;
    let channel = connect(&port.address()).await;
    let run = started(&channel, start(AGENT, "\"x\"")).await;
    let request = slot.request().await;
    let mut events = watch(&channel, &run.run_id, 3).await.expect("known");
    let mut seen = Vec::new();
    for seq in 1..=ENTRIES {
        let log = entry::Kind::Log(harness_proto::v1::Log {
            message: "a line of some length, as logs are".to_owned(),
            ..Default::default()
        });
        let begin = Instant::now();
        slot.send(append(&request, seq, log)).await;
        let event = events.message().await.expect("no error").expect("an entry");
        let Some(watch_run_response::Event::Entry(told)) = event.event else {
            continue;
        };
        assert!(matches!(kind_of(&told), Some(entry::Kind::Log(_))));
        seen.push(begin.elapsed().as_secs_f64() * 1000.0);
        slot.next().await;
    }
    seen.sort_by(f64::total_cmp);
    let at = |share: f64| seen[((seen.len() - 1) as f64 * share) as usize];
    row(
        "an entry sent, seen by WatchRun, 1 at once".to_owned(),
        format!("p50 {:.2} ms, p99 {:.2} ms", at(0.5), at(0.99)),
        "",
    )
}

/// Until a harness that was killed over queued runs has all of them again, and what they take.
async fn restarting() -> Row {
    let (port, data) = (Port::free(), TempDir::new().expect("a folder"));
    let idle = {
        let server = serve(&port, data.path());
        let channel = connect(&port.address()).await;
        let idle = proc::memory(server.pid());
        let mut starting = tokio::task::JoinSet::new();
        for at in 0..QUEUED {
            let channel = channel.clone();
            starting.spawn(async move {
                let mut request: StartRunRequest =
                    start(AGENT, &format!("\"{}\"", "x".repeat(1000)));
                request.options = Some(harness_proto::v1::RunOptions {
                    wait_for_agent: true,
                    ..Default::default()
                });
                request.idempotency_key = at.to_string();
                started(&channel, request).await;
            });
            if starting.len() >= 64 {
                starting.join_next().await;
            }
        }
        starting.join_all().await;
        server.signal(Signal::SIGKILL);
        idle
    };
    let begin = Instant::now();
    let server = serve(&port, data.path());
    let serving = begin.elapsed();
    let channel = connect(&port.address()).await;
    let mut slot = RawSlot::attach(connect(&port.address()).await, full_hello(AGENT)).await;
    let all_there = || async {
        let agents = admin(&channel)
            .list_agents(ListAgentsRequest::default())
            .await;
        let agents = agents.expect("an answer").into_inner().agents;
        let queued = agents.first().map_or(0, |agent| agent.queued);
        queued as usize >= QUEUED - 1
    };
    harness_tests::raw::eventually(PATIENCE, "all runs are taken in", all_there).await;
    let all = begin.elapsed();
    let request = slot.request().await;
    slot.reply(&request, "1").await;
    let held = eventually("the memory is told", PATIENCE, || {
        Some(proc::memory(server.pid()))
    });
    row(
        format!("restart over {QUEUED} queued runs of 1,000 bytes"),
        format!(
            "listens after {:.2} s, has all after {:.2} s; memory {:.1} MiB, idle {:.1} MiB: {:.2} KiB a run",
            serving.as_secs_f64(),
            all.as_secs_f64(),
            held as f64 / 1048576.0,
            idle as f64 / 1048576.0,
            held.saturating_sub(idle) as f64 / 1024.0 / QUEUED as f64,
        ),
        "serving within 2 s; 50 MB and 2 KB a run",
    )
}
