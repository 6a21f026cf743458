//! What the harness tells of agents, workers, pools and itself, as plain types.
//!
//! Owns types only. All serialize to JSON for printing; durations become seconds as a number, in
//! fields that end in `_seconds`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::plain;

/// An agent a harness knows.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Agent {
    /// Its name.
    pub name: String,
    /// The versions its attached workers offer.
    pub versions: Vec<String>,
    /// One line for people, may be empty.
    pub description: String,
    /// Slots that can take a request now.
    pub slots_ready: u32,
    /// Slots with a request in them.
    pub slots_busy: u32,
    /// Slots that are starting or stopping.
    pub slots_other: u32,
    /// Runs waiting for a slot.
    pub queued: u32,
    /// The attached workers.
    pub workers: u32,
    /// Cancelled work whose worker has not yet said that it stopped.
    pub unreleased: u32,
    /// JSON Schema of requests; None takes any.
    pub request_schema: Option<serde_json::Value>,
    /// JSON Schema of replies; None gives any.
    pub reply_schema: Option<serde_json::Value>,
}

/// A worker attached to a harness.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Worker {
    /// A UUID of its process.
    pub worker_id: String,
    /// A name for people.
    pub name: String,
    /// Its process id on its host, 0 when unknown.
    pub pid: u32,
    /// Its host, may be empty.
    pub host: String,
    /// The language it is written in, may be empty.
    pub language: String,
    /// Its SDK, empty for bare stubs.
    pub sdk_version: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The agent it offers.
    pub agent: String,
    /// The version of that.
    pub agent_version: String,
    /// Whether it is of the full level.
    pub heartbeats: bool,
    /// Whether it was asked to leave.
    pub draining: bool,
    /// How long it has been attached.
    #[serde(rename = "attached_for_seconds", serialize_with = "plain::seconds")]
    pub attached_for: Duration,
    /// Where its connection comes from.
    pub peer: String,
    /// Its slots.
    pub slots: Vec<Slot>,
    /// Cancelled work of it that has not yet stopped.
    pub unreleased: Vec<Unreleased>,
}

/// One slot of a worker.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Slot {
    /// Unique within the server.
    pub slot_id: u64,
    /// Where it stands.
    pub state: SlotState,
    /// For how long.
    #[serde(rename = "in_state_for_seconds", serialize_with = "plain::seconds")]
    pub in_state_for: Duration,
    /// The run in it, empty when idle.
    pub run_id: String,
    /// The attempt in it, 0 when idle.
    pub attempt: u32,
}

/// Where a slot stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[non_exhaustive]
pub enum SlotState {
    /// A state this SDK does not know.
    Unknown,
    /// Not welcomed yet.
    Starting,
    /// Waits for a request.
    Ready,
    /// Has one.
    Busy,
    /// Takes no new one.
    Stopping,
}

/// Cancelled work that has not yet stopped.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Unreleased {
    /// The run.
    pub run_id: String,
    /// Its attempt.
    pub attempt: u32,
    /// Why it was stopped, such as `DEADLINE_EXCEEDED`.
    pub code: String,
    /// How long ago.
    #[serde(rename = "ended_ago_seconds", serialize_with = "plain::seconds")]
    pub ended_ago: Duration,
    /// How far the harness has gone to stop it, such as `CALL_ENDED` or `SIGKILL`.
    pub rung: String,
    /// How long ago it went so far.
    #[serde(rename = "rung_ago_seconds", serialize_with = "plain::seconds")]
    pub rung_ago: Duration,
}

/// What a harness is and allows.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ServerInfo {
    /// A UUID of its process.
    pub server_id: String,
    /// Its version.
    pub version: String,
    /// The protocol versions it speaks.
    pub protocol_versions: Vec<u32>,
    /// The optional parts of the protocol it understands.
    pub features: Vec<String>,
    /// How long it has been up.
    #[serde(rename = "up_for_seconds", serialize_with = "plain::seconds")]
    pub up_for: Duration,
    /// Whether it is leaving.
    pub shutting_down: bool,
    /// The addresses it listens on.
    pub listeners: Vec<String>,
    /// Its limits.
    pub limits: Limits,
}

/// The limits of a harness that concern callers.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Limits {
    /// The largest payload.
    pub payload_bytes: u64,
    /// The timeout of an ask that says none.
    #[serde(rename = "default_timeout_seconds", serialize_with = "plain::seconds")]
    pub default_timeout: Duration,
    /// The longest timeout.
    #[serde(rename = "max_timeout_seconds", serialize_with = "plain::seconds")]
    pub max_timeout: Duration,
    /// Runs that may wait for one agent.
    pub queue_runs: u32,
    /// Bytes of the requests that may wait in all.
    pub queue_bytes: u64,
}
