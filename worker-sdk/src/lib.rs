//! Write agents and ask them.
//!
//! An *agent* is a named behaviour with one method, [`Agent::reply`]. A [`Worker`] offers it to a
//! harness on a number of slots and keeps it there: it reconnects, sends heartbeats, stops work
//! the harness cancelled and says so. An application asks through [`Harness`]: once
//! ([`Harness::ask`]), with what happens meanwhile ([`Harness::ask_stream`]), or a lot on one call
//! ([`Harness::ask_many`]).
//!
//! ```no_run
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//! use worker_sdk::{AgentError, Context, Worker, agent_fn};
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct Question {
//!     text: String,
//! }
//!
//! #[derive(Serialize, JsonSchema)]
//! struct Answer {
//!     words: usize,
//! }
//!
//! async fn count(_ctx: Context, question: Question) -> Result<Answer, AgentError> {
//!     Ok(Answer { words: question.text.split_whitespace().count() })
//! }
//!
//! # async fn run() -> Result<(), worker_sdk::Error> {
//! Worker::builder(agent_fn(count)).name("count-words").slots(4).run().await
//! # }
//! ```
//!
//! An agent that is a language model with tools is an `agent_loop::AgentLoop` (feature
//! `agent-loop`; `anthropic` and `openai` for models).
//!
//! The schemas the harness checks requests and replies against are derived from the two types.
//! No type of the wire's own libraries appears in this API.

pub mod agent;
#[cfg(feature = "agent-loop")]
pub mod agent_loop;
pub mod client;
mod connect;
pub mod context;
pub mod error;
pub mod journal;
pub mod payload;
mod retry;
mod session;
pub mod testing;
mod wire;
pub mod worker;

pub use agent::{Agent, AgentError, BlockingAgent, agent_fn, blocking, blocking_fn};
pub use client::{Answer, Harness};
pub use context::{BlockingContext, Context};
pub use error::{Error, ErrorKind};
pub use journal::StepError;
pub use payload::Payload;
pub use worker::Worker;
