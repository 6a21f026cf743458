//! A journal in memory.
//!
//! Owns what was appended, for tests: clones are the same journal, so an attempt writes one and
//! the next attempt replays it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Appending, Entry, Journal, Recorded};

/// A journal that lives as long as the last of its clones.
#[derive(Debug, Clone, Default)]
pub struct Memory(Arc<Mutex<Vec<Recorded>>>);

impl Memory {
    /// An empty journal.
    pub fn new() -> Self {
        Self::default()
    }

    /// All that was appended, in order.
    pub fn entries(&self) -> Vec<Recorded> {
        self.lock().clone()
    }

    /// Adds an entry under the next number. All entries are of attempt 1, which no rule looks at.
    pub fn push(&self, entry: Entry) {
        let mut entries = self.lock();
        let seq = entries.len() as u64 + 1;
        entries.push(Recorded::new(seq, 1, entry));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Recorded>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Journal for Memory {
    fn replay(&self) -> Vec<Recorded> {
        self.entries()
    }

    fn append(&self, entry: Entry) -> Appending<'_> {
        self.push(entry);
        Box::pin(std::future::ready(Ok(())))
    }
}
