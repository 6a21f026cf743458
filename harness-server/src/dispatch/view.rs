//! What operators are told: a picture of agents and workers at one instant.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::envelope::Code;
use crate::ids::{AgentKey, Delivery, SlotId};
use crate::pool::Rung;
use crate::slot;

use super::Core;
use super::pools::Pooled;
use super::workers::Offer;

/// One agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentView {
    /// Its name.
    pub name: Arc<str>,
    /// The versions attached, sorted.
    pub versions: Vec<String>,
    /// The newest slot's description.
    pub description: String,
    /// The newest slot's request schema.
    pub request_schema: Bytes,
    /// The newest slot's reply schema.
    pub reply_schema: Bytes,
    /// Slots READY.
    pub slots_ready: u32,
    /// Slots BUSY.
    pub slots_busy: u32,
    /// Slots STARTING or STOPPING.
    pub slots_other: u32,
    /// Runs that wait.
    pub queued: u32,
    /// Workers attached.
    pub workers: u32,
    /// Cancelled requests not released.
    pub unreleased: u32,
}

/// One worker.
#[derive(Clone, Debug)]
pub struct WorkerView {
    /// What it offers.
    pub offer: Arc<Offer>,
    /// Whether it was asked to drain.
    pub draining: bool,
    /// How long it has been attached.
    pub attached_for: Duration,
    /// Its slots, the oldest first.
    pub slots: Vec<SlotView>,
    /// What it owes a released for, the oldest first.
    pub unreleased: Vec<UnreleasedView>,
}

/// One slot.
#[derive(Clone, Debug)]
pub struct SlotView {
    /// The slot.
    pub id: SlotId,
    /// Where it stands.
    pub state: SlotStateView,
    /// How long it has stood there.
    pub in_state_for: Duration,
    /// The request in it.
    pub delivery: Option<Delivery>,
}

/// Where a slot stands, as the wire names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotStateView {
    /// No welcome yet.
    Starting,
    /// Without a request.
    Ready,
    /// With a request.
    Busy,
    /// Leaving; may still hold a request.
    Stopping,
}

/// Cancelled work that is not released.
#[derive(Clone, Debug)]
pub struct UnreleasedView {
    /// The work.
    pub delivery: Delivery,
    /// Why its call was ended.
    pub code: Code,
    /// How long ago.
    pub ended_ago: Duration,
    /// How far the harness has gone to stop it.
    pub rung: Rung,
    /// How long ago it went so far.
    pub rung_ago: Duration,
}

/// How much of everything Core holds. It counts nothing anew: these are the numbers Core works
/// with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Census {
    /// Slots attached.
    pub slots: usize,
    /// Of these, READY.
    pub ready: usize,
    /// Runs without an answer.
    pub runs: usize,
    /// Of these, in a queue.
    pub queued: usize,
    /// Runs that count against the limits of their queue.
    pub waiting: usize,
    /// Payload bytes of these.
    pub queued_bytes: u64,
    /// Agents known.
    pub agents: usize,
    /// Workers attached or with cancelled work.
    pub workers: usize,
    /// Cancelled requests not released.
    pub unreleased: usize,
    /// Timers set.
    pub timers: usize,
    /// Ended runs that are kept.
    pub ended: usize,
}

impl Core {
    /// How much of everything there is.
    #[must_use]
    pub fn census(&self) -> Census {
        Census {
            slots: self.slots.len(),
            ready: self.agents.values().map(|agent| agent.ready.len()).sum(),
            runs: self.runs.len(),
            queued: self
                .agents
                .values()
                .map(|agent| agent.queue.len() + agent.durable.len())
                .sum(),
            waiting: self.agents.values().map(|agent| agent.waiting).sum(),
            queued_bytes: self.queued_bytes,
            agents: self.agents.len(),
            workers: self.workers.len(),
            unreleased: self.unreleased,
            timers: self.timers.set.len(),
            ended: self.history.len(),
        }
    }

    /// Whether an agent has a slot that is not leaving, or a pool that is not crash-looping; none
    /// when it is not known.
    #[must_use]
    pub fn serves(&self, agent: &AgentKey) -> Option<bool> {
        let known = self.agents.get(agent).filter(|agent| agent.is_known())?;
        if matches!(known.pool, Some(Pooled::Open)) {
            return Some(true);
        }
        let mut slots = self
            .slots
            .values()
            .filter(|held| held.offer.agent == *agent);
        Some(slots.any(|held| !held.slot.is_stopping()))
    }

