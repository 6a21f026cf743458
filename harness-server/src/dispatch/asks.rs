//! Runs: from the ask to the answer. Which slot gets one is in `placing`.

use std::sync::Arc;
use std::time::Instant;

use crate::envelope::{Answer, Code, Failure, Outcome, Request};
use crate::ids::{AgentKey, Attempt, Delivery, RunId, WorkerId};
use crate::journal::{Content, Ended};
use crate::run::{self, Next, Run};
use crate::slot;

use super::durable::Phase;
use super::{Action, Core, Placing, Timer, trim};

/// How long a caller who was told BUSY should wait at least.
pub(super) const BUSY_RETRY: std::time::Duration = std::time::Duration::from_millis(100);

impl Core {
    pub(super) fn ask(
        &mut self,
        now: Instant,
        id: RunId,
        mut request: Request,
        (terms, placing): (run::Terms, Placing),
        actions: &mut Vec<Action>,
    ) {
        let parent = self.depth_of(&request);
        request.depth = *parent.as_ref().unwrap_or(&0);
        if let Some((known, _)) = self.agents.get_key_value(&request.agent) {
            // The names that are there already, so that what is kept of runs shares them.
            request.agent = known.clone();
        }
        let request = Arc::new(request);
        let key = request.agent.clone();
        self.timers.set(terms.deadline, Timer::Run(id));
        let wait_for_agent = placing.wait_for_agent;
        let entry = self.run_entry(now, Run::new(id, terms, now), request, placing);
        let order = entry.order;
        self.runs.insert(id, Box::new(entry));
        self.note(now, whole(id), Content::RunStarted, actions);
        if let Some(refusal) = self.refuse_ask(now, &key, parent, wait_for_agent) {
            return self.refuse(now, id, refusal, actions);
        }
        self.agents.entry(key).or_default().queue.insert(order, id);
        self.settle(now, id, actions);
    }

    /// Why this harness does not take an ask, if it does not.
    pub(super) fn refuse_ask(
        &mut self,
        now: Instant,
        key: &AgentKey,
        parent: Result<u32, Box<Failure>>,
        wait_for_agent: bool,
    ) -> Option<Failure> {
        if self.leaving {
            return Some(shutting_down());
        }
        if let Err(refusal) = parent {
            return Some(*refusal);
        }
        let known = self.agents.get(key).is_some_and(|agent| agent.is_known());
        if !known && !wait_for_agent {
            return Some(self.unknown_agent(now, key));
        }
        if !self.has_room_for_agent(key) {
            let message = format!(
                "{} agents are known, which is the limit",
                self.limits.agents
            );
            return Some(Failure::new(Code::Busy, message).retry_after(BUSY_RETRY));
        }
        None
    }

    pub(super) fn cancelled(
        &mut self,
        now: Instant,
        id: RunId,
        why: String,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.runs.get(&id) else {
            return;
        };
        if now >= entry.run.deadline() {
            return self.deadline_passed(now, id, actions);
        }
        self.finish_elsewhere(
            now,
            id,
            run::Event::Cancelled(why),
            slot::Over::Cancelled,
            actions,
        );
    }

    pub(super) fn deadline_passed(&mut self, now: Instant, id: RunId, actions: &mut Vec<Action>) {
        let Some(entry) = self.runs.get(&id) else {
            return;
        };
        let place = match entry.run.state() {
            run::State::Running(slot) => match self.slots.get(slot) {
                Some(held) => format!("on worker \"{}\"", held.offer.info.name),
                None => "on a worker that is gone".to_owned(),
            },
            run::State::Away => "on a worker whose call is lost".to_owned(),
            run::State::Queued | run::State::Ended => self.why_waits(entry),
        };
        let event = run::Event::DeadlinePassed(place);
        self.finish_elsewhere(now, id, event, slot::Over::DeadlineExceeded, actions);
    }

    /// Ends a run for a reason that its slot, if it is in one, has yet to learn.
    fn finish_elsewhere(
        &mut self,
        now: Instant,
        id: RunId,
        event: run::Event,
        over: slot::Over,
        actions: &mut Vec<Action>,
    ) {
        let slot = match self.runs.get(&id).map(|entry| entry.run.state()) {
            Some(run::State::Running(slot)) => Some(*slot),
            Some(run::State::Queued | run::State::Away | run::State::Ended) | None => None,
        };
        if let (Some(durable), slot::Over::Cancelled) = (self.durable_mut(id), over) {
            // A row first and a signal second.
            durable.over = slot.map(|slot| (slot, over));
            return self.run_apply(now, id, event, actions);
        }
        self.run_apply(now, id, event, actions);
        if let Some(slot) = slot
            && self.holds(slot, id)
        {
            self.slot_apply(now, slot, slot::Event::Over(over), actions);
        }
    }

    pub(super) fn refuse(
        &mut self,
        now: Instant,
        id: RunId,
        failure: Failure,
        actions: &mut Vec<Action>,
    ) {
        self.run_apply(now, id, run::Event::Refused(failure), actions);
    }

