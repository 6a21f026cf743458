//! The end of a call, ours or not: what becomes of its slot and of the request in it.

use std::time::Instant;

use crate::envelope::{Code, Failure};
use crate::ids::{Delivery, SlotId};
use crate::journal::Content;
use crate::run::Cause;
use crate::slot::End;

use super::asks::shutting_down;
use super::slots::SlotEntry;
use super::{Action, Core, Timer};

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
            self.delivery_failed(now, delivery.run, worker, Cause::Lost, failure, actions);
        }
        self.place_avoiding(now, &entry.offer.agent, actions);
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
            self.remember_unreleased(now, worker, delivery, lease, code);
            stopping = Some(delivery);
        }
        let Some(entry) = self.remove_slot(now, id) else {
            return;
        };
        actions.push(Action::End {
            slot: id,
            end: end.clone(),
        });
        if let Some(Delivery { run, .. }) = held {
            match end_of_delivery(end, &entry) {
                Some((cause, failure)) => {
                    self.delivery_failed(now, run, worker, cause, failure, actions);
                }
                None if *end == End::Leaving => self.refuse(now, run, shutting_down(), actions),
                // The run was decided before its call was ended.
                None => {}
            }
        }
        if let Some(delivery) = stopping {
            self.note(now, delivery, Content::AttemptStopping, actions);
        }
        self.place_avoiding(now, &entry.offer.agent, actions);
    }

    fn remove_slot(&mut self, now: Instant, id: SlotId) -> Option<SlotEntry> {
        self.no_longer_ready(id);
        let entry = self.slots.remove(&id)?;
        if let Some(at) = entry.timer {
            self.timers.clear(at, Timer::Slot(id));
        }
        self.leave_agent(now, &entry.offer);
        self.leave_worker(entry.offer.worker, id);
        Some(entry)
    }
}

/// What the end of a call means for the request in it; none when its run has ended already or ends
/// now because the harness is leaving.
fn end_of_delivery(end: &End, entry: &SlotEntry) -> Option<(Cause, Failure)> {
    let name = &entry.offer.info.name;
    let lost = |what: &str| Failure::new(Code::WorkerLost, format!("worker \"{name}\" {what}"));
    let broke =
        |what: String| Failure::new(Code::ProtocolViolation, format!("worker \"{name}\" {what}"));
    Some(match end {
        End::DeadlineExceeded(_) | End::Cancelled(_) | End::Idle | End::Refused(_) => return None,
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
        End::WrongAttempt { .. } | End::Violation(_) => Some(Code::ProtocolViolation),
        End::FrameTooLarge { .. } => Some(Code::PayloadTooLarge),
        End::Closed | End::Idle | End::HeartbeatsMissed | End::Leaving | End::Refused(_) => None,
    }
}
