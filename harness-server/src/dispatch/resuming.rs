//! Calls that break under work: the run waits for its worker, and the worker comes back to it, or to
//! what came of it (`claim`). Durable runs and interactive ones differ in their window, and in what
//! is on disk.

use std::time::Instant;

use crate::envelope::{Code, Failure};
use crate::ids::{Delivery, Lease, RunId, SlotId, WorkerId};
use crate::run::{self, Cause};
use crate::slot::{End, Level, Refusal};
use crate::store::Holder;

use super::asks::shutting_down;
use super::claim::{Away, Back, Claim, Comer, LastAttempt, Resumed};
use super::durable::{After, Durable, Pending, Phase};
use super::ends::failed;
use super::entry::RunEntry;
use super::slots::SlotEntry;
use super::{Action, Core, Note, Timer};

impl Core {
    /// Whether the worker of a lost call may come back to what was in it.
    pub(super) fn may_come_back(&self, entry: &SlotEntry, delivery: Delivery) -> bool {
        let run = self.runs.get(&delivery.run);
        let Some(run) = run.filter(|_| entry.slot.level() == Level::Full) else {
            return false;
        };
        match &run.durable {
            // The harness that follows knows of no drain.
            Some(durable) => {
                matches!(durable.phase, Phase::Working)
                    && (self.leaving || !self.drained.contains(entry.offer.worker))
            }
            None => {
                let bytes = run.request.payload.data.len() as u64;
                run.claim.is_some()
                    // Its caller does not wait for the harness that follows.
                    && !self.leaving
                    && !self.drained.contains(entry.offer.worker)
                    && self.away < self.limits.away_runs
                    && self.queued_bytes + bytes <= self.limits.queue_bytes
            }
        }
    }

    /// The call of a run is lost; its worker has a while to come back.
    pub(super) fn went_away(
        &mut self,
        now: Instant,
        (worker, delivery): (WorkerId, Delivery),
        failure: Failure,
        actions: &mut Vec<Action>,
    ) {
        let id = delivery.run;
        let is_durable = self.has_durable(id);
        actions.push(Action::Note(Note::Away {
            worker,
            delivery,
            what: failure.message.as_str().into(),
        }));
        if self.leaving && is_durable {
            // It comes back to the harness that follows.
            return self.remove_durable(id);
        }
        self.run_apply(now, id, run::Event::Lost, actions);
        let until = now + self.limits.window(Level::Full, is_durable);
        self.await_worker(id, until, Cause::Lost, failure);
    }

    /// The worker of a run has until then to come back.
    pub(super) fn await_worker(
        &mut self,
        id: RunId,
        until: Instant,
        cause: Cause,
        failure: Failure,
    ) {
        let Some(entry) = self.runs.get_mut(&id) else {
            return;
        };
        let Some(claim) = &mut entry.claim else {
            return;
        };
        claim.away = Some(Away {
            until,
            cause,
            failure,
        });
        self.timers.set(until, Timer::Reattach(id));
        if let Some(agent) = self.agents.get_mut(&entry.request.agent) {
            agent.away += 1;
        }
        if entry.durable.is_none() {
            self.away += 1;
            self.queued_bytes += entry.request.payload.data.len() as u64;
        }
    }

    /// The worker of a run is waited for no longer.
    fn take_away(&mut self, id: RunId) -> Option<(WorkerId, Away)> {
        let entry = self.runs.get_mut(&id)?;
        let claim = entry.claim.as_mut()?;
        let away = claim.away.take()?;
        let worker = claim.holder.worker;
        self.timers.clear(away.until, Timer::Reattach(id));
        if let Some(agent) = self.agents.get_mut(&entry.request.agent) {
            agent.away -= 1;
        }
        if entry.durable.is_none() {
            self.away -= 1;
            self.queued_bytes -= entry.request.payload.data.len() as u64;
        }
        Some((worker, away))
    }

    pub(super) fn clear_away(&mut self, id: RunId) {
        drop(self.take_away(id));
    }

    /// Durable runs that are away are on disk for the harness that follows; callers of others are
    /// answered.
    pub(super) fn leave_what_is_away(&mut self, now: Instant, actions: &mut Vec<Action>) {
        for run in self.away_runs(|_| true) {
            match self.has_durable(run) {
                true => self.remove_durable(run),
                false => self.refuse(now, run, shutting_down(), actions),
            }
        }
    }

