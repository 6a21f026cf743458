//! What runs in a worker process of the demo: one agent, offered through the SDK like any other.

use clap::{Args, ValueEnum};
use std::os::fd::AsFd;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use worker_sdk::{AgentError, Context, Error, Payload, Worker, agent_fn};

use super::child::Event;
use crate::cli::error::CliError;
use crate::cli::output;

/// A worker of `harness demo`; ends when its standard input closes
#[derive(Debug, Args)]
pub(in crate::cli) struct DemoWorker {
    agent: Agent,
    #[arg(long)]
    server: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Agent {
    Echo,
    Hang,
}

impl DemoWorker {
    pub(in crate::cli) async fn run(self) -> Result<(), CliError> {
        let server = self.server.clone();
        tokio::select! {
            result = self.offer() => result.map_err(|error| CliError::of_call(&server, error)),
            // The demo is gone or wants this process gone: what is in work is dropped with it.
            result = stdin_closed() => result,
        }
    }

    async fn offer(self) -> Result<(), Error> {
        let forever = std::future::pending();
        match self.agent {
            Agent::Echo => {
                Worker::builder(agent_fn(echo))
                    .name("echo")
                    .description("answers with what it was asked")
                    .connect(self.server)
                    .run_until(forever)
                    .await
            }
            Agent::Hang => {
                Worker::builder(agent_fn(hang))
                    .name("hang")
                    .description("never answers")
                    .connect(self.server)
                    .run_until(forever)
                    .await
            }
        }
    }
}

async fn echo(_ctx: Context, request: Payload) -> Result<Payload, AgentError> {
    Ok(request)
}

async fn hang(_ctx: Context, _request: Payload) -> Result<Payload, AgentError> {
    tell(Event::Called);
    let _told_when_dropped = Unfinished;
    std::future::pending().await
}

struct Unfinished;

impl Drop for Unfinished {
    fn drop(&mut self) {
        tell(Event::Dropped);
    }
}

fn tell(event: Event) {
    // A demo that is gone needs to hear nothing.
    let _ = output::line(event.line());
}

async fn stdin_closed() -> Result<(), CliError> {
    let failed = |error| CliError::io("a demo worker is started by harness demo alone", error);
    let stdin = std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map_err(failed)?;
    let mut stdin = Receiver::from_owned_fd(stdin).map_err(failed)?;
    let mut ignored = [0; 64];
    while stdin.read(&mut ignored).await.map_err(failed)? > 0 {}
    Ok(())
}
