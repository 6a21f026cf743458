//! One call of a process: its slot, and what is in it.
//!
//! Owns the words the process has with the engine. What is read and written is the session's
//! affair.

use std::sync::Arc;

use bytes::Bytes;

use crate::dispatch::{Frame, Offer, Reply};
use crate::engine::{Engine, OfferSchemas, Outbox, Outgoing, SlotHandle};
use crate::ids::Delivery;

/// One call of the process: its slot, and what is in it.
pub(super) struct Call {
    pub(super) slot: SlotHandle,
    pub(super) outbox: Arc<Outbox>,
    pub(super) work: Option<Work>,
    /// Whether the slot takes no new request.
    pub(super) leaving: bool,
}

/// The request in work.
pub(super) struct Work {
    pub(super) delivery: Delivery,
    /// What of its line is not written yet.
    pub(super) unwritten: Bytes,
}

impl Call {
    /// Opens a slot for what is offered.
    pub(super) fn open(engine: &Engine, offer: Offer) -> Self {
        let outbox = Arc::new(Outbox::default());
        let schemas = OfferSchemas::default();
        let slot = engine.open(offer, outbox.clone(), schemas);
        Self {
            slot,
            outbox,
            work: None,
            leaving: false,
        }
    }

    /// Has the slot given no new request. One that is on its way may still come.
    pub(super) fn leave(&mut self) {
        if !std::mem::replace(&mut self.leaving, true) {
            self.slot.frame(Frame::Leave);
        }
    }

    /// Gives back a request that came when the slot was leaving already, if there is one.
    pub(super) async fn decline(&mut self, engine: &Engine) {
        while self.slot.is_busy() {
            match self.outbox.next().await {
                Some(Ok(Outgoing::Request { delivery, .. })) => {
                    self.outbox.let_go();
                    self.reply(delivery, Reply::Declined);
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => {
                    if let Some(undelivered) = self.outbox.abandon() {
                        engine.undelivered(undelivered);
                    }
                    return;
                }
            }
        }
    }

    pub(super) fn reply(&mut self, delivery: Delivery, reply: Reply) {
        let seq = 1;
        self.slot.frame(Frame::Reply {
            delivery,
            seq,
            reply,
        });
    }

    /// The process has broken its dialect: the engine ends the call.
    pub(super) fn broken(&mut self, what: String) {
        self.slot.frame(Frame::Broken(what));
    }
}
