//! Slots: a worker's frames become the slot's events, and the slot's verdicts become what happens
//! to its run.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use crate::envelope::{Code, Failure};
use crate::ids::{Delivery, Lease, RunId, SlotId};
use crate::journal::Started;
use crate::run::{self, Cause};
use crate::slot::{self, End, Level, Refusal, Slot, Verdict};
use crate::store::Holder;

use super::agents::class_of;
use super::claim::{Back, Comer, Resumed};
use super::durable::Reply as Owed;
use super::workers::Offer;
use super::{Action, Core, Frame, Note, Reply, Timer};

/// A slot and what Core needs to give it work.
#[derive(Debug)]
pub(super) struct SlotEntry {
    pub(super) slot: Slot,
    pub(super) offer: Arc<Offer>,
    /// What came with the newest request; none once its worker has said that it works on that no more.
    pub(super) lease: Option<Lease>,
    /// What journals say of it.
    pub(super) started: Arc<Started>,
    /// The durable run whose next attempt it gets, once that is on disk.
    pub(super) kept_for: Option<RunId>,
    /// The durable work whose reply is not on disk yet; its acknowledgement comes before another
    /// request.
    pub(super) owes: Option<Delivery>,
    /// Its key in its agent's free slots.
    pub(super) ready: Option<u64>,
    /// What its timer is set to.
    pub(super) timer: Option<Instant>,
}

impl Core {
    pub(super) fn opened(
        &mut self,
        now: Instant,
        id: SlotId,
        offer: Offer,
        back: Option<Back>,
        actions: &mut Vec<Action>,
    ) {
        let taken = match (self.refuse_offer(&offer, back), back) {
            (Some(end @ End::Refused(Refusal::Drained)), Some(Back::Resume(delivery, lease))) => {
                // Its work stops, and no other call of it will come.
                self.works_no_more(now, (offer.worker, delivery, lease), actions);
                Err(end)
            }
            (Some(end), _) => Err(end),
            (None, Some(Back::Resume(delivery, lease))) => {
                let offer = &offer;
                let comer = Comer {
                    offer,
                    delivery,
                    lease,
                };
                self.comes_back(comer).map(Some)
            }
            (None, back @ (Some(Back::Replied(..)) | None)) => Ok(back),
        };
        let back = match taken {
            Ok(back) => back,
            Err(end) => return actions.push(Action::End { slot: id, end }),
        };
        let offer = self.join_worker(now, id, offer);
        self.join_agent(&offer);
        let first_of_class = self
            .agents
            .get(&offer.agent)
            .is_some_and(|agent| agent.classes.get(&class_of(&offer)) == Some(&1));
        let started = Arc::new(Started {
            worker: offer.worker,
            name: offer.info.name.clone(),
            slot: id,
            version: offer.version.clone(),
        });
        let (slot, lease, resumed) = self.slot_of(now, id, &offer, back, actions);
        let entry = SlotEntry {
            slot,
            offer,
            lease,
            started,
            kept_for: None,
            owes: None,
            ready: None,
            timer: None,
        };
        self.slots.insert(id, Box::new(entry));
        actions.push(Action::Welcome { slot: id, resumed });
        self.slot_apply(now, id, slot::Event::Welcomed, actions);
        self.arm(id);
        if first_of_class {
            self.judge_waiting(now, id, actions);
        }
    }

    /// The slot of a new call, with the work that its worker goes on with.
    fn slot_of(
        &mut self,
        now: Instant,
        id: SlotId,
        offer: &Offer,
        back: Option<Back>,
        actions: &mut Vec<Action>,
    ) -> (Slot, Option<Lease>, Option<Resumed>) {
        let new = Slot::new(offer.level, now);
        match back {
            None => (new, None, None),
            Some(Back::Replied(delivery, last_seq)) => {
                let deadline = None;
                let resumed = Resumed {
                    delivery,
                    last_seq,
                    deadline,
                };
                (new, None, Some(resumed))
            }
            Some(Back::Resume(delivery, lease)) => match self.resume(now, id, delivery, actions) {
                Some((resumed, taken)) => {
                    let seqs = (taken, resumed.last_seq);
                    let slot = Slot::resumed(offer.level, delivery, seqs, now);
                    (slot, Some(lease), Some(resumed))
                }
                None => (new, None, None),
            },
        }
    }

