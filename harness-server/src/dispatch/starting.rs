//! A durable run's way to its worker: it is made, waits as a header, is read again for a slot that
//! is kept for it, and leaves once the attempt is on disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::envelope::{Code, Failure, Request};
use crate::ids::{RunId, SlotId};
use crate::journal::Content;
use crate::run::{self, Cause, Run};
use crate::slot;
use crate::store::Holder;

use super::asks::BUSY_RETRY;
use super::claim::Claim;
use super::durable::{After, Durable, Held, Phase, about, own};
use super::entry::RunEntry;
use super::writes::{Change, Replay, Said, Start};
use super::{Action, Core, Placing, Timer};

/// How long nothing is read after a read has failed.
const READ_RETRY: Duration = Duration::from_secs(1);

/// What was read of a run that is to be delivered.
#[derive(Debug)]
pub struct Loaded {
    /// The request, whole.
    pub request: Request,
    /// What goes with it.
    pub replay: Replay,
}

impl Core {
    /// Somebody starts a durable run.
    pub(super) fn start(
        &mut self,
        now: Instant,
        id: RunId,
        mut request: Request,
        (terms, placing, start): (run::Terms, Placing, Box<Start>),
        actions: &mut Vec<Action>,
    ) {
        let parent = self.depth_of(&request);
        request.depth = *parent.as_ref().unwrap_or(&0);
        if let Some((known, _)) = self.agents.get_key_value(&request.agent) {
            request.agent = known.clone();
        }
        let key = request.agent.clone();
        let refusal = self
            .refuse_ask(now, &key, parent, placing.wait_for_agent)
            .or_else(|| self.too_many_durable());
        if let Some(mut refusal) = refusal {
            refusal.run = None;
            let started = Err(Box::new(refusal));
            return actions.push(Action::Started { run: id, started });
        }
        let not_before = start.not_before.filter(|at| *at > now);
        let durable = Durable::new(Phase::New(start));
        let entry = RunEntry {
            durable: Some(Box::new(durable)),
            ..self.run_entry(now, Run::new(id, terms, now), Arc::new(request), placing)
        };
        self.insert_durable(id, entry);
        if let Some(at) = not_before {
            let timer = Timer::Retry(id);
            if let Some(entry) = self.runs.get_mut(&id) {
                entry.timer = Some((at, timer.clone()));
            }
            self.timers.set(at, timer);
        } else {
            self.queue_durable(id);
        }
        self.settle(now, id, actions);
    }

    pub(super) fn insert_durable(&mut self, id: RunId, entry: RunEntry) {
        self.timers.set(entry.run.deadline(), Timer::Run(id));
        self.durable_runs += 1;
        let key = entry.request.agent.clone();
        self.agents.entry(key).or_default().durable_runs += 1;
        self.runs.insert(id, Box::new(entry));
    }

    pub(super) fn queue_durable(&mut self, id: RunId) {
        if let Some(entry) = self.runs.get(&id) {
            let agent = self.agents.entry(entry.request.agent.clone()).or_default();
            let on_disk = entry
                .durable
                .as_ref()
                .is_some_and(|it| it.request == Held::OnDisk);
            let (selector, order) = (&entry.selector, entry.order);
            agent.durable.insert(selector, order, id, on_disk);
        }
    }

    fn too_many_durable(&self) -> Option<Failure> {
        (self.durable_runs >= self.limits.durable_runs).then(|| {
            let message = format!(
                "{} durable runs have not ended, which is the limit: wait until some have",
                self.durable_runs
            );
            Failure::new(Code::Busy, message).retry_after(BUSY_RETRY)
        })
    }

