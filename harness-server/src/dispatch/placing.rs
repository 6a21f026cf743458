//! Placing: which queued run goes to which free slot, which may wait, and which no slot can take.

use std::time::Instant;

use crate::envelope::{Code, Failure};
use crate::ids::{AgentKey, Attempt, Lease, RunId, SchemaId, SlotId, WorkerId};
use crate::journal::Content;
use crate::run;
use crate::slot;
use crate::store::Holder;

use super::agents::{Class, class_of, selects};
use super::asks::BUSY_RETRY;
use super::claim::Claim;
use super::durable::Held;
use super::entry::RunEntry;
use super::slots::SlotEntry;
use super::{Action, Core, Timer};

const MIB: u64 = 1024 * 1024;

/// Durable runs whose requests may be read before it is known whether a slot takes them.
const READ_AHEAD: usize = 64;

/// What a schema says of a request.
#[derive(Debug)]
pub(super) enum Judgement {
    /// It is being asked.
    Awaited,
    /// It takes it.
    Takes,
    /// It does not, for this reason.
    Refuses(Failure),
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

    fn judgement(&self, schema: SchemaId) -> Option<&Judgement> {
        self.judgements
            .iter()
            .find(|(judged, _)| *judged == schema)
            .map(|(_, judgement)| judgement)
    }
}