    /// The agents of a namespace that a worker has offered or a pool names, by name.
    #[must_use]
    pub fn view_agents(&self, namespace: &str) -> Vec<AgentView> {
        let mut views: Vec<AgentView> = self
            .agents
            .iter()
            .filter(|(key, agent)| agent.is_known() && &*key.namespace == namespace)
            .map(|(key, agent)| {
                let newest = agent.newest.as_deref();
                AgentView {
                    name: key.name.clone(),
                    versions: Vec::new(),
                    description: newest.map(|o| o.description.clone()).unwrap_or_default(),
                    request_schema: newest
                        .map(|o| o.request_schema_text.clone())
                        .unwrap_or_default(),
                    reply_schema: newest
                        .map(|o| o.reply_schema_text.clone())
                        .unwrap_or_default(),
                    slots_ready: 0,
                    slots_busy: 0,
                    slots_other: 0,
                    queued: count(agent.queue.len() + agent.durable.len()),
                    workers: 0,
                    unreleased: 0,
                }
            })
            .collect();
        views.sort_by(|a, b| a.name.cmp(&b.name));
        let place = |views: &[AgentView], offer: &Offer| {
            (&*offer.agent.namespace == namespace)
                .then(|| {
                    views
                        .binary_search_by(|view| view.name.cmp(&offer.agent.name))
                        .ok()
                })
                .flatten()
        };
        for worker in self.workers.values() {
            if let Some(at) = place(&views, &worker.offer) {
                views[at].workers += u32::from(!worker.slots.is_empty());
                views[at].unreleased += count(worker.unreleased.len());
            }
        }
        for entry in self.slots.values() {
            let Some(at) = place(&views, &entry.offer) else {
                continue;
            };
            let view = &mut views[at];
            match state_of(&entry.slot) {
                SlotStateView::Ready => view.slots_ready += 1,
                SlotStateView::Busy => view.slots_busy += 1,
                SlotStateView::Starting | SlotStateView::Stopping => view.slots_other += 1,
            }
            if !entry.offer.version.is_empty() && !view.versions.contains(&entry.offer.version) {
                view.versions.push(entry.offer.version.clone());
            }
        }
        for view in &mut views {
            view.versions.sort_unstable();
        }
        views
    }

    /// The workers of a namespace, or of one of its agents, by agent, then by name.
    #[must_use]
    pub fn view_workers(&self, now: Instant, namespace: &str, agent: &str) -> Vec<WorkerView> {
        let mut views: Vec<WorkerView> = self
            .workers
            .values()
            .filter(|worker| {
                let key = &worker.offer.agent;
                &*key.namespace == namespace && (agent.is_empty() || &*key.name == agent)
            })
            .map(|worker| WorkerView {
                offer: worker.offer.clone(),
                draining: worker.draining.is_some(),
                attached_for: now.saturating_duration_since(worker.since),
                slots: worker
                    .slots
                    .iter()
                    .filter_map(|id| self.view_slot(now, *id))
                    .collect(),
                unreleased: worker
                    .unreleased
                    .iter()
                    .map(|held| UnreleasedView {
                        delivery: held.delivery,
                        code: held.code,
                        ended_ago: now.saturating_duration_since(held.since),
                        rung: held.rung.0,
                        rung_ago: now.saturating_duration_since(held.rung.1),
                    })
                    .collect(),
            })
            .collect();
        views.sort_by(|a, b| {
            (&a.offer.agent, &a.offer.info.name, a.offer.worker).cmp(&(
                &b.offer.agent,
                &b.offer.info.name,
                b.offer.worker,
            ))
        });
        views
    }

    fn view_slot(&self, now: Instant, id: SlotId) -> Option<SlotView> {
        let entry = self.slots.get(&id)?;
        Some(SlotView {
            id,
            state: state_of(&entry.slot),
            in_state_for: now.saturating_duration_since(entry.slot.since()),
            delivery: entry.slot.delivery(),
        })
    }
}

pub(super) fn state_of(slot: &slot::Slot) -> SlotStateView {
    match slot.state() {
        slot::State::Starting => SlotStateView::Starting,
        slot::State::Ready => SlotStateView::Ready,
        slot::State::Busy(_) => SlotStateView::Busy,
        slot::State::StoppingBusy(_) | slot::State::StoppingIdle(_) => SlotStateView::Stopping,
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
