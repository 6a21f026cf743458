//! The request in a slot: its acceptance, its numbers and its window.

use std::collections::VecDeque;
use std::time::Instant;

use crate::ids::Delivery;

use super::{EntryKind, Level, Rules, Violation};

/// The request in a slot, as far as the protocol's rules go.
#[derive(Debug)]
pub struct Work {
    pub(super) delivery: Delivery,
    pub(super) acceptance: Acceptance,
    pub(super) last_seq: u64,
    unacked: VecDeque<u64>,
    unacked_bytes: u64,
}

#[derive(Debug)]
pub(super) enum Acceptance {
    /// A full level worker has yet to name the request.
    Owed { by: Instant },
    /// A minimal level worker has not named it and need not.
    NotOwed,
    /// The worker has named it, so it has it.
    Given,
}

/// Where a worker_seq stands among those taken.
pub(super) enum Place {
    /// It was taken before.
    Before,
    /// It is the next.
    Next,
    /// It can be neither.
    Wrong(Violation),
}

impl Work {
    pub(super) fn new(delivery: Delivery, acceptance: Acceptance) -> Self {
        Self {
            delivery,
            acceptance,
            last_seq: 0,
            unacked: VecDeque::new(),
            unacked_bytes: 0,
        }
    }

    /// The work of a lost call, which its worker has shown to have. What was taken of it and is not
    /// acknowledged stays in its window; how much that is, is not known any more.
    pub(super) fn resumed(delivery: Delivery, last_seq: u64, acknowledged: u64) -> Self {
        Self {
            last_seq,
            unacked: (acknowledged..last_seq).map(|_| 0).collect(),
            ..Self::new(delivery, Acceptance::Given)
        }
    }

    pub(super) fn place(&self, seq: u64) -> Place {
        let expected = self.last_seq + 1;
        if seq == expected {
            Place::Next
        } else if (1..expected).contains(&seq) {
            Place::Before
        } else {
            // Zero, too: it is a worker that sets no number, and its reply must not vanish.
            Place::Wrong(Violation::Gap { expected, got: seq })
        }
    }

    /// Whether the next append may be what it is, and now.
    pub(super) fn check(
        &mut self,
        level: Level,
        rules: &Rules,
        kind: EntryKind,
        bytes: u64,
        acknowledged: u64,
    ) -> Result<(), Violation> {
        match (kind, level) {
            (EntryKind::Foreign, Level::Minimal | Level::Full) => {
                return Err(Violation::ForeignEntry);
            }
            (EntryKind::Step, Level::Minimal) => return Err(Violation::StepFromMinimal),
            (EntryKind::Plain | EntryKind::Usage, Level::Minimal) => return Ok(()),
            (EntryKind::Plain | EntryKind::Usage | EntryKind::Step, Level::Full) => {}
        }
        let still_unacked =
            usize::try_from(self.last_seq.saturating_sub(acknowledged)).unwrap_or(usize::MAX);
        while self.unacked.len() > still_unacked {
            self.unacked_bytes -= self.unacked.pop_front().unwrap_or_default();
        }
        let alone = self.unacked.is_empty();
        if self.unacked.len() >= rules.unacked_entries
            || (!alone && self.unacked_bytes + bytes > rules.unacked_bytes)
        {
            return Err(Violation::WindowPassed);
        }
        self.unacked.push_back(bytes);
        self.unacked_bytes += bytes;
        Ok(())
    }
}
