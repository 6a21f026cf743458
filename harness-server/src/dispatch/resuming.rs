//! Calls that break under durable work: the run waits for its worker, and the worker comes back to
//! it.

use std::time::Instant;

use crate::envelope::Failure;
use crate::ids::{Delivery, Lease, RunId, SlotId, WorkerId};
use crate::run::{self, Cause};
use crate::slot::{End, Level, Refusal};
use crate::store::Holder;

use super::asks::RunEntry;
use super::durable::{After, Away, Durable, Pending, Phase};
use super::slots::SlotEntry;
use super::workers::Offer;
use super::{Action, Core, Timer};

/// What a hello says of the call before, as far as it is more than a hello.
#[derive(Clone, Copy, Debug)]
pub enum Back {
    /// The call broke and its work goes on.
    Resume(Delivery, Lease),
    /// The same, but the reply of it is on disk, with this worker_seq.
    Replied(Delivery, u64),
}

/// Where the harness stands with a resumed attempt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resumed {
    /// Which.
    pub delivery: Delivery,
    /// The last worker_seq that is on disk.
    pub last_seq: u64,
    /// When the attempt ends at the latest; none when it has ended with its worker's reply.
    pub deadline: Option<Instant>,
}

impl Core {
    /// Whether the worker of a lost call may come back to what was in it.
    pub(super) fn may_come_back(&self, entry: &SlotEntry, delivery: Delivery) -> bool {
        let durable = self
            .runs
            .get(&delivery.run)
            .and_then(|run| run.durable.as_ref());
        entry.slot.level() == Level::Full
            && durable.is_some_and(|durable| matches!(durable.phase, Phase::Working))
    }

    /// The call of a durable run is lost; its worker has a while to come back.
    pub(super) fn went_away(
        &mut self,
        now: Instant,
        id: RunId,
        failure: Failure,
        actions: &mut Vec<Action>,
    ) {
        if self.leaving {
            // It comes back to the harness that follows.
            return self.remove_durable(id);
        }
        self.run_apply(now, id, run::Event::Lost, actions);
        let away = Away {
            until: now + self.limits.reattach_window,
            cause: Cause::Lost,
            failure,
        };
        self.timers.set(away.until, Timer::Reattach(id));
        if let Some(durable) = self.durable_mut(id) {
            durable.away = Some(away);
        }
    }

    /// The workers of lost calls come back to the harness that follows.
    pub(super) fn leave_what_is_away(&mut self) {
        let is_away = |entry: &RunEntry| matches!(entry.run.state(), run::State::Away);
        let away = self.runs.iter().filter(|(_, entry)| is_away(entry));
        for run in away.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.remove_durable(run);
        }
    }

    /// The worker has not come back in its time, or says that it will not.
    pub(super) fn stays_away(&mut self, now: Instant, id: RunId, actions: &mut Vec<Action>) {
        let Some(durable) = self.durable_mut(id) else {
            return;
        };
        let (Some(away), Some(holder)) = (durable.away.take(), durable.holder) else {
            return;
        };
        self.timers.clear(away.until, Timer::Reattach(id));
        let worker = holder.worker;
        self.delivery_failed(now, id, worker, away.cause, away.failure, actions);
    }

    /// The process of a worker is dead: what it had in hand does not wait for it.
    pub(super) fn perished(
        &mut self,
        now: Instant,
        (worker, delivery): (WorkerId, Delivery),
        failure: Option<Failure>,
        actions: &mut Vec<Action>,
    ) {
        let id = delivery.run;
        let Some(entry) = self.runs.get_mut(&id) else {
            return;
        };
        let is_away = matches!(entry.run.state(), run::State::Away);
        if !is_away || entry.run.delivery() != delivery {
            return;
        }
        let Some(durable) = &mut entry.durable else {
            return;
        };
        if durable.holder.is_none_or(|holder| holder.worker != worker) {
            return;
        }
        if let (Some(away), Some(failure)) = (&mut durable.away, failure) {
            away.cause = Cause::Died;
            away.failure = failure;
        }
        self.stays_away(now, id, actions);
    }

    /// Whether a released is about work whose call was lost: it will not come back then.
    pub(super) fn gives_up_resuming(
        &mut self,
        now: Instant,
        (worker, delivery, lease): (WorkerId, Delivery, Lease),
        actions: &mut Vec<Action>,
    ) -> bool {
        let held = self.runs.get(&delivery.run).is_some_and(|entry| {
            let holder = entry.durable.as_ref().and_then(|durable| durable.holder);
            matches!(entry.run.state(), run::State::Away)
                && entry.run.delivery() == delivery
                && holder == Some(Holder { worker, lease })
        });
        if held {
            self.stays_away(now, delivery.run, actions);
        }
        held
    }

    /// What a worker comes back to that wants to go on with what it names, or how its call ends.
    pub(super) fn comes_back(
        &self,
        offer: &Offer,
        delivery: Delivery,
        lease: Lease,
    ) -> Result<Back, End> {
        let not_yours = Err(End::Refused(Refusal::NotYours));
        if self.adrift.contains(&delivery.run) {
            return Err(End::StoreFailed);
        }
        let Some(entry) = self.runs.get(&delivery.run) else {
            return not_yours;
        };
        let Some(durable) = &entry.durable else {
            return not_yours;
        };
        if entry.request.agent != offer.agent || delivery.attempt > entry.run.attempt() {
            return not_yours;
        }
        let same = delivery.attempt == entry.run.attempt();
        let worker = offer.worker;
        let holds = durable.holder == Some(Holder { worker, lease }) && offer.level == Level::Full;
        match durable.phase {
            // It is known in a moment what came of it.
            Phase::Ending => Err(End::StoreFailed),
            Phase::Working if same && holds => Ok(Back::Resume(delivery, lease)),
            Phase::Working if same => not_yours,
            // Its reply has ended the attempt, and nothing has come after that.
            Phase::Waiting | Phase::Loading(_) if same && holds && durable.reply_seq > 0 => {
                match attempt_end_is_on_disk(durable) {
                    true => Ok(Back::Replied(delivery, durable.reply_seq)),
                    false => Err(End::StoreFailed),
                }
            }
            Phase::New(_)
            | Phase::Waiting
            | Phase::Loading(_)
            | Phase::Starting(_)
            | Phase::Working => Err(End::Superseded(delivery)),
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
        let deadline = Some(deadline);
        let durable = entry.durable.as_ref()?;
        let resumed = Resumed {
            delivery,
            last_seq: durable.written,
            deadline,
        };
        Some((resumed, durable.taken))
    }
}

/// Whether nothing is on its way that ends an attempt.
fn attempt_end_is_on_disk(durable: &Durable) -> bool {
    let ends = |step: &Pending| matches!(step.after, After::AttemptEnded { .. });
    !durable.pending.iter().any(ends)
}