    /// A durable run that no slot can take now waits: a new one is made, one that was read for
    /// nothing is a header again.
    pub(super) fn wait_durable(&mut self, now: Instant, id: RunId, actions: &mut Vec<Action>) {
        let Some(durable) = self.durable_mut(id) else {
            return;
        };
        match std::mem::replace(&mut durable.phase, Phase::Waiting) {
            Phase::New(start) => {
                self.write_enqueue(now, id, start, None, actions);
            }
            Phase::Waiting => self.unload(id),
            other @ (Phase::Loading(_) | Phase::Starting(_) | Phase::Working | Phase::Ending) => {
                durable.phase = other;
            }
        }
    }

    fn write_enqueue(
        &mut self,
        now: Instant,
        id: RunId,
        start: Box<Start>,
        first: Option<(Holder, Content)>,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.runs.get(&id) else {
            return;
        };
        let mut entries = vec![about(id, now, Said::Asked(entry.request.clone()))];
        let holder = first.map(|(holder, started)| {
            entries.push(own(now, entry.run.attempt(), Said::Content(started)));
            holder
        });
        let change = Change::Enqueue {
            start,
            request: entry.request.clone(),
            priority: entry.order.0.0,
            created: entry.created,
            deadline: entry.run.deadline(),
            first: holder,
        };
        let after = After::Enqueued {
            first: holder.is_some(),
        };
        self.write(id, change, entries, after, actions);
    }

    /// What is on disk is not kept here.
    pub(super) fn unload(&mut self, id: RunId) {
        let Some(entry) = self.runs.get_mut(&id) else {
            return;
        };
        if let Some(durable) = &mut entry.durable
            && durable.request != Held::OnDisk
        {
            let was_read = std::mem::replace(&mut durable.request, Held::OnDisk) == Held::Read;
            durable.replay = None;
            entry.request = Arc::new(entry.request.header());
            let agent = self.agents.get_mut(&entry.request.agent);
            let stood = agent.and_then(|agent| agent.durable.remove(&entry.selector, entry.order));
            if stood.is_some() {
                self.queue_durable(id);
            }
            if was_read {
                self.reads_less();
            }
        }
    }

    /// A free slot is kept for a durable run, which is then read or begins its attempt.
    pub(super) fn give_durable(
        &mut self,
        now: Instant,
        slot: SlotId,
        id: RunId,
        actions: &mut Vec<Action>,
    ) {
        self.leave_queue(id);
        self.no_longer_ready(slot);
        let Some(held) = self.slots.get_mut(&slot) else {
            return;
        };
        held.kept_for = Some(id);
        let Some(durable) = self.durable_mut(id) else {
            return;
        };
        if durable.request != Held::OnDisk {
            return self.begin_attempt(now, slot, id, actions);
        }
        durable.phase = Phase::Loading(slot);
        let replayed = durable.replayed.is_some();
        actions.push(Action::Load { run: id, replayed });
    }

    /// A run was read, or could not be.
    pub(super) fn loaded(
        &mut self,
        now: Instant,
        id: RunId,
        loaded: Option<Box<Loaded>>,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.runs.get_mut(&id) else {
            return;
        };
        let Some(durable) = &mut entry.durable else {
            return;
        };
        let Phase::Loading(slot) = durable.phase else {
            return;
        };
        durable.phase = Phase::Waiting;
        match loaded {
            Some(loaded) => {
                let Loaded {
                    mut request,
                    replay,
                } = *loaded;
                request.agent = entry.request.agent.clone();
                request.depth = entry.request.depth;
                entry.frame_bytes = request.frame_bytes().max(replay.largest);
                entry.request = Arc::new(request);
                durable.request = Held::Read;
                durable.replay = (replay.count > 0).then(|| Arc::new(replay));
                self.read_ahead += 1;
                self.queue_durable(id);
                // For this run the slot is free again, and for others if it is not for this one.
                self.offer_again(now, slot, id, actions);
            }
            None => {
                self.reads_pause_until = Some(now + READ_RETRY);
                self.wake_for_store(now);
                // If nothing but this one cannot be read, those behind it must not wait for it.
                let last = self.next_order();
                if let Some(entry) = self.runs.get_mut(&id) {
                    entry.order.1 = last;
                }
                self.queue_durable(id);
                self.give_up_slot(now, id, Some(slot), actions);
            }
        }
    }

