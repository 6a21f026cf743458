//! The harness server: it takes requests from callers, gives each to a worker's slot, keeps the
//! deadline, and answers.
//!
//! An application can run it inside itself; the `harness` binary is the same with a command line.
//! The modules, in reading order:

pub mod dispatch;
pub mod envelope;
pub mod ids;
pub mod run;
pub mod slot;
