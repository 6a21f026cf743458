//! What of an attempt is sent and not yet acknowledged.
//!
//! Owns the counting of entries and bytes against the welcome's limits (rule 3 of the protocol).
//! Does not hold the entries: that is `keeping`.

use std::collections::VecDeque;

/// The unacknowledged appends of one attempt.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Window {
    entries_max: usize,
    bytes_max: u64,
    bytes: u64,
    /// The number and size of each, oldest first.
    unacked: VecDeque<(u64, u64)>,
}

impl Window {
    pub(super) fn new(entries_max: u32, bytes_max: u64) -> Self {
        let mut window = Self {
            entries_max: 0,
            bytes_max: 0,
            bytes: 0,
            unacked: VecDeque::new(),
        };
        window.limit(entries_max, bytes_max);
        window
    }

    /// Another call, other limits.
    pub(super) fn limit(&mut self, entries_max: u32, bytes_max: u64) {
        self.entries_max = usize::try_from(entries_max).unwrap_or(usize::MAX).max(1);
        self.bytes_max = bytes_max;
    }

    /// Whether an entry of this size may be sent now. One larger than the whole window goes alone.
    pub(super) fn has_room(&self, entry_bytes: u64) -> bool {
        self.unacked.is_empty()
            || (self.unacked.len() < self.entries_max
                && self.bytes.saturating_add(entry_bytes) <= self.bytes_max)
    }

    pub(super) fn sent(&mut self, worker_seq: u64, entry_bytes: u64) {
        self.unacked.push_back((worker_seq, entry_bytes));
        self.bytes = self.bytes.saturating_add(entry_bytes);
    }

    /// Everything up to `worker_seq` has been taken.
    pub(super) fn acknowledge(&mut self, worker_seq: u64) {
        while let Some(&(seq, entry_bytes)) = self.unacked.front() {
            if seq > worker_seq {
                break;
            }
            self.bytes -= entry_bytes;
            self.unacked.pop_front();
        }
    }
}
