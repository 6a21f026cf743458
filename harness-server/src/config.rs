//! The configuration file: reading it, and naming what is wrong with its line.
//!
//! The limits and their defaults are in `limits`; the table in `proto/README.md` says the same
//! numbers to those who write workers.

mod keys;
mod limits;
mod pools;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::de::DeTable;

use keys::{place_of, unknown_key};

pub use limits::{LimitError, Limits};
pub use pools::{DialBack, Mode, Pool, PoolError, ProcessLimits, Sandbox};

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
    /// The folder of the store, which keeps durable runs; made where there is none. Without one
    /// there are no durable runs. A path in a file is from the folder of that file.
    pub data: Option<PathBuf>,
    /// What the harness keeps to.
    pub limits: Limits,
    /// The processes it starts itself, in a file one `[[pool]]` each.
    #[serde(rename = "pool")]
    pub pools: Vec<Pool>,
    /// The `harness` binary, which is run as the guardian of each process of a pool; not said in a
    /// file. The binary itself names `/proc/self/exe`.
    #[serde(skip)]
    pub guard: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![DEFAULT_ADDRESS.to_owned()],
            insecure: false,
            data: None,
            limits: Limits::default(),
            pools: Vec::new(),
            guard: None,
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
    /// Reads a file; relative paths in it are made those of its folder.
    ///
    /// # Errors
    /// That it cannot be read, or what is wrong with which line.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        let mut config = Self::parse(&text)?;
        let folder = std::path::absolute(path)
            .ok()
            .and_then(|path| path.parent().map(Path::to_owned))
            .unwrap_or_default();
        config.data = config.data.map(|data| folder.join(data));
        for pool in &mut config.pools {
            pool.resolve(&folder);
        }
        Ok(config)
    }

    /// Reads a text.
    ///
    /// # Errors
    /// What is wrong with which line; an unknown key is told with the near one.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let table = DeTable::parse(text).map_err(|error| invalid(text, &error))?;
        let told = |at: usize, message: String| ConfigError::Invalid {
            line: line_of(text, at),
            message,
        };
        let sample = Self {
            pools: vec![Pool::sample()],
            data: Some(PathBuf::new()),
            ..Self::default()
        };
        let known = toml::Table::try_from(sample).expect("settings must serialize");
        if let Some((span, message)) = unknown_key(table.get_ref(), &known, "") {
            return Err(told(span.start, message));
        }
        let config: Self = toml::from_str(text).map_err(|error| invalid(text, &error))?;
        config.limits.check().map_err(|error| {
            let at = place_of(table.get_ref(), "limits", 0, error.key);
            told(at, error.to_string())
        })?;
        check_pools(&config.pools).map_err(|(index, error)| {
            let at = place_of(table.get_ref(), "pool", index, error.key);
            told(at, error.to_string())
        })?;
        Ok(config)
    }
}

/// Checks each pool, and that no two have one name.
///
/// # Errors
/// The first that is wrong: its place, and what to do.
pub fn check_pools(pools: &[Pool]) -> Result<(), (usize, PoolError)> {
    for (index, pool) in pools.iter().enumerate() {
        pool.check().map_err(|error| (index, error))?;
        if pools[..index].iter().any(|other| other.agent == pool.agent) {
            let message = "another pool has this agent: give one pool a larger size";
            return Err((index, pool.wrong("agent", message)));
        }
    }
    Ok(())
}

fn invalid(text: &str, error: &toml::de::Error) -> ConfigError {
    let line = line_of(text, error.span().unwrap_or_default().start);
    let message = error.message();
    ConfigError::Invalid {
        line,
        message: format!("{message}{}", hint(message)),
    }
}

/// What to write instead, where the words of the TOML reader tell only what is expected.
fn hint(message: &str) -> &'static str {
    const HINTS: [(&str, &str); 4] = [
        (
            "invalid type: map, expected a sequence",
            ": write its name in double brackets, such as [[pool]]",
        ),
        (
            "expected a sequence",
            ": write a list, such as [\"python3\", \"worker.py\"]",
        ),
        (
            "expected a duration",
            ": write it with its unit and in quotes, such as \"30s\"",
        ),
        (
            "expected parsable string",
            ": write it with its unit and in quotes, such as \"64MiB\"",
        ),
    ];
    let hint = HINTS.iter().find(|(ending, _)| message.ends_with(ending));
    hint.map_or("", |(_, hint)| hint)
}

fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