    /// A delivery failed; the run waits again or ends.
    pub(super) fn delivery_failed(
        &mut self,
        now: Instant,
        id: RunId,
        worker: WorkerId,
        cause: run::Cause,
        failure: Failure,
        actions: &mut Vec<Action>,
    ) {
        if let Some(entry) = self.runs.get_mut(&id) {
            entry.avoid = match cause {
                run::Cause::NotAccepted | run::Cause::Declined => Some(worker),
                run::Cause::AgentError
                | run::Cause::InvalidReply
                | run::Cause::ProtocolViolation
                | run::Cause::FrameTooLarge
                | run::Cause::AttemptTimeout
                | run::Cause::Lost
                | run::Cause::Died
                | run::Cause::Restarted => None,
            };
        }
        self.run_apply(now, id, run::Event::Failed(cause, failure), actions);
    }

    /// One attempt has taken as long as it may: its slot is ended, the run fails or waits again.
    pub(super) fn attempt_timed_out(&mut self, now: Instant, id: RunId, actions: &mut Vec<Action>) {
        let Some(entry) = self.runs.get_mut(&id) else {
            return;
        };
        entry.timer = None;
        let slot = match *entry.run.state() {
            run::State::Running(slot) => Some(slot),
            run::State::Away => None,
            run::State::Queued | run::State::Ended => return,
        };
        let held = slot.and_then(|slot| self.slots.get(&slot));
        let worker = match (held, &entry.claim) {
            (Some(held), _) => held.offer.worker,
            (None, Some(claim)) => claim.holder.worker,
            (None, None) => return,
        };
        let name = match held {
            Some(held) => format!("worker \"{}\"", held.offer.info.name),
            None => "a worker whose call is lost".to_owned(),
        };
        let message = format!(
            "attempt {} on {name} took longer than its timeout of {:?}",
            entry.run.attempt(),
            entry.run.retry().attempt_timeout.unwrap_or_default()
        );
        let failure = Failure::new(Code::AttemptTimeout, message);
        let cause = run::Cause::AttemptTimeout;
        self.delivery_failed(now, id, worker, cause, failure, actions);
        if let Some(slot) = slot
            && self.holds(slot, id)
        {
            let over = slot::Event::Over(slot::Over::DeadlineExceeded);
            self.slot_apply(now, slot, over, actions);
        }
    }

    /// A back-off is over: the run waits for a slot again.
    pub(super) fn backed_off(&mut self, now: Instant, id: RunId, actions: &mut Vec<Action>) {
        if let Some(entry) = self.runs.get_mut(&id) {
            entry.timer = None;
            self.requeue(now, id, actions);
        }
    }

    pub(super) fn run_apply(
        &mut self,
        now: Instant,
        id: RunId,
        event: run::Event,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.runs.get_mut(&id) else {
            return;
        };
        let delivery = entry.run.is_worked().then(|| entry.run.delivery());
        let is_durable = entry.durable.is_some();
        let failed = match &event {
            run::Event::Failed(_, failure) => Some(Arc::new(failure.clone())),
            run::Event::Replied(_)
            | run::Event::Delivered(_)
            | run::Event::Lost
            | run::Event::Resumed(_)
            | run::Event::OutputSeen
            | run::Event::Refused(_)
            | run::Event::DeadlinePassed(_)
            | run::Event::Cancelled(_) => None,
        };
        let was_away = matches!(entry.run.state(), run::State::Away);
        let next = entry.run.apply(now, event);
        if let Next::Requeue | Next::BackOff(..) = next {
            entry.unread.clear();
        }
        if was_away && !matches!(next, Next::Nothing) {
            self.stop_awaiting(id);
        }
        if is_durable {
            return self.durable_next(now, id, (delivery, failed), next, actions);
        }
        if let (Some(delivery), Next::Requeue | Next::BackOff(..)) = (delivery, &next) {
            self.note(
                now,
                delivery,
                Content::AttemptEnded(failed.clone()),
                actions,
            );
        }
        match next {
            Next::Nothing => {}
            Next::Requeue => {
                self.clear_timer(id);
                self.requeue(now, id, actions);
            }
            Next::BackOff(retry, failure) => {
                self.clear_timer(id);
                self.back_off(now, id, retry, failure, actions);
            }
            Next::Ended(outcome) => self.ended(now, id, (delivery, failed), outcome, actions),
        }
    }

