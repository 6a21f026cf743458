//! Calls that break under work: the run waits for its worker, and the worker comes back to it, or to
//! what came of it (`claim`). Durable runs and interactive ones differ in their window, and in what
//! is on disk.

use std::time::{Duration, Instant};

use crate::envelope::{Code, Failure};
use crate::ids::{Delivery, Lease, RunId, SlotId, WorkerId};
use crate::run::{self, Cause};
use crate::slot::{End, Level, Refusal};
use crate::store::Holder;

use super::asks::shutting_down;
use super::claim::{Away, Back, Claim, LastAttempt, Resumed};
use super::durable::{After, Durable, Pending, Phase};
use super::entry::RunEntry;
use super::slots::SlotEntry;
use super::workers::Offer;
use super::{Action, Core, Timer};

impl Core {
    /// Whether the worker of a lost call may come back to what was in it.
    pub(super) fn may_come_back(&self, entry: &SlotEntry, delivery: Delivery) -> bool {
        let run = self.runs.get(&delivery.run);
        entry.slot.level() == Level::Full
            && run.is_some_and(|run| match &run.durable {
                Some(durable) => matches!(durable.phase, Phase::Working),
                // Its caller does not wait for the harness that follows.
                None => run.claim.is_some() && !self.leaving,
            })
    }

    /// The call of a run is lost; its worker has a while to come back. One that has not shown that it
    /// has the request has no longer than for that.
    pub(super) fn went_away(
        &mut self,
        now: Instant,
        (id, accept_by): (RunId, Option<Instant>),
        failure: Failure,
        actions: &mut Vec<Action>,
    ) {
        if self.leaving {
            // It comes back to the harness that follows.
            return self.remove_durable(id);
        }
        self.run_apply(now, id, run::Event::Lost, actions);
        let window = now + self.window_of(id);
        let (until, cause) = match accept_by {
            Some(by) => (by.clamp(now, window), Cause::NotAccepted),
            None => (window, Cause::Lost),
        };
        self.await_worker(id, until, cause, failure);
    }

    fn window_of(&self, id: RunId) -> Duration {
        match self.has_durable(id) {
            true => self.limits.reattach_window,
            false => self.limits.interactive_reattach_window,
        }
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
        if entry.durable.is_none()
            && let Some(agent) = self.agents.get_mut(&entry.request.agent)
        {
            agent.away += 1;
        }
    }

    /// The worker of a run is waited for no longer.
    fn take_away(&mut self, id: RunId) -> Option<(WorkerId, Away)> {
        let entry = self.runs.get_mut(&id)?;
        let claim = entry.claim.as_mut()?;
        let away = claim.away.take()?;
        let worker = claim.holder.worker;
        self.timers.clear(away.until, Timer::Reattach(id));
        if entry.durable.is_none()
            && let Some(agent) = self.agents.get_mut(&entry.request.agent)
        {
            agent.away -= 1;
        }
        Some((worker, away))
    }

    pub(super) fn clear_away(&mut self, id: RunId) {
        drop(self.take_away(id));
    }

    /// The workers of lost calls come back to the harness that follows, if their callers do.
    pub(super) fn leave_what_is_away(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let is_away = |entry: &RunEntry| matches!(entry.run.state(), run::State::Away);
        let away = self.runs.iter().filter(|(_, entry)| is_away(entry));
        let mut away: Vec<RunId> = away.map(|(id, _)| *id).collect();
        away.sort_unstable();
        for run in away {
            match self.has_durable(run) {
                true => self.remove_durable(run),
                false => self.refuse(now, run, shutting_down(), actions),
            }
        }
    }

