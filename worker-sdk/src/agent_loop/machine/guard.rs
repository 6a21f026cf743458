//! What keeps a run from going round in circles.
//!
//! Owns the counts: calls in all, identical calls, turns in a row in which a tool only failed,
//! answers in a row of one unhappy kind. The limits are the caller's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::end::Abort;
use crate::agent_loop::arguments::canonical;
use crate::agent_loop::budget::Limits;
use crate::agent_loop::digest::fnv1a;
use crate::agent_loop::message::{Call, CallResult};
use crate::agent_loop::response::Finish;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Guard {
    tool_calls: u32,
    /// How often each call was made, by its digest.
    identical: BTreeMap<u64, u32>,
    /// Turns in a row in which a tool only failed.
    failing: BTreeMap<String, u32>,
    pauses: u32,
    malformed: u32,
    has_shortened: bool,
}

impl Guard {
    /// The model asks for calls.
    pub(super) fn asked(&mut self, calls: &[Call], limits: &Limits) -> Option<Abort> {
        let more = u32::try_from(calls.len()).unwrap_or(u32::MAX);
        self.tool_calls = self.tool_calls.saturating_add(more);
        for call in calls {
            *self.identical.entry(digest(call)).or_default() += 1;
        }
        if self.tool_calls > limits.tool_calls {
            return Some(Abort::ToolCalls(self.tool_calls));
        }
        let most = limits.identical_calls.max(1).saturating_mul(2);
        calls.iter().find_map(|call| {
            let times = self.times(call);
            (times > most).then(|| Abort::RepeatedCall {
                tool: call.name.clone(),
                times,
            })
        })
    }

    /// How often a call was made, when that is often enough to say so.
    pub(super) fn repeated(&self, call: &Call, limits: &Limits) -> Option<u32> {
        let times = self.times(call);
        (times > limits.identical_calls.max(1)).then_some(times)
    }

    fn times(&self, call: &Call) -> u32 {
        self.identical.get(&digest(call)).copied().unwrap_or(0)
    }

    /// The calls of a turn are answered.
    pub(super) fn answered(&mut self, results: &[CallResult], limits: &Limits) -> Option<Abort> {
        let mut turn: BTreeMap<&str, bool> = BTreeMap::new();
        for result in results {
            *turn.entry(&result.tool).or_insert(true) &= result.is_error;
        }
        let mut abort = None;
        for (tool, only_failed) in turn {
            if !only_failed {
                self.failing.remove(tool);
                continue;
            }
            let turns = self.failing.entry(tool.to_owned()).or_default();
            *turns += 1;
            if *turns >= limits.failing_turns.max(1) && abort.is_none() {
                abort = Some(Abort::FailingTool {
                    tool: tool.to_owned(),
                    turns: *turns,
                });
            }
        }
        abort
    }

    /// How often in a row the model ended like this; counted for the unhappy kinds only.
    pub(super) fn in_a_row(&mut self, finish: Finish, has_calls: bool) -> u32 {
        let (pauses, malformed) = match finish {
            Finish::Pause => (self.pauses + 1, 0),
            Finish::Malformed => (0, self.malformed + 1),
            Finish::ToolCalls if !has_calls => (0, self.malformed + 1),
            Finish::ToolCalls | Finish::Stop | Finish::Length | Finish::Refusal => (0, 0),
        };
        (self.pauses, self.malformed) = (pauses, malformed);
        pauses.max(malformed)
    }

    /// The provider refused the input. Whether it was made shorter for that before, and no answer
    /// came since.
    pub(super) fn refused_as_too_long(&mut self) -> bool {
        std::mem::replace(&mut self.has_shortened, true)
    }

    /// The provider took the input.
    pub(super) fn taken(&mut self) {
        self.has_shortened = false;
    }

    pub(super) fn tool_calls(&self) -> u32 {
        self.tool_calls
    }
}

/// Of the name and the canonical arguments.
fn digest(call: &Call) -> u64 {
    let arguments = canonical(&call.arguments);
    fnv1a(call.name.bytes().chain([0]).chain(arguments.bytes()))
}
