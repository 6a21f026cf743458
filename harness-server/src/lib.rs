//! The harness server: it takes requests from callers, gives each to a worker's slot, keeps the
//! deadline, and answers.
//!
//! An application can run it inside itself ([`Server`]); the `harness` binary is the same with a
//! command line. The modules, in reading order:

pub mod api;
pub mod config;
pub mod dispatch;
pub mod engine;
pub mod envelope;
pub mod ids;
pub mod listener;
pub mod run;
pub mod schema;
pub mod server;
pub mod session;
pub mod slot;

pub use config::{Config, ConfigError, Limits};
pub use listener::ListenError;
pub use server::Server;
