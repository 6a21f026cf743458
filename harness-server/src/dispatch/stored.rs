//! What follows once a step is on disk, or could not be written.
//!
//! A run whose step was not written is dropped here and taken in again as it is on disk, as after a
//! restart: what was decided and not written has not happened. Its worker is told that its call is
//! lost and comes back.

use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::envelope::{Code, Failure, Request};
use crate::ids::{Attempt, RunId, SlotId};
use crate::run::{self, Cause, Counts, Run};
use crate::slot;
use crate::store::Holder;

use super::claim::Claim;
use super::durable::{After, Durable, Held, Phase, Reply};
use super::entry::RunEntry;
use super::writes::Stored;
use super::{Action, Core, Placing, Timer};

/// How long until the store is tried again.
const STORE_RETRY: Duration = Duration::from_secs(1);

/// Runs that are taken in again at once.
const RELOADED_AT_ONCE: usize = 64;

/// The time between the ends of two windows after a restart, so that not all runs are delivered again at once.
const RESTART_SPREAD: Duration = Duration::from_micros(100);

/// A durable run as it is on disk.
#[derive(Debug)]
pub struct Adopted {
    /// What is asked, without what is on disk only.
    pub request: Request,
    /// An upper bound of the frame that carries it.
    pub frame_bytes: u64,
    /// Its deadline and attempts.
    pub terms: run::Terms,
    /// Which slots it may go to.
    pub placing: Placing,
    /// When it was made.
    pub created: Instant,
    /// Not to be delivered before.
    pub not_before: Option<Instant>,
    /// Its newest attempt.
    pub attempt: Attempt,
    /// What counts so far.
    pub counts: Counts,
    /// Whether that attempt is under way.
    pub running: bool,
    /// When it began, by its entry.
    pub began: Option<Instant>,
    /// Who got it.
    pub holder: Option<Holder>,
    /// The number of the newest entry of its journal.
    pub head: u64,
    /// What its journal holds of workers' entries, in bytes.
    pub bytes: u64,
    /// The last number the attempt's worker gave.
    pub worker_seq: u64,
    /// The worker's number of the attempt's reply, 0 when none was taken.
    pub reply_seq: u64,
    /// The version of the agent that wrote what is replayed, where something is.
    pub replayed: Option<Arc<str>>,
}

impl Core {
    /// A step is on disk, or is not.
    pub(super) fn stored(
        &mut self,
        now: Instant,
        id: RunId,
        stored: Stored,
        actions: &mut Vec<Action>,
    ) {
        let Some(durable) = self.durable_mut(id) else {
            return self.noted(id);
        };
        match stored {
            Stored::Done => {
                if let Some(step) = durable.pending.pop_front() {
                    durable.on_disk = step.head;
                    self.written(now, id, step.after, actions);
                }
                if self.leaving {
                    self.leave_on_disk(id);
                } else if self.durable_mut(id).is_some_and(|it| it.may_be_read()) {
                    self.settle(now, id, actions);
                }
            }
            Stored::Existing(run) => self.unmade(now, id, Ok(run), actions),
            Stored::Conflict(_) => self.unmade(now, id, Err(Box::new(conflict())), actions),
            Stored::Failed(why) => self.unwritten(now, id, &why, actions),
        }
    }

    /// What became of the work of a run that is not here any more is on disk, or will not be.
    fn noted(&mut self, id: RunId) {
        if let Entry::Occupied(mut left) = self.noting.entry(id) {
            *left.get_mut() -= 1;
            if *left.get() == 0 {
                left.remove();
            }
        }
    }

    /// A run was not made, because its key has one.
    fn unmade(
        &mut self,
        now: Instant,
        id: RunId,
        started: Result<RunId, Box<Failure>>,
        actions: &mut Vec<Action>,
    ) {
        let kept = self.durable_mut(id).and_then(|durable| durable.kept_slot());
        self.remove_durable(id);
        actions.push(Action::Started { run: id, started });
        let failure = None;
        actions.push(Action::Decided { run: id, failure });
        self.give_up_slot(now, id, kept, actions);
    }

    fn written(&mut self, now: Instant, id: RunId, after: After, actions: &mut Vec<Action>) {
        match after {
            After::Enqueued { first } => {
                // The worker first: whoever started it waits for what comes of it.
                if first {
                    self.attempt_is_written(now, id, actions);
                } else if let Some(durable) = self.durable_mut(id)
                    && matches!(durable.phase, Phase::Waiting)
                {
                    self.unload(id);
                }
                let started = Ok(id);
                actions.push(Action::Started { run: id, started });
            }
            After::Started => self.attempt_is_written(now, id, actions),
            After::Appended { worker_seq } => self.append_is_written(id, worker_seq, actions),
            After::AttemptEnded { reply } => self.acknowledge_reply(now, reply, actions),
            After::Finished => {
                let Some(durable) = self.durable_mut(id) else {
                    return;
                };
                let (reply, over) = (durable.reply.take(), durable.over.take());
                self.remove_durable(id);
                actions.push(Action::Decided {
                    run: id,
                    failure: None,
                });
                if let Some((slot, over)) = over
                    && self.holds(slot, id)
                {
                    self.slot_apply(now, slot, slot::Event::Over(over), actions);
                }
                self.acknowledge_reply(now, reply, actions);
            }
            After::Noted => {}
        }
    }

