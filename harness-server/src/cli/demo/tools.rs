//! The part of the demo in which a model looks something up with tools: what comes out of it while
//! it works, and the journal it leaves behind.
//!
//! Owns what is shown of both. The agent is `research`, the example's own file.

use std::time::Instant;

use serde_json::Value;
use worker_sdk::agent_loop::{Answer, Piece};
use worker_sdk::client::runs::{Content, Entry, Outcome};
use worker_sdk::client::{Event, WatchEvent};
use worker_sdk::{Error, Harness};

use super::story::clock;
use super::{RESEARCH, Stage};
use crate::cli::error::CliError;
use crate::cli::output::{self, printable};

/// What the agent is asked.
pub(super) const QUESTION: &str = "What flows into the Mediterranean Sea?";

/// Asks, and tells it all.
///
/// # Errors
/// It was not answered, or not by way of its tools.
pub(super) async fn tell(stage: &Stage) -> Result<(), CliError> {
    output::line(&format!("\nask {RESEARCH} '\"{QUESTION}\"' --stream"))?;
    let failed = |error| CliError::of_call(&stage.address, error);
    let run_id = ask(&stage.harness).await.map_err(failed)?;
    output::line("\nits journal, which another worker would go on from:")?;
    let mut tool_calls = 0;
    for entry in journal(&stage.harness, &run_id?).await.map_err(failed)? {
        if let Some(what) = what(&entry.content) {
            tool_calls += usize::from(what.starts_with("step tool/"));
            output::line(&printable(&format!("  {:>2}  {what}", entry.seq)))?;
        }
    }
    match tool_calls {
        2 => Ok(()),
        other => Err(CliError::Demo(format!("{other} tools were used, not 2"))),
    }
}

/// Asks and prints what comes; gives the run.
async fn ask(harness: &Harness) -> Result<Result<String, CliError>, Error> {
    let start = Instant::now();
    let told =
        |text: String| output::line(&printable(&format!("  {}  {text}", clock(start.elapsed()))));
    let mut events = harness
        .ask_stream::<Piece, Answer>(RESEARCH, QUESTION)
        .await?;
    while let Some(event) = events.next().await {
        let printed = match event? {
            Event::Output(Piece::Text { text, .. }) => told(format!("it says: {text}")),
            Event::Reply(answer) => {
                let Answer {
                    turns, tool_calls, ..
                } = answer.value;
                let how = format!("answered after {turns} model calls and {tool_calls} tool calls");
                return Ok(told(how).map(|()| answer.run_id));
            }
            _ => Ok(()),
        };
        if let Err(error) = printed {
            return Ok(Err(error));
        }
    }
    Ok(Err(CliError::Demo("it has not answered".to_owned())))
}

async fn journal(harness: &Harness, run_id: &str) -> Result<Vec<Entry>, Error> {
    let mut watch = harness.watch_run("", run_id).await?;
    let mut entries = Vec::new();
    while let Some(event) = watch.next().await {
        if let WatchEvent::Entry(entry) = event? {
            entries.push(entry);
        }
    }
    Ok(entries)
}

/// An entry of the agent's in a line.
fn what(content: &Content) -> Option<String> {
    Some(match content {
        Content::Output(piece) => {
            let Piece::Text { text, .. } = piece.to_json().ok()?;
            format!("output: {text}")
        }
        Content::Usage {
            input_tokens,
            output_tokens,
            ..
        } => format!("usage: {input_tokens} tokens in, {output_tokens} out"),
        Content::Step {
            name,
            key,
            outcome: Some(Outcome::Value(result)),
            ..
        } => {
            let record: Value = result.to_json().ok()?;
            let text = record["text"].as_str().map(|text| format!(": {text}"));
            format!("step {name} {key}{}", text.unwrap_or_default())
        }
        _ => return None,
    })
}
