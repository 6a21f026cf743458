//! What is known of a call before anything is done about it.
//!
//! Owns the order of the questions: the journal is asked first, the tools of this version of the
//! agent only where it says nothing. So a call that ran is told as run, whatever has become of its
//! tool since, and one that a recorded answer of the model already rests on is never run late.

use serde_json::Value;

use super::Parts;
use super::report::CallState;
use crate::agent::AgentError;
use crate::agent_loop::machine::{Abort, ToolOutcome, ToolResult};
use crate::agent_loop::message::Call;
use crate::agent_loop::record::{MODEL, ToolRecord, ToolStatus, call_key, tool_step, turn_key};
use crate::agent_loop::tool::Tool;
use crate::agent_loop::toolbox::Entry;
use crate::journal::{Outcome, StepError};
use crate::payload::FromPayload as _;

/// What the model is told of a call of which nobody knows whether it had its effect.
pub(super) const UNKNOWN: &str = "The outcome is unknown: the work was interrupted after it had \
     begun, and it may or may not have had its effect. It was not run again. Find out before you \
     repeat it.";

/// What the model is told of a call that was refused before, for a reason that is none any more.
const NOT_RUN: &str = "This call was refused and did not run.";

/// A journal as it is asked: nothing, a begin, or a result, by the name and the key of a step.
pub(super) trait Past {
    fn recorded_step(&self, name: &str, key: &str) -> Option<Option<Outcome>>;

    /// Whether the model has been called since this turn.
    fn is_past(&self, turn: u32) -> bool {
        self.recorded_step(MODEL, &turn_key(turn + 1)).is_some()
    }
}

/// What is known of one call.
pub(super) struct Place {
    pub(super) state: CallState,
    pub(super) result: Option<ToolResult>,
}

/// A call before anything is done about it.
pub(super) enum Known<'a> {
    /// Nothing is to be done: it has its result, or will not get one by running.
    Settled(Place),
    /// A hook has ended the run before it.
    Ended(AgentError),
    /// It is to run.
    Open(Open<'a>),
}

/// A call that is to run.
pub(super) struct Open<'a> {
    pub(super) entry: &'a Entry,
    pub(super) arguments: Value,
    /// An attempt before has begun it.
    pub(super) is_begun: bool,
}

impl Open<'_> {
    /// What is known of it as long as it has not run.
    pub(super) fn state(&self) -> CallState {
        if self.is_begun {
            CallState::Unknown
        } else {
            CallState::NeverStarted
        }
    }
}

impl Place {
    pub(super) fn open(state: CallState) -> Self {
        Self {
            state,
            result: None,
        }
    }

    pub(super) fn failed(state: CallState, call: &Call, text: &str) -> Self {
        let result = ToolResult {
            call_id: call.id.clone(),
            text: text.to_owned(),
            outcome: ToolOutcome::Failed,
        };
        Self {
            state,
            result: Some(result),
        }
    }

    pub(super) fn recorded(call: &Call, tool: Option<&Tool>, record: &ToolRecord) -> Self {
        let bytes_max = tool.map_or(Tool::MAX_RESULT_BYTES, |tool| tool.max_result_bytes);
        let result = ToolResult {
            call_id: call.id.clone(),
            text: record.shown(bytes_max),
            outcome: outcome(record.status),
        };
        Self {
            state: state(record.status, tool),
            result: Some(result),
        }
    }

    /// Whether the run cannot go on after it.
    pub(super) fn is_fatal(&self) -> bool {
        let result = self.result.as_ref();
        result.is_some_and(|result| result.outcome == ToolOutcome::Fatal)
    }
}

impl Parts {
    /// What is known of a call. `is_past`: the model has been called since, so the call has had all
    /// the result it gets.
    ///
    /// # Errors
    /// What is recorded is no result of a tool.
    pub(super) fn known(
        &self,
        call: &Call,
        past: &impl Past,
        is_past: bool,
    ) -> Result<Known<'_>, StepError> {
        let entry = self.toolbox.get(&call.name);
        let tool = entry.map(|entry| &entry.tool);
        let (name, key) = (tool_step(&call.name), call_key(&call.id));
        let is_begun = match past.recorded_step(&name, &key) {
            Some(Some(Ok(payload))) => {
                let record = ToolRecord::from_payload(payload);
                let record = record.map_err(|why| StepError::Unreadable {
                    step: format!("{name} ({key})"),
                    why,
                })?;
                return Ok(Known::Settled(Place::recorded(call, tool, &record)));
            }
            Some(Some(Err(parts))) => return Ok(Known::Ended(AgentError::from_parts(*parts))),
            Some(None) => true,
            None => false,
        };
        let runnable = match entry {
            None => Err(self.toolbox.unknown(&call.name)),
            Some(entry) => match entry.arguments(&call.arguments) {
                Ok(arguments) => Ok((&**entry, arguments)),
                Err(rejection) => Err(rejection.observation(&call.name)),
            },
        };
        Ok(match runnable {
            Ok((entry, arguments)) if !is_past => Known::Open(Open {
                entry,
                arguments,
                is_begun,
            }),
            _ if is_begun => Known::Settled(Place::failed(CallState::Unknown, call, UNKNOWN)),
            Ok(_) => Known::Settled(Place::failed(CallState::NeverStarted, call, NOT_RUN)),
            Err(why) => Known::Settled(Place::failed(CallState::NeverStarted, call, &why)),
        })
    }
}

/// Whether a call with this record ran. One that was given up in the middle may have had its effect
/// or not, but for a tool that has none or may have it twice.
fn state(status: ToolStatus, tool: Option<&Tool>) -> CallState {
    match status {
        ToolStatus::Timeout if !tool.is_some_and(Tool::may_run_again) => CallState::Unknown,
        ToolStatus::Unknown => CallState::Unknown,
        ToolStatus::Denied => CallState::NeverStarted,
        ToolStatus::Ok | ToolStatus::Error | ToolStatus::Timeout | ToolStatus::Fatal => {
            CallState::Finished
        }
    }
}

fn outcome(status: ToolStatus) -> ToolOutcome {
    match status {
        ToolStatus::Ok => ToolOutcome::Done,
        ToolStatus::Error | ToolStatus::Timeout | ToolStatus::Unknown | ToolStatus::Denied => {
            ToolOutcome::Failed
        }
        ToolStatus::Fatal => ToolOutcome::Fatal,
    }
}

/// The end of a run that a hook has ended.
pub(super) fn ended_by_hook(tool: String, error: &AgentError) -> Abort {
    Abort::Hook {
        tool,
        error_type: error.error_type().to_owned(),
        message: error.message().to_owned(),
    }
}
