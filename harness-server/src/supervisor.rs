//! The worker processes that the harness starts itself.
//!
//! Owns a worker process from its start to the reaping of its last descendant. Each has a
//! guardian between it and the harness, `harness guard`, so that it cannot outlive either.
//! Holds no slot state.

mod chain;
mod child;
mod death;
mod door;
mod executable;
mod grpc;
#[cfg(target_os = "linux")]
pub mod guard;
#[cfg(target_os = "linux")]
mod guardian;
#[cfg(not(target_os = "linux"))]
#[path = "supervisor/unguarded.rs"]
mod guardian;
pub mod isolation;
mod jsonl;
mod keeper;
mod launch;
mod output;
mod pools;
mod preparing;
pub mod process;
mod running;
#[cfg(target_os = "linux")]
mod wire;

pub use door::Serve;
pub use keeper::PoolView;
pub use launch::{LaunchError, Means, NotSet};
pub use pools::{Handle, Supervisor, SupervisorError, check};