    /// Why this harness does not take the offer, if it does not.
    fn refuse_offer(&mut self, offer: &Offer, back: Option<Back>) -> Option<End> {
        if self.leaving {
            return Some(End::Leaving);
        }
        if self.drained.contains(offer.worker) {
            return Some(End::Refused(Refusal::Drained));
        }
        if let Some(worker) = self.workers.get(&offer.worker) {
            if worker.offer.agent != offer.agent {
                return Some(End::Refused(Refusal::Invalid(format!(
                    "worker {} already offers agent \"{}\"; a worker offers one agent: start \
                     another process, or make worker_id anew in each",
                    offer.worker, worker.offer.agent
                ))));
            }
            let replaced = usize::from(self.replaces_its_own(offer, back));
            if worker.slots.len() - replaced >= self.limits.worker_slots {
                return Some(End::Refused(Refusal::TooMany(format!(
                    "worker \"{}\" has {} slots, which is the limit",
                    offer.info.name, self.limits.worker_slots
                ))));
            }
        }
        if !self.has_room_for_agent(&offer.agent) {
            return Some(End::Refused(Refusal::TooMany(format!(
                "{} agents are known, which is the limit",
                self.limits.agents
            ))));
        }
        let agent = self.agents.get(&offer.agent)?;
        let class = class_of(offer);
        if !agent.classes.contains_key(&class) && agent.classes.len() >= self.limits.agent_classes {
            return Some(End::Refused(Refusal::TooMany(format!(
                "agent \"{}\" has slots with {} different request schemas and receive limits, \
                 which is the limit",
                offer.agent, self.limits.agent_classes
            ))));
        }
        None
    }

    /// Whether an older call of the worker ends when it resumes what is in that.
    fn replaces_its_own(&self, offer: &Offer, back: Option<Back>) -> bool {
        match back {
            Some(Back::Resume(delivery, lease)) => {
                let worker = offer.worker;
                self.call_of(Holder { worker, lease }, delivery).is_some()
            }
            Some(Back::Replied(..)) | None => false,
        }
    }

    pub(super) fn frame(
        &mut self,
        now: Instant,
        id: SlotId,
        frame: Frame,
        actions: &mut Vec<Action>,
    ) {
        let mut seq = 0;
        let (event, reply) = match self.behind_the_end(frame) {
            Frame::Heartbeat(named) => (slot::Event::Heartbeat(named), None),
            Frame::Append {
                delivery,
                seq,
                kind,
                entry,
                acknowledged,
            } => {
                return self.append(
                    now,
                    id,
                    (delivery, seq),
                    (kind, entry),
                    acknowledged,
                    actions,
                );
            }
            Frame::Reply {
                delivery,
                seq: reply_seq,
                reply,
            } => {
                seq = reply_seq;
                let declined = matches!(reply, Reply::Declined);
                (
                    slot::Event::Reply {
                        delivery,
                        seq,
                        declined,
                    },
                    Some(reply),
                )
            }
            Frame::Leave => (slot::Event::Leave, None),
            Frame::HalfClosed => (slot::Event::HalfClosed, None),
            Frame::HelloAgain => (slot::Event::HelloAgain, None),
            Frame::Unknown => (slot::Event::UnknownFrame, None),
            Frame::Broken(what) => return self.broken(now, id, what, actions),
            Frame::TooLarge { bytes, limit } => (slot::Event::FrameTooLarge { bytes, limit }, None),
        };
        let Some(entry) = self.slots.get_mut(&id) else {
            actions.push(Action::Note(Note::Stale { slot: id }));
            return;
        };
        let verdict = entry.slot.apply(now, &self.limits.slot, event);
        let worker = entry.offer.worker;
        let name = &entry.offer.info.name;
        match (verdict, reply) {
            (Verdict::Answered(delivery), Some(reply)) => {
                self.owe(id, delivery, seq);
                self.answered(now, id, delivery, reply, actions);
            }
            (Verdict::Declined(delivery), _) => {
                let message = format!("worker \"{name}\" gave the request back");
                let why = Failure::new(Code::WorkerLost, message);
                self.freed(now, id, actions);
                self.delivery_failed(now, delivery.run, worker, Cause::Declined, why, actions);
            }
            (verdict, _) => self.carry_out(now, id, verdict, actions),
        }
    }

