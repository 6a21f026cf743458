//! Workers: which process offers which slots, and what cancelled work each still owes a released
//! for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use crate::envelope::Code;
use crate::ids::{AgentKey, Delivery, Lease, SchemaId, SlotId, WorkerId};
use crate::slot::Level;

use super::{Core, Note, Timer};

/// What a hello offers.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// The process.
    pub worker: WorkerId,
    /// What it tells of itself.
    pub info: WorkerInfo,
    /// The agent it offers.
    pub agent: AgentKey,
    /// The version of the agent's code, may be empty.
    pub version: String,
    /// One line for people, may be empty.
    pub description: String,
    /// The text of the request schema, empty when there is none.
    pub request_schema_text: Bytes,
    /// The text of the reply schema, empty when there is none.
    pub reply_schema_text: Bytes,
    /// The agent's labels overlaid by the worker's.
    pub labels: BTreeMap<String, String>,
    /// How much of the protocol it follows.
    pub level: Level,
    /// The largest frame it can receive, in bytes.
    pub max_receive_bytes: u64,
    /// The interned request schema.
    pub request_schema: Option<SchemaId>,
    /// The address it dialled from.
    pub peer: Arc<str>,
}

/// What a worker tells of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerInfo {
    /// A name for people; never empty.
    pub name: String,
    /// The process id on its host, 0 when unknown.
    pub pid: u32,
    /// The host name, may be empty.
    pub host: String,
    /// The language, may be empty.
    pub language: String,
    /// The SDK and its version, may be empty.
    pub sdk_version: String,
    /// Its own labels.
    pub labels: BTreeMap<String, String>,
}

/// One worker.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) offer: Arc<Offer>,
    pub(super) slots: BTreeSet<SlotId>,
    pub(super) since: Instant,
    pub(super) unreleased: Vec<Unreleased>,
}

/// A request whose call was ended and whose worker has not said released.
#[derive(Debug)]
pub(super) struct Unreleased {
    pub(super) delivery: Delivery,
    pub(super) lease: Lease,
    pub(super) code: Code,
    pub(super) since: Instant,
}

impl Core {
    /// Adds a slot to its worker and returns the offer to keep, shared where it is the same.
    pub(super) fn join_worker(&mut self, now: Instant, slot: SlotId, offer: Offer) -> Arc<Offer> {
        let worker = self.workers.entry(offer.worker).or_insert_with(|| Worker {
            offer: Arc::new(offer.clone()),
            slots: BTreeSet::new(),
            since: now,
            unreleased: Vec::new(),
        });
        worker.slots.insert(slot);
        if *worker.offer == offer {
            worker.offer.clone()
        } else {
            Arc::new(offer)
        }
    }

    pub(super) fn leave_worker(&mut self, worker: WorkerId, slot: SlotId) {
        if let Some(entry) = self.workers.get_mut(&worker) {
            entry.slots.remove(&slot);
        }
        self.drop_empty_worker(worker);
    }

    /// Remembers that the worker still works on what the harness no longer wants.
    pub(super) fn remember_unreleased(
        &mut self,
        now: Instant,
        worker: WorkerId,
        delivery: Delivery,
        lease: Lease,
        code: Code,
    ) {
        if self.unreleased >= self.limits.unreleased {
            return;
        }
        if let Some(entry) = self.workers.get_mut(&worker) {
            entry.unreleased.push(Unreleased {
                delivery,
                lease,
                code,
                since: now,
            });
            self.unreleased += 1;
            self.timers.set(
                now + self.limits.release_timeout,
                Timer::Release(worker, delivery),
            );
        }
    }

    /// Takes a released for what it proves.
    pub(super) fn released(
        &mut self,
        now: Instant,
        worker: WorkerId,
        delivery: Delivery,
        lease: Lease,
    ) -> Note {
        let held = self.workers.get(&worker).and_then(|entry| {
            entry
                .unreleased
                .iter()
                .find(|held| held.delivery == delivery && held.lease == lease)
        });
        let Some(since) = held.map(|held| held.since) else {
            return Note::ReleasedUnknown { worker, delivery };
        };
        self.timers.clear(
            since + self.limits.release_timeout,
            Timer::Release(worker, delivery),
        );
        self.forget_unreleased(worker, delivery);
        Note::Released {
            worker,
            delivery,
            took: now.saturating_duration_since(since),
        }
    }

    pub(super) fn forget_unreleased(&mut self, worker: WorkerId, delivery: Delivery) {
        if let Some(entry) = self.workers.get_mut(&worker) {
            let before = entry.unreleased.len();
            entry.unreleased.retain(|held| held.delivery != delivery);
            self.unreleased -= before - entry.unreleased.len();
        }
        self.drop_empty_worker(worker);
    }

    /// How many requests of an agent are cancelled but not released.
    pub(super) fn unreleased_of(&self, agent: &AgentKey) -> usize {
        // There may be thousands of workers, and every run told BUSY asks.
        if self.unreleased == 0 {
            return 0;
        }
        self.workers
            .values()
            .filter(|worker| worker.offer.agent == *agent)
            .map(|worker| worker.unreleased.len())
            .sum()
    }

    fn drop_empty_worker(&mut self, worker: WorkerId) {
        let empty = self
            .workers
            .get(&worker)
            .is_some_and(|entry| entry.slots.is_empty() && entry.unreleased.is_empty());
        if empty {
            self.workers.remove(&worker);
        }
    }
}
