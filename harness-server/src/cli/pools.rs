//! `harness pools`: how the processes fare that the harness starts itself.

use clap::Args;
use worker_sdk::client::pools::{Pool, PoolState, StoppedProcess};

use super::error::CliError;
use super::output::{printable, rounded};
use super::{PATIENCE, Server, output};

const HEAD: [&str; 7] = [
    "AGENT",
    "STATE",
    "READY",
    "SIZE",
    "CRASHES",
    "FAILED STARTS",
    "LAST EXIT",
];

/// List the pools: their state, the last exit and its last lines on standard error
#[derive(Debug, Args)]
#[command(after_help = "\
CRASHES counts those within the pool's window, FAILED STARTS those in a row. Below the table stand the
last lines of a process that failed, and how the latest ones that had to be ended were brought to
their end. --json tells everything.

Examples:
  harness pools
  harness pools --json | jq '.[] | select(.state == \"CRASH_LOOPING\")'")]
pub(super) struct Pools {
    /// Print a JSON array
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    server: Server,
}

impl Pools {
    pub(super) async fn run(self) -> Result<(), CliError> {
        let harness = self.server.connect(PATIENCE).await?;
        let pools = self.server.within(PATIENCE, harness.pools("")).await?;
        if self.json {
            return output::json(&pools);
        }
        if pools.is_empty() {
            let address = self.server.address();
            output::note(&format!(
                "the harness at {address} has no pool; name one with [[pool]] in its configuration"
            ));
            return Ok(());
        }
        tell(&pools)
    }
}

/// Prints pools and what there is to say of each.
pub(super) fn tell(pools: &[Pool]) -> Result<(), CliError> {
    output::table(&HEAD, &pools.iter().map(row).collect::<Vec<_>>())?;
    for pool in pools {
        let agent = printable(&pool.agent);
        if pool.crashes > 0 || pool.failed_starts > 0 || pool.state == PoolState::CrashLooping {
            for line in &pool.last_stderr {
                output::line(&format!("{agent} | {}", printable(line)))?;
            }
        }
        for process in &pool.stopped {
            output::line(&format!("{agent}: {}", stopped(process)))?;
        }
    }
    Ok(())
}

fn row(pool: &Pool) -> Vec<String> {
    let mut state = match pool.state {
        PoolState::Starting => "STARTING".to_owned(),
        PoolState::Running => "RUNNING".to_owned(),
        PoolState::BackingOff => "BACKING_OFF".to_owned(),
        PoolState::CrashLooping => "CRASH_LOOPING".to_owned(),
        PoolState::Stopping => "STOPPING".to_owned(),
        _ => "in a state this program does not know".to_owned(),
    };
    if let Some(wait) = pool.next_start {
        state.push_str(&format!(", next start in {}", rounded(wait)));
    }
    let last_exit = match pool.last_exit.as_str() {
        "" => "-".to_owned(),
        exit => printable(exit).into_owned(),
    };
    vec![
        printable(&pool.agent).into_owned(),
        state,
        pool.ready.to_string(),
        pool.size.to_string(),
        pool.crashes.to_string(),
        pool.failed_starts.to_string(),
        last_exit,
    ]
}

fn stopped(process: &StoppedProcess) -> String {
    let mut text = format!(
        "process {} ended: {}",
        process.pid,
        printable(&process.reason)
    );
    let rungs = [
        ("SIGTERM", process.sigterm_after),
        ("SIGKILL", process.sigkill_after),
        ("reaped", Some(process.reaped_after)),
        ("replaced", process.replaced_after),
    ];
    for (rung, after) in rungs {
        if let Some(after) = after {
            text.push_str(&format!("; {rung} after {:.3} s", after.as_secs_f64()));
        }
    }
    text
}
