//! A session's hold on its slot.

use std::sync::Arc;

use crate::dispatch::{Event, Frame};
use crate::ids::SlotId;
use crate::schema::Schema;
use crate::slot::End;

use super::{Engine, Outbox};

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

    /// What the replies are held against.
    #[must_use]
    pub fn reply_schema(&self) -> Option<&Schema> {
        self.schemas.reply.as_deref()
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

    /// The call is gone without an end of ours.
    pub fn lost(mut self, why: String) {
        self.close(why);
    }

    fn close(&mut self, why: String) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        self.engine.apply_with(
            Event::Lost {
                slot: self.slot,
                why,
            },
            |state| {
                state.outboxes.remove(&self.slot);
            },
        );
        self.outbox.end(End::Closed);
    }
}

impl Drop for SlotHandle {
    fn drop(&mut self) {
        self.close("its call was dropped".to_owned());
    }
}
