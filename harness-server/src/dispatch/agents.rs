//! Agents: which are known, their free slots, their queue, and what their slots can take.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use crate::envelope::{Code, Failure};
use crate::ids::{AgentKey, RunId, SchemaId, SlotId};

use super::entry::{QueueKey, RunEntry};
use super::lines::Lines;
use super::pools::Pooled;
use super::workers::Offer;
use super::{Core, Timer};

/// How many names an error lists at most.
const NAMES_LISTED: usize = 10;

/// How alike two names must be for one to be called near the other (0 to 1, Jaro-Winkler).
const NEAR: f64 = 0.8;

/// What a slot can take; slots of one class take the same requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Class {
    pub(super) schema: Option<SchemaId>,
    pub(super) max_receive_bytes: u64,
}

/// One agent.
#[derive(Debug, Default)]
pub(super) struct Agent {
    /// Whether a hello has offered it; otherwise it exists only for those who wait for it.
    pub(super) offered: bool,
    /// Slots attached, by class.
    pub(super) classes: BTreeMap<Class, usize>,
    /// READY slots, the one that is free longest first.
    pub(super) ready: BTreeMap<u64, SlotId>,
    /// Waiting runs, the oldest first.
    pub(super) queue: BTreeMap<QueueKey, RunId>,
    /// Waiting durable runs. Those of a priority come after the others of it.
    pub(super) durable: Lines,
    /// Durable runs of it that have not ended.
    pub(super) durable_runs: usize,
    /// Of those in `queue`, how many count against the limit of the queue.
    pub(super) waiting: usize,
    /// Runs of it whose worker is waited for.
    pub(super) away: usize,
    /// The offer of the slot attached last.
    pub(super) newest: Option<Arc<Offer>>,
    /// When it is forgotten, while it has no slot.
    pub(super) kept_until: Option<Instant>,
    /// The pool that names it.
    pub(super) pool: Option<Pooled>,
}

impl Agent {
    /// Slots attached.
    pub(super) fn slots(&self) -> usize {
        self.classes.values().sum()
    }

    /// Whether asks of it are taken.
    pub(super) fn is_known(&self) -> bool {
        self.offered || self.pool.is_some()
    }

    /// Whether a run is in its queue, or may come back to it.
    pub(super) fn is_waited_for(&self) -> bool {
        !self.queue.is_empty() || self.waiting > 0 || self.away > 0 || self.durable_runs > 0
    }
}

impl Core {
    /// Makes room for one more agent; false when too many known ones are in use. Those of pools do not
    /// count, which the configuration names.
    pub(super) fn has_room_for_agent(&mut self, agent: &AgentKey) -> bool {
        let limit = self.limits.agents;
        if self.agents.contains_key(agent) || self.agents.len() < limit {
            return true;
        }
        let others = || self.agents.iter().filter(|(_, entry)| entry.pool.is_none());
        // More than one where an agent has lost its pool.
        let surplus = (others().count() + 1).saturating_sub(limit);
        let mut unused: Vec<_> = others()
            .filter(|(_, entry)| !entry.is_waited_for())
            .filter_map(|(key, entry)| entry.kept_until.map(|until| (until, key.clone())))
            .collect();
        if unused.len() < surplus {
            return false;
        }
        if surplus < unused.len() {
            // The oldest come first, in no order, which is all that is needed.
            unused.select_nth_unstable(surplus);
        }
        for (until, key) in unused.into_iter().take(surplus) {
            self.timers.clear(until, Timer::Agent(key.clone()));
            self.agents.remove(&key);
        }
        true
    }

    pub(super) fn join_agent(&mut self, offer: &Arc<Offer>) {
        let agent = self.agents.entry(offer.agent.clone()).or_default();
        agent.offered = true;
        agent.newest = Some(offer.clone());
        *agent.classes.entry(class_of(offer)).or_default() += 1;
        if let Some(until) = agent.kept_until.take() {
            self.timers.clear(until, Timer::Agent(offer.agent.clone()));
        }
    }

    /// An agent was offered to the harness before this one.
    pub(super) fn remember_agent(&mut self, now: Instant, key: AgentKey) {
        if !self.has_room_for_agent(&key) {
            return;
        }
        let until = now + self.limits.agent_kept;
        let agent = self.agents.entry(key.clone()).or_default();
        agent.offered = true;
        if agent.classes.is_empty() && agent.kept_until.is_none() {
            agent.kept_until = Some(until);
            self.timers.set(until, Timer::Agent(key));
        }
    }

    /// The agents that have slots.
    pub fn attached_agents(&self) -> impl Iterator<Item = &AgentKey> {
        let attached = self.agents.iter().filter(|(_, agent)| agent.slots() > 0);
        attached.map(|(key, _)| key)
    }

