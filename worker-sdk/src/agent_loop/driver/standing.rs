//! Where a run stands, read from its journal alone.
//!
//! Owns reading the entries a run left behind when nobody was there to report: its worker died, or
//! the run was cancelled and its work dropped. Runs nothing.

use std::collections::HashMap;
use std::sync::Arc;

use super::report::{CallState, ToolReport};
use super::{AgentLoop, batch};
use crate::agent_loop::machine::{
    Abort, Compaction, Machine, Next, Planned, ToolOutcome, ToolResult,
};
use crate::agent_loop::message::Message;
use crate::agent_loop::prompt::Prompt;
use crate::agent_loop::record::{
    COMPACT, MODEL, ModelRecord, ToolRecord, call_key, tool_step, turn_key,
};
use crate::agent_loop::tool::Class;
use crate::journal::{Entry, Recorded, Step};

/// Where a run stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    /// Whether it came to its end.
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

impl AgentLoop {
    /// Where a run of this agent stands, from the entries of its journal.
    pub fn standing(&self, prompt: &Prompt, recorded: &[Recorded]) -> Standing {
        let steps = Steps::of(recorded);
        let counter = &*self.0.counter;
        let mut machine = self.0.machine(prompt);
        let mut tools = Vec::new();
        let is_ended = loop {
            let key = turn_key(machine.turns() + 1);
            match machine.next() {
                Next::Done(_) => break true,
                Next::Compact(_) => match steps.value::<Compaction>(COMPACT, &key) {
                    Some(compaction) => machine.compacted(&compaction, counter),
                    None => break false,
                },
                Next::CallModel(_) => match steps.value::<ModelRecord>(MODEL, &key) {
                    Some(ModelRecord::Answered { response }) => {
                        machine.model_response(*response, counter);
                    }
                    Some(ModelRecord::TooLong { .. }) => machine.context_exceeded(),
                    None => break false,
                },
                Next::RunTools(planned) => {
                    let known: Vec<_> = planned
                        .iter()
                        .map(|call| self.known(&steps, call))
                        .collect();
                    let reports =
                        planned
                            .iter()
                            .zip(&known)
                            .map(|(planned, (state, _))| ToolReport {
                                call_id: planned.call.id.clone(),
                                tool: planned.call.name.clone(),
                                state: *state,
                            });
                    tools.extend(reports);
                    let results: Vec<_> =
                        known.into_iter().filter_map(|(_, result)| result).collect();
                    if results.len() < planned.len() {
                        // Nobody goes on here: what has no result is answered as aborted.
                        self.stop(&mut machine, &results);
                        break false;
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

    fn stop(&self, machine: &mut Machine, results: &[ToolResult]) {
        machine.abort(Abort::Cancelled, results, &*self.0.counter);
    }

    /// What the journal says of a call.
    fn known(&self, steps: &Steps<'_>, planned: &Planned) -> (CallState, Option<ToolResult>) {
        let call = &planned.call;
        let not_run = |text: String| ToolResult {
            call_id: call.id.clone(),
            text,
            outcome: ToolOutcome::Failed,
        };
        let Some(entry) = self.0.toolbox.get(&call.name) else {
            let told = self.0.toolbox.unknown(&call.name);
            return (CallState::NeverStarted, Some(not_run(told)));
        };
        if let Err(rejection) = entry.arguments(&call.arguments) {
            let told = rejection.observation(&call.name);
            return (CallState::NeverStarted, Some(not_run(told)));
        }
        let (name, key) = (tool_step(&call.name), call_key(&call.id));
        match steps.get(&name, &key) {
            // The begin of what changes nothing is not recorded.
            None if entry.tool.class == Class::ReadOnly => (CallState::Unknown, None),
            None => (CallState::NeverStarted, None),
            Some(step) if !step.is_done() => (CallState::Unknown, None),
            Some(_) => match steps.value::<ToolRecord>(&name, &key) {
                Some(record) => {
                    let shown = batch::shown(entry, &call.id, &record);
                    (CallState::Finished, Some(shown))
                }
                None => (CallState::Unknown, None),
            },
        }
    }
}
