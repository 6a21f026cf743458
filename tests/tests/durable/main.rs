//! Durable runs: over real sockets, over stores that fail, over harnesses that are killed.

mod cli;
mod crash;
mod resuming;
mod runs;
mod steady;
mod stores;
