//! Where a run stands, read from its journal alone.
//!
//! Owns reading the entries a run left behind when nobody was there to report: its worker died, or
//! the run was cancelled and its work dropped. Runs nothing.

use std::collections::HashMap;
use std::sync::Arc;

use super::report::{CallState, ToolReport};
use super::{AgentLoop, batch};
use crate::agent_loop::machine::{Abort, Compaction, Next, Planned, ToolOutcome, ToolResult};
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

/// What the journal says of a call.
struct Known {
    state: CallState,
    result: Option<ToolResult>,
    /// A hook ended the run before it.
    ended: Option<Abort>,
}

impl Known {
    fn only(state: CallState) -> Self {
        Self {
            state,
            result: None,
            ended: None,
        }
    }
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
                    let (mut results, mut abort) = (Vec::new(), None);
                    for call in &planned {
                        let known = self.known(&steps, call);
                        tools.push(ToolReport {
                            call_id: call.call.id.clone(),
                            tool: call.call.name.clone(),
                            state: known.state,
                        });
                        results.extend(known.result);
                        abort = abort.or(known.ended);
                    }
                    let is_ended = abort.is_some();
                    if is_ended || results.len() < planned.len() {
                        // Nobody goes on here: what has no result is answered as aborted.
                        let abort = abort.unwrap_or(Abort::Cancelled);
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

    /// What the journal says of a call.
    fn known(&self, steps: &Steps<'_>, planned: &Planned) -> Known {
        let call = &planned.call;
        let not_run = |text: String| Known {
            result: Some(ToolResult {
                call_id: call.id.clone(),
                text,
                outcome: ToolOutcome::Failed,
            }),
            ..Known::only(CallState::NeverStarted)
        };
        let Some(entry) = self.0.toolbox.get(&call.name) else {
            return not_run(self.0.toolbox.unknown(&call.name));
        };
        if let Err(rejection) = entry.arguments(&call.arguments) {
            return not_run(rejection.observation(&call.name));
        }
        let (name, key) = (tool_step(&call.name), call_key(&call.id));
        let Some(step) = steps.get(&name, &key) else {
            // The begin of what changes nothing is recorded for the sake of hooks alone.
            let is_recorded = entry.tool.class != Class::ReadOnly || !self.0.hooks.is_empty();
            return Known::only(if is_recorded {
                CallState::NeverStarted
            } else {
                CallState::Unknown
            });
        };
        if let Some(error) = step.error() {
            return Known {
                ended: Some(batch::ended_by_hook(call.name.clone(), &error)),
                ..Known::only(CallState::NeverStarted)
            };
        }
        match steps.value::<ToolRecord>(&name, &key) {
            Some(record) => Known {
                result: Some(batch::shown(entry, &call.id, &record)),
                ..Known::only(batch::state(record.status))
            },
            None => Known::only(CallState::Unknown),
        }
    }
}
