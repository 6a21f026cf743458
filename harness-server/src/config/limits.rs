//! Every limit the harness keeps to, with its default and its range, in one place.

use std::time::Duration;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

use crate::{dispatch, journal, slot};

/// What the harness keeps to; section 4 of the protocol.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// How often both sides of a full level call are heard. Default 5 s.
    #[serde(with = "humantime_serde")]
    pub heartbeat_interval: Duration,
    /// How long a full level worker may take to show that it has a request. Default 5 s.
    #[serde(with = "humantime_serde")]
    pub accept_timeout: Duration,
    /// So much longer for each MiB of the request. Default 1 s.
    #[serde(with = "humantime_serde")]
    pub accept_timeout_per_mib: Duration,
    /// How long a call may take to say hello, and a connection to begin. Default 5 s.
    #[serde(with = "humantime_serde")]
    pub hello_timeout: Duration,
    /// How long the message of a unary call may take to arrive, and no longer than the call's own
    /// deadline. Default 60 s.
    #[serde(with = "humantime_serde")]
    pub body_timeout: Duration,
    /// How long a slot may be STOPPING without a request. Default 5 s.
    #[serde(with = "humantime_serde")]
    pub idle_stopping_timeout: Duration,
    /// The largest `Payload.data`. Default 4 MiB minus 64 KiB.
    pub payload_bytes: ByteSize,
    /// The largest encoded entry of a worker. Default 1 MiB.
    pub entry_bytes: ByteSize,
    /// Metadata of a request, keys and values together. Default 8 KiB.
    pub metadata_bytes: ByteSize,
    /// Keys of a request's metadata. Default 64.
    pub metadata_keys: usize,
    /// The largest schema. Default 64 KiB.
    pub schema_bytes: ByteSize,
    /// Labels of a worker or an agent. Default 32.
    pub labels: usize,
    /// Interactive runs that may wait for a slot of one agent; 0 means busy at once. Default 1,000.
    pub queue_runs: usize,
    /// Payload bytes that the waiting interactive runs of all agents may hold. Default 64 MiB.
    pub queue_bytes: ByteSize,
    /// The timeout of a run that sets none. Default 60 s.
    #[serde(with = "humantime_serde")]
    pub default_timeout: Duration,
    /// The largest timeout a run may set. Default 24 h.
    #[serde(with = "humantime_serde")]
    pub max_timeout: Duration,
    /// Slots of one worker. Default 1,000.
    pub worker_slots: usize,
    /// Appends that may be unacknowledged at once. Default 64.
    pub unacked_entries: u32,
    /// Their bytes. Default 256 KiB.
    pub unacked_bytes: ByteSize,
    /// How long a leaving harness lets requests finish. Default 30 s.
    #[serde(with = "humantime_serde")]
    pub shutdown_grace: Duration,
    /// How long cancelled work counts as still running without a released. Default 10 min.
    #[serde(with = "humantime_serde")]
    pub release_timeout: Duration,
    /// Cancelled requests remembered until they are released. Default 10,000.
    pub unreleased: usize,
    /// Entries of workers in the journal of an interactive run. Default 50,000.
    pub journal_entries: usize,
    /// Their bytes, in memory. Default 1 MiB.
    pub journal_bytes: ByteSize,
    /// Durable runs that have not ended, in all; beyond it StartRun is BUSY. Default 1,000,000.
    pub durable_runs: usize,
    /// The timeout of a durable run that sets none. Default 24 h.
    #[serde(with = "humantime_serde")]
    pub durable_timeout: Duration,
    /// Bytes of workers' entries in the journal of a durable run. Default 64 MiB.
    pub durable_journal_bytes: ByteSize,
    /// How long the worker of a durable run whose call is lost may take to come back. Default 10 s.
    #[serde(with = "humantime_serde")]
    pub reattach_window: Duration,
    /// The same of an interactive run, for full level workers behind a proxy that cuts calls. Its
    /// caller waits as long for a worker that does not come back, and one that takes longer between
    /// its tries to connect is not back in time: not under a second. Default 0: such a run fails as
    /// soon as its call is lost.
    #[serde(with = "humantime_serde")]
    pub interactive_reattach_window: Duration,
    /// Interactive runs whose workers are waited for at once; beyond it one fails as soon as its
    /// call is lost. Their payloads count for `queue_bytes`. Default 10,000.
    pub away_runs: usize,
    /// How long a durable run is kept after its end. Default 7 days.
    #[serde(with = "humantime_serde")]
    pub retention: Duration,
    /// How long an ended interactive run is kept. Default 60 s.
    #[serde(with = "humantime_serde")]
    pub ended_kept: Duration,
    /// Ended interactive runs kept at most. Default 10,000.
    pub ended_runs: usize,
    /// What their workers wrote, kept at most. Default 64 MiB.
    pub ended_bytes: ByteSize,
    /// Asks open at once on one AskMany call. Default 256.
    pub many_window: u32,
    /// How often a quiet AskStream or WatchRun says that it is there. Default 15 s.
    #[serde(with = "humantime_serde")]
    pub stream_heartbeat: Duration,
    /// How long an agent stays known after its last slot. Default 1 h.
    #[serde(with = "humantime_serde")]
    pub agent_kept: Duration,
    /// The same where there is a store. Default 7 days.
    #[serde(with = "humantime_serde")]
    pub agent_kept_stored: Duration,
    /// Agents known at once, those of pools apart. Default 10,000.
    pub agents: usize,
    /// Request schemas and receive limits, taken together, that the slots of one agent may differ
    /// in. Default 16.
    pub agent_classes: usize,
    /// How long after the start UNKNOWN_AGENT is retryable. Default 10 s.
    #[serde(with = "humantime_serde")]
    pub connecting_timeout: Duration,
    /// When to ask again in that time. Default 500 ms.
    #[serde(with = "humantime_serde")]
    pub connecting_retry: Duration,
    /// Deliveries of a run in a row that may end uncounted. Default 2.
    pub uncounted_deliveries: u32,
    /// Workers a run may kill; the last of them ends it. Default 3.
    pub poison: u32,
    /// HTTP/2 PINGs on a connection that is otherwise still. Default 10 s.
    #[serde(with = "humantime_serde")]
    pub keepalive_interval: Duration,
    /// How long their answer may take. Default 10 s.
    #[serde(with = "humantime_serde")]
    pub keepalive_timeout: Duration,
    /// Calls on one connection: 1,000 slots and as many asks as a busy caller has. Default 10,000.
    pub connection_calls: u32,
    /// Hang-ups a second per principal, beyond which asks are answered RATE_LIMITED. Default 1,000.
    pub hang_ups_per_second: u32,
    /// Hang-ups per principal at once. Default 10,000.
    pub hang_ups_burst: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            heartbeat_interval: Duration::from_secs(5),
            accept_timeout: Duration::from_secs(5),
            accept_timeout_per_mib: Duration::from_secs(1),
            hello_timeout: Duration::from_secs(5),
            body_timeout: Duration::from_secs(60),
            idle_stopping_timeout: Duration::from_secs(5),
            payload_bytes: ByteSize::kib(4 * 1024 - 64),
            entry_bytes: ByteSize::mib(1),
            metadata_bytes: ByteSize::kib(8),
            metadata_keys: 64,
            schema_bytes: ByteSize::kib(64),
            labels: 32,
            queue_runs: 1_000,
            queue_bytes: ByteSize::mib(64),
            default_timeout: Duration::from_secs(60),
            max_timeout: Duration::from_secs(24 * 60 * 60),
            worker_slots: 1_000,
            unacked_entries: 64,
            unacked_bytes: ByteSize::kib(256),
            shutdown_grace: Duration::from_secs(30),
            release_timeout: Duration::from_secs(10 * 60),
            unreleased: 10_000,
            journal_entries: 50_000,
            journal_bytes: ByteSize::mib(1),
            durable_runs: 1_000_000,
            durable_timeout: Duration::from_secs(24 * 60 * 60),
            durable_journal_bytes: ByteSize::mib(64),
            reattach_window: Duration::from_secs(10),
            interactive_reattach_window: Duration::ZERO,
            away_runs: 10_000,
            retention: Duration::from_secs(7 * 24 * 60 * 60),
            ended_kept: Duration::from_secs(60),
            ended_runs: 10_000,
            ended_bytes: ByteSize::mib(64),
            many_window: 256,
            stream_heartbeat: Duration::from_secs(15),
            agent_kept: Duration::from_secs(60 * 60),
            agent_kept_stored: Duration::from_secs(7 * 24 * 60 * 60),
            agents: 10_000,
            agent_classes: 16,
            connecting_timeout: Duration::from_secs(10),
            connecting_retry: Duration::from_millis(500),
            uncounted_deliveries: 2,
            poison: 3,
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(10),
            connection_calls: 10_000,
            hang_ups_per_second: 1_000,
            hang_ups_burst: 10_000,
        }
    }
}

