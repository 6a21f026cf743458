//! `harness restart`: has a pool's processes replaced.

use clap::Args;

use super::error::CliError;
use super::{PATIENCE, Server, output, pools};

/// Replace a pool's processes one after the other, and forget its crash loop
#[derive(Debug, Args)]
#[command(after_help = "\
A process goes when its replacement is ready and it has finished what it works on. Answers at once
with the pool as it is then: `harness pools` shows how it goes on.

Examples:
  harness restart summarize")]
pub(super) struct Restart {
    /// The pool, by the agent it offers
    pool: String,

    /// Print the pool as a JSON object
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    server: Server,
}

impl Restart {
    pub(super) async fn run(self) -> Result<(), CliError> {
        let harness = self.server.connect(PATIENCE).await?;
        let restarting = harness.restart_pool("", &self.pool);
        let pool = self.server.within(PATIENCE, restarting).await?;
        if self.json {
            return output::json(&pool);
        }
        pools::tell(&[pool])
    }
}