    /// An entry came.
    fn append(
        &mut self,
        now: Instant,
        id: SlotId,
        (delivery, seq): (Delivery, u64),
        (kind, encoded): (slot::EntryKind, Bytes),
        acknowledged: u64,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.slots.get_mut(&id) else {
            actions.push(Action::Note(Note::Stale { slot: id }));
            return;
        };
        let event = slot::Event::Append {
            delivery,
            seq,
            kind,
            bytes: encoded.len() as u64,
            acknowledged,
        };
        match entry.slot.apply(now, &self.limits.slot, event) {
            Verdict::Take => self.take(now, id, (delivery, seq), (kind, encoded), actions),
            verdict @ (Verdict::Fine
            | Verdict::Free
            | Verdict::AcknowledgeAgain(_)
            | Verdict::Stale
            | Verdict::Answered(_)
            | Verdict::Declined(_)
            | Verdict::End(..)) => self.carry_out(now, id, verdict, actions),
        }
    }

    /// Applies an event that brings no reply.
    pub(super) fn slot_apply(
        &mut self,
        now: Instant,
        id: SlotId,
        event: slot::Event,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.slots.get_mut(&id) else {
            return;
        };
        let verdict = entry.slot.apply(now, &self.limits.slot, event);
        self.carry_out(now, id, verdict, actions);
    }

