//! The loop itself: what comes next, decided by what was recorded.
//!
//! Pure and serialisable: a driver asks [`Machine::next`], does it, records it and feeds the record
//! back. Feeding the same records gives the same machine, so a run is resumed by feeding what its
//! journal holds. Owns the turns, the limits, the finish gate and the ends; knows no tool, no model
//! and no clock.
#![deny(clippy::wildcard_enum_match_arm)]

mod compaction;
mod end;
mod guard;
mod transcript;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::budget::{Budget, Limits, Prices, TokenCounter};
use super::message::{Call, CallResult, Message};
use super::pairs;
use super::response::{Finish, Response, Usage};

pub use compaction::Compaction;
pub use end::{Abort, End, ModelFailed};
use guard::Guard;
use transcript::Transcript;

/// What the driver does next.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    /// Make the conversation shorter: record this, then feed it to [`Machine::compacted`]. It may
    /// come more than once before a call; [`Machine::compactions`] tells the times apart.
    Compact(Compaction),
    /// Call the model with [`Machine::messages`].
    CallModel(ModelCall),
    /// Run these calls and feed one result for each to [`Machine::tool_results`].
    RunTools(Vec<Planned>),
    /// Nothing: the run is over.
    Done(End),
}

/// A model call to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCall {
    /// The number of the call, from 1.
    pub turn: u32,
    /// What the answer may have, in tokens.
    pub max_output_tokens: u32,
    /// What the input is estimated to be, in tokens.
    pub input_tokens: u64,
    /// What the input may be, in tokens.
    pub input_tokens_max: u64,
}

/// A tool call to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// The call, with an id that is unique within the run.
    pub call: Call,
    /// How often this very call was made, when that is often enough to warn the model.
    pub repeated: Option<u32>,
}

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

/// The rules a machine goes by.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// What ends the run.
    pub limits: Limits,
    /// What a model call may read and write.
    pub budget: Budget,
    /// What tokens cost, for the limit on cost.
    pub prices: Option<Prices>,
}

/// The state of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    rules: Rules,
    transcript: Transcript,
    guard: Guard,
    phase: Phase,
    /// Model calls that were recorded.
    turns: u32,
    used: Used,
    /// The last answer was cut off: the next one may be longer.
    larger: bool,
    /// The provider said the input is too long.
    must_shorten: bool,
    /// How often the conversation was made shorter for the next call.
    compactions: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
enum Phase {
    Ready,
    Tools(Vec<Call>),
    Ended(End),
}

/// What all model calls of a run used: what the provider said, and where it said nothing of an answer
/// what was estimated. A call that failed is in it as far as its provider said what it used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Tokens read, cached ones included.
    pub input_tokens: u64,
    /// Tokens written, thinking included.
    pub output_tokens: u64,
    /// In millionths of the prices' currency.
    pub cost_micros: u64,
}

impl Used {
    /// All tokens, read and written.
    pub fn tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// The same and a call more. A provider that tells of more than there can be reaches every
    /// limit and wraps around none.
    pub(crate) fn plus(self, more: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_add(more.input_tokens),
            output_tokens: self.output_tokens.saturating_add(more.output_tokens),
            cost_micros: self.cost_micros.saturating_add(more.cost_micros),
        }
    }

    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl Machine {
    /// A run at its begin. `fixed_tokens` is what every call carries beside the conversation:
    /// system text and tool schemas. A conversation that is not whole is made so.
    pub fn new(
        rules: Rules,
        opening: Vec<Message>,
        fixed_tokens: u64,
        counter: &dyn TokenCounter,
    ) -> Self {
        Self {
            rules,
            transcript: Transcript::new(opening, fixed_tokens, counter),
            guard: Guard::default(),
            phase: Phase::Ready,
            turns: 0,
            used: Used::default(),
            larger: false,
            must_shorten: false,
            compactions: 0,
        }
    }

    /// What to do now. Asking twice gives the same.
    pub fn next(&self) -> Next {
        match &self.phase {
            Phase::Ended(end) => Next::Done(end.clone()),
            Phase::Tools(calls) => {
                let plan = |call: &Call| Planned {
                    call: call.clone(),
                    repeated: self.guard.repeated(call, &self.rules.limits),
                };
                Next::RunTools(calls.iter().map(plan).collect())
            }
            Phase::Ready => self.next_call(),
        }
    }

    fn next_call(&self) -> Next {
        if let Some(abort) = self.exhausted() {
            return Next::Done(End::Aborted(abort));
        }
        let budget = &self.rules.budget;
        let max_output_tokens = if self.larger {
            budget.max_output_tokens_retry
        } else {
            budget.max_output_tokens
        };
        let input_tokens = self.transcript.input_tokens();
        let input_tokens_max = budget.input_tokens_max(max_output_tokens);
        if self.must_shorten || input_tokens > budget.trigger(max_output_tokens) {
            let (transcript, must_shorten) = (&self.transcript, self.must_shorten);
            match compaction::plan(transcript, budget, max_output_tokens, must_shorten) {
                Some(plan) => return Next::Compact(plan),
                None if self.must_shorten || input_tokens > input_tokens_max => {
                    return Next::Done(End::Aborted(Abort::ContextFull { input_tokens }));
                }
                None => {}
            }
        }
        Next::CallModel(ModelCall {
            turn: self.turns + 1,
            max_output_tokens,
            input_tokens,
            input_tokens_max,
        })
    }

    fn exhausted(&self) -> Option<Abort> {
        let limits = &self.rules.limits;
        if self.turns >= limits.turns {
            return Some(Abort::Turns(limits.turns));
        }
        self.spent(self.used)
    }

    /// The limit on what is used that this reaches.
    fn spent(&self, used: Used) -> Option<Abort> {
        let limits = &self.rules.limits;
        let tokens = used.tokens();
        if limits.total_tokens.is_some_and(|most| tokens >= most) {
            return Some(Abort::Tokens(tokens));
        }
        let cost = used.cost_micros;
        if limits.cost_micros.is_some_and(|most| cost >= most) {
            return Some(Abort::Cost(cost));
        }
        None
    }

    /// Whether tries of the next call that used this too leave nothing for another.
    pub fn is_spent_with(&self, lost: Used) -> bool {
        self.spent(self.used.plus(lost)).is_some()
    }

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

    /// The conversation as a model is sent it: every call has exactly one result.
    pub fn messages(&self) -> Vec<Arc<Message>> {
        let dangling = match &self.phase {
            Phase::Ready | Phase::Tools(_) => pairs::INTERRUPTED,
            Phase::Ended(end) => end.dangling(),
        };
        self.transcript.messages(dangling)
    }

    /// Model calls that were recorded.
    pub fn turns(&self) -> u32 {
        self.turns
    }

    /// Tool calls that were asked for.
    pub fn tool_calls(&self) -> u32 {
        self.guard.tool_calls()
    }

    /// How often the conversation was made shorter for the next model call. Each time leaves out
    /// something that was not left out before, so it comes to an end.
    pub fn compactions(&self) -> u32 {
        self.compactions
    }

    /// What all model calls used.
    pub fn used(&self) -> Used {
        self.used
    }

    /// What the input of the next call is estimated to be, in tokens.
    pub fn input_tokens(&self) -> u64 {
        self.transcript.input_tokens()
    }
}