    /// An entry is on disk: nothing of the next attempt is decided before it is.
    fn append_is_written(&mut self, id: RunId, worker_seq: u64, actions: &mut Vec<Action>) {
        let Some(entry) = self.runs.get_mut(&id) else {
            return;
        };
        let (delivery, running) = (entry.run.delivery(), slot_of(entry));
        if let Some(durable) = &mut entry.durable {
            durable.written = worker_seq;
        }
        let is_full = |slot: &SlotId| {
            let held = self.slots.get(slot);
            held.is_some_and(|held| held.slot.level() == slot::Level::Full)
        };
        if let Some(slot) = running.filter(is_full) {
            let seq = worker_seq;
            actions.push(Action::Acknowledge {
                slot,
                delivery,
                seq,
            });
        }
    }

    /// A leaving harness drops what waits, once it is on disk as it stands.
    pub(super) fn leave_on_disk(&mut self, id: RunId) {
        let waits = self.durable_mut(id).is_some_and(|durable| {
            durable.pending.is_empty()
                && matches!(durable.phase, Phase::Waiting | Phase::Loading(_))
        });
        if waits {
            self.remove_durable(id);
        }
    }

    fn acknowledge_reply(&mut self, now: Instant, reply: Option<Reply>, actions: &mut Vec<Action>) {
        let Some(reply) = reply else {
            return;
        };
        let Some(held) = self.slots.get_mut(&reply.slot) else {
            return;
        };
        if held.owes != Some(reply.delivery) {
            return;
        }
        held.owes = None;
        actions.push(Action::Acknowledge {
            slot: reply.slot,
            delivery: reply.delivery,
            seq: reply.seq,
        });
        if self.leaving && held.slot.delivery().is_none() {
            return self.slot_apply(now, reply.slot, slot::Event::ServerLeaving, actions);
        }
        // What may not go to it before this may now.
        if held.ready.is_some() {
            self.fill(now, reply.slot, actions);
        }
    }

    /// Whether a slot works on a run.
    pub(super) fn holds(&self, slot: SlotId, id: RunId) -> bool {
        let held = self.slots.get(&slot);
        held.and_then(|held| held.slot.delivery())
            .is_some_and(|delivery| delivery.run == id)
    }

    /// A step was not written: nothing that was decided since has happened.
    fn unwritten(&mut self, now: Instant, id: RunId, why: &Failure, actions: &mut Vec<Action>) {
        let Some(entry) = self.runs.get_mut(&id) else {
            return;
        };
        let running = slot_of(entry);
        let Some(durable) = &mut entry.durable else {
            return;
        };
        let kept = durable.kept_slot();
        let owing = durable.reply;
        let mut pending = durable.pending.iter();
        let made = !pending.any(|step| matches!(step.after, After::Enqueued { .. }));
        let owed = durable.pending.iter().filter_map(|step| match &step.after {
            After::AttemptEnded { reply } => *reply,
            After::Enqueued { .. }
            | After::Started
            | After::Appended { .. }
            | After::Finished
            | After::Noted => None,
        });
        let owing: Vec<Reply> = owed.chain(owing).collect();
        let over = durable.over;
        self.remove_durable(id);
        if made {
            self.adrift.insert(id);
            self.wake_for_store(now);
        } else {
            let started = Err(Box::new(why.clone()));
            actions.push(Action::Started { run: id, started });
        }
        actions.push(Action::Decided {
            run: id,
            failure: Some(Box::new(why.clone())),
        });
        self.give_up_slot(now, id, kept, actions);
        // Its worker keeps what was not acknowledged and comes back with it.
        let slots = owing.iter().map(|reply| reply.slot);
        let slots: Vec<SlotId> = slots
            .chain(running)
            .chain(over.map(|(slot, _)| slot))
            .collect();
        for slot in slots {
            let held = self.slots.get(&slot);
            let owes = held
                .and_then(|held| held.owes)
                .is_some_and(|it| it.run == id);
            if self.holds(slot, id) || owes {
                self.slot_apply(now, slot, slot::Event::StoreFailed, actions);
            }
        }
    }

