//! What runs in a worker process of the demo: one agent, offered through the SDK like any other.

use clap::{Args, ValueEnum};
use worker_sdk::agent_loop::AgentLoop;
use worker_sdk::{
    AgentError, BlockingContext, Context, Error, Payload, Worker, agent_fn, blocking_fn,
};

use super::research;
use crate::cli::error::CliError;

/// A worker of `harness demo`, told by its pool where to dial
#[derive(Debug, Args)]
pub(in crate::cli) struct DemoWorker {
    agent: Agent,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Agent {
    Echo,
    Research,
    Hang,
}

impl DemoWorker {
    pub(in crate::cli) async fn run(self) -> Result<(), CliError> {
        self.offer().await.map_err(CliError::Sdk)
    }

    async fn offer(self) -> Result<(), Error> {
        match self.agent {
            Agent::Echo => {
                Worker::builder(agent_fn(echo))
                    .from_env()
                    .description("answers with what it was asked")
                    .run()
                    .await
            }
            Agent::Research => {
                let agent = research::agent(AgentLoop::builder(research::scripted()))
                    .expect("the tools of the example must be registrable");
                Worker::builder(agent)
                    .from_env()
                    .description("answers from a small library")
                    .run()
                    .await
            }
            Agent::Hang => {
                Worker::builder(blocking_fn(hang))
                    .from_env()
                    .description("never answers, whatever it is told")
                    .run()
                    .await
            }
        }
    }
}

async fn echo(_ctx: Context, request: Payload) -> Result<Payload, AgentError> {
    Ok(request)
}

/// Blocks its thread, looks at no cancellation and so keeps its process from leaving.
fn hang(_ctx: BlockingContext, _request: Payload) -> Result<Payload, AgentError> {
    loop {
        std::thread::park();
    }
}
