//! `harness agents`: what can be asked.

use clap::Args;
use worker_sdk::client::admin::Agent;

use super::error::CliError;
use super::{Server, output, program};

const HEAD: [&str; 7] = [
    "AGENT",
    "READY",
    "BUSY",
    "STOPPING",
    "QUEUED",
    "WORKERS",
    "DESCRIPTION",
];

/// List the agents and how many slots they have
#[derive(Debug, Args)]
#[command(after_help = "\
READY, BUSY and STOPPING count slots. STOPPING counts those that start or leave, and cancelled
work that has not stopped yet. --json tells everything, the schemas included.

Examples:
  harness agents
  harness agents --json | jq '.[].request_schema'")]
pub(super) struct Agents {
    /// Print a JSON array
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    server: Server,
}

impl Agents {
    pub(super) async fn run(self) -> Result<(), CliError> {
        let harness = self.server.connect().await?;
        let agents = harness
            .agents("")
            .await
            .map_err(|error| self.server.explain(error))?;
        if self.json {
            return output::json(&agents);
        }
        if agents.is_empty() {
            tell_how_to_start(self.server.address());
            return Ok(());
        }
        output::table(&HEAD, &agents.iter().map(row).collect::<Vec<_>>())
    }
}

fn row(agent: &Agent) -> Vec<String> {
    vec![
        output::printable(&agent.name).into_owned(),
        agent.slots_ready.to_string(),
        agent.slots_busy.to_string(),
        (agent.slots_other + agent.unreleased).to_string(),
        agent.queued.to_string(),
        agent.workers.to_string(),
        output::printable(&agent.description).into_owned(),
    ]
}

/// The two lines that bring an empty harness its first answer.
pub(super) fn tell_how_to_start(address: &str) {
    let program = program::called_as();
    let (variable, flag) = if address == harness_server::config::DEFAULT_ADDRESS {
        (String::new(), String::new())
    } else {
        let address = program::quoted(address);
        (
            format!("HARNESS_ADDRESS={address} "),
            format!(" --server {address}"),
        )
    };
    output::note(&format!(
        "no worker is connected to {address}; start one in a clone of the repository, then ask it:\n  \
         {variable}cargo run -q --bin echo\n  \
         {program} ask echo '\"hello\"'{flag}"
    ));
}
