//! The harness server: it takes requests from callers, gives each to a worker's slot, keeps the
//! deadline, and answers.
//!
//! An application can run it inside itself ([`Server`]); the `harness` binary is the same with a
//! command line. The modules, in reading order; each imports only those above it:

pub mod ids;
pub mod envelope;
pub mod retry;
pub mod slot;
pub mod run;
pub mod store;
pub mod pool;
pub mod journal;
pub mod dispatch;
pub mod schema;
pub mod config;
pub mod engine;
pub mod auth;
pub mod session;
pub mod supervisor;
pub mod api;
pub mod listener;
pub mod server;

pub use config::{Config, ConfigError, Limits};
pub use listener::ListenError;
pub use server::{Server, ServerError};
