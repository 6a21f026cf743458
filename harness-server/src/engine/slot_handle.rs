//! A session's hold on its slot.

use std::sync::Arc;

use crate::dispatch::{Event, Frame, trim};
use crate::envelope::{Failure, Payload};
use crate::ids::{Delivery, SlotId, WorkerId};
use crate::schema::Schema;
use crate::slot::End;

use super::{Checked, Engine, Outbox};

/// The schemas of a slot's offer; keeps them compiled as long as the slot is there.
#[derive(Clone, Debug, Default)]
pub struct OfferSchemas {
    /// Of requests.
    pub request: Option<Arc<Schema>>,
    /// Of replies.
    pub reply: Option<Arc<Schema>>,
}

/// A session's hold on its slot. Dropping it without an end loses the slot.
pub struct SlotHandle {
    pub(super) engine: Engine,
    pub(super) slot: SlotId,
    pub(super) outbox: Arc<Outbox>,
    pub(super) schemas: OfferSchemas,
    pub(super) closed: bool,
}

impl SlotHandle {
    /// The slot.
    #[must_use]
    pub fn slot(&self) -> SlotId {
        self.slot
    }

    /// Whether a request is in it.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.engine.lock().core.is_busy(self.slot)
    }

    /// Whether this attempt is in it.
    #[must_use]
    pub fn holds(&self, delivery: Delivery) -> bool {
        self.engine.lock().core.held(self.slot) == Some(delivery)
    }

    /// Whether the worker has shown that it has the request in it.
    #[must_use]
    pub fn has_taken(&self) -> bool {
        self.engine.lock().core.has_taken(self.slot)
    }

    /// Has its worker finish, leave and not come back.
    pub fn drain(&self, worker: WorkerId, reason: &str) {
        self.engine.drain(worker, reason.to_owned());
    }

    /// Holds a reply against the slot's schema.
    #[must_use]
    pub fn check(&self, value: Payload) -> Checked {
        self.engine.check_reply(self.schemas.reply.as_ref(), value)
    }

    /// What goes to the worker.
    #[must_use]
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// A frame came from the worker.
    pub fn frame(&self, frame: Frame) {
        self.engine.apply(Event::Frame {
            slot: self.slot,
            frame,
        });
    }

    /// The call is gone without an end of ours. What is said of it after this counts for nothing.
    pub fn lost(&mut self, why: String) {
        let slot = self.slot;
        self.close(Event::Lost { slot, why });
    }

    /// The process behind the call has died by itself; `failure` is for what was in it.
    pub fn died(&mut self, failure: Failure) {
        let slot = self.slot;
        self.close(Event::Died { slot, failure });
    }

    fn close(&mut self, event: Event) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        self.engine.apply_with(event, |state| {
            state.outboxes.remove(&self.slot);
            trim(&mut state.outboxes);
        });
        self.outbox.end(End::Closed);
    }
}

impl Drop for SlotHandle {
    fn drop(&mut self) {
        let (slot, why) = (self.slot, "its call was dropped".to_owned());
        self.close(Event::Lost { slot, why });
    }
}
