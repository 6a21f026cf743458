//! The one timer queue of Core.
//!
//! Owns which instants are due; what happens then is the owner's affair. An entry is removed by
//! the exact instant it was set to, which its owner keeps.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::ids::{AgentKey, Delivery, RunId, SlotId, WorkerId};

/// What a timer is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A run's deadline.
    Run(RunId),
    /// The end of what one attempt may take.
    Attempt(RunId),
    /// The end of a back-off.
    Retry(RunId),
    /// The end of waiting for the worker of a lost call.
    Reattach(RunId),
    /// The next try of the store.
    Store,
    /// A slot's next rule.
    Slot(SlotId),
    /// The end of waiting for a released.
    Release(WorkerId, Delivery),
    /// The end of knowing an agent.
    Agent(AgentKey),
    /// The end of keeping the oldest of the ended runs.
    History,
}

#[derive(Debug, Default)]
pub(super) struct Timers {
    pub(super) set: BTreeSet<(Instant, Timer)>,
}

impl Timers {
    pub(super) fn set(&mut self, at: Instant, timer: Timer) {
        self.set.insert((at, timer));
    }

    pub(super) fn clear(&mut self, at: Instant, timer: Timer) {
        self.set.remove(&(at, timer));
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.set.first().map(|(at, _)| *at)
    }

    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Timer> {
        if self.next()? > now {
            return None;
        }
        self.set.pop_first().map(|(_, timer)| timer)
    }
}
