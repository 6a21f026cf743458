//! Logs: to standard error, at the level of RUST_LOG or of the command and its -v.
//!
//! Owns the subscriber of the process. What is logged is each module's own affair.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Which lines are logged when RUST_LOG does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// What a person should look at.
    Warn,
    /// And what a service tells of itself.
    Info,
    /// And each step of ours.
    Debug,
    /// And each step of the libraries below.
    Trace,
}

impl Level {
    fn directives(self) -> &'static str {
        match self {
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "info,harness=debug,harness_server=debug,worker_sdk=debug",
            Self::Trace => "debug,harness=trace,harness_server=trace,worker_sdk=trace",
        }
    }
}

/// Starts logging. A RUST_LOG that cannot be read is told and not used.
pub(crate) fn start(level: Level) {
    let asked = std::env::var("RUST_LOG")
        .ok()
        .filter(|text| !text.is_empty());
    let (filter, unreadable) = match asked.map(EnvFilter::try_new) {
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (EnvFilter::new(level.directives()), Some(error)),
        None => (EnvFilter::new(level.directives()), None),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours())
        .with_writer(std::io::stderr)
        // It would be told on standard error, and panic when that is what is gone.
        .log_internal_errors(false)
        .init();
    if let Some(error) = unreadable {
        tracing::warn!(%error, "RUST_LOG cannot be read and is not used");
    }
}

/// Whether standard error takes colours.
pub(crate) fn colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stderr().is_terminal() && !refused
}