    /// What follows for a durable run: it is written, and stands then.
    fn durable_next(
        &mut self,
        now: Instant,
        id: RunId,
        (delivery, failed): (Option<Delivery>, Option<Arc<Failure>>),
        next: Next,
        actions: &mut Vec<Action>,
    ) {
        if !matches!(next, Next::Nothing) {
            self.clear_timer(id);
        }
        match (next, delivery) {
            (Next::Nothing, _) | (Next::Requeue | Next::BackOff(..), None) => {}
            (Next::Requeue, Some(delivery)) => {
                self.write_attempt_end(now, delivery, failed, None, actions);
                self.requeue(now, id, actions);
            }
            (Next::BackOff(retry, failure), Some(delivery)) => {
                let Some(entry) = self.runs.get(&id) else {
                    return;
                };
                let until = now + self.chance.wait(entry.run.retry(), retry);
                let has_time = until < entry.run.deadline();
                let not_before = has_time.then_some(until);
                self.write_attempt_end(now, delivery, failed, not_before, actions);
                if !has_time {
                    return self.refuse(now, id, failure, actions);
                }
                if let Some(entry) = self.runs.get_mut(&id) {
                    let timer = Timer::Retry(id);
                    entry.timer = Some((until, timer.clone()));
                    self.timers.set(until, timer);
                }
            }
            (Next::Ended(outcome), delivery) => {
                self.write_end(now, id, (delivery, failed), outcome, actions);
            }
        }
    }

    /// A run has its outcome: its journal is closed, its caller is answered.
    fn ended(
        &mut self,
        now: Instant,
        id: RunId,
        (delivery, failed): (Option<Delivery>, Option<Arc<Failure>>),
        outcome: Outcome,
        actions: &mut Vec<Action>,
    ) {
        let kept = Ended::of(&outcome);
        if let Some(delivery) = delivery {
            let failed = failed.or(match &kept {
                Ended::Failure(failure) => Some(failure.clone()),
                Ended::Value(_) => None,
            });
            self.note(now, delivery, Content::AttemptEnded(failed), actions);
        }
        self.note(now, whole(id), Content::RunEnded(kept.clone()), actions);
        self.clear_timer(id);
        self.leave_queue(id);
        let Some(entry) = self.runs.remove(&id) else {
            return;
        };
        trim(&mut self.runs);
        self.timers.clear(entry.run.deadline(), Timer::Run(id));
        self.forget_unoffered(&entry.request.agent);
        let attempt = entry.run.attempt();
        self.keep(now, id, entry, kept);
        actions.push(Action::Answer {
            run: id,
            answer: Answer { attempt, outcome },
        });
    }

    /// Somebody asks for a run to be stopped.
    pub(super) fn cancel_requested(
        &mut self,
        now: Instant,
        id: RunId,
        who: Arc<str>,
        why: String,
        actions: &mut Vec<Action>,
    ) {
        if !self.runs.contains_key(&id) {
            return;
        }
        if let Some(durable) = self.durable_mut(id)
            && durable.cancel.is_none()
            && !matches!(durable.phase, Phase::Ending)
        {
            durable.cancel = Some((who.clone(), why.clone()));
        }
        let said = if why.is_empty() {
            String::new()
        } else {
            format!(": {why}")
        };
        let message = format!("cancelled by {who}{said}");
        if self.durable_mut(id).is_none() {
            let content = Content::CancelRequested { who, why };
            self.note(now, whole(id), content, actions);
        }
        self.cancelled(now, id, message, actions);
    }

    fn requeue(&mut self, now: Instant, id: RunId, actions: &mut Vec<Action>) {
        if self.durable_mut(id).is_some() {
            if self.leaving {
                return self.leave_on_disk(id);
            }
            self.queue_durable(id);
            return self.settle(now, id, actions);
        }
        if self.leaving {
            return self.refuse(now, id, shutting_down(), actions);
        }
        let Some(entry) = self.runs.get(&id) else {
            return;
        };
        let agent = self.agents.entry(entry.request.agent.clone()).or_default();
        agent.queue.insert(entry.order, id);
        self.settle(now, id, actions);
    }

    /// Waits before a retry; a run without the time for it ends with the failure it has.
    fn back_off(
        &mut self,
        now: Instant,
        id: RunId,
        retry: u32,
        failure: Failure,
        actions: &mut Vec<Action>,
    ) {
        if self.leaving {
            return self.refuse(now, id, shutting_down(), actions);
        }
        let Some(entry) = self.runs.get_mut(&id) else {
            return;
        };
        let until = now + self.chance.wait(entry.run.retry(), retry);
        if until >= entry.run.deadline() {
            return self.refuse(now, id, failure, actions);
        }
        let timer = Timer::Retry(id);
        entry.timer = Some((until, timer.clone()));
        self.timers.set(until, timer);
        self.agents.entry(entry.request.agent.clone()).or_default();
        self.count_waiting(id);
    }

    pub(super) fn clear_timer(&mut self, id: RunId) {
        let timer = self.runs.get_mut(&id).and_then(|entry| entry.timer.take());
        if let Some((at, timer)) = timer {
            self.timers.clear(at, timer);
        }
    }
}

/// A run as a whole, for entries that are about no attempt.
pub(super) fn whole(run: RunId) -> Delivery {
    Delivery {
        run,
        attempt: Attempt::default(),
    }
}

/// The answer to whoever asks a harness that is leaving.
pub(super) fn shutting_down() -> Failure {
    Failure::new(
        Code::ShuttingDown,
        "the harness is shutting down and takes no new work: ask again when it is back",
    )
}
