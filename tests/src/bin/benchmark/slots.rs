//! Rows of idle slots: memory of 10,000 of them on 10 connections, and that it comes back.

use std::time::{Duration, Instant};

use harness_tests::{Process, Signal, command, eventually};

use crate::proc;
use crate::report::{Row, row};
use crate::sides::{Kind, start_server};

const CONNECTIONS: usize = 10;
const SLOTS_EACH: usize = 1_000;
const SLOTS: usize = CONNECTIONS * SLOTS_EACH;
const PATIENCE: Duration = Duration::from_secs(120);
/// What the harness keeps ended runs for, the allocator unused pages, and some more.
const SETTLED: Duration = Duration::from_secs(90);

/// The memory of an idle slot on the floor and on the harness; and on the harness the way there and
/// back: attach, idle, answer, leave.
pub(crate) fn all(idle: Duration) -> Vec<Row> {
    let floor = floor(idle);
    let (harness, steps) = harness(idle);
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

/// The memory of a slot of the floor, which has nobody to ask how many are there: all of them
/// attach while they are idle.
fn floor(idle: Duration) -> f64 {
    let (server, address) = start_server(Kind::Floor);
    let cold = proc::memory(server.pid());
    let _worker = attach(Kind::Floor, &address, CONNECTIONS, SLOTS_EACH);
    std::thread::sleep(idle);
    per_slot(cold, proc::memory(server.pid()))
}

/// The memory of a slot of the harness, and what the whole of it was like.
fn harness(idle: Duration) -> (f64, String) {
    let (server, address) = start_server(Kind::Raw);
    let cold = proc::memory(server.pid());
    let before = served(&address, server.pid());
    let begin = Instant::now();
    let worker = attach(Kind::Raw, &address, CONNECTIONS, SLOTS_EACH);
    wait_for_slots(&address, SLOTS);
    let attached = begin.elapsed();
    std::thread::sleep(idle);
    let held = proc::memory(server.pid());
    let begin = Instant::now();
    ask_all(&address, SLOTS);
    let answered = begin.elapsed();
    leave(&address, worker);
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
    (per_slot(cold, held), steps)
}

fn per_slot(cold: u64, held: u64) -> f64 {
    held.saturating_sub(cold) as f64 / SLOTS as f64
}

/// The memory of a server that has served and is idle again.
fn served(address: &str, pid: u32) -> u64 {
    let worker = attach(Kind::Raw, address, 1, 64);
    wait_for_slots(address, 64);
    ask_all(address, 64);
    leave(address, worker);
    settled(pid)
}

fn leave(address: &str, worker: Process) {
    worker.signal(Signal::SIGTERM);
    wait_for_slots(address, 0);
    let left = worker.finish_within(PATIENCE);
    assert_eq!(left.code, Some(0), "{left}");
}

/// The memory once ended runs are forgotten and unused pages given back.
fn settled(pid: u32) -> u64 {
    std::thread::sleep(SETTLED);
    proc::memory(pid)
}

fn attach(kind: Kind, address: &str, connections: usize, slots: usize) -> Process {
    let mut command = kind.worker();
    match kind {
        Kind::Floor => command.arg(format!("--connections={connections}")),
        Kind::Raw | Kind::Typed => command.arg(format!("--workers={connections}")),
    };
    command.arg(format!("--slots={slots}")).arg(address);
    Process::start("worker", command)
}

/// Waits until the harness has so many slots.
fn wait_for_slots(address: &str, slots: usize) {
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
