//! Workers: which process offers which slots, and what cancelled work each still owes a released
//! for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::envelope::Code;
use crate::ids::{AgentKey, Delivery, Lease, RunId, SchemaId, SlotId, WorkerId};
use crate::journal::{Content, Proof};
use crate::pool::Rung;
use crate::slot::{self, Level};

use super::{Action, Core, Note, Timer, trim};

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
    /// Why it was asked to drain, if it was.
    pub(super) draining: Option<Arc<str>>,
}

/// Workers that were drained, the latest ones: their processes may not come back.
#[derive(Debug, Default)]
pub(super) struct Drained {
    workers: VecDeque<WorkerId>,
}

impl Drained {
    const REMEMBERED: usize = 10_000;

    pub(super) fn contains(&self, worker: WorkerId) -> bool {
        !self.workers.is_empty() && self.workers.contains(&worker)
    }

    fn insert(&mut self, worker: WorkerId) {
        if self.contains(worker) {
            return;
        }
        if self.workers.len() >= Self::REMEMBERED {
            self.workers.pop_front();
        }
        self.workers.push_back(worker);
    }
}

/// A request whose call was ended and whose worker has not said released.
#[derive(Debug)]
pub(super) struct Unreleased {
    pub(super) delivery: Delivery,
    pub(super) is_durable: bool,
    pub(super) lease: Lease,
    pub(super) code: Code,
    pub(super) since: Instant,
    /// How far the harness has gone to stop it, and since when.
    pub(super) rung: (Rung, Instant),
}

