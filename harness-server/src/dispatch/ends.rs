//! The end of a call, ours or not: what becomes of its slot and of the request in it.

use std::time::Instant;

use crate::envelope::{Code, Failure};
use crate::ids::{AgentKey, Delivery, SlotId, WorkerId};
use crate::journal::Content;
use crate::pool::Rung;
use crate::run::Cause;
use crate::slot::{End, Refusal};

use super::asks::shutting_down;
use super::slots::SlotEntry;
use super::workers::Offer;
use super::{Action, Core, Note, Timer, trim};

impl Core {
    /// A call is gone without an end of ours.
    pub(super) fn lost(&mut self, now: Instant, id: SlotId, why: &str, actions: &mut Vec<Action>) {
        let Some(entry) = self.remove_slot(now, id) else {
            return;
        };
        if let Some(delivery) = entry.slot.delivery() {
            let message = format!("worker \"{}\" was lost: {why}", entry.offer.info.name);
            let failure = Failure::new(Code::WorkerLost, message);
            let worker = entry.offer.worker;
            if self.may_come_back(&entry, delivery) {
                self.went_away(now, (worker, delivery), failure, actions);
            } else {
                actions.push(failed(worker, Some(delivery), &failure));
                self.delivery_failed(now, delivery.run, worker, Cause::Lost, failure, actions);
            }
        }
        self.slot_is_gone(now, &entry.offer.agent, actions);
    }

    /// The process behind a call has died by itself.
    pub(super) fn died(
        &mut self,
        now: Instant,
        id: SlotId,
        failure: Failure,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.remove_slot(now, id) else {
            return;
        };
        if let Some(delivery) = entry.slot.delivery() {
            let worker = entry.offer.worker;
            actions.push(failed(worker, Some(delivery), &failure));
            self.delivery_failed(now, delivery.run, worker, Cause::Died, failure, actions);
        }
        self.slot_is_gone(now, &entry.offer.agent, actions);
    }

    /// A worker of another dialect wrote what is none of it.
    pub(super) fn broken(
        &mut self,
        now: Instant,
        id: SlotId,
        what: String,
        actions: &mut Vec<Action>,
    ) {
        let held = self.slots.get(&id).and_then(|entry| entry.slot.delivery());
        let end = End::Broken(what);
        self.end(now, id, &end, held, actions);
    }

    /// What waits for a slot of an agent that has one less may have nothing to wait for.
    fn slot_is_gone(&mut self, now: Instant, agent: &AgentKey, actions: &mut Vec<Action>) {
        self.place_avoiding(now, agent, actions);
        self.refuse_crash_looping(now, agent, actions);
    }

    /// The harness ends a call; what was in it fails as the end says.
    pub(super) fn end(
        &mut self,
        now: Instant,
        id: SlotId,
        end: &End,
        held: Option<Delivery>,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.slots.get(&id) else {
            return;
        };
        let worker = entry.offer.worker;
        let mut stopping = None;
        if let (Some(delivery), Some(lease), Some(code)) = (held, entry.lease, still_runs(end)) {
            let run = self.runs.get(&delivery.run);
            // One that is not here any more is an ended one, if it is durable.
            let is_durable = run.map_or_else(
                || self.history.get(delivery.run).is_none(),
                |run| run.durable.is_some(),
            );
            self.remember_unreleased(now, worker, (delivery, is_durable), lease, code);
            stopping = Some((delivery, is_durable));
        }
        let Some(entry) = self.remove_slot(now, id) else {
            return;
        };
        actions.push(Action::End {
            slot: id,
            end: end.clone(),
        });
        let failure = end_of_delivery(end, &entry);
        let comes_back = is_lost(end) && held.is_some_and(|held| self.may_come_back(&entry, held));
        if let Some((cause, failure)) = &failure
            && *cause != Cause::Declined
            && !comes_back
        {
            actions.push(failed(worker, held, failure));
        }
        if let Some(delivery @ Delivery { run, .. }) = held {
            match failure {
                failure if comes_back => {
                    let failure = failure.map_or_else(shutting_down, |(_, failure)| failure);
                    self.went_away(now, (worker, delivery), failure, actions);
                }
                Some((cause, failure)) => {
                    self.delivery_failed(now, run, worker, cause, failure, actions);
                }
                // A durable run goes on with the harness that follows.
                None if *end == End::Leaving => match self.has_durable(run) {
                    true => self.remove_durable(run),
                    false => self.refuse(now, run, shutting_down(), actions),
                },
                // The run was decided before its call was ended.
                None => {}
            }
        }
        if let Some(work) = stopping {
            let stopping = Content::AttemptStopping(Rung::CallEnded);
            self.note_work(now, work, stopping, actions);
        }
        self.slot_is_gone(now, &entry.offer.agent, actions);
    }

