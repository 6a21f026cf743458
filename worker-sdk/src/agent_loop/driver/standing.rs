//! Where a run stands, read from its journal alone.
//!
//! Owns reading the entries a run left behind when nobody was there to report: its worker died, or
//! the run was cancelled and its work dropped. Runs nothing.

use std::collections::HashMap;
use std::sync::Arc;

use super::known::{Known, Open, Past, Place, ended_by_hook};
use super::report::{CallState, ToolReport};
use super::{AgentLoop, Parts, calling};
use crate::agent_loop::machine::{Abort, Compaction, Next, Planned};
use crate::agent_loop::message::Message;
use crate::agent_loop::prompt::Prompt;
use crate::agent_loop::record::{COMPACT, MODEL, ModelRecord, compaction_key, turn_key};
use crate::agent_loop::tool::Class;
use crate::journal::{Entry, Outcome, Recorded, Step};

/// Where a run stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    /// Whether it came to its end. A model call that failed in a way that may pass is none: the next
    /// attempt makes it again.
    pub is_ended: bool,
    /// Model calls that are recorded.
    pub turns: u32,
    /// Each tool call, in order.
    pub tools: Vec<ToolReport>,
    /// The conversation so far: every call has exactly one result.
    pub messages: Vec<Arc<Message>>,
}

/// The newest entry of each step.
struct Steps<'a>(HashMap<(&'a str, &'a str), &'a Step>);

impl<'a> Steps<'a> {
    fn of(recorded: &'a [Recorded]) -> Self {
        let steps = recorded
            .iter()
            .filter_map(|recorded| match &recorded.entry {
                Entry::Step(step) => Some(((step.name(), step.key()), &**step)),
                _ => None,
            });
        Self(steps.collect())
    }

    fn get(&self, name: &str, key: &str) -> Option<&Step> {
        self.0.get(&(name, key)).copied()
    }

    fn value<T: serde::de::DeserializeOwned>(&self, name: &str, key: &str) -> Option<T> {
        self.get(name, key)?.value()?.to_json().ok()
    }
}

impl Past for Steps<'_> {
    fn recorded_step(&self, name: &str, key: &str) -> Option<Option<Outcome>> {
        self.get(name, key).map(|step| step.outcome.clone())
    }
}

impl Parts {
    /// What is known of a call that no attempt goes on with. The begin of what changes nothing is
    /// recorded for the sake of hooks alone.
    fn left(&self, open: &Open<'_>) -> CallState {
        let is_recorded = open.entry.tool.class != Class::ReadOnly || !self.hooks.is_empty();
        if is_recorded {
            open.state()
        } else {
            CallState::Unknown
        }
    }
}

impl AgentLoop {
    /// Where a run of this agent stands, from the entries of its journal and the prompt it was
    /// begun with.
    pub fn standing(&self, prompt: &Prompt, recorded: &[Recorded]) -> Standing {
        let steps = Steps::of(recorded);
        let counter = &*self.0.counter;
        let mut machine = self.0.machine(prompt);
        let mut tools = Vec::new();
        let is_ended = loop {
            let turn = machine.turns() + 1;
            match machine.next() {
                Next::Done(_) => break true,
                Next::Compact(_) => {
                    let key = compaction_key(turn, machine.compactions());
                    match steps.value::<Compaction>(COMPACT, &key) {
                        Some(compaction) => machine.compacted(&compaction, counter),
                        None => break false,
                    }
                }
                Next::CallModel(_) => {
                    let key = turn_key(turn);
                    match steps.value::<ModelRecord>(MODEL, &key) {
                        Some(record) => record.feed(&mut machine, counter),
                        None => match steps.get(MODEL, &key).and_then(Step::error) {
                            // One that may pass is tried again by the next attempt.
                            Some(error) if !error.is_retryable() => {
                                machine.model_failed(calling::failed(&error));
                            }
                            Some(_) | None => break false,
                        },
                    }
                }
                Next::RunTools(planned) => {
                    let is_past = steps.is_past(machine.turns());
                    let (mut results, mut ended) = (Vec::new(), None);
                    let mut is_over = false;
                    for Planned { call, .. } in &planned {
                        let place = match self.0.known(call, &steps, is_past) {
                            Ok(Known::Settled(place)) => place,
                            Ok(Known::Ended(error)) => {
                                let abort = ended_by_hook(call.name.clone(), &error);
                                ended = ended.or(Some(abort));
                                Place::open(CallState::NeverStarted)
                            }
                            Ok(Known::Open(open)) => Place::open(self.0.left(&open)),
                            Err(_) => Place::open(CallState::Unknown),
                        };
                        tools.push(ToolReport {
                            call_id: call.id.clone(),
                            tool: call.name.clone(),
                            state: place.state,
                        });
                        is_over |= place.is_fatal();
                        results.extend(place.result);
                    }
                    let is_ended = ended.is_some();
                    if is_ended || (results.len() < planned.len() && !is_over) {
                        // Nobody goes on here: what has no result is answered as aborted.
                        let abort = ended.unwrap_or(Abort::Cancelled);
                        machine.abort(abort, &results, counter);
                        break is_ended;
                    }
                    machine.tool_results(results, counter);
                }
            }
        };
        Standing {
            is_ended,
            turns: machine.turns(),
            tools,
            messages: machine.messages(),
        }
    }
}