impl Limits {
    /// The largest frame or message taken, in bytes: a payload and what goes around it.
    #[must_use]
    pub fn frame_bytes(&self) -> u64 {
        self.payload_bytes.as_u64() + ByteSize::kib(64).as_u64()
    }

    /// What Core keeps to.
    #[must_use]
    pub fn core(&self) -> dispatch::Limits {
        dispatch::Limits {
            slot: slot::Rules {
                heartbeat_interval: self.heartbeat_interval,
                unacked_entries: self.unacked_entries as usize,
                unacked_bytes: self.unacked_bytes.as_u64(),
                idle_stopping_timeout: self.idle_stopping_timeout,
            },
            accept_timeout: self.accept_timeout,
            accept_timeout_per_mib: self.accept_timeout_per_mib,
            queue_runs: self.queue_runs,
            queue_bytes: self.queue_bytes.as_u64(),
            worker_slots: self.worker_slots,
            agents: self.agents,
            agent_classes: self.agent_classes,
            agent_kept: self.agent_kept,
            connecting_timeout: self.connecting_timeout,
            connecting_retry: self.connecting_retry,
            release_timeout: self.release_timeout,
            unreleased: self.unreleased,
            journal: journal::Limits {
                entries: self.journal_entries,
                bytes: usize::try_from(self.journal_bytes.as_u64()).unwrap_or(usize::MAX),
            },
            durable_runs: self.durable_runs,
            durable_journal: journal::Limits {
                entries: self.journal_entries,
                bytes: usize::try_from(self.durable_journal_bytes.as_u64()).unwrap_or(usize::MAX),
            },
            reattach_window: self.reattach_window,
            interactive_reattach_window: self.interactive_reattach_window,
            away_runs: self.away_runs,
            ended_kept: self.ended_kept,
            ended_runs: self.ended_runs,
            ended_bytes: usize::try_from(self.ended_bytes.as_u64()).unwrap_or(usize::MAX),
        }
    }
}

