//! The entries a worker writes.
//!
//! Owns plain data; `wire` turns it into the one format that the wire and every journal share.

use serde::Serialize;

use crate::agent::{AgentError, ErrorParts};
use crate::context::LogLevel;
use crate::payload::Payload;
use crate::wire;

/// What an agent writes into the run's journal.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Entry {
    /// A piece of output.
    Output(Payload),
    /// How far the agent is.
    Progress {
        /// From 0.0 to 1.0.
        fraction: f64,
        /// One line for a person, may be empty.
        message: String,
    },
    /// A log line.
    Log {
        /// How much it matters.
        level: LogLevel,
        /// The line.
        message: String,
    },
    /// The begin or the result of a step.
    Step(Box<Step>),
    /// What a model call used.
    Usage(Box<Usage>),
}

impl Entry {
    /// The entry as a journal stores it: an encoded `harness.v1.Entry`.
    pub fn to_bytes(&self) -> Vec<u8> {
        wire::entries::to_bytes(self)
    }

    /// Reads what [`Entry::to_bytes`] or any other writer of the format wrote. None when it is no
    /// entry, or one that no worker writes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        wire::entries::from_bytes(bytes)
    }
}

/// An entry with its place in the run's journal.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Recorded {
    /// Numbered from 1 within the run.
    pub seq: u64,
    /// The attempt that wrote it.
    pub attempt: u32,
    /// What it says.
    pub entry: Entry,
}

impl Recorded {
    /// An entry at its place.
    pub fn new(seq: u64, attempt: u32, entry: Entry) -> Self {
        Self {
            seq,
            attempt,
            entry,
        }
    }
}

/// How the work of a step ended.
pub(crate) type Outcome = Result<Payload, Box<ErrorParts>>;

/// A recorded piece of work: its begin, or its result.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) idempotency_key: String,
    /// None: it has begun.
    pub(crate) outcome: Option<Outcome>,
}

impl Step {
    /// The step's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What tells steps of one name apart: the key the code gave, else the number of the
    /// occurrence, from 1.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// run_id/name/key: the same in every attempt.
    pub fn idempotency_key(&self) -> &str {
        &self.idempotency_key
    }

    /// Whether the work is done; if not, this says that it was about to run.
    pub fn is_done(&self) -> bool {
        self.outcome.is_some()
    }

    /// What the work returned; None when it failed or has only begun.
    pub fn value(&self) -> Option<&Payload> {
        self.outcome.as_ref()?.as_ref().ok()
    }

    /// The error of the work; None when it returned something or has only begun.
    pub fn error(&self) -> Option<AgentError> {
        let parts = self.outcome.as_ref()?.as_ref().err()?;
        Some(AgentError::from_parts((**parts).clone()))
    }
}

/// What one model call used; see [`crate::Context::usage`].
///
/// ```
/// use worker_sdk::journal::Usage;
///
/// let usage = Usage {
///     input_tokens: 1200,
///     output_tokens: 80,
///     model: "a-model".to_owned(),
///     ..Usage::default()
/// };
/// assert_eq!(usage.cost_micros, 0);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Tokens read, cached ones included.
    pub input_tokens: u64,
    /// Of these, tokens the provider had cached.
    pub cached_tokens: u64,
    /// Tokens written, reasoning included.
    pub output_tokens: u64,
    /// Of these, tokens of reasoning.
    pub reasoning_tokens: u64,
    /// The provider's model name.
    pub model: String,
    /// The cost in millionths of `currency`, 0 when unknown.
    pub cost_micros: u64,
    /// ISO 4217, such as `USD`; empty when the cost is unknown.
    pub currency: String,
}
