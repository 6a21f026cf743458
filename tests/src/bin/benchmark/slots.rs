//! Rows of idle slots: memory of 10,000 of them on 10 connections, and that it comes back.

use std::time::Duration;

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
            "at most 1.2 of before",
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
    let pid = server.pid();
    let cold = proc::memory(pid);
    let before = served(&address, pid);
    let first = crowd(&address, pid, idle);
    let second = crowd(&address, pid, idle);
    let mib = |bytes: u64| bytes as f64 / (1024.0 * 1024.0);
    let times = |bytes: u64| bytes as f64 / before as f64;
    let steps = format!(
        "memory {:.1} MiB new, {:.1} when 64 slots had served and left; with 10,000 {:.1}, when all \
         had answered {:.1}, when they had left {:.1}, {:.2} of before; a second such crowd: {:.1}, \
         {:.1}, {:.1}, {:.2} of before",
        mib(cold),
        mib(before),
        mib(first.held),
        mib(first.answered),
        mib(first.after),
        times(first.after),
        mib(second.held),
        mib(second.answered),
        mib(second.after),
        times(second.after),
    );
    (per_slot(cold, first.held), steps)
}

/// The memory of a server while 10,000 slots were there, and after.
struct Crowd {
    held: u64,
    answered: u64,
    after: u64,
}

/// 10,000 slots on 10 connections attach, are idle, answer one request each, and leave.
fn crowd(address: &str, pid: u32, idle: Duration) -> Crowd {
    let worker = attach(Kind::Raw, address, CONNECTIONS, SLOTS_EACH);
    wait_for_slots(address, SLOTS);
    std::thread::sleep(idle);
    let held = proc::memory(pid);
    ask_each(address);
    let answered = proc::memory(pid);
    leave(address, worker);
    let after = settled(pid);
    Crowd {
        held,
        answered,
        after,
    }
}

fn per_slot(cold: u64, held: u64) -> f64 {
    held.saturating_sub(cold) as f64 / SLOTS as f64
}

/// The memory of a server that has served and is idle again.
fn served(address: &str, pid: u32) -> u64 {
    let worker = attach(Kind::Raw, address, 1, 64);
    wait_for_slots(address, 64);
    ask_for_a_while(address);
    wait_for_slots(address, 64);
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

/// Asks each of the 10,000 slots once, all at the same time.
fn ask_each(address: &str) {
    let mut client = role("ask-once");
    client.arg(format!("--asks={SLOTS}"));
    client.arg(format!("--connections={CONNECTIONS}"));
    client.arg(address);
    let asked = Process::start("client", client).finish_within(PATIENCE);
    assert_eq!(asked.code, Some(0), "{asked}");
}

/// Keeps 64 slots busy for a while.
fn ask_for_a_while(address: &str) {
    let mut bench = command("harness");
    bench.args(["bench", "echo", "--json", "--server", address]);
    bench.args(["--seconds", "2", "--many", "--inflight", "64"]);
    let told = Process::start("bench", bench).finish_within(PATIENCE);
    assert_eq!(told.code, Some(0), "{told}");
    let told = told.json();
    let errors = told["errors"].as_object().expect("errors by code");
    assert!(errors.is_empty(), "{told}");
}
