//! What may be said beside agent and payload, whichever way the ask goes.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use clap::Args;
use worker_sdk::client::{Ask, RetryPolicy};

use crate::cli::error::CliError;

/// What goes with an ask.
#[derive(Debug, Clone, Args)]
pub(super) struct Options {
    /// How long the run may take, waiting for a slot included, such as 500ms, 2s or 1m
    /// [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(super) timeout: Option<Duration>,

    /// Wait for a worker when none has offered the agent yet
    #[arg(long)]
    wait: bool,

    /// A pair the agent can read; may be given more than once, each key once
    #[arg(long = "meta", value_name = "KEY=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,

    /// -100 to 100; higher goes first in the agent's queue [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i32).range(-100..=100))]
    priority: Option<i32>,

    /// Only workers with this label; may be given more than once, each key once
    #[arg(long = "select", value_name = "KEY=VALUE", value_parser = pair)]
    selector: Vec<(String, String)>,

    /// How many attempts may be made when one fails in a way that can be tried again, 1 to 16
    /// [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    attempts: Option<u32>,

    /// The longest one attempt may take [default: as long as the run has]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    attempt_timeout: Option<Duration>,
}

/// What goes with an ask, once it is known that all of it can.
#[derive(Debug)]
pub(super) struct Applied {
    timeout: Option<Duration>,
    wait: bool,
    metadata: BTreeMap<String, String>,
    priority: Option<i32>,
    selector: BTreeMap<String, String>,
    retry: Option<RetryPolicy>,
}

impl Options {
    /// What of it goes with every ask.
    ///
    /// # Errors
    /// A key that comes twice.
    pub(super) fn applied(self) -> Result<Applied, CliError> {
        let mut retry = self.attempts.map(RetryPolicy::attempts);
        if let Some(timeout) = self.attempt_timeout {
            let policy = retry.unwrap_or_else(|| RetryPolicy::attempts(1));
            retry = Some(policy.attempt_timeout(timeout));
        }
        Ok(Applied {
            timeout: self.timeout,
            wait: self.wait,
            metadata: distinct("--meta", self.metadata)?,
            priority: self.priority,
            selector: distinct("--select", self.selector)?,
            retry,
        })
    }
}

impl Applied {
    pub(super) fn to<R, W>(&self, mut ask: Ask<R, W>) -> Ask<R, W> {
        if let Some(timeout) = self.timeout {
            ask = ask.timeout(timeout);
        }
        if self.wait {
            ask = ask.wait_for_agent();
        }
        for (key, value) in &self.metadata {
            ask = ask.metadata(key, value);
        }
        if let Some(priority) = self.priority {
            ask = ask.priority(priority);
        }
        for (key, value) in &self.selector {
            ask = ask.selector(key, value);
        }
        if let Some(policy) = &self.retry {
            ask = ask.retry(policy.clone());
        }
        ask
    }
}

pub(in crate::cli) fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(timeout) if timeout.is_zero() => Err("a timeout is longer than nothing".to_owned()),
        Ok(timeout) => Ok(timeout),
        Err(error) => Err(format!("{error}; write it as 500ms, 2s or 1m")),
    }
}

pub(in crate::cli) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        Some(_) | None => Err("write it as KEY=VALUE".to_owned()),
    }
}

/// Pairs of which each key comes once: what would be dropped is refused.
pub(in crate::cli) fn distinct(
    option: &str,
    pairs: Vec<(String, String)>,
) -> Result<BTreeMap<String, String>, CliError> {
    let mut distinct = BTreeMap::new();
    for (key, value) in pairs {
        if let Some(before) = distinct.insert(key.clone(), value.clone()) {
            return Err(CliError::Usage(format!(
                "{option} gives {key} twice, as {before} and as {value}: give each key once"
            )));
        }
    }
    Ok(distinct)
}

pub(in crate::cli) fn instant(text: &str) -> Result<SystemTime, String> {
    humantime::parse_rfc3339_weak(text)
        .map_err(|error| format!("{error}; write it as 2026-12-24T18:00:00Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_has_a_unit() {
        assert_eq!(duration("1m 30s"), Ok(Duration::from_secs(90)));
        for bad in ["0s", "5", "soon"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_key_comes_once() {
        let pairs = |keys: [&str; 2]| {
            keys.map(|key| (key.to_owned(), format!("of {key}")))
                .to_vec()
        };
        let told = distinct("--meta", pairs(["a", "b"])).expect("they differ");
        assert_eq!(told.into_iter().collect::<Vec<_>>(), pairs(["a", "b"]));
        let refused = distinct("--meta", pairs(["a", "a"])).expect_err("twice");
        assert_eq!(refused.exit_code(), 2);
    }

    #[test]
    fn a_pair_has_a_key() {
        assert_eq!(pair("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(pair("a="), Ok(("a".to_owned(), String::new())));
        assert!(pair("a").is_err() && pair("=a").is_err());
    }
}
