//! What the harness tells of runs and their journals, as plain types.
//!
//! Owns types only. All serialize to JSON for printing: times as RFC 3339, spans in seconds in
//! fields that end in `_seconds`, payloads as the JSON they are.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::plain;
use crate::context::LogLevel;
use crate::error::Error;
use crate::payload::Payload;

/// Which runs to list, and which page of them. Every part that is set must match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunQuery {
    /// The namespace; empty means `default`.
    pub namespace: String,
    /// The agent; empty means any.
    pub agent: String,
    /// Any of these states; empty means any.
    pub states: Vec<RunState>,
    /// Every pair must be among the run's.
    pub labels: BTreeMap<String, String>,
    /// Made then or later.
    pub created_from: Option<SystemTime>,
    /// Made earlier.
    pub created_before: Option<SystemTime>,
    /// Runs of a page at most, 1 to 1000; 0 means 100.
    pub page_size: u32,
    /// What the page before gave; empty for the first.
    pub page_token: String,
}

/// A page of runs.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct RunPage {
    /// The newest first. The bytes of their values are left out: [`crate::Harness::run`] has them.
    pub runs: Vec<Run>,
    /// For the next page; empty when this is the last.
    pub next_page_token: String,
}

/// Where a run stands.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Run {
    /// A UUIDv7 in its 36 character form.
    pub run_id: String,
    /// The namespace it lives in.
    pub namespace: String,
    /// The agent it was asked of.
    pub agent: String,
    /// Its state.
    pub state: RunState,
    /// Whether it outlives restarts of the harness.
    pub durable: bool,
    /// The newest attempt, 0 before the first.
    pub attempt: u32,
    /// When the harness took it, by the harness's clock.
    #[serde(serialize_with = "plain::time")]
    pub create_time: Option<SystemTime>,
    /// When it ends at the latest.
    #[serde(serialize_with = "plain::time")]
    pub deadline: Option<SystemTime>,
    /// When it ended; None while it has not.
    #[serde(serialize_with = "plain::time")]
    pub end_time: Option<SystemTime>,
    /// How it ended; None while it has not.
    pub outcome: Option<Outcome>,
    /// The number of the newest entry of its journal.
    pub head: u64,
    /// The labels it was started with.
    pub labels: BTreeMap<String, String>,
    /// The key it was started with, may be empty.
    pub idempotency_key: String,
    /// Its priority.
    pub priority: i32,
    /// Not delivered before this; None when it may be at once.
    #[serde(serialize_with = "plain::time")]
    pub start_time: Option<SystemTime>,
    /// The attempt of the run that asked it; None for runs of applications.
    pub parent: Option<Parent>,
}

/// The attempt that asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Parent {
    /// Its run.
    pub run_id: String,
    /// The attempt.
    pub attempt: u32,
}

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[non_exhaustive]
pub enum RunState {
    /// A state this SDK does not know.
    Unknown,
    /// Waits for a slot.
    Queued,
    /// In a slot.
    Running,
    /// Ended with the agent's reply.
    Succeeded,
    /// Ended with an error that is neither of the two below.
    Failed,
    /// Ended because somebody cancelled it or hung up.
    Cancelled,
    /// Ended because its deadline passed.
    TimedOut,
}

/// How a run or a step ended.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// With a value. That of an interactive run is not kept: its bytes are empty.
    Value(#[serde(serialize_with = "plain::payload")] Payload),
    /// With an error.
    Error(Error),
}

/// An entry of a run's journal.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Entry {
    /// Numbered from 1 within the run.
    pub seq: u64,
    /// The attempt it is of; 0 for entries about the run.
    pub attempt: u32,
    /// When it was taken, by the harness's clock.
    #[serde(serialize_with = "plain::time")]
    pub time: Option<SystemTime>,
    /// What it says.
    pub content: Content,
}

impl Entry {
    /// An entry of a journal on disk, whose content is an encoded `harness.v1.Entry`. What is none
    /// is [`Content::Unknown`].
    pub fn of_stored(seq: u64, attempt: u32, time: SystemTime, content: &[u8]) -> Self {
        crate::wire::runs::stored_entry(seq, attempt, time, content)
    }
}

/// What an entry says.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Content {
    /// The run was taken.
    RunStarted {
        /// What was asked; None where it is not kept.
        #[serde(serialize_with = "plain::maybe_payload")]
        request: Option<Payload>,
    },
    /// The request went to a slot.
    AttemptStarted {
        /// The worker's id, a UUID.
        worker_id: String,
        /// Its name.
        worker_name: String,
        /// The version of the agent it offers.
        agent_version: String,
    },
    /// An attempt is over.
    AttemptEnded {
        /// Why it failed; None when it was answered.
        error: Option<Error>,
    },
    /// Somebody wants the run stopped.
    CancelRequested {
        /// Who.
        who: String,
        /// Why, may be empty.
        why: String,
    },
    /// The run is over.
    RunEnded {
        /// How.
        outcome: Option<Outcome>,
    },
    /// An attempt's work was told to stop.
    AttemptStopping {
        /// How hard, such as `CALL_ENDED` or `SIGKILL`.
        rung: String,
    },
    /// An attempt's work has stopped.
    AttemptStopped {
        /// How the harness knows, such as `RELEASED` or `GAVE_UP`.
        how: String,
        /// From the end of the call to the proof.
        #[serde(rename = "took_seconds", serialize_with = "plain::seconds")]
        took: Duration,
    },
    /// A piece of output.
    Output(#[serde(serialize_with = "plain::payload")] Payload),
    /// How far the agent is.
    Progress {
        /// From 0.0 to 1.0.
        fraction: f64,
        /// One line for a person, may be empty.
        message: String,
    },
    /// A log line of the agent.
    Log {
        /// How much it matters.
        level: LogLevel,
        /// The line.
        message: String,
    },
    /// A recorded piece of work.
    Step {
        /// Its name.
        name: String,
        /// What tells steps of one name apart.
        key: String,
        /// What the services got that its work called, the same in every attempt.
        idempotency_key: String,
        /// Its result; None while it is only begun.
        outcome: Option<Outcome>,
    },
    /// What a model call used.
    Usage {
        /// Tokens read, cached ones included.
        input_tokens: u64,
        /// Those of them that the provider had cached.
        cached_tokens: u64,
        /// Tokens written, reasoning included.
        output_tokens: u64,
        /// Those of them that were reasoning.
        reasoning_tokens: u64,
        /// The provider's model name.
        model: String,
        /// The cost in millionths of `currency`, 0 when unknown.
        cost_micros: u64,
        /// ISO 4217, empty when the cost is unknown.
        currency: String,
    },
    /// Something this SDK does not know.
    Unknown,
}
