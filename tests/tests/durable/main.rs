//! Durable runs: over real sockets, over stores that fail, over harnesses that are killed.

mod agent_loops;
mod journal_file;
mod resuming;
mod runs;
mod sdk_workers;
mod stores;