    /// The worker has not come back in its time.
    pub(super) fn never_came_back(&mut self, now: Instant, id: RunId, actions: &mut Vec<Action>) {
        let waited = self.window_of(id);
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

    /// The worker has not come back in its time, or will not.
    pub(super) fn stays_away(&mut self, now: Instant, id: RunId, actions: &mut Vec<Action>) {
        if let Some((worker, away)) = self.take_away(id) {
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
        if let Some(claim) = self.awaited(delivery)
            && claim.holder == holder
            && let Some(away) = &mut claim.away
            && away.cause == Cause::NotAccepted
        {
            // It had the request.
            away.cause = Cause::Lost;
        }
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
        (is_its && is_worked(entry) && held.slot.delivery() == Some(delivery)).then_some(slot)
    }

    /// The claim to a delivery whose worker is waited for.
    fn awaited(&mut self, delivery: Delivery) -> Option<&mut Claim> {
        let entry = self.runs.get_mut(&delivery.run)?;
        let is_away = matches!(entry.run.state(), run::State::Away);
        let claim = entry.claim.as_deref_mut();
        claim.filter(|_| is_away && entry.run.delivery() == delivery)
    }

    /// Whether a run is here, live or ended.
    #[must_use]
    pub fn is_known(&self, id: RunId) -> bool {
        self.runs.contains_key(&id) || self.history.get(id).is_some()
    }

    /// What a worker comes back to that wants to go on with what it names, or how its call ends.
    pub(super) fn comes_back(
        &self,
        offer: &Offer,
        delivery: Delivery,
        lease: Lease,
    ) -> Result<Back, End> {
        let not_yours = Err(End::Refused(Refusal::NotYours));
        let worker = offer.worker;
        let holder = Holder { worker, lease };
        if self.adrift.contains(&delivery.run) {
            return Err(End::StoreFailed);
        }
        let Some(entry) = self.runs.get(&delivery.run) else {
            let past = self.history.get(delivery.run);
            let past = past.filter(|past| past.view.agent == offer.agent);
            return past.map_or(not_yours, |past| {
                LastAttempt::of(past).comes_back(delivery, holder)
            });
        };
        if entry.request.agent != offer.agent || delivery.attempt > entry.run.attempt() {
            return not_yours;
        }
        if entry.durable.as_ref().is_some_and(|it| is_ending(it)) {
            // It is known in a moment what came of it.
            return Err(End::StoreFailed);
        }
        if delivery.attempt < entry.run.attempt() {
            return Err(End::Superseded(delivery));
        }
        let claim = entry.claim.as_ref();
        let claim = claim.filter(|it| it.holder == holder && offer.level == Level::Full);
        match claim {
            Some(_) if is_worked(entry) => Ok(Back::Resume(delivery, lease)),
            None if is_worked(entry) => not_yours,
            // Its reply has ended the attempt, and nothing has come after that.
            Some(claim) if claim.reply_seq > 0 => {
                let durable = entry.durable.as_ref();
                match durable.is_none_or(|durable| attempt_end_is_on_disk(durable)) {
                    true => Ok(Back::Replied(delivery, claim.reply_seq)),
                    false => Err(End::StoreFailed),
                }
            }
            Some(_) | None => Err(End::Superseded(delivery)),
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
        let taken = entry.claim.as_ref()?.taken;
        let resumed = Resumed {
            delivery,
            last_seq: entry.acknowledged(taken),
            deadline: Some(deadline),
        };
        Some((resumed, taken))
    }
}

/// Whether a worker has the newest attempt, or may come back to it.
fn is_worked(entry: &RunEntry) -> bool {
    match &entry.durable {
        Some(durable) => matches!(durable.phase, Phase::Working),
        None => matches!(entry.run.state(), run::State::Running(_) | run::State::Away),
    }
}

fn is_ending(durable: &Durable) -> bool {
    matches!(durable.phase, Phase::Ending)
}

/// Whether nothing is on its way that ends an attempt.
fn attempt_end_is_on_disk(durable: &Durable) -> bool {
    let ends = |step: &Pending| matches!(step.after, After::AttemptEnded { .. });
    !durable.pending.iter().any(ends)
}
