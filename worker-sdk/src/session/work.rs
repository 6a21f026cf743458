//! The request in hand: its numbers and its window.
//!
//! Owns what of an attempt was sent. The agent's own work is `worker`'s affair.

use super::window::Window;
use super::{Action, Lease, Outbound};
use crate::journal::Entry;

/// The request in hand.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) lease: Lease,
    pub(super) reply_bytes_max: u64,
    pub(super) last_seq: u64,
    pub(super) window: Window,
    /// An append the window had no room for.
    pub(super) waiting: Option<(Entry, u64)>,
}

impl Work {
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
        actions.push(Action::Send(Outbound::Append {
            held: self.lease.held.clone(),
            worker_seq: self.last_seq,
            entry,
        }));
        actions.push(Action::Admit);
    }
}
