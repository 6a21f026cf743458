//! Printing what happens until the reply.

use serde_json::json;
use worker_sdk::client::{AttemptStarted, Event, Events};
use worker_sdk::{Error, Payload};

use super::reply;
use crate::cli::error::CliError;
use crate::cli::output::{self, printable};

/// Prints the events until the reply. A reader that has gone ends it, which hangs up.
pub(super) async fn print(
    mut events: Events<Payload, Payload>,
    json: bool,
    explain: impl Fn(Error) -> CliError,
) -> Result<(), CliError> {
    while let Some(event) = events.next().await {
        let event = event.map_err(&explain)?;
        let read = if json {
            output::offer(format!("{}\n", line(&event)).as_bytes())?
        } else {
            text(&event)?
        };
        if !read {
            break;
        }
    }
    Ok(())
}

fn line(event: &Event<Payload, Payload>) -> String {
    let value = match event {
        Event::Output(piece) => return format!("{{{}}}", reply::member("output", piece)),
        Event::Reply(answer) => return reply::object(answer),
        Event::AttemptStarted(it) | Event::Restarted(it) => json!({ "attempt_started": {
            "attempt": it.attempt, "worker_id": it.worker_id, "worker": it.worker_name,
        } }),
        Event::Progress { fraction, message } => {
            json!({ "progress": { "fraction": fraction, "message": message } })
        }
        Event::Log { level, message } => json!({ "log": { "level": level, "message": message } }),
        Event::Gap { first_kept } => json!({ "gap": { "first_kept": first_kept } }),
        _ => json!({ "unknown": null }),
    };
    value.to_string()
}

/// Data to standard output, the rest to standard error; whether anybody reads on.
fn text(event: &Event<Payload, Payload>) -> Result<bool, CliError> {
    let note = match event {
        Event::Output(piece) => return output::offer(&reply::text(piece)),
        Event::Reply(answer) => return output::offer(&reply::text(&answer.value)),
        Event::Restarted(AttemptStarted {
            attempt,
            worker_name,
            ..
        }) => {
            format!("attempt {attempt} on worker {worker_name}: the output before is void")
        }
        Event::Progress { fraction, message } => format!("{:.0} % {message}", fraction * 100.0),
        Event::Log { level, message } => {
            format!("{}: {message}", format!("{level:?}").to_lowercase())
        }
        Event::Gap { first_kept } => format!("some output was lost, before entry {first_kept}"),
        _ => return Ok(true),
    };
    output::note(&printable(&note));
    Ok(true)
}
