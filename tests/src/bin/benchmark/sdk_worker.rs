//! The harness's worker: the SDK as an application uses it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use worker_sdk::{Agent, AgentError, Context, Payload, Worker, agent_fn};

use crate::clock;

/// What it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Answers with the bytes it was asked, without a schema.
    Raw,
    /// The same through types whose schemas are derived.
    Typed,
    /// Never answers, and says when its code was stopped.
    Hang,
}

/// A request or reply with ten properties.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Form {
    title: String,
    text: String,
    language: String,
    words: u32,
    ratio: f64,
    urgent: bool,
    tags: Vec<String>,
    author: Option<String>,
    page: Option<u32>,
    section: Section,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Section {
    News,
    Science,
    Sport,
}

impl Form {
    /// One to ask with.
    pub(crate) fn example() -> Self {
        Self {
            title: "on measuring".to_owned(),
            text: "what is not measured is believed, and then it is wrong".to_owned(),
            language: "en".to_owned(),
            words: 11,
            ratio: 0.5,
            urgent: false,
            tags: vec!["figures".to_owned()],
            author: None,
            page: Some(7),
            section: Section::Science,
        }
    }
}

/// Runs so many workers, each with its own connection, until the process is killed or the harness
/// leaves.
pub(crate) async fn run(address: String, slots: usize, workers: usize, kind: Kind) {
    let mut running = JoinSet::new();
    for _ in 0..workers {
        let address = address.clone();
        match kind {
            Kind::Raw => running.spawn(work(agent_fn(raw), "echo", address, slots)),
            Kind::Typed => running.spawn(work(agent_fn(typed), "form", address, slots)),
            Kind::Hang => running.spawn(work(agent_fn(hang), "hang", address, slots)),
        };
    }
    running.join_all().await;
}

async fn work(agent: impl Agent, name: &str, address: String, slots: usize) {
    let worker = Worker::builder(agent).name(name).slots(slots);
    // A harness that leaves is the end of the measurement.
    if let Err(error) = worker.connect(address).run().await {
        crate::tell(&format!("the worker ended: {error}"));
    }
}

async fn raw(_: Context, asked: Payload) -> Result<Payload, AgentError> {
    Ok(asked)
}

async fn typed(_: Context, asked: Form) -> Result<Form, AgentError> {
    Ok(asked)
}

async fn hang(ctx: Context, _: Payload) -> Result<Payload, AgentError> {
    let _stopped = Stopped;
    crate::tell(&format!("started {}", ctx.run_id()));
    std::future::pending().await
}

/// Says when the code that holds it was stopped.
struct Stopped;

impl Drop for Stopped {
    fn drop(&mut self) {
        crate::tell(&format!("stopped {}", clock::nanos()));
    }
}
