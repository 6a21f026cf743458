//! Durable runs: over real sockets, over stores that fail, over harnesses that are killed.

mod resuming;
mod runs;
mod stores;
