//! Rows of idle slots: memory of 10,000 of them on 10 connections, and that it comes back.

use std::time::{Duration, Instant};

use harness_tests::{Process, Signal, command, eventually};

use crate::proc;
use crate::report::{Row, row};
use crate::sides::{Kind, role, start_server};

const CONNECTIONS: usize = 10;
const SLOTS_EACH: usize = 1_000;
const SLOTS: usize = CONNECTIONS * SLOTS_EACH;
const PATIENCE: Duration = Duration::from_secs(120);
/// What the harness keeps ended runs for, the allocator unused pages, and some more.
const SETTLED: Duration = Duration::from_secs(90);

/// Attaches, idles, asks every slot, leaves; on the floor and on the harness.
pub(crate) fn all(idle: Duration) -> Vec<Row> {
    let (floor, _) = one(Kind::Floor, idle);
    let (harness, steps) = one(Kind::Raw, idle);
    let kib = |bytes: f64| bytes / 1024.0;
    vec![
        row(
            "memory of an idle slot, 1,000 a connection, 10,000 in all".to_owned(),
            format!(
                "{:.1} KiB, floor {:.1} KiB, {:.2}x",
                kib(harness),
                kib(floor),
                harness / floor
            ),
            "1.5x",
        ),
        row(
            format!("10,000 slots attach, idle for {idle:?}, answer, leave"),
            steps,
            "memory back within 20 %",
        ),
    ]
}

/// The memory of a slot, and what the whole of it was like.
fn one(kind: Kind, idle: Duration) -> (f64, String) {
    let (server, address) = start_server(kind);
    let cold = proc::memory(server.pid());
    let before = match kind {
        Kind::Floor => cold,
        Kind::Raw | Kind::Typed => served(kind, &address, server.pid()),
    };
    let begin = Instant::now();
    let worker = attach(kind, &address, CONNECTIONS, SLOTS_EACH);
    wait_for_slots(kind, &address, SLOTS);
    let attached = begin.elapsed();
    if kind == Kind::Floor {
        // The harness's slots have said hello and welcome; these have said nothing yet.
        ask_floor(&address);
    }
    std::thread::sleep(idle);
    let held = proc::memory(server.pid());
    let per_slot = held.saturating_sub(cold) as f64 / SLOTS as f64;
    if kind == Kind::Floor {
        return (per_slot, String::new());
    }
    let begin = Instant::now();
    ask_all(&address, SLOTS);
    let answered = begin.elapsed();
    leave(kind, &address, worker);
    let after = settled(server.pid());
    let mib = |bytes: u64| bytes as f64 / (1024.0 * 1024.0);
    let steps = format!(
        "attached in {:.1} s, asked with {SLOTS} in flight for {:.1} s; memory {:.1} MiB new, {:.1} \
         when 64 slots had been asked and left, {:.1} with 10,000, {:.1} when they had left \
         ({:+.0} %)",
        attached.as_secs_f64(),
        answered.as_secs_f64(),
        mib(cold),
        mib(before),
        mib(held),
        mib(after),
        (after as f64 / before as f64 - 1.0) * 100.0,
    );
    (per_slot, steps)
}

/// The memory of a server that has served and is idle again.
fn served(kind: Kind, address: &str, pid: u32) -> u64 {
    let worker = attach(kind, address, 1, 64);
    wait_for_slots(kind, address, 64);
    ask_all(address, 64);
    leave(kind, address, worker);
    settled(pid)
}

fn leave(kind: Kind, address: &str, worker: Process) {
    worker.signal(Signal::SIGTERM);
    wait_for_slots(kind, address, 0);
    let left = worker.finish_within(PATIENCE);
    assert_eq!(left.code, Some(0), "{left}");
}

/// The memory once ended runs are forgotten and unused pages given back.
fn settled(pid: u32) -> u64 {
    std::thread::sleep(SETTLED);
    proc::memory(pid)
}

fn attach(kind: Kind, address: &str, connections: usize, slots: usize) -> Process {
    let mut command = match kind {
        Kind::Floor => role("floor-worker"),
        Kind::Raw | Kind::Typed => role("worker"),
    };
    match kind {
        Kind::Floor => command.arg(format!("--connections={connections}")),
        Kind::Raw | Kind::Typed => command.arg(format!("--workers={connections}")),
    };
    command.arg(format!("--slots={slots}")).arg(address);
    Process::start("worker", command)
}

/// Waits until the server has so many slots. The floor has nobody to ask: its worker's word and a
/// pause stand for it.
fn wait_for_slots(kind: Kind, address: &str, slots: usize) {
    if kind == Kind::Floor {
        std::thread::sleep(Duration::from_secs(if slots > 1 { 5 } else { 1 }));
        return;
    }
    eventually("all slots", PATIENCE, || {
        let mut agents = command("harness");
        agents.args(["agents", "--json", "--server", address]);
        let told = Process::run("agents", agents).json();
        let ready = told
            .as_array()
            .and_then(|agents| agents.first())
            .map_or(0, |echo| echo["slots_ready"].as_u64().unwrap_or(0));
        (ready == slots as u64).then_some(())
    });
}

/// Has every slot of the floor used once.
fn ask_floor(address: &str) {
    let mut client = role("floor-client");
    client.args([address, "--seconds", "2", "--connections", "10", "--many"]);
    client.arg(format!("--inflight={SLOTS}"));
    let told = Process::start("floor client", client).finish_within(PATIENCE);
    assert_eq!(told.code, Some(0), "{told}");
}

/// As many asks in flight as there are slots, over as many connections as that takes.
fn ask_all(address: &str, inflight: usize) {
    let mut bench = command("harness");
    bench.args(["bench", "echo", "--json", "--server", address]);
    bench.args(["--seconds", "2", "--connections", "10", "--many"]);
    bench.arg(format!("--inflight={inflight}"));
    let told = Process::start("bench", bench).finish_within(PATIENCE);
    assert_eq!(told.code, Some(0), "{told}");
    let told = told.json();
    let errors = told["errors"].as_object().expect("errors by code");
    assert!(errors.is_empty(), "{told}");
    assert!(told["requests"].as_u64() >= Some(inflight as u64), "{told}");
}
