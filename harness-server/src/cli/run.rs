//! `harness run`: durable runs, from their start to their journal.

mod journal;
mod list;
mod start;
mod watch;

use std::time::Duration;

use clap::{Args, Subcommand};
use worker_sdk::client::runs::{Outcome, Run as RunView};

use super::ask::options::duration;
use super::error::CliError;
use super::output::{self, Form, printable};
use super::{PATIENCE, Server};

/// Start durable runs, and see what became of them
#[derive(Debug, Args)]
#[command(after_help = "\
A durable run is on the harness's disk before `start` answers. It outlives the caller, its worker
and the harness; `harness serve --data DIR` is what keeps it.

Examples:
  harness run start report '\"2026-11\"' --key report/2026-11
  harness run start report '\"2026-12\"' --wait-for-end 1m
  harness run list --agent report --state failed
  harness run watch 0190f5b2-6f0e-7c0b-9d3a-2f1f6f1c9a10
  harness run cancel 0190f5b2-6f0e-7c0b-9d3a-2f1f6f1c9a10 --reason 'wrong month'
  harness run journal --file /var/lib/harness/harness.db")]
pub(super) struct Run {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Start(start::Start),
    Get(Get),
    List(list::List),
    Watch(watch::Watch),
    Cancel(Cancel),
    Journal(journal::Journal),
}

/// Tell where a run stands, and how it ended
#[derive(Debug, Args)]
struct Get {
    #[command(flatten)]
    run: Named,

    /// Tell it when it has ended, or as it stands after so long
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    wait_for_end: Option<Duration>,

    /// Print the run as a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: Server,
}

/// Ask for a run to be stopped
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the run as it is then. Whichever of the cancel and the reply is on disk first
is how it ended.")]
struct Cancel {
    #[command(flatten)]
    run: Named,

    /// Why, for its journal
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    reason: String,

    /// Print the run as a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: Server,
}

/// Which run.
#[derive(Debug, Args)]
struct Named {
    /// The run's id
    run_id: String,

    /// Its namespace [default: default]
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    namespace: String,
}

impl Run {
    pub(super) async fn run(self) -> Result<(), CliError> {
        match self.command {
            Command::Start(start) => start.run().await,
            Command::Get(get) => get.run().await,
            Command::List(list) => list.run().await,
            Command::Watch(watch) => watch.run().await,
            Command::Cancel(cancel) => cancel.run().await,
            Command::Journal(journal) => journal.run().await,
        }
    }

    pub(super) fn form(&self) -> Form {
        let json = match &self.command {
            Command::Start(start) => start.json,
            Command::Get(get) => get.json,
            Command::List(list) => list.json,
            Command::Cancel(cancel) => cancel.json,
            Command::Watch(watch) if watch.json => return Form::JsonLines,
            Command::Journal(journal) if journal.json => return Form::JsonLines,
            Command::Watch(_) | Command::Journal(_) => false,
        };
        if json { Form::Json } else { Form::Text }
    }
}

impl Get {
    async fn run(self) -> Result<(), CliError> {
        let harness = self.server.connect(PATIENCE).await?;
        let (namespace, run_id) = (&self.run.namespace, &self.run.run_id);
        let asked = async {
            match self.wait_for_end {
                None => harness.run(namespace, run_id).await,
                Some(at_most) => harness.wait_for_end(namespace, run_id, at_most).await,
            }
        };
        let patience = PATIENCE.saturating_add(self.wait_for_end.unwrap_or_default());
        print(&self.server.within(patience, asked).await?, self.json)
    }
}

impl Cancel {
    async fn run(self) -> Result<(), CliError> {
        let harness = self.server.connect(PATIENCE).await?;
        let cancelled = harness.cancel_run(&self.run.namespace, &self.run.run_id, &self.reason);
        print(&self.server.within(PATIENCE, cancelled).await?, self.json)
    }
}

/// The state of a run as the wire names it.
fn state_of(run: &RunView) -> String {
    let state = serde_json::to_value(run.state).unwrap_or_default();
    state.as_str().unwrap_or("UNKNOWN").to_owned()
}

fn print(run: &RunView, json: bool) -> Result<(), CliError> {
    if json {
        return output::json(run);
    }
    let mut line = format!(
        "{}  {}  {}",
        printable(&run.run_id),
        printable(&run.agent),
        state_of(run)
    );
    match &run.outcome {
        Some(Outcome::Value(value)) => {
            let text = String::from_utf8_lossy(value.data());
            line.push_str(&format!("  {}", printable(&text)));
        }
        Some(Outcome::Error(error)) => line.push_str(&format!("  {}", printable(error.message()))),
        None => {}
    }
    output::line(&line)
}
