//! The loop itself: what comes next, decided by what was recorded.
//!
//! Pure and serialisable: a driver asks [`Machine::next`], does it, records it and feeds the record
//! back. Feeding the same records gives the same machine, so a run is resumed by feeding what its
//! journal holds. Owns the state of a run and what it asks for next, within the limits; what a record
//! does to it is `feeding`'s. Knows no tool, no model and no clock.
#![deny(clippy::wildcard_enum_match_arm)]

mod compaction;
mod end;
mod feeding;
mod guard;
mod transcript;
mod used;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::budget::{Budget, Limits, Prices, TokenCounter};
use super::message::{Call, Message};
use super::pairs;

pub use compaction::Compaction;
pub use end::{Abort, End, ModelFailed};
pub use feeding::{ToolOutcome, ToolResult};
use guard::Guard;
use transcript::Transcript;
pub use used::Used;

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
