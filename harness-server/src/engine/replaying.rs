//! The entries that go with a request, on their way to its worker.
//!
//! They may be many times what a worker reads at once, and one that reads nothing holds a slot all
//! the same: so a piece of them is in memory, and the next is read when that has been written.

use std::collections::VecDeque;

use crate::dispatch::Replay;
use crate::ids::Delivery;
use crate::store::Entry;

/// What is still to be written.
#[derive(Debug)]
pub(super) struct Replaying {
    delivery: Delivery,
    piece: VecDeque<Entry>,
    /// How many entries are left, those of the piece among them.
    left: u32,
    /// Where the piece after this one begins in the journal.
    next: u64,
    /// Whether that is being read.
    awaited: bool,
}

/// A piece that is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// With whose request it goes.
    pub delivery: Delivery,
    /// Where it begins in the journal.
    pub from: u64,
}

impl Replaying {
    pub(super) fn new(delivery: Delivery, replay: &Replay) -> Self {
        Self {
            delivery,
            piece: replay.entries.iter().cloned().collect(),
            left: replay.count,
            next: replay.entries.last().map_or(1, |last| last.seq + 1),
            awaited: false,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.left == 0
    }

    /// The next entry; none when the next piece must be read.
    pub(super) fn take(&mut self) -> Option<Entry> {
        let entry = self.piece.pop_front()?;
        self.left = self.left.saturating_sub(1);
        Some(entry)
    }

    /// The piece that is to be read, told once.
    pub(super) fn missing(&mut self) -> Option<Missing> {
        let is_missing = self.piece.is_empty() && !self.is_over() && !self.awaited;
        self.awaited |= is_missing;
        is_missing.then_some(Missing {
            delivery: self.delivery,
            from: self.next,
        })
    }

    /// A piece was read. What was written since the request was made does not go with it.
    pub(super) fn add(&mut self, missing: Missing, piece: Vec<Entry>) {
        if missing.delivery == self.delivery && missing.from == self.next && self.awaited {
            self.awaited = false;
            self.next = piece.last().map_or(self.next, |last| last.seq + 1);
            self.piece
                .extend(piece.into_iter().take(self.left as usize));
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::ids::{Attempt, RunId};
    use crate::store::Stamp;

    fn entry(seq: u64) -> Entry {
        Entry {
            seq,
            attempt: Attempt(1),
            worker_seq: seq,
            time: Stamp(0),
            content: Bytes::from(vec![0; 40 * 1024]),
        }
    }

    fn delivery(attempt: u32) -> Delivery {
        Delivery {
            run: RunId(uuid::Uuid::from_u128(1)),
            attempt: Attempt(attempt),
        }
    }

    fn taken(replaying: &mut Replaying) -> Vec<u64> {
        std::iter::from_fn(|| replaying.take())
            .map(|it| it.seq)
            .collect()
    }

    #[test]
    fn pieces_are_asked_for_one_by_one_and_end_with_what_there_was() {
        let mut replay = Replay::default();
        for seq in [3, 5, 8, 9] {
            replay.add(entry(seq));
        }
        assert_eq!((replay.count, replay.bytes), (4, 4 * 40 * 1024));
        assert_eq!(replay.entries.len(), 1, "so much is kept");
        let mut replaying = Replaying::new(delivery(2), &replay);
        assert_eq!(replaying.missing(), None);
        assert_eq!(taken(&mut replaying), [3]);
        let missing = replaying.missing().expect("the next piece");
        assert_eq!((missing.from, replaying.missing()), (4, None));
        let other = Missing {
            delivery: delivery(1),
            ..missing
        };
        replaying.add(other, vec![entry(4)]);
        assert_eq!(replaying.take(), None, "of another request");
        replaying.add(missing, vec![entry(5), entry(8)]);
        assert_eq!(taken(&mut replaying), [5, 8]);
        let missing = replaying.missing().expect("the last piece");
        // The worker itself has written the second meanwhile.
        replaying.add(missing, vec![entry(9), entry(11)]);
        assert_eq!(taken(&mut replaying), [9]);
        assert!(replaying.is_over());
        assert_eq!(replaying.missing(), None);
    }
}
