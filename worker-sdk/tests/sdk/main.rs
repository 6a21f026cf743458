//! The worker and the client against a harness the tests play themselves.
//!
//! `fake` owns the server's side; the other modules hold one subject each. Every wait has a bound;
//! nothing sleeps to let something happen.
#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod agents;
mod apart;
mod client;
mod ends;
mod fake;
mod leaving;
#[cfg(feature = "local-journal")]
mod local;
mod log;
mod many;
#[cfg(feature = "agent-loop")]
mod model_agent;
mod resume;
mod steps;
mod streams;
mod strangers;
mod subject;
mod work;
