//! A worker whose agent, `puppet`, does what its request says; the subject of tests.
//!
//! It writes `started RUN` when it begins and `dropped RUN` when its future is dropped unfinished,
//! one line each, to standard error. PUPPET_AGENT=typed makes it the agent `typed`, which has
//! schemas and gives its number back. `tests/python/puppet.py` is the same at the minimal level.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use worker_sdk::{AgentError, Context, Payload, Worker, agent_fn};

/// A request, such as `{"do": "fail", "message": "no"}`.
#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum Order {
    /// Replies with the value.
    Reply { value: Value },
    /// Replies with a string of so many bytes, its quotes included.
    Fill { bytes: usize },
    /// Replies with what came beside the request.
    Context,
    /// Answers with an error of the agent's own.
    Fail {
        #[serde(default = "failed")]
        r#type: String,
        message: String,
        #[serde(default)]
        retryable: bool,
    },
    /// Panics.
    Panic,
    /// Never answers, and stops when it is cancelled.
    Hang,
    /// Replies null after a while.
    Wait { ms: u64 },
    /// Blocks its thread for a while, whatever happens, then replies null.
    Block { ms: u64 },
    /// Ends the process.
    Exit { code: i32 },
    /// Sends outputs 1 to `count`, then replies with the count.
    Output { count: u64 },
}

/// A request of the agent `typed`.
#[derive(Deserialize, JsonSchema)]
struct Asked {
    number: i64,
}

/// Its reply, whose schema does not take every number.
#[derive(Serialize, JsonSchema)]
struct Answered {
    #[schemars(range(max = 100))]
    number: i64,
}

fn failed() -> String {
    "Failed".to_owned()
}

struct Unfinished(String);

impl Drop for Unfinished {
    fn drop(&mut self) {
        say(&format!("dropped {}", self.0));
    }
}

#[expect(clippy::print_stderr, reason = "the test reads it")]
fn say(line: &str) {
    eprintln!("{line}");
}

async fn reply(ctx: Context, request: Payload) -> Result<Payload, AgentError> {
    say(&format!("started {}", ctx.run_id()));
    let unfinished = Unfinished(ctx.run_id().to_owned());
    let answer = obey(ctx, request).await;
    std::mem::forget(unfinished);
    answer
}

async fn obey(ctx: Context, request: Payload) -> Result<Payload, AgentError> {
    let value = match request.to_json::<Order>()? {
        Order::Reply { value } => value,
        Order::Fill { bytes } => Value::String("x".repeat(bytes.saturating_sub(2))),
        Order::Context => json!({
            "run_id": ctx.run_id(),
            "attempt": ctx.attempt(),
            "time_left_ms": ctx.time_left().as_millis() as u64,
            "metadata": ctx.metadata().iter().collect::<BTreeMap<_, _>>(),
            "subject": ctx.caller().subject,
            "namespace": ctx.caller().namespace,
        }),
        Order::Fail {
            r#type,
            message,
            retryable,
        } => {
            let error = AgentError::new(r#type, message);
            return Err(if retryable { error.retryable() } else { error });
        }
        Order::Panic => panic!("told to panic"),
        Order::Hang => std::future::pending().await,
        Order::Wait { ms } => {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            Value::Null
        }
        Order::Block { ms } => {
            std::thread::sleep(Duration::from_millis(ms));
            Value::Null
        }
        Order::Exit { code } => std::process::exit(code),
        Order::Output { count } => {
            for number in 1..=count {
                ctx.output(number).await?;
            }
            json!(count)
        }
    };
    Ok(Payload::json(&value)?)
}

async fn typed(ctx: Context, asked: Asked) -> Result<Answered, AgentError> {
    say(&format!("started {}", ctx.run_id()));
    let number = asked.number;
    Ok(Answered { number })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    let slots = std::env::var("HARNESS_SLOTS").map_or(Ok(1), |slots| slots.parse())?;
    let worker = match std::env::var("PUPPET_AGENT").as_deref() {
        Ok("typed") => Worker::builder(agent_fn(typed)).name("typed"),
        _ => Worker::builder(agent_fn(reply)).name("puppet"),
    };
    Ok(worker.slots(slots).run().await?)
}
