//! The configuration file: reading it, and naming what is wrong with its line.
//!
//! The limits and their defaults are in `limits`; the table in `proto/README.md` says the same
//! numbers to those who write workers.

mod limits;

use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::de::{DeTable, DeValue};

pub use limits::{LimitError, Limits};

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

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![DEFAULT_ADDRESS.to_owned()],
            insecure: false,
            limits: Limits::default(),
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
        let config: Self = toml::from_str(text).map_err(|error| invalid(text, &error))?;
        config
            .limits
            .check()
            .map_err(|error| ConfigError::Invalid {
                line: line_of(text, limit_at(table.get_ref(), error.key)),
                message: error.to_string(),
            })?;
        Ok(config)
    }
}

/// Where a limit is set, or the beginning of the text.
fn limit_at(table: &DeTable<'_>, key: &str) -> usize {
    let limits = table
        .iter()
        .find(|(name, _)| name.get_ref().as_ref() == "limits");
    let place = limits.and_then(|(_, limits)| match limits.get_ref() {
        DeValue::Table(limits) => limits
            .iter()
            .find(|(name, _)| name.get_ref().as_ref() == key)
            .map(|(name, _)| name.span().start),
        _ => None,
    });
    place.unwrap_or_default()
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
    use std::time::Duration;

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
    fn a_limit_out_of_its_range_is_told_with_its_line() {
        let told = |text: &str| Config::parse(text).expect_err("refused").to_string();
        assert_eq!(
            told("[limits]\n\nheartbeat_interval = \"0s\"\n"),
            "line 3: limits.heartbeat_interval: 0ns must be 10ms to 366 days"
        );
        for bad in [
            "agent_kept = \"18000000000000000000s\"",
            "connection_calls = 0",
            "max_timeout = \"1s\"",
            "payload_bytes = \"8 TiB\"",
        ] {
            assert!(
                told(&format!("[limits]\n{bad}")).starts_with("line "),
                "{bad}"
            );
        }
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