    pub(super) fn leave_agent(&mut self, now: Instant, offer: &Offer) {
        let Some(agent) = self.agents.get_mut(&offer.agent) else {
            return;
        };
        let class = class_of(offer);
        if let Some(count) = agent.classes.get_mut(&class) {
            *count -= 1;
            if *count == 0 {
                agent.classes.remove(&class);
            }
        }
        if agent.classes.is_empty() {
            let until = now + self.limits.agent_kept;
            agent.kept_until = Some(until);
            self.timers.set(until, Timer::Agent(offer.agent.clone()));
        }
    }

    /// The time of knowing an agent without slots is over.
    pub(super) fn forget_agent(&mut self, now: Instant, key: &AgentKey) {
        let Some(agent) = self.agents.get_mut(key) else {
            return;
        };
        if !agent.is_waited_for() && agent.pool.is_none() {
            self.agents.remove(key);
        } else {
            let until = now + self.limits.agent_kept;
            agent.kept_until = Some(until);
            self.timers.set(until, Timer::Agent(key.clone()));
        }
    }

    /// Drops the entry of an agent that only existed for those who waited for it.
    pub(super) fn forget_unoffered(&mut self, key: &AgentKey) {
        let unused = self
            .agents
            .get(key)
            .is_some_and(|agent| !agent.is_known() && !agent.is_waited_for());
        if unused {
            self.agents.remove(key);
        }
    }

    /// The answer to whoever asks an agent nobody has offered.
    pub(super) fn unknown_agent(&self, now: Instant, key: &AgentKey) -> Failure {
        let known = || {
            self.agents
                .iter()
                .filter(|(known, agent)| agent.is_known() && known.namespace == key.namespace)
        };
        let near = known()
            .map(|(known, _)| (strsim::jaro_winkler(&known.name, &key.name), &*known.name))
            .filter(|(likeness, _)| *likeness >= NEAR)
            .max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| b.1.cmp(a.1)));
        let mut names: Vec<&str> = known()
            .filter(|(_, agent)| agent.slots() > 0)
            .map(|(known, _)| &*known.name)
            .collect();
        names.sort_unstable();

        let mut message = format!("agent \"{key}\" is unknown: no worker has offered it");
        if let Some((_, near)) = near {
            message.push_str(&format!("; did you mean \"{near}\"?"));
        }
        if names.is_empty() {
            message.push_str("; no agent is connected");
        } else {
            let more = names.len().saturating_sub(NAMES_LISTED);
            names.truncate(NAMES_LISTED);
            message.push_str(&format!("; connected: {}", names.join(", ")));
            if more > 0 {
                message.push_str(&format!(" and {more} more"));
            }
        }
        if now < self.started + self.limits.connecting_timeout {
            message.push_str("; the harness has just started and workers may still be connecting");
            return Failure::new(Code::UnknownAgent, message)
                .retry_after(self.limits.connecting_retry);
        }
        Failure::new(Code::UnknownAgent, message)
    }

    /// Why a run waits, for the error that says where the time went.
    pub(super) fn why_waits(&self, entry: &RunEntry) -> String {
        if entry.is_backing_off() && entry.run.attempt().0 == 0 {
            return "waiting for its start_time".to_owned();
        }
        if entry.is_backing_off() {
            return format!(
                "waiting to be tried again after attempt {}",
                entry.run.attempt()
            );
        }
        let key = &entry.request.agent;
        let slots = self.agents.get(key).map_or(0, Agent::slots);
        let ready = self.agents.get(key).map_or(0, |agent| agent.ready.len());
        let unreleased = self.unreleased_of(key);
        let mut why = match (slots, ready) {
            (0, _)
                if self
                    .agents
                    .get(key)
                    .is_some_and(|agent| agent.pool.is_some()) =>
            {
                "no process of its pool is ready".to_owned()
            }
            (0, _) => format!("no worker of agent \"{key}\" is connected"),
            (1, 0) => "its only slot is busy".to_owned(),
            (_, 0) => format!("all {slots} slots busy"),
            (_, _) => "no free slot takes this request".to_owned(),
        };
        if unreleased > 0 {
            why.push_str(&format!(", {unreleased} more still in cancelled work"));
        }
        let wanted = &entry.selector;
        let selectable = || {
            let mut slots = self.slots.values();
            slots.any(|held| held.offer.agent == *key && selects(wanted, &held.offer))
        };
        if slots > 0 && !wanted.is_empty() && !selectable() {
            let pairs: Vec<String> = wanted.iter().map(|(k, v)| format!("{k}={v}")).collect();
            why.push_str(&format!(
                "; no connected worker had labels {}",
                pairs.join(",")
            ));
        }
        why
    }
}

/// Whether a slot's labels hold every pair of a selector.
pub(super) fn selects(selector: &BTreeMap<String, String>, offer: &Offer) -> bool {
    selector
        .iter()
        .all(|(key, value)| offer.labels.get(key) == Some(value))
}

pub(super) fn class_of(offer: &Offer) -> Class {
    Class {
        schema: offer.request_schema,
        max_receive_bytes: offer.max_receive_bytes,
    }
}
