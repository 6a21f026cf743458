//! `harness demo`: a harness, workers in processes of their own, an answer, and a hung agent that
//! is stopped at its deadline, told with the clocks that were read.
//!
//! Owns the life of it all: start, tell the story, stay, leave. What is told is `story`, a worker
//! process as seen from here is `child`, and what runs in it is `worker`.

mod child;
mod story;
pub(super) mod worker;

use std::time::Duration;

use clap::Args;
use harness_server::{Config, ListenError, Server, ServerError};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use worker_sdk::Harness;

use super::error::CliError;
use super::{output, program};
use crate::shutdown::Stops;
use child::Child;

/// How long requests that are in work may go on when the demo ends.
const GRACE: Duration = Duration::from_secs(1);

/// See it work: an answer, and a hung agent stopped at its deadline
#[derive(Debug, Args)]
#[command(after_help = "\
Runs a harness on 127.0.0.1:7070, or on a free port when that is taken, and two worker processes.
It stays up until Ctrl-C so that it can be asked. With --exit it ends after the story: 0 when every
part happened within a second of its time, else 1.

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
    echo: Child,
    hang: Child,
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
        let leave = CancellationToken::new();
        let mut serving = JoinSet::new();
        serving.spawn(server.run(leave.clone()));
        let result = self.play(&address, stop).await;
        leave.cancel();
        while serving.join_next().await.is_some() {}
        result
    }

    /// Runs the workers around the story and the time after it.
    async fn play(self, address: &str, stop: CancellationToken) -> Result<(), CliError> {
        let mut stage = Stage::set(address).await?;
        let told = tokio::select! {
            told = story::tell(&mut stage) => told,
            () = stop.cancelled() => Err(CliError::Demo("stopped before its end".to_owned())),
        };
        let result = match told {
            Ok(()) if !self.exit => tokio::select! {
                result = stage.stay_up() => result,
                () = stop.cancelled() => Ok(()),
            },
            told => told,
        };
        tokio::join!(stage.echo.leave(), stage.hang.leave());
        result
    }
}

impl Stage {
    async fn set(address: &str) -> Result<Self, CliError> {
        let failed = |error| CliError::of_call(address, error);
        Ok(Self {
            address: address.to_owned(),
            harness: Harness::connect(address).await.map_err(failed)?,
            echo: Child::start("echo", address)?,
            hang: Child::start("hang", address)?,
        })
    }

    /// Invites to ask, and tells what the workers tell; ends only when one of them does.
    async fn stay_up(&mut self) -> Result<(), CliError> {
        for line in invitation(&self.address) {
            output::line(&line)?;
        }
        loop {
            let (agent, event) = tokio::select! {
                event = self.echo.event() => ("echo", event?),
                event = self.hang.event() => ("hang", event?),
            };
            output::line(&format!("  agent {agent}: {event}"))?;
        }
    }
}

/// A server on the default address, or on a free port when that is taken.
async fn bind() -> Result<Server, CliError> {
    let mut config = Config::default();
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

/// The lines to copy into another terminal.
fn invitation(address: &str) -> Vec<String> {
    let (program, flag) = (program::called_as(), program::server_flag(address));
    vec![
        String::new(),
        "It stays up until Ctrl-C. From another terminal, in this folder:".to_owned(),
        String::new(),
        format!("  {program} ask echo '\"hello\"'{flag}"),
        format!("  {program} ask hang --timeout 2s{flag}"),
        format!("  {program} workers{flag}"),
        String::new(),
    ]
}
