//! `harness workers`: who answers, and with what they are busy.

use clap::Args;
use worker_sdk::client::admin::{Slot, SlotState, Unreleased, Worker};

use super::error::CliError;
use super::output::{printable, rounded};
use super::{PATIENCE, Server, agents, output};

const HEAD: [&str; 8] = [
    "AGENT", "WORKER", "PID", "HOST", "LANGUAGE", "SLOTS", "ATTACHED", "STATE",
];

/// List the workers, their slots and what they work on
#[derive(Debug, Args)]
#[command(after_help = "\
SLOTS counts those attached. STATE counts them by state and names the work in hand, and work that
was cancelled and has not stopped yet. --json tells everything.

Examples:
  harness workers
  harness workers --json | jq '.[].slots'")]
pub(super) struct Workers {
    /// Only the workers of this agent
    agent: Option<String>,

    /// Print a JSON array
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    server: Server,
}

impl Workers {
    pub(super) async fn run(self) -> Result<(), CliError> {
        let harness = self.server.connect(PATIENCE).await?;
        let agent = self.agent.as_deref().unwrap_or_default();
        let workers = self
            .server
            .within(PATIENCE, harness.workers("", agent))
            .await?;
        if self.json {
            return output::json(&workers);
        }
        if workers.is_empty() && self.agent.is_none() {
            agents::tell_how_to_start(self.server.address());
            return Ok(());
        }
        if workers.is_empty() {
            output::note(&format!("no worker of {agent} is connected"));
            return Ok(());
        }
        output::table(&HEAD, &workers.iter().map(row).collect::<Vec<_>>())
    }
}

fn row(worker: &Worker) -> Vec<String> {
    let cell = |text: &str| match text {
        "" => "-".to_owned(),
        text => printable(text).into_owned(),
    };
    vec![
        cell(&worker.agent),
        cell(&worker.name),
        worker.pid.to_string(),
        cell(&worker.host),
        cell(&worker.language),
        worker.slots.len().to_string(),
        rounded(worker.attached_for),
        state(worker),
    ]
}

fn state(worker: &Worker) -> String {
    let mut parts = Vec::new();
    let ready = worker
        .slots
        .iter()
        .filter(|slot| slot.state == SlotState::Ready)
        .count();
    match ready {
        0 => {}
        1 if worker.slots.len() == 1 => parts.push("READY".to_owned()),
        ready => parts.push(format!("{ready} READY")),
    }
    parts.extend(worker.slots.iter().filter_map(in_work));
    parts.extend(worker.unreleased.iter().map(unreleased));
    if worker.draining {
        parts.push("draining".to_owned());
    }
    parts.join("; ")
}

fn in_work(slot: &Slot) -> Option<String> {
    let state = match slot.state {
        SlotState::Ready => return None,
        SlotState::Starting => "STARTING",
        SlotState::Busy => "BUSY",
        SlotState::Stopping => "STOPPING",
        _ => "in a state this program does not know",
    };
    let since = rounded(slot.in_state_for);
    Some(if slot.run_id.is_empty() {
        format!("{state} for {since}")
    } else {
        format!("{state} for {since} with run {}", printable(&slot.run_id))
    })
}

fn unreleased(work: &Unreleased) -> String {
    let (run, ago) = (printable(&work.run_id), rounded(work.ended_ago));
    let rung = match work.rung.as_str() {
        "CALL_ENDED" | "UNSPECIFIED" => String::new(),
        rung => format!(", {} {} ago", printable(rung), rounded(work.rung_ago)),
    };
    format!(
        "run {run} ended {ago} ago ({}){rung}, not released",
        printable(&work.code)
    )
}