    /// A schema is not taken any more: every slot that has it ends, for good.
    pub(super) fn condemned(
        &mut self,
        now: Instant,
        text: &[u8],
        why: &str,
        actions: &mut Vec<Action>,
    ) {
        let field = |offer: &Offer| {
            if offer.request_schema_text == text {
                Some("agent.request_schema")
            } else {
                (offer.reply_schema_text == text).then_some("agent.reply_schema")
            }
        };
        let mut ending: Vec<(SlotId, &str)> = self
            .slots
            .iter()
            .filter_map(|(id, entry)| Some((*id, field(&entry.offer)?)))
            .collect();
        ending.sort_unstable();
        // All at once: what is in one of them must not go to the next.
        for (id, _) in &ending {
            self.no_longer_ready(*id);
        }
        for (id, field) in ending {
            let held = self.slots.get(&id).and_then(|entry| entry.slot.delivery());
            let end = End::Refused(Refusal::Invalid(format!("{field}: {why}")));
            self.end(now, id, &end, held, actions);
        }
    }

    fn remove_slot(&mut self, now: Instant, id: SlotId) -> Option<SlotEntry> {
        self.no_longer_ready(id);
        let entry = self.slots.remove(&id)?;
        trim(&mut self.slots);
        if let Some(at) = entry.timer {
            self.timers.clear(at, Timer::Slot(id));
        }
        self.leave_agent(now, &entry.offer);
        self.leave_worker(entry.offer.worker, id);
        Some(*entry)
    }
}

/// What the log should say of a worker that did not do what it must.
pub(super) fn failed(worker: WorkerId, delivery: Option<Delivery>, failure: &Failure) -> Action {
    Action::Note(Note::Failed {
        worker,
        delivery,
        what: failure.message.as_str().into(),
    })
}

/// What the end of a call means for the request in it; none when its run has ended already or ends
/// now because the harness is leaving.
fn end_of_delivery(end: &End, entry: &SlotEntry) -> Option<(Cause, Failure)> {
    let name = &entry.offer.info.name;
    let lost = |what: &str| Failure::new(Code::WorkerLost, format!("worker \"{name}\" {what}"));
    let broke =
        |what: String| Failure::new(Code::ProtocolViolation, format!("worker \"{name}\" {what}"));
    Some(match end {
        End::DeadlineExceeded(_)
        | End::Cancelled(_)
        | End::Idle
        | End::StoreFailed
        | End::Superseded(_) => return None,
        // A hello that is refused holds nothing; a slot is refused later for its schema.
        End::Refused(refusal) => (
            Cause::ProtocolViolation,
            broke(match refusal {
                Refusal::Invalid(why) => format!("was sent away: {why}"),
                Refusal::NoHello
                | Refusal::NotFirst
                | Refusal::TooLarge { .. }
                | Refusal::UnsupportedProtocol(_)
                | Refusal::Denied(_)
                | Refusal::Drained
                | Refusal::NotYours
                | Refusal::TooMany(_) => "was sent away".to_owned(),
            }),
        ),
        End::Leaving => return None,
        // It had begun, so this is no request that crossed a half-close.
        End::Closed if entry.slot.has_taken() => (Cause::Lost, lost("left without a reply")),
        End::Closed => (Cause::Declined, lost("left without a reply")),
        End::NotAccepted(_) => (
            Cause::NotAccepted,
            lost("did not show in time that it has the request"),
        ),
        End::HeartbeatsMissed => (Cause::Lost, lost("was lost: it missed three heartbeats")),
        End::WrongAttempt { named, .. } => (
            Cause::ProtocolViolation,
            broke(format!("sent a frame about {named}")),
        ),
        End::Violation(violation) => (
            Cause::ProtocolViolation,
            broke(format!("broke the protocol: {violation}")),
        ),
        End::Broken(what) => (Cause::ProtocolViolation, broke(what.clone())),
        End::FrameTooLarge { bytes, limit } => (
            Cause::FrameTooLarge,
            Failure::new(
                Code::PayloadTooLarge,
                format!(
                    "worker \"{name}\" sent a frame of {bytes} bytes, the limit is {limit}: \
                     reply with less, or in output pieces"
                ),
            ),
        ),
    })
}

/// Whether the worker may still work after this end, and how that is called.
fn still_runs(end: &End) -> Option<Code> {
    match end {
        End::DeadlineExceeded(_) => Some(Code::DeadlineExceeded),
        End::Cancelled(_) => Some(Code::Cancelled),
        End::NotAccepted(_) => Some(Code::WorkerLost),
        End::WrongAttempt { .. } | End::Violation(_) | End::Broken(_) => {
            Some(Code::ProtocolViolation)
        }
        End::FrameTooLarge { .. } => Some(Code::PayloadTooLarge),
        End::Closed
        | End::Idle
        | End::HeartbeatsMissed
        | End::Leaving
        | End::StoreFailed
        | End::Superseded(_)
        | End::Refused(_) => None,
    }
}

/// Whether the worker may go on after this end and come back.
fn is_lost(end: &End) -> bool {
    match end {
        End::HeartbeatsMissed | End::Leaving | End::StoreFailed => true,
        End::Closed
        | End::Idle
        | End::DeadlineExceeded(_)
        | End::Cancelled(_)
        | End::NotAccepted(_)
        | End::WrongAttempt { .. }
        | End::Violation(_)
        | End::Broken(_)
        | End::FrameTooLarge { .. }
        | End::Superseded(_)
        | End::Refused(_) => false,
    }
}
