//! An agent with a tool of each class, run alone on a journal in a file, that can die in any of them
//! and be started again.
//!
//! Whether the card is charged can be a person's to say. What the tools do to the world is a line
//! each in `world.txt`, so that one can count how often it happened. The walk-through is in the
//! README beside this file.

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use worker_sdk::AgentError;
use worker_sdk::agent_loop::{
    AgentLoop, AgentLoopBuilder, Class, Line, Message, PendingCall, Request, ScriptedModel, Tool,
    ToolContext, ToolError, Verdict,
};
use worker_sdk::journal::Local;

/// The run, in whichever process it goes on.
const RUN: &str = "0192f0c1-2d3e-7a4b-8c5d-6e7f8091a2b3";

/// The services the tools call, and where this process dies.
struct World {
    file: PathBuf,
    die_in: Option<String>,
}

impl World {
    /// Something happens, and is there to stay; then this process may die, before anybody heard.
    fn happen(&self, tool: &str, key: &str) -> Result<(), ToolError> {
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.file)?;
        writeln!(file, "{tool} {key}")?;
        if self.die_in.as_deref() == Some(tool) {
            std::process::abort();
        }
        Ok(())
    }

    fn happened(&self, tool: &str, key: &str) -> bool {
        let lines = fs::read_to_string(&self.file).unwrap_or_default();
        lines.lines().any(|line| line == format!("{tool} {key}"))
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Trip {
    city: String,
}

/// Asks whoever sits at the terminal before the card is charged. What they say is in the journal
/// before the tool runs, so no later process asks again.
async fn approve(call: PendingCall) -> Result<Verdict, AgentError> {
    if call.tool != "charge" {
        return Ok(Verdict::Allow);
    }
    let question = format!(
        "Charge the card for {}? yes or no: ",
        call.arguments["city"]
    );
    std::io::stderr().write_all(question.as_bytes())?;
    let answer = tokio::task::spawn_blocking(|| std::io::stdin().lines().next()).await?;
    Ok(match answer.transpose()?.as_deref() {
        Some("yes") => Verdict::Allow,
        Some(_) | None => Verdict::deny("The owner of the card said no."),
    })
}

fn agent(world: World) -> Result<AgentLoopBuilder, Box<dyn Error>> {
    let world = Arc::new(world);
    let tool = |name: &'static str, description: &str, done: &'static str| {
        let world = Arc::clone(&world);
        Tool::new(name, description, move |ctx: ToolContext, trip: Trip| {
            let world = Arc::clone(&world);
            async move {
                world.happen(name, ctx.idempotency_key())?;
                Ok(format!("{done} {}", trip.city))
            }
        })
    };
    let outbox = Arc::clone(&world);
    let sent = move |ctx: ToolContext, trip: Trip| {
        let outbox = Arc::clone(&outbox);
        async move {
            let is_sent = outbox.happened("mail", ctx.idempotency_key());
            Ok(is_sent.then(|| format!("found the mail about {}", trip.city)))
        }
    };
    Ok(AgentLoop::builder(script())
        // Changes nothing: may run again.
        .tool(tool("look", "Looks for a room.", "there is a room in").class(Class::ReadOnly))
        // The hotel knows the key: reserving twice under it is reserving once.
        .tool(tool("reserve", "Reserves it.", "reserved in").class(Class::Idempotent))
        // The bank knows no key: must not run twice. This is what a tool is unless told otherwise.
        .tool(tool("charge", "Charges the card.", "charged for").class(Class::SideEffect))
        // The outbox can be asked whether the mail was sent.
        .tool(tool("mail", "Sends the ticket.", "mailed the ticket to").verified_by(sent)))
}

/// Books step by step. When the outcome of the charge is unknown, it says so.
fn script() -> ScriptedModel {
    let call = |tool: &str| Some(Line::call(tool, serde_json::json!({"city": "Rome"})));
    ScriptedModel::by(move |request| match request.turn {
        1 => call("look"),
        2 => call("reserve"),
        3 => call("charge"),
        4 if last_result(request).contains("unknown") => Some(Line::text(
            "The room is reserved. Whether the card was charged I do not know.",
        )),
        4 if last_result(request).contains("denied") => {
            Some(Line::text("The room is reserved, and not paid."))
        }
        4 => call("mail"),
        _ => Some(Line::text(format!("Booked: {}.", last_result(request)))),
    })
}

fn last_result(request: &Request) -> &str {
    match request.messages.last().map(|message| &**message) {
        Some(Message::Tools { results }) => results.first().map_or("", |result| &*result.text),
        _ => "",
    }
}

async fn book(folder: &Path, ask: bool, die_in: Option<String>) -> Result<String, Box<dyn Error>> {
    let attempt = Local::open(folder.join("journal.db"))?.attempt(RUN)?;
    let file = folder.join("world.txt");
    let mut agent = agent(World { file, die_in })?;
    if ask {
        agent = agent.before_tool(approve);
    }
    let agent = agent.build()?;
    let answer = attempt.run(&agent, "Book a room in Rome.".into()).await?;
    Ok(answer.text)
}

#[tokio::main(flavor = "current_thread")]
#[expect(
    clippy::print_stdout,
    reason = "the answer is what this program is for"
)]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (folder, ask, die_in) = match arguments.as_slice() {
        [folder] => (folder, false, None),
        [folder, flag] if flag == "--ask" => (folder, true, None),
        [folder, flag, tool] if flag == "--die-in" => (folder, false, Some(tool.clone())),
        _ => {
            return Err("usage: booking FOLDER [--ask | --die-in look|reserve|charge|mail]".into());
        }
    };
    fs::create_dir_all(folder)?;
    println!("{}", book(Path::new(folder), ask, die_in).await?);
    Ok(())
}
