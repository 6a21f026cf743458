//! What was recorded, taken in: how an answer, a result or a failure changes the state of a run.
//!
//! Owns the finish gate (which calls of an answer are run at all), the counting of what was used and
//! the way to each end. What comes next is the machine's own question.

use serde::{Deserialize, Serialize};

use super::compaction::Compaction;
use super::end::{Abort, End, ModelFailed};
use super::used::Used;
use super::{Machine, Phase};
use crate::agent_loop::budget::TokenCounter;
use crate::agent_loop::message::{Call, CallResult, Message};
use crate::agent_loop::pairs;
use crate::agent_loop::response::{Finish, Response, Usage};

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The call.
    pub call_id: String,
    /// What the model is shown.
    pub text: String,
    /// How it went.
    pub outcome: ToolOutcome,
}

/// How a call went, as far as the loop cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolOutcome {
    /// It has its result.
    Done,
    /// It failed, or was not run.
    Failed,
    /// The run cannot go on.
    Fatal,
}

impl Machine {
    /// Tries of the next call used this and came to no answer. What is recorded of the call is fed
    /// behind it.
    pub fn lost(&mut self, lost: Used) {
        if matches!(self.phase, Phase::Ready) {
            self.used = self.used.plus(lost);
        }
    }

    /// The call was given up, as its tries left nothing for another, and that is recorded. Where the
    /// limits have been raised since, another call is made.
    pub fn given_up(&mut self) {
        if matches!(self.phase, Phase::Ready) {
            self.turns += 1;
            self.compactions = 0;
        }
    }

    /// The model answered, and that is recorded.
    pub fn model_response(&mut self, response: Response, counter: &dyn TokenCounter) {
        if !matches!(self.phase, Phase::Ready) {
            return;
        }
        self.use_up(&response, counter);
        self.turns += 1;
        self.compactions = 0;
        let (finish, text, note) = (response.finish, response.text(), response.note.clone());
        let may_be_larger = !self.larger
            && self.rules.budget.max_output_tokens_retry > self.rules.budget.max_output_tokens;
        self.larger = finish == Finish::Length && may_be_larger;
        let calls = self.transcript.push(&response, self.turns, counter);
        let in_a_row = self.guard.in_a_row(finish, !calls.is_empty());
        self.guard.taken();
        let limits = self.rules.limits.clone();
        self.phase = match finish {
            Finish::ToolCalls if calls.is_empty() => self.unreadable(in_a_row, counter),
            Finish::ToolCalls => match self.guard.asked(&calls, &limits) {
                Some(abort) => Phase::Ended(End::Aborted(abort)),
                None => Phase::Tools(calls),
            },
            Finish::Stop => Phase::Ended(End::answered(text)),
            Finish::Length if self.larger => {
                self.transcript.forget_last();
                Phase::Ready
            }
            Finish::Length => Phase::Ended(End::Truncated { text }),
            Finish::Refusal => Phase::Ended(End::Refused { text, note }),
            Finish::Malformed => self.unreadable(in_a_row, counter),
            Finish::Pause if in_a_row > limits.pauses => {
                Phase::Ended(End::Aborted(Abort::Pauses(in_a_row)))
            }
            Finish::Pause => Phase::Ready,
        };
    }

    /// The model is told that its call could not be read, a few times.
    fn unreadable(&mut self, times: u32, counter: &dyn TokenCounter) -> Phase {
        if times >= self.rules.limits.malformed {
            return Phase::Ended(End::Aborted(Abort::Malformed(times)));
        }
        const TOLD: &str = "Your last tool call could not be read and was not run. Call the tool \
                            again with arguments that are one JSON object.";
        self.transcript.tell(TOLD, counter);
        Phase::Ready
    }

