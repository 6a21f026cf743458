//! `harness run start`: has a durable run made.

use std::time::{Duration, SystemTime};

use clap::Args;
use worker_sdk::client::RetryPolicy;

use crate::cli::ask::input;
use crate::cli::ask::options::{distinct, duration, instant, pair};
use crate::cli::error::CliError;
use crate::cli::{PATIENCE, Server};

/// Have a durable run made; prints it once it is on disk, or once it has ended
#[derive(Debug, Args)]
pub(super) struct Start {
    /// The agent's name
    agent: String,

    /// The request, as JSON; what is not JSON is sent as a string. - reads standard input
    /// [default: null]
    #[arg(allow_negative_numbers = true)]
    payload: Option<String>,

    /// The same key and request give the run that was made first
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    key: String,

    /// Not before this, such as 2026-12-24T18:00:00Z
    #[arg(long, value_name = "TIME", value_parser = instant)]
    start_time: Option<SystemTime>,

    /// How long the run may take, from its start time [default: 24h]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,

    /// A label to list it by; may be given more than once, each key once
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,

    /// A pair the agent can read; may be given more than once, each key once
    #[arg(long = "meta", value_name = "KEY=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,

    /// Only workers with this label; may be given more than once, each key once
    #[arg(long = "select", value_name = "KEY=VALUE", value_parser = pair)]
    selector: Vec<(String, String)>,

    /// -100 to 100; higher goes first in the agent's queue [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i32).range(-100..=100))]
    priority: Option<i32>,

    /// How many attempts may be made, 1 to 16 [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    attempts: Option<u32>,

    /// The longest one attempt may take [default: as long as the run has]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    attempt_timeout: Option<Duration>,

    /// Print it when it has ended, or as it stands after so long
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    wait_for_end: Option<Duration>,

    /// Start it although no worker has offered the agent yet
    #[arg(long)]
    wait: bool,

    /// Print the run as a JSON object
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    server: Server,
}

impl Start {
    pub(super) async fn run(self) -> Result<(), CliError> {
        let labels = distinct("--label", self.labels)?;
        let metadata = distinct("--meta", self.metadata)?;
        let selector = distinct("--select", self.selector)?;
        let payload = input::request(self.payload.as_deref())?;
        let harness = self.server.connect(PATIENCE).await?;
        let mut start = harness
            .start_run(&self.agent, payload)
            .idempotency_key(&self.key);
        if let Some(at) = self.start_time {
            start = start.start_time(at);
        }
        if let Some(timeout) = self.timeout {
            start = start.timeout(timeout);
        }
        for (key, value) in &labels {
            start = start.label(key, value);
        }
        for (key, value) in &metadata {
            start = start.metadata(key, value);
        }
        for (key, value) in &selector {
            start = start.selector(key, value);
        }
        if let Some(priority) = self.priority {
            start = start.priority(priority);
        }
        if self.wait {
            start = start.wait_for_agent();
        }
        if self.attempts.is_some() || self.attempt_timeout.is_some() {
            // 0 attempts are the harness's default.
            let mut policy = RetryPolicy::attempts(self.attempts.unwrap_or(0));
            if let Some(timeout) = self.attempt_timeout {
                policy = policy.attempt_timeout(timeout);
            }
            start = start.retry(policy);
        }
        if let Some(at_most) = self.wait_for_end {
            start = start.wait_for_end(at_most);
        }
        let run = start.await.map_err(|error| self.server.explain(error))?;
        super::print(&run, self.json)
    }
}
