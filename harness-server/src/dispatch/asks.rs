//! Runs: from the ask to the answer. Finds each a slot, or says why there is none.

use std::sync::Arc;
use std::time::Instant;

use crate::envelope::{Answer, Code, Failure, Request};
use crate::ids::{AgentKey, Attempt, Lease, RunId, SchemaId, SlotId, WorkerId};
use crate::run::{self, Next, Run};
use crate::slot;

use super::agents::{Class, class_of};
use super::{Action, Core, Timer};

/// How long a caller who was told BUSY should wait at least.
const BUSY_RETRY: std::time::Duration = std::time::Duration::from_millis(100);

const MIB: u64 = 1024 * 1024;

/// A run and what Core needs to place it.
#[derive(Debug)]
pub(super) struct RunEntry {
    pub(super) run: Run,
    pub(super) request: Arc<Request>,
    frame_bytes: u64,
    /// Its place in the queue, the same each time it comes back to it.
    pub(super) order: u64,
    /// Whether it counts against the limits of the queue.
    pub(super) waiting: bool,
    /// The worker it was not accepted by, or that gave it back.
    avoid: Option<WorkerId>,
    judgements: Vec<(SchemaId, Judgement)>,
}

/// What a schema says of a request.
#[derive(Debug)]
enum Judgement {
    /// It is being asked.
    Awaited,
    /// It takes it.
    Takes,
    /// It does not, for this reason.
    Refuses(Failure),
}

impl RunEntry {
    fn fits(&self, class: Class) -> bool {
        self.frame_bytes <= class.max_receive_bytes
    }

    fn verdict(&self, class: Class) -> Verdict {
        if !self.fits(class) {
            return Verdict::Refused;
        }
        let Some(schema) = class.schema else {
            return Verdict::Takes;
        };
        if !self.request.payload.is_json() {
            return Verdict::Takes;
        }
        match self.judgement(schema) {
            Some(Judgement::Takes) => Verdict::Takes,
            Some(Judgement::Refuses(_)) => Verdict::Refused,
            Some(Judgement::Awaited) => Verdict::Awaited,
            None => Verdict::Unjudged(schema),
        }
    }

    #[cfg(test)]
    pub(super) fn is_being_judged(&self) -> bool {
        let mut judgements = self.judgements.iter();
        judgements.any(|(_, judgement)| matches!(judgement, Judgement::Awaited))
    }

    fn judgement(&self, schema: SchemaId) -> Option<&Judgement> {
        self.judgements
            .iter()
            .find(|(judged, _)| *judged == schema)
            .map(|(_, judgement)| judgement)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Takes,
    Refused,
    Awaited,
    Unjudged(SchemaId),
}

impl Verdict {
    fn refuses(self) -> bool {
        self == Self::Refused
    }
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

