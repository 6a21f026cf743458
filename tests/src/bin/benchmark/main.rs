//! The benchmark: the harness beside its floor, in one interleaved run. `tests/benchmark` builds and
//! starts it; `tests/benchmark.md` has the figures.
//!
//! The program is also each process of the floor and the harness's worker: it starts itself again in
//! these roles.

mod agent_loop;
mod ask_once;
mod clock;
mod durable;
mod floor;
mod latencies;
mod load;
mod pools;
mod proc;
mod report;
mod sdk_worker;
mod sides;
mod slots;
mod throughput;

use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

use load::Load;
use throughput::Effort;

/// Measures the harness beside its floor and prints tables of Markdown
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,

    /// What to measure [default: all]
    #[arg(value_enum)]
    parts: Vec<Part>,

    #[command(flatten)]
    effort: Effort,

    /// Asks of each latency
    #[arg(long, default_value_t = 500)]
    asks: usize,

    /// Seconds that 10,000 slots are idle
    #[arg(long, default_value_t = 60)]
    idle: u64,
}

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Requests a second and CPU of each process
    Throughput,
    /// Latency of one ask on one processor
    Pinned,
    /// A worker in Python
    Python,
    /// How soon ends are seen
    Latencies,
    /// How exactly deadlines are kept under load
    Deadlines,
    /// Memory of 10,000 slots
    Slots,
    /// Durable runs beside asks, appends beside bare SQLite, a restart
    Durable,
    /// The agent loop by itself
    Loop,
    /// Processes that stay beside a process per request, and beside a bare pipe
    Pools,
    /// How soon a worker that died or was ended has a successor
    Replacing,
    /// A pool beside one that cannot start
    Neighbour,
}

#[derive(Subcommand)]
#[command(hide = true)]
enum Role {
    /// The floor's server
    FloorServer(Threads),
    /// The floor's worker
    FloorWorker {
        #[command(flatten)]
        threads: Threads,
        address: String,
        #[arg(long, default_value_t = 64)]
        slots: usize,
        #[arg(long, default_value_t = 1)]
        connections: usize,
        #[arg(long)]
        hang: bool,
    },
    /// The floor's client
    FloorClient {
        #[command(flatten)]
        threads: Threads,
        address: String,
        #[command(flatten)]
        load: Load,
    },
    /// The harness's worker
    Worker {
        #[command(flatten)]
        threads: Threads,
        address: String,
        #[arg(long, default_value_t = 64)]
        slots: usize,
        #[arg(long, default_value_t = 1)]
        workers: usize,
        #[arg(long, value_enum, default_value = "raw")]
        kind: sdk_worker::Kind,
    },
    /// A client that asks at a steady rate
    SteadyAsks {
        #[command(flatten)]
        threads: Threads,
        address: String,
    },
    /// A client that asks so often, all at once
    AskOnce {
        #[command(flatten)]
        threads: Threads,
        address: String,
        #[arg(long)]
        asks: usize,
        #[arg(long, default_value_t = 1)]
        connections: usize,
    },
}

#[derive(Clone, Copy, clap::Args)]
struct Threads {
    /// Threads of the runtime; 1 is a runtime of one thread
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

impl Threads {
    fn block_on<F: Future>(self, future: F) -> F::Output {
        let mut builder = match self.threads {
            1 => tokio::runtime::Builder::new_current_thread(),
            _ => tokio::runtime::Builder::new_multi_thread(),
        };
        if self.threads > 1 {
            builder.worker_threads(self.threads);
        }
        builder
            .enable_all()
            .build()
            .expect("a runtime")
            .block_on(future)
    }
}

/// The harness's.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() {
    let arguments = Arguments::parse();
    match arguments.role {
        Some(role) => act(role),
        None => measure(&arguments),
    }
}

fn act(role: Role) {
    match role {
        Role::FloorServer(threads) => threads.block_on(floor::server::run()),
        Role::FloorWorker {
            threads,
            address,
            slots,
            connections,
            hang,
        } => threads.block_on(floor::worker::run(address, slots, connections, hang)),
        Role::FloorClient {
            threads,
            address,
            load,
        } => threads.block_on(floor::client::run(address, load)),
        Role::Worker {
            threads,
            address,
            slots,
            workers,
            kind,
        } => threads.block_on(sdk_worker::run(address, slots, workers, kind)),
        Role::SteadyAsks { threads, address } => threads.block_on(durable::steady::run(address)),
        Role::AskOnce {
            threads,
            address,
            asks,
            connections,
        } => threads.block_on(ask_once::run(address, asks, connections)),
    }
}

fn measure(arguments: &Arguments) {
    let (effort, parts) = (arguments.effort, &arguments.parts);
    let one_thread = Threads { threads: 1 };
    for part in Part::value_variants() {
        if !parts.is_empty() && !parts.contains(part) {
            continue;
        }
        let rows = match part {
            Part::Throughput => throughput::all(effort),
            Part::Pinned => throughput::pinned(effort),
            Part::Python => throughput::python(effort),
            Part::Latencies => one_thread.block_on(latencies::all(arguments.asks)),
            Part::Deadlines => one_thread.block_on(latencies::deadlines(arguments.asks)),
            Part::Slots => slots::all(Duration::from_secs(arguments.idle)),
            Part::Durable => durable::all(effort.rounds),
            Part::Loop => one_thread.block_on(agent_loop::all()),
            Part::Pools => pools::all(effort),
            Part::Replacing => one_thread.block_on(pools::replacing::all(arguments.asks)),
            Part::Neighbour => pools::neighbour::all(effort),
        };
        report::print(&format!("{part:?}"), &rows);
    }
}

/// A line on standard error, for who started this process.
#[expect(
    clippy::print_stderr,
    reason = "read by the process that started this one"
)]
fn tell(line: &str) {
    eprintln!("{line}");
}

/// A line on standard output.
#[expect(clippy::print_stdout, reason = "the figures are the program's output")]
fn print(line: &impl std::fmt::Display) {
    println!("{line}");
}