impl Core {
    /// Adds a slot to its worker and returns the offer to keep, shared where it is the same.
    pub(super) fn join_worker(&mut self, now: Instant, slot: SlotId, offer: Offer) -> Arc<Offer> {
        let worker = self.workers.entry(offer.worker).or_insert_with(|| Worker {
            offer: Arc::new(offer.clone()),
            slots: BTreeSet::new(),
            since: now,
            unreleased: Vec::new(),
            draining: None,
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
        (delivery, is_durable): (Delivery, bool),
        lease: Lease,
        code: Code,
    ) {
        if self.unreleased >= self.limits.unreleased {
            return;
        }
        if let Some(entry) = self.workers.get_mut(&worker) {
            entry.unreleased.push(Unreleased {
                delivery,
                is_durable,
                lease,
                code,
                since: now,
                rung: (Rung::CallEnded, now),
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
        work: (WorkerId, Delivery, Lease),
        actions: &mut Vec<Action>,
    ) -> Note {
        let took = self.stopped_after(now, work, actions);
        let took = took.or_else(|| {
            let stopped = self.works_no_more(now, work, actions);
            stopped.then_some(Duration::ZERO)
        });
        let (worker, delivery, _) = work;
        match took {
            Some(took) => Note::Released {
                worker,
                delivery,
                took,
            },
            None => Note::ReleasedUnknown { worker, delivery },
        }
    }

    /// Cancelled work has stopped: how long after the end of its call, if it is owed a released.
    fn stopped_after(
        &mut self,
        now: Instant,
        (worker, delivery, lease): (WorkerId, Delivery, Lease),
        actions: &mut Vec<Action>,
    ) -> Option<Duration> {
        let owed = &self.workers.get(&worker)?.unreleased;
        let is_it = |held: &&Unreleased| held.delivery == delivery && held.lease == lease;
        let (since, is_durable) = owed
            .iter()
            .find(is_it)
            .map(|held| (held.since, held.is_durable))?;
        self.timers.clear(
            since + self.limits.release_timeout,
            Timer::Release(worker, delivery),
        );
        self.forget_unreleased(worker, delivery);
        let took = now.saturating_duration_since(since);
        let proof = Proof::Released;
        let stopped = Content::AttemptStopped { proof, took };
        self.note_work(now, (delivery, is_durable), stopped, actions);
        Some(took)
    }

    /// Whether a worker owes a released for other work than this.
    #[must_use]
    pub fn owes_more(&self, worker: WorkerId, released: Option<(Delivery, Lease)>) -> bool {
        let held = self.workers.get(&worker);
        held.is_some_and(|entry| {
            let mut owed = entry.unreleased.iter();
            owed.any(|work| released != Some((work.delivery, work.lease)))
        })
    }

    /// A process with cancelled work has come to a rung of the kill ladder.
    pub(super) fn stopping(
        &mut self,
        now: Instant,
        worker: WorkerId,
        rung: Rung,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.workers.get_mut(&worker) else {
            return;
        };
        let mut held = Vec::new();
        for work in &mut entry.unreleased {
            work.rung = (rung, now);
            held.push((work.delivery, work.is_durable));
        }
        for work in held {
            self.note_work(now, work, Content::AttemptStopping(rung), actions);
        }
    }

    /// Nothing is left of a process: all its cancelled work has stopped.
    pub(super) fn stopped(
        &mut self,
        now: Instant,
        worker: WorkerId,
        proof: Proof,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.workers.get(&worker) else {
            return;
        };
        let held: Vec<(Delivery, bool, Instant)> = entry
            .unreleased
            .iter()
            .map(|work| (work.delivery, work.is_durable, work.since))
            .collect();
        for (delivery, is_durable, since) in held {
            let timer = Timer::Release(worker, delivery);
            self.timers
                .clear(since + self.limits.release_timeout, timer);
            self.forget_unreleased(worker, delivery);
            let took = now.saturating_duration_since(since);
            let stopped = Content::AttemptStopped { proof, took };
            self.note_work(now, (delivery, is_durable), stopped, actions);
        }
    }

    /// No released came in time: cancelled work counts as stopped.
    pub(super) fn gave_up(
        &mut self,
        now: Instant,
        worker: WorkerId,
        delivery: Delivery,
        actions: &mut Vec<Action>,
    ) {
        let unreleased = self.workers.get(&worker).map(|worker| &*worker.unreleased);
        let mut unreleased = unreleased.unwrap_or_default().iter();
        let is_durable = unreleased.any(|held| held.delivery == delivery && held.is_durable);
        self.forget_unreleased(worker, delivery);
        let (proof, took) = (Proof::GaveUp, self.limits.release_timeout);
        let stopped = Content::AttemptStopped { proof, took };
        self.note_work(now, (delivery, is_durable), stopped, actions);
    }

    /// Adds what became of an attempt's work to its run's journal, wherever that is.
    pub(super) fn note_work(
        &mut self,
        now: Instant,
        (delivery, is_durable): (Delivery, bool),
        content: Content,
        actions: &mut Vec<Action>,
    ) {
        match is_durable {
            true => self.write_note(now, delivery, content, actions),
            false => self.note(now, delivery, content, actions),
        }
    }

    /// Whether more may come into the journal of a durable run: it has not ended, a worker owes a
    /// released for it, or what became of its work is on its way to the disk.
    #[must_use]
    pub fn is_owed(&self, run: RunId) -> bool {
        let owes = |worker: &Worker| worker.unreleased.iter().any(|it| it.delivery.run == run);
        self.has_durable(run)
            || self.noting.contains_key(&run)
            || (self.unreleased > 0 && self.workers.values().any(owes))
    }

    /// An operator wants a worker to finish, leave and not come back.
    pub(super) fn drain(
        &mut self,
        now: Instant,
        worker: WorkerId,
        reason: &str,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.workers.get_mut(&worker) else {
            return;
        };
        self.drained.insert(worker);
        if entry.draining.is_some() {
            return;
        }
        entry.draining = Some(reason.into());
        let slots: Vec<SlotId> = entry.slots.iter().copied().collect();
        for slot in slots {
            self.slot_apply(now, slot, slot::Event::Drained, actions);
            self.tell_drained(slot, actions);
        }
        self.fail_awaited_of(now, worker, actions);
    }

    /// Writes drain to a slot of a drained worker; to a minimal one not while it works.
    pub(super) fn tell_drained(&self, slot: SlotId, actions: &mut Vec<Action>) {
        let Some(held) = self.slots.get(&slot) else {
            return;
        };
        let worker = self.workers.get(&held.offer.worker);
        let works = held.slot.delivery().is_some();
        if let Some(reason) = worker.and_then(|worker| worker.draining.clone())
            && (held.slot.level() == Level::Full || !works)
        {
            actions.push(Action::Drain { slot, reason });
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
            trim(&mut self.workers);
        }
    }
}
