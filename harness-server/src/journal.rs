//! The one ordered log of a run, in memory: what happened to it, numbered from 1 without gaps.
//!
//! Pure and bounded. What workers write is kept up to a limit, beyond which the oldest of it goes
//! and its numbers are missing; what the harness writes stays as long as the run is known. How an entry
//! looks on the wire is `api`'s affair.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::envelope::{Code, Failure, JSON, Payload};
use crate::ids::{Attempt, SlotId, WorkerId};
use crate::pool::Rung;

/// Entries of the harness that are kept at most; the attempts of a run are bounded far below.
const OWN_MAX: usize = 512;

/// What a run's journal may hold of its workers' entries.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Entries.
    pub entries: usize,
    /// Their bytes.
    pub bytes: usize,
}

/// One entry.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its number.
    pub seq: u64,
    /// Whose it is; zero for entries about the run.
    pub attempt: Attempt,
    /// When it was taken.
    pub at: Instant,
    /// What it says.
    pub content: Content,
}

/// What an entry says.
#[derive(Clone, Debug)]
pub enum Content {
    /// An encoded `harness.v1.Entry`, as its worker sent it.
    Worker(Bytes),
    /// The run was made.
    RunStarted,
    /// A request is on its way to a slot.
    AttemptStarted(Arc<Started>),
    /// A delivery is over; with the failure if it failed.
    AttemptEnded(Option<Arc<Failure>>),
    /// Somebody wants the run stopped.
    CancelRequested {
        /// The principal.
        who: Arc<str>,
        /// The reason given, may be empty.
        why: String,
    },
    /// The run has its outcome. A value's bytes are not kept.
    RunEnded(Ended),
    /// The call was ended while the worker may still work, or its process came to a rung of the
    /// kill ladder.
    AttemptStopping(Rung),
    /// The work has stopped.
    AttemptStopped {
        /// How that is known.
        proof: Proof,
        /// From the end of the call to the proof.
        took: Duration,
    },
}

/// Who got a request.
#[derive(Debug)]
pub struct Started {
    /// The worker.
    pub worker: WorkerId,
    /// Its name.
    pub name: String,
    /// The slot.
    pub slot: SlotId,
    /// The version of the agent it offers.
    pub version: String,
}

/// How a run ended, as it is kept.
#[derive(Clone, Debug)]
pub enum Ended {
    /// With a value of this media type.
    Value(Cow<'static, str>),
    /// With a failure.
    Failure(Arc<Failure>),
}

/// How it is known that work has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The worker said released.
    Released,
    /// The process ended by itself.
    Exited,
    /// The harness killed the process.
    Killed,
    /// No proof came in time.
    GaveUp,
}

/// A part of a journal.
#[derive(Debug, Default)]
pub struct Page {
    /// The entries, in order.
    pub entries: Vec<Entry>,
    /// The number of the newest entry.
    pub head: u64,
}

/// A run's journal.
#[derive(Debug, Default)]
pub struct Journal {
    head: u64,
    own: Vec<Entry>,
    written: VecDeque<Entry>,
    written_bytes: usize,
}

impl Ended {
    /// The code of the error that it ended with.
    #[must_use]
    pub fn error(&self) -> Option<Code> {
        match self {
            Self::Value(_) => None,
            Self::Failure(failure) => Some(failure.code),
        }
    }

    /// How an outcome is kept.
    #[must_use]
    pub fn of(outcome: &Result<Payload, Box<Failure>>) -> Self {
        match outcome {
            // One that is nearly always the same takes no memory.
            Ok(value) => Self::Value(match value.content_type.as_str() {
                JSON => Cow::Borrowed(JSON),
                other => Cow::Owned(other.to_owned()),
            }),
            Err(failure) => Self::Failure(Arc::new((**failure).clone())),
        }
    }
}

