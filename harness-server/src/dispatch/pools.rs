//! Pools, as far as whoever asks is concerned: which agents are known by one, and what becomes of
//! runs that wait for one that has given up. What a pool does is `pool`'s affair.

use std::time::Instant;

use crate::envelope::Failure;
use crate::ids::{AgentKey, RunId};

use super::agents::Agent;
use super::{Action, Core};

/// Where the pool of an agent stands.
#[derive(Clone, Debug)]
pub enum Pooled {
    /// It starts processes.
    Open,
    /// It does not any more; what is answered where no other slot of the agent is attached.
    CrashLooping(Box<Failure>),
}

impl Agent {
    /// What is answered to whoever waits for a slot, when only a crash-looping pool could give one.
    fn crash_loop(&self) -> Option<Failure> {
        match &self.pool {
            Some(Pooled::CrashLooping(why)) if self.slots() == 0 => Some((**why).clone()),
            Some(Pooled::CrashLooping(_) | Pooled::Open) | None => None,
        }
    }
}

impl Core {
    /// A pool names an agent, or does so no more.
    pub(super) fn pooled(
        &mut self,
        now: Instant,
        key: &AgentKey,
        pool: Option<Pooled>,
        actions: &mut Vec<Action>,
    ) {
        self.agents.entry(key.clone()).or_default().pool = pool;
        self.forget_unoffered(key);
        self.refuse_crash_looping(now, key, actions);
    }

    /// Answers the runs that wait for a pool that has given up.
    pub(super) fn refuse_crash_looping(
        &mut self,
        now: Instant,
        key: &AgentKey,
        actions: &mut Vec<Action>,
    ) {
        let Some(agent) = self.agents.get(key) else {
            return;
        };
        let Some(why) = agent.crash_loop() else {
            return;
        };
        let waiting: Vec<RunId> = agent.queue.values().copied().collect();
        for run in waiting {
            self.refuse(now, run, why.clone(), actions);
        }
    }

    /// Why a queued run need not wait, when its agent's pool has given up.
    pub(super) fn crash_loop_of(&self, run: RunId) -> Option<Failure> {
        let agent = &self.runs.get(&run)?.request.agent;
        self.agents.get(agent)?.crash_loop()
    }
}
