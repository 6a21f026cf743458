//! Runs: from the ask to the answer. Which slot gets one is in `placing`.

use std::sync::Arc;
use std::time::Instant;

use crate::envelope::{Answer, Code, Failure, Request};
use crate::ids::{RunId, SchemaId, WorkerId};
use crate::run::{self, Next, Run};
use crate::slot;

use super::placing::Judgement;
use super::{Action, Core, Timer};

/// How long a caller who was told BUSY should wait at least.
pub(super) const BUSY_RETRY: std::time::Duration = std::time::Duration::from_millis(100);

/// A run and what Core needs to place it.
#[derive(Debug)]
pub(super) struct RunEntry {
    pub(super) run: Run,
    pub(super) request: Arc<Request>,
    pub(super) frame_bytes: u64,
    /// Its place in the queue, the same each time it comes back to it.
    pub(super) order: u64,
    /// Whether it counts against the limits of the queue.
    pub(super) waiting: bool,
    /// The worker it was not accepted by, or that gave it back.
    pub(super) avoid: Option<WorkerId>,
    pub(super) judgements: Vec<(SchemaId, Judgement)>,
}

impl Core {
    pub(super) fn ask(
        &mut self,
        now: Instant,
        id: RunId,
        request: Arc<Request>,
        terms: run::Terms,
        wait_for_agent: bool,
        actions: &mut Vec<Action>,
    ) {
        let key = request.agent.clone();
        let order = self.next_order();
        let deadline = terms.deadline;
        let frame_bytes = request.frame_bytes();
        self.runs.insert(
            id,
            RunEntry {
                run: Run::new(id, terms, now),
                request,
                frame_bytes,
                order,
                waiting: false,
                avoid: None,
                judgements: Vec::new(),
            },
        );
        self.timers.set(deadline, Timer::Run(id));
        if self.leaving {
            return self.refuse(now, id, shutting_down(), actions);
        }
        let offered = self.agents.get(&key).is_some_and(|agent| agent.offered);
        if !offered && !wait_for_agent {
            let unknown = self.unknown_agent(now, &key);
            return self.refuse(now, id, unknown, actions);
        }
        if !self.has_room_for_agent(&key) {
            let full = Failure::new(
                Code::Busy,
                format!(
                    "{} agents are known, which is the limit",
                    self.limits.agents
                ),
            );
            return self.refuse(now, id, full.retry_after(BUSY_RETRY), actions);
        }
        self.agents.entry(key).or_default().queue.insert(order, id);
        self.settle(now, id, actions);
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
            run::State::Queued | run::State::Ended => self.why_waiting(&entry.request.agent),
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
            Some(run::State::Queued | run::State::Ended) | None => None,
        };
        self.run_apply(now, id, event, actions);
        if let Some(slot) = slot {
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
                | run::Cause::Lost => None,
            };
        }
        self.run_apply(now, id, run::Event::Failed(cause, failure), actions);
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
        match entry.run.apply(now, event) {
            Next::Nothing => {}
            Next::Requeue => {
                let key = entry.request.agent.clone();
                let order = entry.order;
                self.agents.entry(key).or_default().queue.insert(order, id);
                if self.leaving {
                    return self.refuse(now, id, shutting_down(), actions);
                }
                self.settle(now, id, actions);
            }
            Next::Ended(outcome) => {
                let attempt = entry.run.attempt();
                self.timers.clear(entry.run.deadline(), Timer::Run(id));
                self.leave_queue(id);
                if let Some(entry) = self.runs.remove(&id) {
                    self.forget_unoffered(&entry.request.agent);
                }
                actions.push(Action::Answer {
                    run: id,
                    answer: Answer { attempt, outcome },
                });
            }
        }
    }
}

/// The answer to whoever asks a harness that is leaving.
pub(super) fn shutting_down() -> Failure {
    Failure::new(
        Code::ShuttingDown,
        "the harness is shutting down and takes no new work: ask again when it is back",
    )
}
