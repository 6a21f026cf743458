//! What the harness tells of its pools, as plain types.
//!
//! Owns types only, which serialize as those of `admin` do.

use std::time::Duration;

use serde::Serialize;

use super::plain;

/// Processes of one agent that the harness starts, watches and replaces.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Pool {
    /// The agent it offers, which also names the pool.
    pub agent: String,
    /// Where it stands.
    pub state: PoolState,
    /// Processes wanted.
    pub size: u32,
    /// Processes ready or busy.
    pub ready: u32,
    /// Crashes within the pool's window.
    pub crashes: u32,
    /// Starts that failed in a row.
    pub failed_starts: u32,
    /// How the last process ended, or why it could not be started; empty when none has.
    pub last_exit: String,
    /// The last lines it wrote to standard error.
    pub last_stderr: Vec<String>,
    /// How long until the next start; None when none is due.
    #[serde(rename = "next_start_seconds", serialize_with = "plain::maybe_seconds")]
    pub next_start: Option<Duration>,
    /// Its processes, the oldest first.
    pub processes: Vec<PoolProcess>,
    /// The latest processes the harness had to end, the oldest first.
    pub stopped: Vec<StoppedProcess>,
}

/// Where a pool stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[non_exhaustive]
pub enum PoolState {
    /// A state this SDK does not know.
    Unknown,
    /// Not all processes are ready yet.
    Starting,
    /// All processes are ready.
    Running,
    /// Some processes wait for their back-off.
    BackingOff,
    /// Past its limits; nothing is started until it is restarted or reloaded.
    CrashLooping,
    /// Leaving.
    Stopping,
}

/// One process of a pool.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PoolProcess {
    /// Its process id, 0 while it has none.
    pub pid: u32,
    /// Where it stands, such as `READY` or `STOPPING`.
    pub state: String,
    /// For how long.
    #[serde(rename = "in_state_for_seconds", serialize_with = "plain::seconds")]
    pub in_state_for: Duration,
    /// How far the harness has gone to end it, such as `SIGTERM`; empty unless it is stopping.
    pub rung: String,
    /// Requests it has answered.
    pub answered: u64,
}

/// A process that the harness had to end; its spans run from the end of its call.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct StoppedProcess {
    /// Its process id.
    pub pid: u32,
    /// Why, for a person.
    pub reason: String,
    /// Until SIGTERM; None if that was not needed.
    #[serde(
        rename = "sigterm_after_seconds",
        serialize_with = "plain::maybe_seconds"
    )]
    pub sigterm_after: Option<Duration>,
    /// Until SIGKILL; None if that was not needed.
    #[serde(
        rename = "sigkill_after_seconds",
        serialize_with = "plain::maybe_seconds"
    )]
    pub sigkill_after: Option<Duration>,
    /// Until nothing of it was left.
    #[serde(rename = "reaped_after_seconds", serialize_with = "plain::seconds")]
    pub reaped_after: Duration,
    /// Until another process was ready in its seat; None while there is none.
    #[serde(
        rename = "replaced_after_seconds",
        serialize_with = "plain::maybe_seconds"
    )]
    pub replaced_after: Option<Duration>,
}