    /// A worker that was asked to drain may not come back.
    pub(super) fn drained_stay_away(
        &mut self,
        now: Instant,
        worker: WorkerId,
        actions: &mut Vec<Action>,
    ) {
        for run in self.away_runs(|claim| claim.holder.worker == worker) {
            self.stays_away(now, run, actions);
        }
    }

    fn away_runs(&self, which: impl Fn(&Claim) -> bool) -> Vec<RunId> {
        let is_away = |entry: &RunEntry| {
            let claim = entry.claim.as_ref();
            claim.is_some_and(|claim| claim.away.is_some() && which(claim))
        };
        let away = self.runs.iter().filter(|(_, entry)| is_away(entry));
        let mut away: Vec<RunId> = away.map(|(id, _)| *id).collect();
        away.sort_unstable();
        away
    }

    /// The worker has not come back in its time.
    pub(super) fn never_came_back(&mut self, now: Instant, id: RunId, actions: &mut Vec<Action>) {
        let waited = self.limits.window(Level::Full, self.has_durable(id));
        let claim = self.runs.get_mut(&id).and_then(|it| it.claim.as_mut());
        if let Some(away) = claim.and_then(|claim| claim.away.as_mut())
            && away.cause == Cause::Lost
            && !waited.is_zero()
        {
            let said = format!(" and was not back in {waited:?}");
            away.failure.message.push_str(&said);
        }
        self.stays_away(now, id, actions);
    }

    /// The worker has not come back in its time, or says that it will not.
    pub(super) fn stays_away(&mut self, now: Instant, id: RunId, actions: &mut Vec<Action>) {
        let delivery = self.runs.get(&id).map(|entry| entry.run.delivery());
        if let Some((worker, away)) = self.take_away(id) {
            actions.push(failed(worker, delivery, &away.failure));
            self.delivery_failed(now, id, worker, away.cause, away.failure, actions);
        }
    }

    /// The process of a worker is dead: what it had in hand does not wait for it.
    pub(super) fn perished(
        &mut self,
        now: Instant,
        (worker, delivery): (WorkerId, Delivery),
        failure: Option<Failure>,
        actions: &mut Vec<Action>,
    ) {
        let Some(claim) = self.awaited(delivery) else {
            return;
        };
        if claim.holder.worker != worker {
            return;
        }
        if let (Some(away), Some(failure)) = (&mut claim.away, failure) {
            away.cause = Cause::Died;
            away.failure = failure;
        }
        self.stays_away(now, delivery.run, actions);
    }

    /// Whether a worker has this delivery, or may come back to it; it then has stopped the work, and
    /// does not come back.
    pub(super) fn gives_up(
        &mut self,
        now: Instant,
        (worker, delivery, lease): (WorkerId, Delivery, Lease),
        actions: &mut Vec<Action>,
    ) -> bool {
        let holder = Holder { worker, lease };
        if self.stays_gone(now, (worker, delivery, lease), actions) {
            return true;
        }
        let Some(older) = self.call_of(holder, delivery) else {
            return false;
        };
        let name = self.slots.get(&older).map(|held| &held.offer.info.name);
        let name = name.map_or("", String::as_str);
        let message = format!("worker \"{name}\" was lost: its call broke and it stopped");
        let failure = Failure::new(Code::WorkerLost, message);
        self.end(now, older, &End::Superseded(delivery), None, actions);
        self.delivery_failed(now, delivery.run, worker, Cause::Lost, failure, actions);
        true
    }

    /// Whether a worker was waited for that does not come back to this delivery.
    pub(super) fn stays_gone(
        &mut self,
        now: Instant,
        (worker, delivery, lease): (WorkerId, Delivery, Lease),
        actions: &mut Vec<Action>,
    ) -> bool {
        let claim = self.awaited(delivery);
        let held = claim.is_some_and(|claim| claim.holder == Holder { worker, lease });
        if held {
            self.stays_away(now, delivery.run, actions);
        }
        held
    }