    pub(super) fn slots_apply(
        &mut self,
        now: Instant,
        event: slot::Event,
        actions: &mut Vec<Action>,
    ) {
        let mut ids: Vec<SlotId> = self.slots.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.slot_apply(now, id, event, actions);
        }
    }

    pub(super) fn slot_tick(&mut self, now: Instant, id: SlotId, actions: &mut Vec<Action>) {
        if let Some(entry) = self.slots.get_mut(&id) {
            entry.timer = None;
        }
        self.slot_apply(now, id, slot::Event::Tick, actions);
        self.arm(id);
    }

    fn carry_out(&mut self, now: Instant, id: SlotId, verdict: Verdict, actions: &mut Vec<Action>) {
        match verdict {
            Verdict::Fine => {
                let ready = self
                    .slots
                    .get(&id)
                    .is_some_and(|entry| matches!(entry.slot.state(), slot::State::Ready));
                if !ready {
                    self.no_longer_ready(id);
                }
                self.arm(id);
                let leaves = self.slots.get(&id).filter(|e| e.slot.is_stopping());
                if let Some(agent) = leaves.map(|entry| entry.offer.agent.clone()) {
                    self.place_avoiding(now, &agent, actions);
                }
            }
            Verdict::Free => self.freed(now, id, actions),
            Verdict::AcknowledgeAgain(seq) => self.acknowledge(id, seq, actions),
            Verdict::Stale => actions.push(Action::Note(Note::Stale { slot: id })),
            // Handled where the reply or the entry is at hand.
            Verdict::Answered(_) | Verdict::Declined(_) | Verdict::Take => {}
            Verdict::End(end, held) => self.end(now, id, &end, held, actions),
        }
    }

    /// A minimal level worker gets nothing between a request and its end, `appended` included.
    fn acknowledge(&self, id: SlotId, seq: u64, actions: &mut Vec<Action>) {
        let held = self.slots.get(&id);
        if let Some(held) = held.filter(|held| held.slot.level() == Level::Full)
            && let Some(delivery) = held.slot.delivery()
        {
            let run = self.runs.get(&delivery.run);
            let seq = run.map_or(seq, |run| run.acknowledged(seq));
            if seq > 0 {
                actions.push(Action::Acknowledge {
                    slot: id,
                    delivery,
                    seq,
                });
            }
        }
    }

    /// A reply is the last of its attempt; one to durable work is acknowledged once it is on disk.
    fn owe(&mut self, id: SlotId, delivery: Delivery, seq: u64) {
        let Some(entry) = self.runs.get_mut(&delivery.run) else {
            return;
        };
        entry.has_taken(seq);
        if let Some(claim) = &mut entry.claim {
            claim.reply_seq = seq;
        }
        let Some(durable) = &mut entry.durable else {
            return;
        };
        durable.reply = Some(Owed {
            slot: id,
            delivery,
            seq,
        });
        if let Some(held) = self.slots.get_mut(&id)
            && held.slot.level() == Level::Full
        {
            held.owes = Some(delivery);
        }
    }

    fn answered(
        &mut self,
        now: Instant,
        id: SlotId,
        delivery: Delivery,
        reply: Reply,
        actions: &mut Vec<Action>,
    ) {
        let Some(worker) = self.slots.get(&id).map(|entry| entry.offer.worker) else {
            return;
        };
        let (cause, failure) = match reply {
            Reply::Value(value) => {
                self.run_apply(now, delivery.run, run::Event::Replied(value), actions);
                return self.freed(now, id, actions);
            }
            Reply::Error(failure) => (Cause::AgentError, failure),
            Reply::Invalid(failure) => (Cause::InvalidReply, failure),
            Reply::TooLarge(failure) => (Cause::FrameTooLarge, failure),
            Reply::Declined => return self.freed(now, id, actions),
        };
        self.delivery_failed(now, delivery.run, worker, cause, failure, actions);
        self.freed(now, id, actions);
    }

    /// A slot holds no request any more: it gets the next one, or leaves.
    pub(super) fn freed(&mut self, now: Instant, id: SlotId, actions: &mut Vec<Action>) {
        if self.leaving {
            // What it owes is written first, so that its acknowledgement comes before the end.
            if self.slots.get(&id).is_some_and(|held| held.owes.is_some()) {
                return self.arm(id);
            }
            return self.slot_apply(now, id, slot::Event::ServerLeaving, actions);
        }
        self.arm(id);
        let order = self.next_order();
        let Some(entry) = self.slots.get_mut(&id) else {
            return;
        };
        if !matches!(entry.slot.state(), slot::State::Ready) {
            // A full level one was told at once.
            if entry.slot.level() == Level::Minimal {
                self.tell_drained(id, actions);
            }
            return;
        }
        entry.ready = Some(order);
        if let Some(agent) = self.agents.get_mut(&entry.offer.agent) {
            agent.ready.insert(order, id);
        }
        self.fill(now, id, actions);
    }

    pub(super) fn no_longer_ready(&mut self, id: SlotId) {
        let Some(entry) = self.slots.get_mut(&id) else {
            return;
        };
        if let Some(order) = entry.ready.take()
            && let Some(agent) = self.agents.get_mut(&entry.offer.agent)
        {
            agent.ready.remove(&order);
        }
    }

    /// Sets a slot's timer no later than its next rule. An earlier timer stands: it finds nothing
    /// due and is set again then.
    pub(super) fn arm(&mut self, id: SlotId) {
        let Some(entry) = self.slots.get_mut(&id) else {
            return;
        };
        let Some(wake) = entry.slot.next_wake(&self.limits.slot) else {
            return;
        };
        if entry.timer.is_some_and(|at| at <= wake) {
            return;
        }
        if let Some(at) = entry.timer.replace(wake) {
            self.timers.clear(at, Timer::Slot(id));
        }
        self.timers.set(wake, Timer::Slot(id));
    }
}
