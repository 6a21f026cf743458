//! A worker under test, in a process of its own.

use std::path::Path;
use std::process::Command;

use crate::harness::Harness;
use crate::process::{Finished, Process, Signal};
use crate::programs::{command, python, source};
use crate::step_log;

/// A running worker; killed when dropped.
pub struct Worker {
    process: Process,
    agent: String,
}

/// A worker to be started.
pub struct WorkerBuilder {
    agent: String,
    slots: u64,
    command: Command,
}

impl Worker {
    /// Starts a worker of the Rust examples with one slot, and waits until that is READY.
    ///
    /// # Panics
    /// When it does not get there.
    #[track_caller]
    pub fn start(harness: &Harness, agent: &str) -> Self {
        Self::example(agent).start(harness)
    }

    /// A worker of the Rust examples; its program is named after its agent.
    #[track_caller]
    pub fn example(agent: &str) -> WorkerBuilder {
        WorkerBuilder::new(agent, command(agent))
    }

    /// The agent `puppet`, which does what its request says; see `tests/src/bin/puppet.rs`.
    #[track_caller]
    pub fn puppet() -> WorkerBuilder {
        WorkerBuilder::new("puppet", command("puppet"))
    }

    /// The worker of the crash test, which keeps its log of steps in a file; see
    /// `tests/src/bin/stepper.rs`.
    #[track_caller]
    pub fn stepper(log: &Path) -> WorkerBuilder {
        let mut command = command("stepper");
        command.env(step_log::VARIABLE, log);
        WorkerBuilder::new(step_log::AGENT, command)
    }

    /// [`Worker::puppet`] at the minimal level, on `examples/python/worker.py`; see
    /// `tests/python/puppet.py`. None where there is no Python.
    ///
    /// # Panics
    /// As [`python`].
    pub fn minimal_puppet() -> Option<WorkerBuilder> {
        Self::python_puppet("minimal")
    }

    /// [`Worker::puppet`] at the full level without our SDK, on `tests/python/full.py`. None where
    /// there is no Python.
    ///
    /// # Panics
    /// As [`python`].
    pub fn full_puppet() -> Option<WorkerBuilder> {
        Self::python_puppet("full")
    }

    fn python_puppet(level: &str) -> Option<WorkerBuilder> {
        let mut command = python(source("tests/python/puppet.py"))?;
        command.arg(level);
        Some(WorkerBuilder::new("puppet", command))
    }

    /// The worker of `examples/python`, agent `shout`; none where there is no Python.
    ///
    /// # Panics
    /// As [`python`].
    pub fn python() -> Option<WorkerBuilder> {
        let command = python(source("examples/python/worker.py"))?;
        Some(WorkerBuilder::new("shout", command))
    }

    /// The worker of durable runs of `examples/python`, agent `ledger`; none where there is no
    /// Python.
    ///
    /// # Panics
    /// As [`python`].
    pub fn durable_python() -> Option<WorkerBuilder> {
        let command = python(source("examples/python/durable.py"))?;
        Some(WorkerBuilder::new("ledger", command))
    }

    /// Its agent.
    pub fn agent(&self) -> &str {
        &self.agent
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Asks it to leave with SIGTERM and waits until it has.
    ///
    /// # Panics
    /// When it does not end in time.
    #[track_caller]
    pub fn stop(self) -> Finished {
        self.process.signal(Signal::SIGTERM);
        self.process.finish()
    }

    /// Waits until it ends by itself.
    ///
    /// # Panics
    /// When it does not in time.
    #[track_caller]
    pub fn finish(self) -> Finished {
        self.process.finish()
    }
}

impl WorkerBuilder {
    fn new(agent: &str, command: Command) -> Self {
        Self {
            agent: agent.to_owned(),
            slots: 1,
            command,
        }
    }

    /// How many slots it has. Default 1.
    #[must_use]
    pub fn slots(mut self, slots: u64) -> Self {
        self.slots = slots;
        self
    }

    /// Makes a puppet the agent `typed`, which takes an object with an integer `number` and gives
    /// it back; its reply schema takes none above 100.
    #[must_use]
    pub fn typed(mut self) -> Self {
        self.agent = "typed".to_owned();
        self.env("PUPPET_AGENT", "typed")
    }

    /// Makes the process of a Rust puppet so many workers, each with its own connection and all the
    /// slots.
    #[must_use]
    pub fn workers(self, workers: usize) -> Self {
        self.env("PUPPET_WORKERS", &workers.to_string())
    }

    /// An environment variable for it, such as RUST_LOG.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Starts it and waits until all its slots are READY, on top of those the agent has by others.
    ///
    /// # Panics
    /// When it does not get there.
    #[track_caller]
    pub fn start(self, harness: &Harness) -> Worker {
        let before = harness
            .agent(&self.agent)
            .and_then(|agent| agent["slots_ready"].as_u64())
            .unwrap_or_default();
        let (agent, slots) = (self.agent.clone(), self.slots);
        let worker = self.start_unattached(harness.address());
        harness.wait_for_ready(&agent, before + slots);
        worker
    }

    /// Starts it with an address where a harness may or may not be, and waits for nothing.
    ///
    /// # Panics
    /// When it cannot be started.
    #[track_caller]
    pub fn start_unattached(mut self, address: &str) -> Worker {
        self.command
            .env("HARNESS_ADDRESS", address)
            .env("HARNESS_SLOTS", self.slots.to_string());
        Worker {
            process: Process::start(format!("worker {}", self.agent), self.command),
            agent: self.agent,
        }
    }
}
