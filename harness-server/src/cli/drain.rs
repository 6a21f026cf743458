//! `harness drain`: has a worker finish, leave and not come back.

use clap::Args;
use worker_sdk::client::admin::Worker;

use super::error::CliError;
use super::output::printable;
use super::{PATIENCE, Server, output};

/// Have a worker finish what it works on, leave, and not come back
#[derive(Debug, Args)]
#[command(after_help = "\
The worker takes no new request from now on and its process may not attach again; a new process may.
Answers at once: `harness workers` shows it as draining until it has left.

Examples:
  harness drain box-4711
  harness drain 0190f5b2-6f0e-4c0b-9d3a-2f1f6f1c9a10 --reason 'new version'")]
pub(super) struct Drain {
    /// Its id, or its name where only one worker has it; `harness workers --json` tells both
    worker: String,

    /// Why, for its log
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    reason: String,

    /// Print the worker as a JSON object, null when it has left already
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    server: Server,
}

impl Drain {
    pub(super) async fn run(self) -> Result<(), CliError> {
        let harness = self.server.connect(PATIENCE).await?;
        let draining = harness.drain_worker("", &self.worker, &self.reason);
        let worker = self.server.within(PATIENCE, draining).await?;
        if self.json {
            return output::json(&worker);
        }
        output::line(&match worker {
            Some(worker) => told(&worker),
            None => format!("{} has left", printable(&self.worker)),
        })
    }
}

fn told(worker: &Worker) -> String {
    let busy = worker.slots.iter().filter(|slot| !slot.run_id.is_empty());
    let work = match busy.count() {
        0 => "idle".to_owned(),
        1 => "1 request in work".to_owned(),
        busy => format!("{busy} requests in work"),
    };
    let (name, id) = (printable(&worker.name), printable(&worker.worker_id));
    format!("{name} ({id}) is draining, {work}")
}
