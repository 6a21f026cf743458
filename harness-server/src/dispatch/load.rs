//! How busy every agent is, for metrics: counts alone, over all namespaces.

use std::collections::BTreeMap;

use crate::ids::AgentKey;

use super::Core;
use super::view::{SlotStateView, state_of};

/// How busy one agent is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentLoad {
    /// Runs that wait for a slot.
    pub queued: usize,
    /// Slots without a welcome yet.
    pub starting: usize,
    /// Slots without a request.
    pub ready: usize,
    /// Slots with a request.
    pub busy: usize,
    /// Runs in work whose worker is waited for, as its call is lost.
    pub away: usize,
    /// Slots that are leaving.
    pub stopping: usize,
    /// Cancelled requests whose work has not stopped.
    pub unreleased: usize,
}

impl Core {
    /// How busy each known agent is.
    #[must_use]
    pub fn loads(&self) -> BTreeMap<AgentKey, AgentLoad> {
        let known = self.agents.iter().filter(|(_, agent)| agent.is_known());
        let mut loads: BTreeMap<AgentKey, AgentLoad> = known
            .map(|(key, agent)| {
                let queued = agent.queue.len();
                let load = AgentLoad {
                    queued,
                    away: agent.away,
                    ..AgentLoad::default()
                };
                (key.clone(), load)
            })
            .collect();
        for held in self.slots.values() {
            let Some(load) = loads.get_mut(&held.offer.agent) else {
                continue;
            };
            match state_of(&held.slot) {
                SlotStateView::Starting => load.starting += 1,
                SlotStateView::Ready => load.ready += 1,
                SlotStateView::Busy => load.busy += 1,
                SlotStateView::Stopping => load.stopping += 1,
            }
        }
        for worker in self.workers.values() {
            if let Some(load) = loads.get_mut(&worker.offer.agent) {
                load.unreleased += worker.unreleased.len();
            }
        }
        loads
    }
}
