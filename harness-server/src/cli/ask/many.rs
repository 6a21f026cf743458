//! Asking with each line of standard input, on one call.
//!
//! As many lines are read ahead as the call may have open.

use serde_json::{Value, json};
use tokio::task::JoinSet;
use worker_sdk::client::{Ask, OfMany};
use worker_sdk::{Answer, Error, Payload};

use super::input::Lines;
use super::reply;
use crate::cli::error::{CliError, exit_code_of};
use crate::cli::output;

type Answered = (u64, Result<Answer<Payload>, Error>);

/// How many were asked, and how that went.
#[derive(Debug, Default)]
pub(super) struct Tally {
    asked: u64,
    failed: u64,
    deadline: bool,
    lost: bool,
}

/// Reads lines and writes answers until all are answered, the harness is lost or nobody reads the
/// answers.
pub(super) async fn run(
    window: usize,
    ask: impl Fn(Payload) -> Ask<Payload, OfMany>,
) -> Result<Tally, CliError> {
    let (mut lines, mut tally) = (Lines::of_standard_input(), Tally::default());
    let mut asking: JoinSet<Answered> = JoinSet::new();
    let mut at_end = false;
    loop {
        let read = tokio::select! {
            Some(answered) = asking.join_next() => {
                let (line, answer) = answered.expect("an ask must not panic");
                tally.write(line, answer)?
            }
            line = lines.next(), if !at_end && !tally.lost && asking.len() < window => {
                match line? {
                    Some((number, Ok(payload))) => {
                        let ask = ask(payload);
                        asking.spawn(async move { (number, ask.await) });
                        true
                    }
                    Some((number, Err(why))) => tally.write_unsent(number, &why)?,
                    None => {
                        at_end = true;
                        true
                    }
                }
            }
            else => return Ok(tally),
        };
        if !read {
            return Ok(tally);
        }
    }
}

impl Tally {
    /// Writes an answer; false when nobody reads it.
    fn write(
        &mut self,
        line: u64,
        answer: Result<Answer<Payload>, Error>,
    ) -> Result<bool, CliError> {
        self.asked += 1;
        let text = match answer {
            Ok(answer) => format!("{{\"line\":{line},{}}}\n", reply::members(&answer)),
            Err(error) => {
                self.failed += 1;
                match exit_code_of(&error) {
                    3 => self.lost = true,
                    4 => self.deadline = true,
                    _ => {}
                }
                let mut value = json!({ "line": line, "error": error });
                if !error.run_id().is_empty() {
                    value["run_id"] = error.run_id().into();
                    value["attempt"] = error.attempt().into();
                }
                format!("{value}\n")
            }
        };
        output::offer(text.as_bytes())
    }

    fn write_unsent(&mut self, line: u64, why: &str) -> Result<bool, CliError> {
        self.asked += 1;
        self.failed += 1;
        let error: Value = json!({ "code": "USAGE", "message": why });
        output::offer(format!("{}\n", json!({ "line": line, "error": error })).as_bytes())
    }

    /// Tells a person how many failed, if any.
    pub(super) fn tell(&self) {
        if self.failed > 0 {
            let (failed, asked) = (self.failed, self.asked);
            output::mistake(&format!(
                "{failed} of {asked} asks were not answered with a reply"
            ));
        }
    }

    /// What the exit code tells.
    pub(super) fn result(&self) -> Result<(), CliError> {
        match (self.lost, self.deadline, self.failed) {
            (true, _, _) => Err(CliError::Told(3)),
            (false, true, _) => Err(CliError::Told(4)),
            (false, false, 0) => Ok(()),
            (false, false, _) => Err(CliError::Told(1)),
        }
    }
}
