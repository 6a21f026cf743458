//! Durable runs: over real sockets, over stores that fail, over harnesses that are killed.

mod agent_loops;
mod cli;
mod crash;
mod hostile;
mod journal_file;
mod python;
mod read_only;
mod relayed;
mod replays;
mod restarts;
mod resuming;
mod room;
mod runs;
mod sdk_workers;
mod stalled;
mod steady;
mod stores;
mod waiting;
