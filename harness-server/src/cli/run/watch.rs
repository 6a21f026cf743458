//! `harness run watch`: a run's journal as it grows.

use clap::Args;
use serde_json::{Value, json};
use worker_sdk::client::WatchEvent;
use worker_sdk::client::runs::Entry;

use super::Named;
use crate::cli::error::CliError;
use crate::cli::output::{self, printable};
use crate::cli::{PATIENCE, Server};

/// Follow a run's journal to its end
#[derive(Debug, Args)]
#[command(after_help = "\
Prints an entry a line as it is written: its number, its attempt, its time and what it says.
Interrupting it does not stop the run. When it breaks, it says which --from to go on with.")]
pub(super) struct Watch {
    #[command(flatten)]
    run: Named,

    /// The first entry wanted
    #[arg(long, value_name = "NUMBER", default_value = "1")]
    from: u64,

    /// Go on until the work of its last attempt has really stopped
    #[arg(long)]
    include_stop: bool,

    /// Print each entry as a JSON object on a line
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    server: Server,
}

impl Watch {
    pub(super) async fn run(self) -> Result<(), CliError> {
        let harness = self.server.connect(PATIENCE).await?;
        let mut watching = harness
            .watch_run(&self.run.namespace, &self.run.run_id)
            .from_seq(self.from);
        if self.include_stop {
            watching = watching.include_stop();
        }
        let opening = std::future::IntoFuture::into_future(watching);
        let mut watch = self.server.within(PATIENCE, opening).await?;
        let mut next = self.from.max(1);
        while let Some(event) = watch.next().await {
            let event = event.map_err(|error| {
                output::note(&format!("the watch broke: go on with --from {next}"));
                self.server.explain(error)
            })?;
            let told = match event {
                WatchEvent::Entry(entry) => {
                    next = entry.seq + 1;
                    print(&entry, None, self.json)?
                }
                WatchEvent::Gap { first_kept } if self.json => {
                    offer(&json!({ "gap": { "first_kept": first_kept } }))?
                }
                WatchEvent::Gap { first_kept } => {
                    output::note(&format!("entries before {first_kept} are no longer kept"));
                    true
                }
                _ => true,
            };
            if !told {
                break;
            }
        }
        Ok(())
    }
}

/// Prints an entry, with its run where entries of many come; false when the reader has gone.
pub(super) fn print(entry: &Entry, run_id: Option<&str>, json: bool) -> Result<bool, CliError> {
    let mut value = json!(entry);
    if json {
        if let Some(run_id) = run_id {
            value["run_id"] = run_id.into();
        }
        return offer(&value);
    }
    let run = run_id.map(|id| format!("{id}  ")).unwrap_or_default();
    let time = value["time"].as_str().unwrap_or_default();
    let content = value["content"].to_string();
    let (seq, attempt) = (entry.seq, entry.attempt);
    let line = format!("{run}{seq}  {attempt}  {time}  {}\n", printable(&content));
    output::offer(line.as_bytes())
}

fn offer(value: &Value) -> Result<bool, CliError> {
    output::offer(format!("{value}\n").as_bytes())
}
