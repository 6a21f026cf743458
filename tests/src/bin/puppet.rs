//! A worker whose agent, `puppet`, does what its request says; the subject of tests.
//!
//! It writes `started RUN` when it begins, `dropped RUN` when its future is dropped unfinished and
//! `told RUN` when code that goes on regardless could know that it was cancelled, one line each, to
//! standard error. PUPPET_AGENT=typed makes it the agent `typed`, which has schemas and gives its
//! number back. PUPPET_SIGNALS=off has SIGTERM end it at once. PUPPET_WORKERS is how many workers it is, each
//! with its own connection and all the slots; the first that fails ends the process. `tests/python/puppet.py`
//! is the same in Python, at either level.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use worker_sdk::context::LogLevel;
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
    /// Records its process id as a step, says `stepped RUN` and replies after a while with who did
    /// that step and who replies.
    Step { ms: u64 },
    /// Blocks its thread for a while, whatever happens, then replies null.
    Block { ms: u64 },
    /// The same, and says `told RUN` once its context knows that the run is over.
    Doze { ms: u64 },
    /// Ends the process.
    Exit { code: i32 },
    /// Replies with its process id.
    Pid,
    /// Replies with its environment.
    Env,
    /// Writes so many such lines to standard output, then replies null.
    Print { line: String, count: usize },
    /// Starts a process that sleeps for this number of seconds, in a session of its own if asked
    /// to, and never answers.
    HangWithChild { seconds: String, setsid: bool },
    /// Sends outputs 1 to `count`, or so many strings of so many bytes, their quotes included,
    /// then replies with the count, or hangs.
    Output {
        count: u64,
        #[serde(default)]
        bytes: usize,
        #[serde(default)]
        hang: bool,
    },
    /// Says all it can: progress, a log line, output, then replies `done`.
    Tell,
    /// Fails in a way that can be tried again in so many attempts, then replies with the attempt.
    Flaky { failures: u32 },
    /// For each number up to `count`: adds it as a line to the file `log` of a folder, sends it as
    /// output and waits until the folder has a file of that name. Then adds `done` and replies with
    /// the count.
    Stages { folder: PathBuf, count: u64 },
    /// Asks another agent and replies with its reply.
    Ask { agent: String, request: Value },
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
        Order::Step { ms } => step(&ctx, Duration::from_millis(ms)).await?,
        Order::Block { ms } => {
            std::thread::sleep(Duration::from_millis(ms));
            Value::Null
        }
        Order::Doze { ms } => {
            let _telling = telling(ctx);
            // What was just spawned may wait on this very thread, which hands it over here.
            tokio::task::block_in_place(|| std::thread::sleep(Duration::from_millis(ms)));
            Value::Null
        }
        Order::Exit { code } => std::process::exit(code),
        Order::Pid => json!(std::process::id()),
        Order::Env => json!(std::env::vars().collect::<BTreeMap<_, _>>()),
        Order::Print { line, count } => {
            print(&line, count);
            Value::Null
        }
        Order::HangWithChild { seconds, setsid } => {
            start_sleeper(seconds, setsid);
            std::future::pending().await
        }
        Order::Output { count, bytes, hang } => {
            let told = output(&ctx, count, bytes).await?;
            if hang {
                std::future::pending().await
            }
            told
        }
        Order::Tell => tell(&ctx).await?,
        Order::Flaky { failures } if ctx.attempt() <= failures => {
            return Err(AgentError::new("Flaky", "not yet").retryable());
        }
        Order::Flaky { .. } => json!(ctx.attempt()),
        Order::Stages { folder, count } => stages(&ctx, &folder, count).await?,
        Order::Ask { agent, request } => ctx.ask::<Value>(agent, &request).await?.value,
    };
    Ok(Payload::json(&value)?)
}

/// Who did a step, this process or one before it, and who is this.
async fn step(ctx: &Context, wait: Duration) -> Result<Value, AgentError> {
    let own = std::process::id();
    let by: u32 = ctx.step("who", |_| async move { Ok(own) }).await?;
    say(&format!("stepped {}", ctx.run_id()));
    tokio::time::sleep(wait).await;
    Ok(json!([by, own]))
}

async fn stages(ctx: &Context, folder: &Path, count: u64) -> Result<Value, AgentError> {
    let path = folder.join("log");
    let mut log = OpenOptions::new().append(true).create(true).open(path)?;
    for number in 1..=count {
        writeln!(log, "{number}")?;
        ctx.output(json!(number)).await?;
        while !folder.join(number.to_string()).exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    writeln!(log, "done")?;
    Ok(json!(count))
}

#[expect(clippy::print_stdout, reason = "the harness reads it")]
fn print(line: &str, count: usize) {
    for _ in 0..count {
        println!("{line}");
    }
}

/// Starts a process, which a thread waits for.
fn start_sleeper(seconds: String, setsid: bool) {
    std::thread::spawn(move || {
        let mut command = std::process::Command::new(if setsid { "setsid" } else { "sleep" });
        if setsid {
            command.arg("sleep");
        }
        command.arg(seconds).status().expect("sleep must start")
    });
}

async fn output(ctx: &Context, count: u64, bytes: usize) -> Result<Value, AgentError> {
    for number in 1..=count {
        ctx.output(match bytes {
            0 => json!(number),
            bytes => Value::String("x".repeat(bytes.saturating_sub(2))),
        })
        .await?;
    }
    Ok(json!(count))
}

async fn tell(ctx: &Context) -> Result<Value, AgentError> {
    ctx.progress(0.5, "half").await?;
    ctx.log(LogLevel::Warn, "careful").await?;
    ctx.output("a piece").await?;
    ctx.output(json!({"b": 1, "a": [2]})).await?;
    Ok(json!("done"))
}

/// Says it when the context knows that the run is over, for as long as what it gives lives.
fn telling(ctx: Context) -> JoinSet<()> {
    let mut telling = JoinSet::new();
    telling.spawn(async move {
        ctx.cancelled().await;
        say(&format!("told {}", ctx.run_id()));
    });
    telling
}

async fn typed(ctx: Context, asked: Asked) -> Result<Answered, AgentError> {
    say(&format!("started {}", ctx.run_id()));
    let number = asked.number;
    Ok(Answered { number })
}

/// One worker, as the environment wants it.
fn worker() -> Result<Worker, Box<dyn std::error::Error>> {
    if std::env::var("PUPPET_AGENT").as_deref() == Ok("typed") {
        return Ok(Worker::builder(agent_fn(typed)).name("typed").build()?);
    }
    let worker = Worker::builder(agent_fn(reply));
    let mut worker = match std::env::var_os("HARNESS_TOKEN") {
        // A pool has started it, and gives it the name of its agent, too.
        Some(_) => worker.from_env(),
        None => worker.name("puppet"),
    };
    if std::env::var("PUPPET_SIGNALS").as_deref() == Ok("off") {
        worker = worker.leave_on_signals(false);
    }
    if let Ok(label) = std::env::var("PUPPET_LABEL") {
        let (key, value) = label.split_once('=').ok_or("PUPPET_LABEL is KEY=VALUE")?;
        worker = worker.label(key, value);
    }
    Ok(worker.build()?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    harness_tests::log_to_stderr();
    let count = match std::env::var("PUPPET_WORKERS") {
        Ok(count) => count.parse()?,
        Err(_) => 1,
    };
    let mut workers = JoinSet::new();
    for _ in 0..count {
        workers.spawn(worker()?.run());
    }
    while let Some(ended) = workers.join_next().await {
        ended??;
    }
    Ok(())
}
