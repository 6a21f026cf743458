//! What a caller is told at the end of a run.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::agent::AgentError;
use crate::agent_loop::machine::{Abort, End, Machine, ModelFailed, Used};
use crate::agent_loop::message::Message;
use crate::agent_loop::prompt::Answer;

/// The end of a run, and how it came to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// How it ended.
    pub end: End,
    /// Model calls that were recorded.
    pub turns: u32,
    /// Tool calls that were asked for.
    pub tool_calls: u32,
    /// What the model calls used.
    pub used: Used,
    /// Each tool call, in order.
    pub tools: Vec<ToolReport>,
    /// The conversation: every call has exactly one result.
    #[serde(skip)]
    pub messages: Vec<Arc<Message>>,
}

/// What is known of a tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolReport {
    /// The call.
    pub call_id: String,
    /// The tool.
    pub tool: String,
    /// Whether it ran.
    pub state: CallState,
}

/// Whether a tool call ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallState {
    /// It ran to its end, and its result is recorded.
    Finished,
    /// It did not run: the run was to stop before, its arguments were not valid, or a hook denied it.
    NeverStarted,
    /// It may have run: it had begun, and its result is not recorded, or it was given up in the middle.
    Unknown,
}

impl Ended {
    pub(super) fn new(end: End, machine: &Machine, tools: Vec<ToolReport>) -> Self {
        Self {
            end,
            turns: machine.turns(),
            tool_calls: machine.tool_calls(),
            used: machine.used(),
            tools,
            messages: machine.messages(),
        }
    }

    /// The answer, or the agent's error that this end is.
    ///
    /// # Errors
    /// The run ended without an answer; the details are this report.
    pub fn into_answer(self) -> Result<Answer, AgentError> {
        let (error_type, message, may_pass) = match &self.end {
            End::Answered { text, .. } => {
                let text = text.clone();
                return Ok(Answer::new(text, self.turns, self.tool_calls, self.used));
            }
            End::Refused { text, note } => {
                let why = note.as_deref().unwrap_or(text);
                (
                    "Refused",
                    format!("the model will not answer: {why}"),
                    false,
                )
            }
            End::Truncated { .. } => {
                let message = "the answer was cut off at the limit of its length";
                ("Truncated", message.to_owned(), false)
            }
            End::ToolFailed { tool, text } => (
                "ToolFailed",
                format!("the tool {tool} failed: {text}"),
                false,
            ),
            End::ModelFailed(failed) => {
                (&*failed.error_type, failed.message.clone(), failed.may_pass)
            }
            End::Aborted(Abort::Hook {
                error_type,
                message,
                ..
            }) => (&**error_type, message.clone(), false),
            End::Aborted(abort) => ("Aborted", abort.to_string(), false),
        };
        let mut error = AgentError::new(error_type, message).details(&self);
        if may_pass {
            error = error.retryable();
        }
        if let End::ModelFailed(ModelFailed {
            retry_after_ms: Some(ms),
            ..
        }) = &self.end
        {
            error = error.retry_after(Duration::from_millis(*ms));
        }
        Err(error)
    }
}