    fn offer_again(&mut self, now: Instant, slot: SlotId, id: RunId, actions: &mut Vec<Action>) {
        let order = self.next_order();
        if let Some(held) = self.slots.get_mut(&slot)
            && held.kept_for == Some(id)
        {
            held.kept_for = None;
            if matches!(held.slot.state(), slot::State::Ready) && !self.leaving {
                held.ready = Some(order);
                if let Some(agent) = self.agents.get_mut(&held.offer.agent) {
                    agent.ready.insert(order, slot);
                }
            }
        }
        if self.leaving {
            return self.remove_durable(id);
        }
        self.settle(now, id, actions);
        if self
            .slots
            .get(&slot)
            .is_some_and(|held| held.ready.is_some())
        {
            self.fill(now, slot, actions);
        }
    }

    fn begin_attempt(&mut self, now: Instant, slot: SlotId, id: RunId, actions: &mut Vec<Action>) {
        let lease = self.chance.lease();
        let Some(held) = self.slots.get_mut(&slot) else {
            return;
        };
        let worker = held.offer.worker;
        let started = Content::AttemptStarted(held.started.clone());
        let Some(entry) = self.runs.get_mut(&id) else {
            return;
        };
        entry.run.apply(now, run::Event::Delivered(slot));
        let attempt = entry.run.attempt();
        let Some(durable) = &mut entry.durable else {
            return;
        };
        let holder = Holder { worker, lease };
        entry.claim = Some(Box::new(Claim::new(holder)));
        durable.written = 0;
        match std::mem::replace(&mut durable.phase, Phase::Starting(slot)) {
            Phase::New(start) => {
                let first = Some((holder, started));
                self.write_enqueue(now, id, start, first, actions);
            }
            Phase::Waiting
            | Phase::Loading(_)
            | Phase::Starting(_)
            | Phase::Working
            | Phase::Ending => {
                let entries = vec![own(now, attempt, Said::Content(started))];
                self.write(
                    id,
                    Change::StartAttempt(holder),
                    entries,
                    After::Started,
                    actions,
                );
            }
        }
    }

    /// An attempt is on disk: its request leaves.
    pub(super) fn attempt_is_written(
        &mut self,
        now: Instant,
        id: RunId,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.runs.get_mut(&id) else {
            return;
        };
        let Some(durable) = &mut entry.durable else {
            return;
        };
        // It may have ended meanwhile, and given its slot up.
        let Phase::Starting(slot) = durable.phase else {
            return;
        };
        let Some(holder) = entry.claim.as_ref().map(|claim| claim.holder) else {
            return;
        };
        let replay = durable.replay.clone();
        let delivery = entry.run.delivery();
        let sent_bytes = entry.frame_bytes + replay.as_ref().map_or(0, |replay| replay.bytes);
        let free = self.slots.get_mut(&slot).filter(|held| {
            held.kept_for == Some(id) && matches!(held.slot.state(), slot::State::Ready)
        });
        let Some(held) = free else {
            let message = "its worker left before it was sent";
            let why = Failure::new(Code::WorkerLost, message);
            return self.delivery_failed(now, id, holder.worker, Cause::Declined, why, actions);
        };
        held.kept_for = None;
        held.lease = Some(holder.lease);
        let window = self.limits.window(held.slot.level(), true);
        durable.phase = Phase::Working;
        let request = entry.request.clone();
        let deadline = self.send(now, slot, id, sent_bytes);
        actions.push(Action::Deliver {
            slot,
            worker: holder.worker,
            delivery,
            lease: holder.lease,
            request,
            deadline,
            window,
            replay,
        });
        self.unload(id);
        self.arm(slot);
    }
}
