//! Calls that break under work: the run waits for its worker, and the worker comes back to it, or to
//! what came of it (`claim`), or does not: it is drained, dead, or has said that it stopped. Durable
//! runs and interactive ones differ in their window, and in what is on disk.

use std::time::Instant;

use crate::envelope::Failure;
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
        let works_on = entry.slot.level() == Level::Full && entry.lease.is_some();
        let Some(run) = run.filter(|_| works_on) else {
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
    pub(super) fn stop_awaiting(&mut self, id: RunId) -> Option<(WorkerId, Away)> {
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

    /// Durable runs that are away are on disk for the harness that follows; callers of others are
    /// answered.
    pub(super) fn leave_what_is_away(&mut self, now: Instant, actions: &mut Vec<Action>) {
        for run in self.awaited_runs(|_| true) {
            match self.has_durable(run) {
                true => self.remove_durable(run),
                false => self.refuse(now, run, shutting_down(), actions),
            }
        }
    }

    /// A worker that was asked to drain may not come back.
    pub(super) fn fail_awaited_of(
        &mut self,
        now: Instant,
        worker: WorkerId,
        actions: &mut Vec<Action>,
    ) {
        for run in self.awaited_runs(|claim| claim.holder.worker == worker) {
            self.fail_awaited(now, run, actions);
        }
    }

    fn awaited_runs(&self, which: impl Fn(&Claim) -> bool) -> Vec<RunId> {
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
    pub(super) fn window_over(&mut self, now: Instant, id: RunId, actions: &mut Vec<Action>) {
        let waited = self.limits.window(Level::Full, self.has_durable(id));
        let claim = self.runs.get_mut(&id).and_then(|it| it.claim.as_mut());
        if let Some(away) = claim.and_then(|claim| claim.away.as_mut())
            && away.cause == Cause::Lost
            && !waited.is_zero()
        {
            let said = format!(" and was not back in {waited:?}");
            away.failure.message.push_str(&said);
        }
        self.fail_awaited(now, id, actions);
    }

    /// The worker does not come back to what it is waited for with.
    fn fail_awaited(&mut self, now: Instant, id: RunId, actions: &mut Vec<Action>) {
        let delivery = self.runs.get(&id).map(|entry| entry.run.delivery());
        if let Some((worker, away)) = self.stop_awaiting(id) {
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
        self.fail_awaited(now, delivery.run, actions);
    }

    /// Whether this worker has the delivery, or is waited for with it, and works on it no more. It is not
    /// waited for any longer, or will not be when its call is found lost; a reply that is in that
    /// call still counts.
    pub(super) fn works_no_more(
        &mut self,
        now: Instant,
        (worker, delivery, lease): (WorkerId, Delivery, Lease),
        actions: &mut Vec<Action>,
    ) -> bool {
        let holder = Holder { worker, lease };
        if self
            .awaited(delivery)
            .is_some_and(|claim| claim.holder == holder)
        {
            self.fail_awaited(now, delivery.run, actions);
            return true;
        }
        let call = self.call_of(holder, delivery);
        let held = call.and_then(|slot| self.slots.get_mut(&slot));
        held.map(|held| held.lease = None).is_some()
    }

    /// The call in which a worker has a delivery, as far as is known here.
    pub(super) fn call_of(&self, holder: Holder, delivery: Delivery) -> Option<SlotId> {
        let is_it = |slot: &&SlotId| {
            let held = self.slots.get(slot);
            held.is_some_and(|held| {
                held.slot.delivery() == Some(delivery) && held.lease == Some(holder.lease)
            })
        };
        let worker = self.workers.get(&holder.worker)?;
        worker.slots.iter().find(is_it).copied()
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
        self.stop_awaiting(id);
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
