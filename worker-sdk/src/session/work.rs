//! The request in hand: its numbers, its window and what of it is still to come.
//!
//! Owns what of an attempt was sent. The agent's own work is `worker`'s affair.

use std::time::Instant;

use super::keeping::Keeping;
use super::window::Window;
use super::{Action, Answered, Delivery, Lease, Limits, Outbound};
use crate::context::deadline_in;
use crate::journal::{Entry, Recorded};

/// The request in hand.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Work {
    pub(super) lease: Lease,
    /// Nothing can come of it later than this.
    pub(super) deadline: Instant,
    pub(super) reply_bytes_max: u64,
    pub(super) last_seq: u64,
    pub(super) window: Window,
    /// An append the window had no room for.
    pub(super) waiting: Option<(Entry, u64)>,
    /// The newest step whose acknowledgement the agent waits for; 0 for none.
    awaited: u64,
    /// The request, while recorded entries of it are still to come.
    replaying: Option<Box<Delivery>>,
    /// What is sent again after the call was lost; None when the work stops with its call.
    pub(super) keeping: Option<Box<Keeping>>,
}

impl Work {
    /// A request that has just come, and what it starts at once.
    pub(super) fn new(
        now: Instant,
        delivery: Box<Delivery>,
        limits: Limits,
        actions: &mut Vec<Action>,
    ) -> Self {
        let reply_bytes_max = match delivery.max_reply_bytes {
            0 => limits.payload_bytes,
            bytes => bytes.min(limits.payload_bytes),
        };
        let mut work = Self {
            lease: delivery.lease.clone(),
            deadline: deadline_in(now, delivery.time_left),
            reply_bytes_max,
            last_seq: 0,
            window: Window::new(limits.unacked_entries, limits.unacked_bytes),
            waiting: None,
            awaited: 0,
            replaying: None,
            keeping: Keeping::of(&delivery),
        };
        if delivery.replay_entries == 0 {
            actions.push(Action::Start(delivery));
        } else {
            work.replaying = Some(delivery);
        }
        work
    }

    /// Whether its run goes on with the harness that follows.
    pub(super) fn outlives_harness(&self) -> bool {
        self.keeping.as_ref().is_some_and(|keeping| keeping.durable)
    }

    /// Whether the agent has it.
    pub(super) fn has_started(&self) -> bool {
        self.replaying.is_none()
    }

    /// Takes a recorded entry; the last one starts the agent. False when none was due.
    pub(super) fn replay(
        &mut self,
        entry: Option<Box<Recorded>>,
        actions: &mut Vec<Action>,
    ) -> bool {
        let Some(mut delivery) = self.replaying.take() else {
            return false;
        };
        delivery.recorded.extend(entry.map(|entry| *entry));
        delivery.replay_entries -= 1;
        if delivery.replay_entries == 0 {
            actions.push(Action::Start(delivery));
        } else {
            self.replaying = Some(delivery);
        }
        true
    }

    pub(super) fn send_or_wait(
        &mut self,
        entry: Entry,
        entry_bytes: u64,
        actions: &mut Vec<Action>,
    ) {
        if !self.window.has_room(entry_bytes) {
            self.waiting = Some((entry, entry_bytes));
            return;
        }
        self.last_seq += 1;
        self.window.sent(self.last_seq, entry_bytes);
        let is_step = matches!(entry, Entry::Step(_));
        let frame = Outbound::Append {
            held: self.lease.held.clone(),
            worker_seq: self.last_seq,
            entry,
        };
        if let Some(keeping) = &mut self.keeping {
            keeping.keep(frame.clone());
        }
        actions.push(Action::Send(frame));
        actions.push(if is_step {
            self.awaited = self.last_seq;
            Action::Await {
                worker_seq: self.last_seq,
            }
        } else {
            Action::Admit
        });
    }

    /// Everything up to this number has been taken.
    pub(super) fn acknowledge(&mut self, worker_seq: u64, actions: &mut Vec<Action>) {
        self.window.acknowledge(worker_seq);
        if let Some(keeping) = &mut self.keeping {
            keeping.acknowledge(self.last_seq, worker_seq);
        }
        if self.awaited > 0 {
            actions.push(Action::Acknowledged { worker_seq });
            if worker_seq >= self.awaited {
                self.awaited = 0;
            }
        }
    }

    /// The request is answered; what is to be known of it still.
    pub(super) fn answered(mut self: Box<Self>, now: Instant, reply: &Outbound) -> Answered {
        let lease = self.lease.clone();
        let kept = match &mut self.keeping {
            Some(keeping) => {
                keeping.keep(reply.clone());
                self.last_seq += 1;
                Some(self)
            }
            None => None,
        };
        Answered {
            lease,
            at: now,
            kept,
        }
    }

    /// Sends what waits, if there is room for it now.
    pub(super) fn go_on(&mut self, actions: &mut Vec<Action>) {
        if let Some((entry, entry_bytes)) = self.waiting.take() {
            self.send_or_wait(entry, entry_bytes, actions);
        }
    }
}