    fn use_up(&mut self, response: &Response, counter: &dyn TokenCounter) {
        let told = &response.usage;
        let input = told.input_tokens.filter(|tokens| *tokens > 0);
        let said = || counter.message(&Message::Assistant(response.said()));
        // A provider that says nothing, or that it read nothing, must not make the limits reach
        // nothing.
        let usage = Usage {
            input_tokens: Some(input.unwrap_or_else(|| self.input_tokens())),
            cached_tokens: told.cached_tokens,
            output_tokens: Some(
                told.output_tokens
                    .filter(|_| input.is_some())
                    .unwrap_or_else(said),
            ),
            ..Usage::default()
        };
        let prices = self.rules.prices.as_ref();
        let cost_micros = prices.map_or(0, |prices| prices.cost_micros(&usage));
        self.used = self.used.plus(Used {
            input_tokens: usage.input_tokens.unwrap_or(0),
            output_tokens: usage.output_tokens.unwrap_or(0),
            cost_micros,
        });
        if let Some(input) = input.filter(|_| !counter.is_exact()) {
            self.transcript.calibrate(input);
        }
    }

    /// The provider refused the input as too long, and that is recorded. The conversation is made
    /// shorter once; if that cannot help, the run is over.
    pub fn context_exceeded(&mut self) {
        if !matches!(self.phase, Phase::Ready) {
            return;
        }
        self.turns += 1;
        self.compactions = 0;
        if self.guard.refused_as_too_long() {
            let input_tokens = self.transcript.input_tokens();
            self.phase = Phase::Ended(End::Aborted(Abort::ContextFull { input_tokens }));
        }
        self.must_shorten = true;
    }

    /// The conversation was made shorter, and that is recorded.
    pub fn compacted(&mut self, compaction: &Compaction, counter: &dyn TokenCounter) {
        self.transcript.compact(compaction, counter);
        self.must_shorten = false;
        self.compactions += 1;
    }

    /// The calls of the turn have results, and those are recorded. A call that is given none is
    /// answered as interrupted; a result of no call is dropped.
    pub fn tool_results(&mut self, results: Vec<ToolResult>, counter: &dyn TokenCounter) {
        let Phase::Tools(calls) = &self.phase else {
            return;
        };
        let calls = calls.clone();
        let shown: Vec<CallResult> = calls
            .iter()
            .map(|call| self.shown(call, &results))
            .collect();
        let fatal = results
            .iter()
            .find(|result| result.outcome == ToolOutcome::Fatal)
            .and_then(|result| {
                let call = calls.iter().find(|call| call.id == result.call_id)?;
                Some(End::ToolFailed {
                    tool: call.name.clone(),
                    text: result.text.clone(),
                })
            });
        let abort = self.guard.answered(&shown, &self.rules.limits);
        self.transcript.answer(shown, counter);
        self.phase = match (fatal, abort) {
            (Some(end), _) => Phase::Ended(end),
            (None, Some(abort)) => Phase::Ended(End::Aborted(abort)),
            (None, None) => Phase::Ready,
        };
    }

    fn shown(&self, call: &Call, results: &[ToolResult]) -> CallResult {
        let Some(result) = results.iter().find(|result| result.call_id == call.id) else {
            return pairs::unanswered(call, pairs::INTERRUPTED);
        };
        let mut text = result.text.clone();
        if let Some(times) = self.guard.repeated(call, &self.rules.limits) {
            use std::fmt::Write as _;
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "\n\n[You have made this very call {times} times. Do something else, or answer with \
                 what you have.]"
            );
        }
        CallResult {
            call_id: call.id.clone(),
            tool: call.name.clone(),
            text,
            is_error: result.outcome != ToolOutcome::Done,
        }
    }

    /// The run is to stop. Calls of the turn that have a result get it, the others are answered as
    /// aborted.
    pub fn abort(&mut self, abort: Abort, results: &[ToolResult], counter: &dyn TokenCounter) {
        let end = End::Aborted(abort);
        match &self.phase {
            Phase::Ended(_) => return,
            Phase::Ready => {}
            Phase::Tools(calls) => {
                let shown = calls.iter().map(|call| {
                    let result = results.iter().find(|result| result.call_id == call.id);
                    match result {
                        Some(_) => self.shown(call, results),
                        None => pairs::unanswered(call, end.dangling()),
                    }
                });
                let shown = shown.collect();
                self.transcript.answer(shown, counter);
            }
        }
        self.phase = Phase::Ended(end);
    }

    /// The model cannot be called, or not any more.
    pub fn model_failed(&mut self, failed: ModelFailed) {
        if !matches!(self.phase, Phase::Ended(_)) {
            self.phase = Phase::Ended(End::ModelFailed(failed));
        }
    }
}