    /// The call in which a worker has a delivery, as far as is known here.
    pub(super) fn call_of(&self, holder: Holder, delivery: Delivery) -> Option<SlotId> {
        let entry = self.runs.get(&delivery.run)?;
        let run::State::Running(slot) = *entry.run.state() else {
            return None;
        };
        let held = self.slots.get(&slot)?;
        let is_its = held.offer.worker == holder.worker && held.lease == Some(holder.lease);
        let durable = entry.durable.as_ref();
        let is_worked = durable.is_none_or(|it| matches!(it.phase, Phase::Working));
        (is_its && is_worked && held.slot.delivery() == Some(delivery)).then_some(slot)
    }

    /// The claim to a delivery whose worker is waited for.
    fn awaited(&mut self, delivery: Delivery) -> Option<&mut Claim> {
        let entry = self.runs.get_mut(&delivery.run)?;
        let is_away = matches!(entry.run.state(), run::State::Away);
        let claim = entry.claim.as_deref_mut();
        claim.filter(|_| is_away && entry.run.delivery() == delivery)
    }

    /// Whether a run is here: a live one, or an interactive one that has ended.
    #[must_use]
    pub fn is_known(&self, id: RunId) -> bool {
        self.runs.contains_key(&id) || self.history.get(id).is_some()
    }

    /// What a worker comes back to that wants to go on with what it names, or how its call ends.
    pub(super) fn comes_back(&self, comer: Comer<'_>) -> Result<Back, End> {
        let Comer {
            delivery, lease, ..
        } = comer;
        if self.adrift.contains(&delivery.run) {
            return Err(End::StoreFailed);
        }
        let Some(entry) = self.runs.get(&delivery.run) else {
            let past = self.history.get(delivery.run);
            let past = past.ok_or(End::Refused(Refusal::NotYours))?;
            return LastAttempt::of(past).comes_back(comer);
        };
        let holder = entry.claim.as_ref().map(|claim| claim.holder);
        comer.has_newest(&entry.request.agent, entry.run.attempt(), holder)?;
        let (is_worked, known) = match &entry.durable {
            None => (entry.run.is_worked(), true),
            Some(durable) => match durable.phase {
                // It is known in a moment what came of it.
                Phase::Ending => return Err(End::StoreFailed),
                Phase::Working => (true, true),
                Phase::New(_) | Phase::Waiting | Phase::Loading(_) | Phase::Starting(_) => {
                    (false, attempt_end_is_on_disk(durable))
                }
            },
        };
        match entry.reply_seq() {
            _ if is_worked => Ok(Back::Resume(delivery, lease)),
            0 => Err(End::Superseded(delivery)),
            // Its reply has ended the attempt, and nothing has come after that.
            seq if known => Ok(Back::Replied(delivery, seq)),
            _ => Err(End::StoreFailed),
        }
    }

    /// A worker goes on with what it has: an older call of it ends.
    pub(super) fn resume(
        &mut self,
        now: Instant,
        slot: SlotId,
        delivery: Delivery,
        actions: &mut Vec<Action>,
    ) -> Option<(Resumed, u64)> {
        let id = delivery.run;
        let claim = self.runs.get(&id)?.claim.as_ref()?;
        let (taken, worker) = (claim.taken, claim.holder.worker);
        if let run::State::Running(older) = *self.runs.get(&id)?.run.state() {
            self.end(now, older, &End::Superseded(delivery), None, actions);
        }
        self.clear_away(id);
        let entry = self.runs.get_mut(&id)?;
        entry.run.apply(now, run::Event::Resumed(slot));
        let deadline = match entry.timer {
            Some((at, Timer::Attempt(_))) => at,
            Some(_) | None => entry.run.deadline(),
        };
        let resumed = Resumed {
            delivery,
            last_seq: entry.acknowledged(taken),
            deadline: Some(deadline),
        };
        actions.push(Action::Note(Note::Resumed { worker, delivery }));
        Some((resumed, taken))
    }
}

/// Whether nothing is on its way that ends an attempt.
fn attempt_end_is_on_disk(durable: &Durable) -> bool {
    let ends = |step: &Pending| matches!(step.after, After::AttemptEnded { .. });
    !durable.pending.iter().any(ends)
}
