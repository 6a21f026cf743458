//! How a run of the loop ends.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::agent_loop::pairs::INTERRUPTED;

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "snake_case")]
pub enum End {
    /// The model gave its final answer.
    Answered {
        /// The answer. Empty is legal after tool results.
        text: String,
        /// Whether it is empty.
        is_empty: bool,
    },
    /// The model, or its provider, will not answer.
    Refused {
        /// What it said.
        text: String,
        /// Why, when the provider said so.
        note: Option<String>,
    },
    /// The answer was cut off at the output limit, also at the larger one. No call of it was run.
    Truncated {
        /// What came of it.
        text: String,
    },
    /// A tool failed in a way that nothing can go on after.
    ToolFailed {
        /// The tool.
        tool: String,
        /// What it said.
        text: String,
    },
    /// The model could not be called.
    ModelFailed(ModelFailed),
    /// The loop was stopped before the model was done.
    Aborted(Abort),
}

/// Why a model could not be called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFailed {
    /// The kind of failure, such as `ModelUnavailable`; `AnswerTooLarge` when there was an answer and
    /// no entry of the journal holds it.
    pub error_type: String,
    /// One line for a person, with what is behind it.
    pub message: String,
    /// Whether it may pass.
    pub may_pass: bool,
    /// The least time to wait before the run is tried again, when the provider said one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

/// Why the loop was stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", content = "at", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Abort {
    /// From outside: a caller, a deadline.
    Cancelled,
    /// One tool did nothing but fail for so many turns in a row.
    FailingTool {
        /// The tool.
        tool: String,
        /// The turns.
        turns: u32,
    },
    /// One call was made so many times.
    RepeatedCall {
        /// The tool.
        tool: String,
        /// The times.
        times: u32,
    },
    /// So many model calls were made.
    Turns(u32),
    /// So many tool calls were asked for.
    ToolCalls(u32),
    /// So many tokens were used.
    Tokens(u64),
    /// So much was spent, in millionths.
    Cost(u64),
    /// The conversation is too long, and nothing more of it can be left out.
    ContextFull {
        /// What it is estimated to be.
        input_tokens: u64,
    },
    /// The provider paused its answer so many times in a row.
    Pauses(u32),
    /// So many calls in a row could not be read.
    Malformed(u32),
    /// A hook ended the run before a call.
    Hook {
        /// The tool.
        tool: String,
        /// The type of the run's error.
        error_type: String,
        /// One line for a person.
        message: String,
    },
}

impl End {
    pub(super) fn answered(text: String) -> Self {
        let is_empty = text.trim().is_empty();
        Self::Answered { text, is_empty }
    }

    /// What a call is answered that has no result at this end.
    pub(super) fn dangling(&self) -> &'static str {
        match self {
            Self::Truncated { .. } => "truncated",
            Self::Aborted(Abort::Cancelled) => "[aborted by caller]",
            Self::Aborted(
                Abort::FailingTool { .. }
                | Abort::RepeatedCall { .. }
                | Abort::Turns(_)
                | Abort::ToolCalls(_)
                | Abort::Tokens(_)
                | Abort::Cost(_)
                | Abort::ContextFull { .. }
                | Abort::Pauses(_)
                | Abort::Malformed(_)
                | Abort::Hook { .. },
            )
            | Self::Answered { .. }
            | Self::Refused { .. }
            | Self::ToolFailed { .. }
            | Self::ModelFailed(_) => INTERRUPTED,
        }
    }
}

impl fmt::Display for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelled => f.write_str("aborted by the caller"),
            Self::FailingTool { tool, turns } => {
                write!(f, "the tool {tool} only failed, {turns} turns in a row")
            }
            Self::RepeatedCall { tool, times } => {
                write!(f, "the same call of {tool} was made {times} times")
            }
            Self::Turns(turns) => write!(f, "the model was called {turns} times without an end"),
            Self::ToolCalls(calls) => write!(f, "{calls} tool calls were asked for"),
            Self::Tokens(tokens) => write!(f, "{tokens} tokens were used"),
            Self::Cost(micros) => write!(f, "{micros} millionths were spent"),
            Self::ContextFull { input_tokens } => write!(
                f,
                "the conversation has about {input_tokens} tokens and nothing more can be left out"
            ),
            Self::Pauses(times) => write!(f, "the provider paused {times} times in a row"),
            Self::Malformed(times) => write!(f, "{times} calls in a row could not be read"),
            Self::Hook { tool, message, .. } => {
                write!(f, "a hook ended the run before a call of {tool}: {message}")
            }
        }
    }
}