    pub(super) fn judged(
        &mut self,
        now: Instant,
        id: RunId,
        schema: SchemaId,
        refusal: Option<Failure>,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.runs.get_mut(&id) else {
            return;
        };
        let awaited = entry.judgements.iter_mut().find(|(judged, judgement)| {
            *judged == schema && matches!(judgement, Judgement::Awaited)
        });
        let Some((_, judgement)) = awaited else {
            return;
        };
        *judgement = refusal.map_or(Judgement::Takes, Judgement::Refuses);
        if matches!(entry.run.state(), run::State::Queued) {
            self.settle(now, id, actions);
        }
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

    /// Finds a queued run a free slot, or decides whether it may wait for one.
    fn settle(&mut self, now: Instant, id: RunId, actions: &mut Vec<Action>) {
        if self.place(now, id, actions) {
            return;
        }
        let Some(entry) = self.runs.get_mut(&id) else {
            return;
        };
        let Some(agent) = self.agents.get(&entry.request.agent) else {
            return;
        };
        let classes = agent.classes.keys();
        if !agent.classes.is_empty() && classes.clone().all(|c| entry.verdict(*c).refuses()) {
            let refusal = refusal(entry, classes.copied());
            return self.refuse(now, id, refusal, actions);
        }
        let mut awaited = false;
        for class in classes {
            match entry.verdict(*class) {
                Verdict::Unjudged(schema) => {
                    awaited = true;
                    entry.judgements.push((schema, Judgement::Awaited));
                    actions.push(Action::Judge {
                        run: id,
                        schema,
                        request: entry.request.clone(),
                    });
                }
                Verdict::Awaited => awaited = true,
                Verdict::Takes | Verdict::Refused => {}
            }
        }
        if !awaited {
            self.wait(now, id, actions);
        }
    }

    /// Gives a queued run to the slot that is free longest, if one may take it.
    fn place(&mut self, now: Instant, id: RunId, actions: &mut Vec<Action>) -> bool {
        let free = self.runs.get(&id).and_then(|entry| {
            let agent = self.agents.get(&entry.request.agent)?;
            let mut ready = agent.ready.values().copied();
            ready.find(|slot| self.may_take(now, *slot, entry))
        });
        if let Some(slot) = free {
            self.deliver(now, slot, id, actions);
        }
        free.is_some()
    }

    /// A slot left or is leaving: a run that waited for it to avoid another worker may have no
    /// other any more.
    pub(super) fn place_avoiding(
        &mut self,
        now: Instant,
        agent: &AgentKey,
        actions: &mut Vec<Action>,
    ) {
        let Some(agent) = self.agents.get(agent) else {
            return;
        };
        if agent.ready.is_empty() {
            return;
        }
        let avoids = |run: &RunId| self.runs.get(run).is_some_and(|e| e.avoid.is_some());
        let avoiding: Vec<RunId> = agent.queue.values().copied().filter(avoids).collect();
        for run in avoiding {
            self.place(now, run, actions);
        }
    }

    /// Counts a run against the limits of the queue, or answers BUSY.
    fn wait(&mut self, now: Instant, id: RunId, actions: &mut Vec<Action>) {
        let Some(entry) = self.runs.get_mut(&id) else {
            return;
        };
        let Some(agent) = self.agents.get_mut(&entry.request.agent) else {
            return;
        };
        let first = entry.run.attempt() == Attempt::default();
        if entry.waiting {
            return;
        }
        let bytes = entry.request.payload.data.len() as u64;
        let full = if agent.waiting >= self.limits.queue_runs {
            Some(format!(
                "{} runs wait for it, which is the limit",
                agent.waiting
            ))
        } else if self.queued_bytes + bytes > self.limits.queue_bytes {
            Some("the payloads of waiting runs are at their limit".to_owned())
        } else {
            None
        };
        match full {
            Some(why) if first => {
                let key = entry.request.agent.clone();
                let message = format!("agent \"{key}\" is busy: {}; {why}", self.why_waiting(&key));
                let busy = Failure::new(Code::Busy, message).retry_after(BUSY_RETRY);
                self.refuse(now, id, busy, actions);
            }
            Some(_) | None => {
                entry.waiting = true;
                agent.waiting += 1;
                self.queued_bytes += bytes;
            }
        }
    }

    /// Offers a slot that has become free the oldest run it may take.
    pub(super) fn fill(&mut self, now: Instant, slot: SlotId, actions: &mut Vec<Action>) {
        let Some(held) = self.slots.get(&slot) else {
            return;
        };
        let Some(agent) = self.agents.get(&held.offer.agent) else {
            return;
        };
        let next = agent.queue.values().copied().find(|run| {
            self.runs
                .get(run)
                .is_some_and(|entry| self.may_take(now, slot, entry))
        });
        if let Some(run) = next {
            self.deliver(now, slot, run, actions);
        }
    }

    /// Has every waiting run of an agent settled anew, because a slot of a new class is there.
    pub(super) fn judge_waiting(&mut self, now: Instant, slot: SlotId, actions: &mut Vec<Action>) {
        let Some(held) = self.slots.get(&slot) else {
            return;
        };
        let Some(agent) = self.agents.get(&held.offer.agent) else {
            return;
        };
        let waiting: Vec<RunId> = agent.queue.values().copied().collect();
        for run in waiting {
            self.settle(now, run, actions);
        }
    }

    /// Whether a free slot may be given a run.
    pub(super) fn may_take(&self, now: Instant, slot: SlotId, entry: &RunEntry) -> bool {
        let Some(held) = self.slots.get(&slot) else {
            return false;
        };
        // Past its deadline it would only cost the slot its call; the next tick answers it.
        if now >= entry.run.deadline() || entry.verdict(class_of(&held.offer)) != Verdict::Takes {
            return false;
        }
        entry.avoid != Some(held.offer.worker) || !self.another_worker(held.offer.worker, entry)
    }

    /// Whether a worker other than this one may come to take the run.
    fn another_worker(&self, worker: WorkerId, entry: &RunEntry) -> bool {
        self.workers
            .iter()
            .filter(|(id, other)| **id != worker && other.offer.agent == entry.request.agent)
            .flat_map(|(_, other)| &other.slots)
            .filter_map(|slot| self.slots.get(slot))
            .any(|held| !held.slot.is_stopping() && !entry.verdict(class_of(&held.offer)).refuses())
    }

    fn deliver(&mut self, now: Instant, slot: SlotId, id: RunId, actions: &mut Vec<Action>) {
        self.leave_queue(id);
        self.no_longer_ready(slot);
        let Some(entry) = self.runs.get_mut(&id) else {
            return;
        };
        let Some(held) = self.slots.get_mut(&slot) else {
            return;
        };
        let delivery = entry.run.next_delivery();
        let lease: Lease = (self.leases)();
        let accept_timeout = self.limits.accept_timeout
            + self
                .limits
                .accept_timeout_per_mib
                .mul_f64(entry.frame_bytes as f64 / MIB as f64);
        held.lease = Some(lease);
        held.slot.apply(
            now,
            &self.limits.slot,
            slot::Event::Assigned {
                delivery,
                accept_timeout,
            },
        );
        entry.run.apply(now, run::Event::Delivered(slot));
        actions.push(Action::Deliver {
            slot,
            delivery,
            lease,
            request: entry.request.clone(),
            deadline: entry.run.deadline(),
        });
        self.arm(slot);
    }

    fn leave_queue(&mut self, id: RunId) {
        let Some(entry) = self.runs.get_mut(&id) else {
            return;
        };
        let Some(agent) = self.agents.get_mut(&entry.request.agent) else {
            return;
        };
        agent.queue.remove(&entry.order);
        if entry.waiting {
            entry.waiting = false;
            agent.waiting -= 1;
            self.queued_bytes -= entry.request.payload.data.len() as u64;
        }
    }
}

/// Why none of these classes takes the request.
fn refusal(entry: &RunEntry, classes: impl Iterator<Item = Class>) -> Failure {
    let mut largest = 0;
    for class in classes {
        largest = largest.max(class.max_receive_bytes);
        if entry.fits(class)
            && let Some(schema) = class.schema
            && let Some(Judgement::Refuses(why)) = entry.judgement(schema)
        {
            return why.clone();
        }
    }
    Failure::new(
        Code::PayloadTooLarge,
        format!(
            "the request takes up to {} bytes on the wire and the connected workers receive at \
             most {largest}: send less, or raise the workers' max_receive_bytes",
            entry.frame_bytes
        ),
    )
}

/// The answer to whoever asks a harness that is leaving.
pub(super) fn shutting_down() -> Failure {
    Failure::new(
        Code::ShuttingDown,
        "the harness is shutting down and takes no new work: ask again when it is back",
    )
}
