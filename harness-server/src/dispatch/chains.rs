//! Chains of runs: an agent that asks another agent, and the deadlocks that can come of it.

use crate::envelope::{Code, Failure, Request};

use super::Core;
use super::entry::RunEntry;

/// How many runs may stand above one.
const DEPTH_MAX: u32 = 16;

impl Core {
    /// How deep a request stands below the application that asked first.
    pub(super) fn depth_of(&self, request: &Request) -> Result<u32, Box<Failure>> {
        let Some(parent) = request.parent else {
            return Ok(0);
        };
        let above = self
            .runs
            .get(&parent.run)
            .filter(|entry| entry.run.is_worked() && entry.run.attempt() == parent.attempt);
        let Some(above) = above else {
            let message = format!(
                "options.parent names {parent}, which does not run now: only the current attempt \
                 of a run may ask for it"
            );
            return Err(Box::new(Failure::new(Code::InvalidRequest, message)));
        };
        let depth = above.request.depth + 1;
        if depth > DEPTH_MAX {
            let message = format!(
                "{DEPTH_MAX} runs stand above this one, which is the limit: does an agent ask \
                 itself?"
            );
            return Err(Box::new(Failure::new(Code::InvalidRequest, message)));
        }
        Ok(depth)
    }

    /// Whether a run waits for slots that all wait for it: the names of the runs' agents, the
    /// first ask first.
    pub(super) fn cycle(&self, entry: &RunEntry) -> Option<String> {
        let mut names = vec![entry.request.agent.to_string()];
        let mut held = 0;
        let mut above = entry.request.parent;
        while let Some(parent) = above.and_then(|parent| self.runs.get(&parent.run)) {
            if parent.run.is_worked() && parent.request.agent == entry.request.agent {
                held += 1;
            }
            names.push(parent.request.agent.to_string());
            above = parent.request.parent;
        }
        let agent = self.agents.get(&entry.request.agent)?;
        // A worker that comes back has its slot for what it was away with.
        let slots = agent.slots() + agent.away;
        names.reverse();
        (slots > 0 && held >= slots).then(|| names.join(" -> "))
    }
}