impl Core {
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
        let is_new = entry.durable.as_ref().is_some_and(|it| !it.is_made());
        let is_durable = entry.durable.is_some();
        let agent = entry.request.agent.clone();
        // One that backs off is settled when it comes back to the queue.
        if matches!(entry.run.state(), run::State::Queued) && (is_new || !entry.is_backing_off()) {
            self.settle(now, id, actions);
        }
        if is_durable {
            // Others may be read now, too.
            self.fill_ready(now, &agent, actions);
        }
    }

    fn fill_ready(&mut self, now: Instant, agent: &AgentKey, actions: &mut Vec<Action>) {
        let Some(agent) = self.agents.get(agent) else {
            return;
        };
        let free: Vec<SlotId> = match agent.durable.is_empty() {
            true => Vec::new(),
            false => agent.ready.values().copied().collect(),
        };
        for slot in free {
            if self
                .slots
                .get(&slot)
                .is_some_and(|held| held.ready.is_some())
            {
                self.fill(now, slot, actions);
            }
        }
    }

    /// Finds a queued run a free slot, or decides whether it may wait for one.
    pub(super) fn settle(&mut self, now: Instant, id: RunId, actions: &mut Vec<Action>) {
        let starts_later = self.runs.get(&id).is_some_and(|it| it.is_backing_off());
        if !starts_later && self.place(now, id, actions) {
            return;
        }
        let durable = self.durable_mut(id).map(|durable| durable.request);
        // It is held against schemas when it is read for a slot.
        if durable == Some(Held::OnDisk) {
            return;
        }
        if durable.is_none()
            && let Some(why) = self.crash_loop_of(id)
        {
            return self.refuse(now, id, why, actions);
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
        // What versions that are gone said is kept only as long as there is room.
        if entry.judgements.len() >= self.limits.agent_classes {
            let attached = |schema| classes.clone().any(|class| class.schema == Some(schema));
            entry.judgements.retain(|(schema, _)| attached(*schema));
        }
        let mut awaited = false;
        for class in classes.clone() {
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
        let Some(found) = self.agents.get(agent) else {
            return;
        };
        if found.ready.is_empty() {
            return;
        }
        let avoids = |run: &RunId| self.runs.get(run).is_some_and(|e| e.avoid.is_some());
        let avoiding: Vec<RunId> = found.queue.values().copied().filter(avoids).collect();
        for run in avoiding {
            self.place(now, run, actions);
        }
        // So may durable ones, and those that waited for the version that wrote their steps.
        self.fill_ready(now, agent, actions);
    }

    /// Counts a run against the limits of the queue, or answers BUSY.
    fn wait(&mut self, now: Instant, id: RunId, actions: &mut Vec<Action>) {
        if self.durable_mut(id).is_some() {
            return self.wait_durable(now, id, actions);
        }
        let Some(entry) = self.runs.get(&id).filter(|entry| !entry.waiting) else {
            return;
        };
        let first = entry.run.attempt() == Attempt::default();
        if let Some(why) = self.full(entry).filter(|_| first) {
            let key = &entry.request.agent;
            let message = format!("agent \"{key}\" is busy: {}; {why}", self.why_waits(entry));
            let busy = Failure::new(Code::Busy, message).retry_after(BUSY_RETRY);
            return self.refuse(now, id, busy, actions);
        }
        self.count_waiting(id);
    }

    /// Why a run may not wait, if it may not.
    fn full(&self, entry: &RunEntry) -> Option<String> {
        let waiting = self.agents.get(&entry.request.agent)?.waiting;
        if waiting >= self.limits.queue_runs {
            return Some(format!("{waiting} runs wait for it, which is the limit"));
        }
        let bytes = entry.request.payload.data.len() as u64;
        if self.queued_bytes + bytes > self.limits.queue_bytes {
            return Some("the payloads of waiting runs are at their limit".to_owned());
        }
        let cycle = entry.request.parent.and_then(|_| self.cycle(entry))?;
        Some(format!("every slot waits for this run: {cycle}"))
    }

    /// Counts a run that waits, in a queue or for its back-off.
    pub(super) fn count_waiting(&mut self, id: RunId) {
        let Some(entry) = self.runs.get_mut(&id).filter(|entry| !entry.waiting) else {
            return;
        };
        if let Some(agent) = self.agents.get_mut(&entry.request.agent) {
            entry.waiting = true;
            agent.waiting += 1;
            self.queued_bytes += entry.request.payload.data.len() as u64;
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
        let takes = |run: RunId| {
            #[cfg(test)]
            self.held_against.set(self.held_against.get() + 1);
            let entry = self.runs.get(&run);
            entry.is_some_and(|entry| self.may_take(now, slot, entry))
        };
        let mut queue = agent.queue.iter().map(|(key, run)| (*key, *run));
        let next = queue.find(|(_, run)| takes(*run));
        let labels = &held.offer.labels;
        let durable = agent.durable.first(labels, self.may_read(), takes);
        let next = match (next, durable) {
            // Somebody waits for it, so it goes before a durable one of its priority.
            (Some(next), Some(durable)) if next.0.0 <= durable.0.0 => Some(next),
            (next, None) => next,
            (_, durable) => durable,
        };
        if let Some((_, run)) = next {
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
        if now >= entry.run.deadline() || !selects(&entry.selector, &held.offer) {
            return false;
        }
        let takes = match (&entry.durable, entry.verdict(class_of(&held.offer))) {
            // Its request would come before the acknowledgement of the reply before.
            (None, _) if held.owes.is_some() => false,
            (Some(durable), verdict) if durable.request == Held::OnDisk => {
                let judged = matches!(verdict, Verdict::Takes | Verdict::Unjudged(_));
                judged && durable.may_be_read() && self.may_read() && self.may_replay(held, entry)
            }
            (Some(_), Verdict::Takes) => self.may_replay(held, entry),
            (None, Verdict::Takes) => true,
            (_, Verdict::Refused | Verdict::Awaited | Verdict::Unjudged(_)) => false,
        };
        if !takes {
            return false;
        }
        entry.avoid != Some(held.offer.worker) || !self.another_worker(held.offer.worker, entry)
    }

    /// Whether the request of one more durable run may be read.
    fn may_read(&self) -> bool {
        self.reads_pause_until.is_none() && self.read_ahead < READ_AHEAD
    }

    /// The request of a run that was read is not kept any more.
    pub(super) fn reads_less(&mut self) {
        self.reads_again |= self.read_ahead == READ_AHEAD;
        self.read_ahead -= 1;
    }

    /// Whether a slot may be given the entries that go with a durable run's request. They go first
    /// to the version of the agent that wrote them.
    fn may_replay(&self, held: &SlotEntry, entry: &RunEntry) -> bool {
        let durable = entry.durable.as_ref();
        let Some(wrote) = durable.and_then(|durable| durable.replayed.as_ref()) else {
            return true;
        };
        if held.slot.level() == slot::Level::Minimal {
            return false;
        }
        held.started.version == **wrote
            || !self.slots.values().any(|other| {
                other.started.version == **wrote
                    && other.offer.agent == held.offer.agent
                    && other.slot.level() == slot::Level::Full
                    && !other.slot.is_stopping()
                    && !entry.verdict(class_of(&other.offer)).refuses()
                    && selects(&entry.selector, &other.offer)
            })
    }

    /// Whether a worker other than this one may come to take the run.
    fn another_worker(&self, worker: WorkerId, entry: &RunEntry) -> bool {
        self.workers
            .iter()
            .filter(|(id, other)| **id != worker && other.offer.agent == entry.request.agent)
            .flat_map(|(_, other)| &other.slots)
            .filter_map(|slot| self.slots.get(slot))
            .any(|held| {
                !held.slot.is_stopping()
                    && !entry.verdict(class_of(&held.offer)).refuses()
                    && selects(&entry.selector, &held.offer)
            })
    }

    fn deliver(&mut self, now: Instant, slot: SlotId, id: RunId, actions: &mut Vec<Action>) {
        let durable = self.runs.get(&id).map(|entry| entry.durable.is_some());
        if durable == Some(true) {
            return self.give_durable(now, slot, id, actions);
        }
        self.leave_queue(id);
        self.no_longer_ready(slot);
        let Some(entry) = self.runs.get_mut(&id) else {
            return;
        };
        let Some(held) = self.slots.get_mut(&slot) else {
            return;
        };
        let lease: Lease = self.chance.lease();
        let started = Content::AttemptStarted(held.started.clone());
        held.lease = Some(lease);
        let worker = held.offer.worker;
        let window = self.limits.window(held.slot.level(), false);
        let claim = || Box::new(Claim::new(Holder { worker, lease }));
        entry.claim = (!window.is_zero()).then(claim);
        entry.run.apply(now, run::Event::Delivered(slot));
        let delivery = entry.run.delivery();
        let (request, bytes) = (entry.request.clone(), entry.frame_bytes);
        let deadline = self.send(now, slot, id, bytes);
        actions.push(Action::Deliver {
            slot,
            worker,
            delivery,
            lease,
            request,
            deadline,
            window,
            replay: None,
        });
        self.note(now, delivery, started, actions);
        self.arm(slot);
    }

    /// Puts a run into its slot, with so many bytes of frames; gives when its attempt ends at the
    /// latest.
    pub(super) fn send(&mut self, now: Instant, slot: SlotId, id: RunId, bytes: u64) -> Instant {
        let Some(entry) = self.runs.get_mut(&id) else {
            return now;
        };
        let accept_timeout = self.limits.accept_timeout
            + self
                .limits
                .accept_timeout_per_mib
                .mul_f64(bytes as f64 / MIB as f64);
        if let Some(held) = self.slots.get_mut(&slot) {
            held.slot.apply(
                now,
                &self.limits.slot,
                slot::Event::Assigned {
                    delivery: entry.run.delivery(),
                    accept_timeout,
                },
            );
        }
        self.time_attempt(id, now)
    }

    /// Sets the timer of an attempt that began then, and gives when it ends at the latest.
    pub(super) fn time_attempt(&mut self, id: RunId, began: Instant) -> Instant {
        let Some(entry) = self.runs.get_mut(&id) else {
            return began;
        };
        let deadline = entry.run.deadline();
        let timeout = entry.run.retry().attempt_timeout;
        let Some(at) = timeout.map(|it| began + it).filter(|at| *at < deadline) else {
            return deadline;
        };
        let timer = Timer::Attempt(id);
        entry.timer = Some((at, timer.clone()));
        self.timers.set(at, timer);
        at
    }

    pub(super) fn leave_queue(&mut self, id: RunId) {
        let Some(entry) = self.runs.get_mut(&id) else {
            return;
        };
        let Some(agent) = self.agents.get_mut(&entry.request.agent) else {
            return;
        };
        if entry.durable.is_some() {
            agent.durable.remove(&entry.selector, entry.order);
        } else {
            agent.queue.remove(&entry.order);
        }
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