    /// The store is tried again in a while.
    pub(super) fn wake_for_store(&mut self, now: Instant) {
        if self.store_wake.is_none() {
            let at = now + STORE_RETRY;
            self.store_wake = Some(at);
            self.timers.set(at, Timer::Store);
        }
    }

    /// It is time to try the store again.
    pub(super) fn try_store(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.store_wake = None;
        self.reads_pause_until = None;
        for run in self.adrift.iter().take(RELOADED_AT_ONCE) {
            actions.push(Action::Reload { run: *run });
        }
        if !self.adrift.is_empty() {
            self.wake_for_store(now);
        }
        self.fill_free(now, actions);
    }

    /// Offers durable runs that wait to every free slot.
    pub(super) fn fill_free(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let mut free: Vec<(u64, SlotId)> = self
            .agents
            .values()
            .filter(|agent| !agent.durable.is_empty())
            .flat_map(|agent| agent.ready.iter())
            .map(|(order, slot)| (*order, *slot))
            .collect();
        free.sort_unstable();
        for (_, slot) in free {
            if self
                .slots
                .get(&slot)
                .is_some_and(|held| held.ready.is_some())
            {
                self.fill(now, slot, actions);
            }
        }
    }

    /// Takes a run in as it is on disk.
    pub(super) fn adopt(
        &mut self,
        now: Instant,
        id: RunId,
        (adopted, again): (Option<Box<Adopted>>, bool),
        actions: &mut Vec<Action>,
    ) {
        // What was read before its last step failed lacks those written before that.
        if self.adrift.contains(&id) && !again {
            return;
        }
        let was_adrift = self.adrift.remove(&id);
        let Some(adopted) = adopted else {
            return;
        };
        if self.leaving || self.runs.contains_key(&id) {
            return;
        }
        let mut request = adopted.request;
        if let Some((known, _)) = self.agents.get_key_value(&request.agent) {
            request.agent = known.clone();
        }
        let state = (adopted.attempt, adopted.counts, adopted.running);
        let run = Run::restored(id, adopted.terms, state, now);
        let mut durable = Durable::new(match adopted.running {
            true => Phase::Working,
            false => Phase::Waiting,
        });
        durable.request = Held::OnDisk;
        durable.head = adopted.head;
        durable.on_disk = adopted.head;
        durable.bytes = adopted.bytes;
        durable.written = adopted.worker_seq;
        durable.replayed = adopted.replayed;
        let claim = adopted.holder.map(|holder| {
            Box::new(Claim {
                taken: adopted.worker_seq,
                reply_seq: adopted.reply_seq,
                ..Claim::new(holder)
            })
        });
        let entry = RunEntry {
            frame_bytes: adopted.frame_bytes,
            created: adopted.created,
            claim,
            durable: Some(Box::new(durable)),
            ..self.run_entry(now, run, Arc::new(request), adopted.placing)
        };
        self.insert_durable(id, entry);
        if adopted.running {
            self.await_restored(now, id, was_adrift);
            if let Some(began) = adopted.began {
                self.time_attempt(id, began);
            }
            return;
        }
        match adopted.not_before.filter(|at| *at > now) {
            Some(at) => {
                let timer = Timer::Retry(id);
                if let Some(entry) = self.runs.get_mut(&id) {
                    entry.timer = Some((at, timer.clone()));
                }
                self.timers.set(at, timer);
            }
            None => {
                self.queue_durable(id);
                self.settle(now, id, actions);
            }
        }
    }

    /// An attempt under way is taken in: its worker has a while to come back.
    fn await_restored(&mut self, now: Instant, id: RunId, was_adrift: bool) {
        let (spread, message) = match was_adrift {
            // Few of them are taken in at once.
            true => (
                Duration::ZERO,
                "the store failed and its worker did not come back in time",
            ),
            false => {
                self.restarted += 1;
                (
                    RESTART_SPREAD * self.restarted,
                    "the harness was started anew and its worker did not come back in time",
                )
            }
        };
        let holder = self.runs.get(&id).and_then(|it| it.claim.as_ref());
        let is_drained = holder.is_some_and(|claim| self.drained.contains(claim.holder.worker));
        let until = match is_drained {
            true => now,
            false => now + self.limits.reattach_window + spread,
        };
        let failure = Failure::new(Code::WorkerLost, message);
        self.await_worker(id, until, Cause::Restarted, failure);
    }
}

/// The slot a run is in.
pub(super) fn slot_of(entry: &RunEntry) -> Option<SlotId> {
    match entry.run.state() {
        run::State::Running(slot) => Some(*slot),
        run::State::Queued | run::State::Away | run::State::Ended => None,
    }
}

fn conflict() -> Failure {
    let message = "the idempotency key was used for a run that asks something else: use another \
                   key, or ask the same";
    Failure::new(Code::IdempotencyConflict, message)
}
