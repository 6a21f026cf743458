//! Logs: to standard error, at the level of RUST_LOG or of the command and its -v. What workers write
//! is logged too, or shown as it is.
//!
//! Owns the subscriber of the process. What is logged is each module's own affair.

use std::fmt;
use std::io::{IsTerminal, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// The target of the lines that workers write.
const WORKER: &str = "worker";

/// Which lines are logged when RUST_LOG does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// The same without what the command itself tells of its processes.
    Own,
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
            Self::Own => "warn,harness_server::supervisor=off",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "info,harness=debug,harness_server=debug,worker_sdk=debug",
            Self::Trace => "debug,harness=trace,harness_server=trace,worker_sdk=trace",
        }
    }
}

/// Starts logging; with `show_workers` what workers write is no log but shown as it is. A RUST_LOG
/// that cannot be read is told and not used.
pub(crate) fn start(level: Level, show_workers: bool) {
    let asked = std::env::var("RUST_LOG")
        .ok()
        .filter(|text| !text.is_empty());
    let (filter, unreadable) = match asked.map(EnvFilter::try_new) {
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (EnvFilter::new(level.directives()), Some(error)),
        None => (EnvFilter::new(level.directives()), None),
    };
    let log = tracing_subscriber::fmt::layer()
        .with_ansi(colours())
        .with_writer(std::io::stderr)
        // It would be told on standard error, and panic when that is what is gone.
        .log_internal_errors(false);
    if show_workers {
        let others = filter_fn(|event| event.target() != WORKER);
        let log = log.with_filter(filter).with_filter(others);
        let lines = Lines.with_filter(filter_fn(|event| event.target() == WORKER));
        tracing_subscriber::registry().with(log).with(lines).init();
    } else {
        tracing_subscriber::registry().with(log).with(filter).init();
    }
    if let Some(error) = unreadable {
        tracing::warn!(%error, "RUST_LOG cannot be read and is not used");
    }
}

/// Shows the lines that workers write, as they are.
struct Lines;

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        // There is nobody left to show it to.
        let _ = writeln!(std::io::stderr().lock(), "{}", text.0);
    }
}

/// The message of an event.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

/// Whether standard error takes colours.
pub(crate) fn colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stderr().is_terminal() && !refused
}
