//! The configuration file and the one place where limits have their defaults.
//!
//! Owns reading, naming what is wrong with its line, and defaults; the table in `proto/README.md`
//! says the same numbers to those who write workers.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use toml::de::{DeTable, DeValue};

use crate::{dispatch, journal, slot};

/// The address that `serve` listens on and clients dial when none is given.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:7070";

/// A whole configuration; every part has a default.
///
/// ```
/// let config = harness_server::config::Config::parse("listen = [\"127.0.0.1:0\"]")?;
/// assert_eq!(config.limits.heartbeat_interval.as_secs(), 5);
/// # Ok::<(), harness_server::config::ConfigError>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Addresses to listen on: `host:port` or `unix:/absolute/path`. Default `127.0.0.1:7070`.
    pub listen: Vec<String>,
    /// Whether an address that is not loopback may be listened on without TLS. Default false.
    pub insecure: bool,
    /// What the harness keeps to.
    pub limits: Limits,
}

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
    /// How long an ended interactive run is kept. Default 60 s.
    #[serde(with = "humantime_serde")]
    pub ended_kept: Duration,
    /// Ended interactive runs kept at most. Default 10,000.
    pub ended_runs: usize,
    /// Asks open at once on one AskMany call. Default 256.
    pub many_window: u32,
    /// How often a quiet AskStream or WatchRun says that it is there. Default 15 s.
    #[serde(with = "humantime_serde")]
    pub stream_heartbeat: Duration,
    /// How long an agent stays known after its last slot. Default 1 h.
    #[serde(with = "humantime_serde")]
    pub agent_kept: Duration,
    /// Agents known at once. Default 10,000.
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

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![DEFAULT_ADDRESS.to_owned()],
            insecure: false,
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            heartbeat_interval: Duration::from_secs(5),
            accept_timeout: Duration::from_secs(5),
            accept_timeout_per_mib: Duration::from_secs(1),
            hello_timeout: Duration::from_secs(5),
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
            ended_kept: Duration::from_secs(60),
            ended_runs: 10_000,
            many_window: 256,
            stream_heartbeat: Duration::from_secs(15),
            agent_kept: Duration::from_secs(60 * 60),
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
            ended_kept: self.ended_kept,
            ended_runs: self.ended_runs,
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The text is not what it should be.
    #[error("line {line}: {message}")]
    Invalid {
        /// Where, counted from 1.
        line: usize,
        /// What is wrong and what to do.
        message: String,
    },
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// That it cannot be read, or what is wrong with which line.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text)
    }

    /// Reads a text.
    ///
    /// # Errors
    /// What is wrong with which line; an unknown key is told with the near one.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let table = DeTable::parse(text).map_err(|error| invalid(text, &error))?;
        let known = toml::Table::try_from(Self::default()).expect("defaults must serialize");
        if let Some((span, message)) = unknown_key(table.get_ref(), &known, "") {
            return Err(ConfigError::Invalid {
                line: line_of(text, span.start),
                message,
            });
        }
        toml::from_str(text).map_err(|error| invalid(text, &error))
    }
}

/// The first key that no setting has, with the nearest that one has.
fn unknown_key(
    table: &DeTable<'_>,
    known: &toml::Table,
    path: &str,
) -> Option<(Range<usize>, String)> {
    for (key, value) in table {
        let name = key.get_ref().as_ref();
        let full = if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        };
        match (known.get(name), value.get_ref()) {
            (None, _) => return Some((key.span(), unknown_key_message(&full, name, known))),
            (Some(toml::Value::Table(inner)), DeValue::Table(table)) => {
                if let Some(found) = unknown_key(table, inner, &full) {
                    return Some(found);
                }
            }
            (Some(_), _) => {}
        }
    }
    None
}

fn unknown_key_message(full: &str, name: &str, known: &toml::Table) -> String {
    let near = known
        .keys()
        .map(|key| (strsim::jaro_winkler(key, name), key))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(likeness, _)| *likeness > 0.7);
    match near {
        Some((_, near)) => format!("unknown key \"{full}\"; did you mean \"{near}\"?"),
        None => {
            let mut names: Vec<&str> = known.keys().map(String::as_str).collect();
            names.sort_unstable();
            format!("unknown key \"{full}\"; known are: {}", names.join(", "))
        }
    }
}

fn invalid(text: &str, error: &toml::de::Error) -> ConfigError {
    let line = line_of(text, error.span().unwrap_or_default().start);
    ConfigError::Invalid {
        line,
        message: error.message().to_owned(),
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_the_defaults() {
        let config = Config::parse("").expect("valid");
        assert_eq!(config.listen, [DEFAULT_ADDRESS]);
        assert_eq!(
            config.limits.payload_bytes.as_u64(),
            4 * 1024 * 1024 - 64 * 1024
        );
    }

    #[test]
    fn durations_and_sizes_have_units() {
        let text = "[limits]\nhello_timeout = \"250ms\"\nentry_bytes = \"2KiB\"\n";
        let limits = Config::parse(text).expect("valid").limits;
        assert_eq!(limits.hello_timeout, Duration::from_millis(250));
        assert_eq!(limits.entry_bytes.as_u64(), 2048);
    }

    #[test]
    fn an_unknown_key_is_told_with_its_line_and_the_near_one() {
        let told = |text: &str| Config::parse(text).expect_err("refused").to_string();
        assert_eq!(
            told("listen = []\n\n[limits]\nheartbeat_intervall = \"5s\"\n"),
            "line 4: unknown key \"limits.heartbeat_intervall\"; did you mean \
             \"heartbeat_interval\"?"
        );
        assert_eq!(
            told("zzz = 1"),
            "line 1: unknown key \"zzz\"; known are: insecure, limits, listen"
        );
        assert!(
            told("\nlisten = 5").starts_with("line 2: "),
            "{}",
            told("\nlisten = 5")
        );
        assert!(told("\n\nlisten = [").starts_with("line 3: "));
        assert!(told("[limits]\nhello_timeout = \"5 parsecs\"").starts_with("line 2: "));
    }
}
