//! The two sides that are compared: each a server and a worker of its own, asked by clients that
//! come and go.

use std::process::Command;
use std::time::{Duration, Instant};

use harness_tests::{Process, eventually, program};

use crate::load::{Load, Told};
use crate::proc;
use crate::sdk_worker::Form;

/// How long anything may take to be there.
const PATIENCE: Duration = Duration::from_secs(60);
/// What is measured of a client's time: not its start, its warm-up and its end.
const SETTLED: Duration = Duration::from_millis(700);

/// What an idle side was told to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The bare relay.
    Floor,
    /// The harness with raw payloads.
    Raw,
    /// The harness with an agent whose schemas are derived from its types.
    Typed,
}

impl Kind {
    /// This program as the side's worker.
    pub(crate) fn worker(self) -> Command {
        role(match self {
            Self::Floor => "floor-worker",
            Self::Raw | Self::Typed => "worker",
        })
    }
}

/// A server and its worker.
pub(crate) struct Side {
    kind: Kind,
    address: String,
    server: Process,
    worker: Process,
}

/// What one load cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    pub(crate) told: Told,
    /// CPU of server, worker and client, in microseconds a request.
    pub(crate) cpu_us: [f64; 3],
}

/// A command of this program in another role.
pub(crate) fn role(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
    command.arg(role);
    command
}

impl Side {
    /// Starts both processes, the worker with 64 slots, and waits until they are there.
    pub(crate) fn start(kind: Kind) -> Self {
        Self::start_with(kind, |address| {
            let mut command = kind.worker();
            if kind == Kind::Typed {
                command.args(["--kind", "typed"]);
            }
            command.arg(address);
            command
        })
    }

    /// The same with another worker for an address.
    pub(crate) fn start_with(kind: Kind, worker: impl Fn(&str) -> Command) -> Self {
        let (server, address) = start_server(kind);
        let worker = Process::start("worker", worker(&address));
        let side = Self {
            kind,
            address,
            server,
            worker,
        };
        side.wait_until_it_answers();
        side
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Asks under a load and measures.
    pub(crate) fn ask(&self, load: &Load) -> Measured {
        let client = self.load(load);
        std::thread::sleep(SETTLED);
        let pids = [self.server.pid(), self.worker.pid(), client.pid()];
        let begin = (Instant::now(), pids.map(proc::cpu));
        std::thread::sleep(load.seconds.saturating_sub(SETTLED / 2));
        let (spent, cpu) = (begin.0.elapsed(), pids.map(proc::cpu));
        let finished = client.finish_within(PATIENCE);
        assert_eq!(finished.code, Some(0), "{finished}");
        let told = Told::read(&finished.json());
        let requests = told.requests_per_s * spent.as_secs_f64();
        let mut cpu_us = [0.0; 3];
        for (at, cpu_us) in cpu_us.iter_mut().enumerate() {
            *cpu_us = (cpu[at] - begin.1[at]).as_secs_f64() * 1e6 / requests;
        }
        Measured { told, cpu_us }
    }

    /// Starts a load.
    pub(crate) fn load(&self, load: &Load) -> Process {
        Process::start("client", self.client(load))
    }

    fn client(&self, load: &Load) -> Command {
        let mut command = match self.kind {
            Kind::Floor => role("floor-client"),
            Kind::Raw | Kind::Typed => {
                let mut command = Command::new(program("harness"));
                command.args(["bench", self.agent(), "--json", "--server"]);
                command
            }
        };
        command.arg(&self.address);
        match self.kind {
            Kind::Floor | Kind::Raw => command.args(load.arguments()),
            Kind::Typed => command.args(load.arguments_with(&Form::example())),
        };
        command
    }

    fn agent(&self) -> &'static str {
        match self.kind {
            Kind::Floor | Kind::Raw => "echo",
            Kind::Typed => "form",
        }
    }

    fn wait_until_it_answers(&self) {
        let once = Load {
            inflight: 1,
            seconds: Duration::from_millis(10),
            bytes: 64,
            many: false,
            connections: 1,
        };
        eventually("an answer", PATIENCE, || {
            let asked = Process::start("first client", self.client(&once));
            (asked.finish_within(PATIENCE).code == Some(0)).then_some(())
        });
    }
}

/// Starts a server on a free port; gives its address.
pub(crate) fn start_server(kind: Kind) -> (Process, String) {
    let command = match kind {
        Kind::Floor => role("floor-server"),
        Kind::Raw | Kind::Typed => {
            let mut command = Command::new(program("harness"));
            command.args(["serve", "--listen", "127.0.0.1:0"]);
            command
        }
    };
    let mut server = Process::start("server", command);
    let line = server.wait_for_line("listening on ");
    let address = line.rsplit(' ').next().unwrap_or_default().to_owned();
    (server, address)
}
