//! `harness demo`: a harness, three pools of one process, an answer, a model that uses tools, and a hung
//! agent that is stopped at its deadline and replaced, told with the clocks that were read.
//!
//! Owns the life of it all: start, tell the story, stay, leave. What is told is `story` and `tools`, what
//! runs in a worker process is `worker`; `research` is the example of that name, its file linked here.

mod research;
mod story;
mod tools;
pub(super) mod worker;

use std::time::Duration;

use clap::Args;
use harness_server::config::Pool;
use harness_server::pool::{Dialect, Stop};
use harness_server::{Config, ListenError, Server, ServerError, supervisor};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use worker_sdk::Harness;

use super::error::CliError;
use super::{guardian, output, program, progress};
use crate::shutdown::Stops;

/// How long requests that are in work may go on when the demo ends.
const GRACE: Duration = Duration::from_secs(1);

/// How long a worker may take to let go of a cancelled request.
const CANCEL_GRACE: Duration = Duration::from_millis(200);

/// How long a process may take to end after SIGTERM.
const TERM_GRACE: Duration = Duration::from_millis(300);

/// The agent that answers.
const ECHO: &str = "echo";

/// The agent that is a language model with tools.
const RESEARCH: &str = "research";

/// The agent that does not answer.
const HANG: &str = "hang";

/// See it work: an answer, a model that uses tools, a hung agent stopped at its deadline and replaced
#[derive(Debug, Args)]
#[command(after_help = "\
Runs a harness on 127.0.0.1:7070, or on a free port when that is taken, and three pools of one worker
process. It stays up until Ctrl-C so that it can be asked. With --exit it ends after the story: 0 when
every part happened within two seconds of its time, else 1.

Examples:
  harness demo
  harness demo --exit")]
pub(in crate::cli) struct Demo {
    /// End after the story instead of staying up
    #[arg(long)]
    exit: bool,
}

/// What the demo runs.
struct Stage {
    address: String,
    harness: Harness,
    pools: supervisor::Handle,
}

impl Demo {
    pub(in crate::cli) async fn run(self) -> Result<(), CliError> {
        let stops =
            Stops::listen().map_err(|error| CliError::io("cannot listen to signals", error))?;
        match stops.run(async |stop| self.perform(stop).await).await {
            Ok(result) => result,
            Err(stop) => Err(CliError::cut_off(stop)),
        }
    }

    /// Runs the harness around the play.
    async fn perform(self, stop: CancellationToken) -> Result<(), CliError> {
        let server = bind().await?;
        let address = server.addresses().first().cloned().unwrap_or_default();
        let pools = server.pools();
        let leave = CancellationToken::new();
        let mut serving = JoinSet::new();
        serving.spawn(server.run(leave.clone()));
        let result = self.play(address, pools, stop).await;
        leave.cancel();
        while serving.join_next().await.is_some() {}
        result
    }

    /// Tells the story, and stays up after it.
    async fn play(
        self,
        address: String,
        pools: supervisor::Handle,
        stop: CancellationToken,
    ) -> Result<(), CliError> {
        let harness = Harness::connect(&*address)
            .await
            .map_err(|error| CliError::of_call(&address, error))?;
        let stage = Stage {
            address,
            harness,
            pools,
        };
        let told = tokio::select! {
            told = story::tell(&stage) => told,
            () = stop.cancelled() => Err(CliError::Demo("stopped before its end".to_owned())),
        };
        match told {
            Ok(()) if !self.exit => tokio::select! {
                result = stage.stay_up() => result,
                () = stop.cancelled() => Ok(()),
            },
            told => told,
        }
    }
}

impl Stage {
    /// Invites to ask, and tells what becomes of the processes.
    async fn stay_up(&self) -> Result<(), CliError> {
        for line in invitation(&self.address) {
            output::line(&line)?;
        }
        let now = self.pools.list().await;
        progress::tell(&self.pools, now, "harness restart starts it again").await;
        Ok(())
    }
}

/// A server on the default address, or on a free port when that is taken.
async fn bind() -> Result<Server, CliError> {
    let mut config = Config {
        guard: Some(guardian()),
        pools: vec![pool(ECHO)?, pool(RESEARCH)?, pool(HANG)?],
        ..Config::default()
    };
    config.limits.shutdown_grace = GRACE;
    match Server::bind(config.clone()).await {
        Err(ServerError::Listen(ListenError::InUse(address))) => {
            output::note(&format!("{address} is in use; taking a free port"));
            config.listen = vec!["127.0.0.1:0".to_owned()];
            Ok(Server::bind(config).await?)
        }
        bound => Ok(bound?),
    }
}

/// A pool of one process, which is this program again.
fn pool(agent: &str) -> Result<Pool, CliError> {
    let program = std::env::current_exe()
        .map_err(|error| CliError::io("cannot tell where this program is", error))?;
    let program = program.to_string_lossy().into_owned();
    Ok(Pool {
        agent: agent.to_owned(),
        command: vec![program, "demo-worker".to_owned(), agent.to_owned()],
        dialect: Dialect::Grpc,
        stop: Stop {
            cancel_grace: CANCEL_GRACE,
            term_grace: TERM_GRACE,
        },
        ..Pool::default()
    })
}

/// The lines to copy into another terminal.
fn invitation(address: &str) -> Vec<String> {
    let (program, flag) = (program::called_as(), program::server_flag(address));
    vec![
        String::new(),
        "It stays up until Ctrl-C. From another terminal, in this folder:".to_owned(),
        String::new(),
        format!("  {program} ask echo '\"hello\"'{flag}"),
        format!("  {program} ask research '\"Which river is long?\"' --stream{flag}"),
        format!("  {program} ask hang --timeout 2s{flag}"),
        format!("  {program} pools{flag}"),
        String::new(),
    ]
}