impl Journal {
    /// The number of the newest entry.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.head
    }

    /// How much of what workers wrote is kept, in bytes.
    #[must_use]
    pub fn written_bytes(&self) -> usize {
        self.written_bytes
    }

    /// Adds an entry of the harness.
    pub fn note(&mut self, at: Instant, attempt: Attempt, content: Content) {
        self.head += 1;
        if self.own.capacity() == 0 {
            // run_started, attempt_started, attempt_ended, run_ended.
            self.own.reserve_exact(4);
        }
        if self.own.len() < OWN_MAX {
            self.own.push(Entry {
                seq: self.head,
                attempt,
                at,
                content,
            });
        }
    }

    /// Adds an entry of a worker and gives its number; the oldest go when there is no room.
    pub fn append(&mut self, at: Instant, attempt: Attempt, encoded: Bytes, limits: Limits) -> u64 {
        self.head += 1;
        self.written_bytes += encoded.len();
        self.written.push_back(Entry {
            seq: self.head,
            attempt,
            at,
            content: Content::Worker(encoded),
        });
        while self.written.len() > limits.entries || self.written_bytes > limits.bytes {
            let Some(oldest) = self.written.pop_front() else {
                break;
            };
            if let Content::Worker(encoded) = &oldest.content {
                self.written_bytes -= encoded.len();
            }
        }
        self.head
    }

    /// Up to `max` entries from a number on. A number that is missing was dropped.
    #[must_use]
    pub fn read(&self, from: u64, max: usize) -> Page {
        let from = from.max(1);
        let mut own = after(&self.own, from).peekable();
        let start = self.written.partition_point(|entry| entry.seq < from);
        let mut written = self.written.range(start..).peekable();
        let mut entries = Vec::new();
        while entries.len() < max {
            let next = match (own.peek(), written.peek()) {
                (Some(mine), Some(theirs)) if mine.seq < theirs.seq => own.next(),
                (_, Some(_)) => written.next(),
                (Some(_), None) => own.next(),
                (None, None) => break,
            };
            entries.extend(next.cloned());
        }
        Page {
            entries,
            head: self.head,
        }
    }
}

fn after(entries: &[Entry], from: u64) -> impl Iterator<Item = &Entry> {
    let start = entries.partition_point(|entry| entry.seq < from);
    entries[start..].iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        entries: 3,
        bytes: 100,
    };

    fn seqs(page: &Page) -> Vec<u64> {
        page.entries.iter().map(|entry| entry.seq).collect()
    }

    fn filled(appends: usize, bytes: usize) -> Journal {
        let (now, first) = (Instant::now(), Attempt(1));
        let mut journal = Journal::default();
        journal.note(now, Attempt(0), Content::RunStarted);
        for _ in 0..appends {
            journal.append(now, first, vec![0; bytes].into(), LIMITS);
        }
        journal.note(now, first, Content::AttemptEnded(None));
        journal
    }

    #[test]
    fn entries_come_in_order_whoever_wrote_them() {
        let journal = filled(2, 10);
        assert_eq!(seqs(&journal.read(0, 10)), [1, 2, 3, 4]);
        assert_eq!(seqs(&journal.read(2, 2)), [2, 3]);
        assert_eq!(journal.read(2, 2).head, 4);
        assert!(seqs(&journal.read(5, 10)).is_empty());
    }

    #[test]
    fn beyond_its_limits_the_oldest_of_the_workers_goes_and_numbers_show_it() {
        let journal = filled(5, 10);
        assert_eq!(seqs(&journal.read(1, 10)), [1, 4, 5, 6, 7]);

        let heavy = filled(3, 60);
        assert_eq!(seqs(&heavy.read(1, 10)), [1, 4, 5]);
    }

    #[test]
    fn an_entry_larger_than_the_journal_is_numbered_and_not_kept() {
        let journal = filled(1, 101);
        let page = journal.read(1, 10);
        assert_eq!((seqs(&page), page.head), (vec![1, 3], 3));
    }
}