/// A limit out of its range.
#[derive(Debug, thiserror::Error)]
#[error("limits.{key}: {message}")]
pub struct LimitError {
    pub(super) key: &'static str,
    message: String,
}

/// The longest duration a limit may have.
pub(super) const YEAR: Duration = Duration::from_secs(366 * 24 * 60 * 60);

impl Limits {
    /// Checks that every limit is in its range.
    ///
    /// # Errors
    /// The first that is not, and its range.
    pub fn check(&self) -> Result<(), LimitError> {
        let wrong = |key, message: String| Err(LimitError { key, message });
        let ms = Duration::from_millis;
        let durations = [
            ("heartbeat_interval", self.heartbeat_interval, ms(10)),
            ("accept_timeout", self.accept_timeout, ms(1)),
            ("accept_timeout_per_mib", self.accept_timeout_per_mib, ms(0)),
            ("hello_timeout", self.hello_timeout, ms(1)),
            ("body_timeout", self.body_timeout, ms(1)),
            ("idle_stopping_timeout", self.idle_stopping_timeout, ms(1)),
            ("default_timeout", self.default_timeout, ms(1)),
            ("max_timeout", self.max_timeout, ms(1)),
            ("shutdown_grace", self.shutdown_grace, ms(0)),
            ("release_timeout", self.release_timeout, ms(1)),
            ("durable_timeout", self.durable_timeout, ms(1)),
            ("reattach_window", self.reattach_window, ms(0)),
            (
                "interactive_reattach_window",
                self.interactive_reattach_window,
                ms(0),
            ),
            ("retention", self.retention, ms(1)),
            ("ended_kept", self.ended_kept, ms(0)),
            ("stream_heartbeat", self.stream_heartbeat, ms(10)),
            ("agent_kept", self.agent_kept, ms(0)),
            ("agent_kept_stored", self.agent_kept_stored, ms(0)),
            ("connecting_timeout", self.connecting_timeout, ms(0)),
            ("connecting_retry", self.connecting_retry, ms(1)),
            ("keepalive_interval", self.keepalive_interval, ms(10)),
            ("keepalive_timeout", self.keepalive_timeout, ms(10)),
        ];
        for (key, value, least) in durations {
            if value < least || value > YEAR {
                return wrong(key, format!("{value:?} must be {least:?} to 366 days"));
            }
        }
        let most = u64::from(u32::MAX);
        let counts = [
            ("payload_bytes", self.payload_bytes.as_u64(), 1024),
            ("entry_bytes", self.entry_bytes.as_u64(), 1024),
            ("metadata_bytes", self.metadata_bytes.as_u64(), 0),
            ("schema_bytes", self.schema_bytes.as_u64(), 0),
            ("queue_bytes", self.queue_bytes.as_u64(), 0),
            ("unacked_bytes", self.unacked_bytes.as_u64(), 1),
            ("journal_bytes", self.journal_bytes.as_u64(), 0),
            ("worker_slots", self.worker_slots as u64, 1),
            ("unacked_entries", self.unacked_entries.into(), 1),
            ("agents", self.agents as u64, 1),
            ("agent_classes", self.agent_classes as u64, 1),
            ("many_window", self.many_window.into(), 1),
            ("connection_calls", self.connection_calls.into(), 1),
            ("poison", self.poison.into(), 1),
        ];
        for (key, value, least) in counts {
            if value < least || value > most {
                return wrong(key, format!("{value} must be {least} to {most}"));
            }
        }
        for (key, value) in [
            ("default_timeout", self.default_timeout),
            ("durable_timeout", self.durable_timeout),
        ] {
            if value > self.max_timeout {
                return wrong(key, "it must not be over max_timeout".to_owned());
            }
        }
        Ok(())
    }
}
