//! `harness run list`: the durable runs of a namespace.

use std::time::SystemTime;

use clap::{Args, ValueEnum};
use worker_sdk::client::runs::{Outcome, RunPage, RunQuery, RunState};

use crate::cli::ask::options::{distinct, instant, pair};
use crate::cli::error::CliError;
use crate::cli::output::{self, printable};
use crate::cli::{PATIENCE, Server};

/// Runs asked for at once.
const PAGE: u32 = 1000;

/// List durable runs, the newest first
#[derive(Debug, Args)]
pub(super) struct List {
    /// Only of this agent
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    agent: String,

    /// Only in this state; may be given more than once
    #[arg(long = "state", value_name = "STATE")]
    states: Vec<State>,

    /// Only with this label; may be given more than once, each key once
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,

    /// Only those made then or later, such as 2026-12-24T18:00:00Z
    #[arg(long, value_name = "TIME", value_parser = instant)]
    created_from: Option<SystemTime>,

    /// Only those made earlier
    #[arg(long, value_name = "TIME", value_parser = instant)]
    created_before: Option<SystemTime>,

    /// At most so many
    #[arg(long, value_name = "N", default_value = "100")]
    limit: u32,

    /// The namespace [default: default]
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    namespace: String,

    /// Print a JSON array
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum State {
    Queued,
    Running,
    Succeeded,
    Failed,
    Cancelled,
    TimedOut,
}

impl List {
    pub(super) async fn run(self) -> Result<(), CliError> {
        let labels = distinct("--label", self.labels)?;
        let harness = self.server.connect(PATIENCE).await?;
        let mut query = RunQuery {
            namespace: self.namespace.clone(),
            agent: self.agent.clone(),
            states: self.states.iter().map(|state| state.of_run()).collect(),
            labels,
            created_from: self.created_from,
            created_before: self.created_before,
            ..RunQuery::default()
        };
        let mut runs = Vec::new();
        while (runs.len() as u64) < u64::from(self.limit) {
            let left = self.limit - u32::try_from(runs.len()).unwrap_or(self.limit);
            query.page_size = left.min(PAGE);
            let asked = harness.list_runs(query.clone());
            let page: RunPage = self.server.within(PATIENCE, asked).await?;
            runs.extend(page.runs);
            if page.next_page_token.is_empty() {
                break;
            }
            query.page_token = page.next_page_token;
        }
        if self.json {
            return output::json(&runs);
        }
        let rows: Vec<Vec<String>> = runs
            .iter()
            .map(|run| {
                let created = run.create_time.map(humantime::format_rfc3339_seconds);
                let error = match &run.outcome {
                    Some(Outcome::Error(error)) => printable(error.message()).into_owned(),
                    Some(Outcome::Value(_)) | None => String::new(),
                };
                vec![
                    run.run_id.clone(),
                    printable(&run.agent).into_owned(),
                    super::state_of(run),
                    run.attempt.to_string(),
                    created.map(|at| at.to_string()).unwrap_or_default(),
                    error,
                ]
            })
            .collect();
        output::table(&["RUN", "AGENT", "STATE", "ATTEMPT", "CREATED", ""], &rows)
    }
}

impl State {
    fn of_run(self) -> RunState {
        match self {
            Self::Queued => RunState::Queued,
            Self::Running => RunState::Running,
            Self::Succeeded => RunState::Succeeded,
            Self::Failed => RunState::Failed,
            Self::Cancelled => RunState::Cancelled,
            Self::TimedOut => RunState::TimedOut,
        }
    }
}
