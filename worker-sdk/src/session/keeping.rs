//! What of an attempt is kept until it is acknowledged, to be sent again after its call was lost.
//!
//! Owns the frames: appends, and the reply (rule 5 of the protocol). Their number is bounded by the
//! window. An attempt that may not go on without its call keeps nothing.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Delivery, Outbound};

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Keeping {
    /// How long the work may go on after its call was lost.
    pub(super) window: Duration,
    /// Whether the reply is acknowledged too. That of another run is kept until it must have come.
    pub(super) durable: bool,
    /// What is unacknowledged, oldest first; the numbers end with that of the last one sent.
    frames: VecDeque<Outbound>,
}

impl Keeping {
    pub(super) fn of(delivery: &Delivery) -> Option<Box<Self>> {
        (!delivery.reattach_window.is_zero()).then(|| {
            Box::new(Self {
                window: delivery.reattach_window,
                durable: delivery.durable,
                frames: VecDeque::new(),
            })
        })
    }

    pub(super) fn keep(&mut self, frame: Outbound) {
        self.frames.push_back(frame);
    }

    /// Everything up to `worker_seq` has been taken; `last_seq` was sent last.
    pub(super) fn acknowledge(&mut self, last_seq: u64, worker_seq: u64) {
        let unacked = last_seq.saturating_sub(worker_seq);
        while self.frames.len() as u64 > unacked {
            self.frames.pop_front();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether an acknowledgement is still to come, after the reply of that.
    pub(super) fn awaits_acknowledgement(&self) -> bool {
        self.durable && !self.is_empty()
    }

    /// Whether these can follow the number the harness has taken last.
    pub(super) fn follows(&self, last_seq: u64, taken: u64) -> bool {
        taken <= last_seq && last_seq - taken <= self.frames.len() as u64
    }

    pub(super) fn frames(&self) -> impl Iterator<Item = &Outbound> {
        self.frames.iter()
    }
}
