//! The steps of durable runs as Core wants them written, and what came of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use crate::envelope::{Failure, Outcome, Request};
use crate::ids::{Attempt, RunId};
use crate::journal::Content;
use crate::run::Counts;
use crate::store::{Entry, Holder, State};

/// What StartRun gives beside the request.
#[derive(Clone, Debug)]
pub struct Start {
    /// Not to be delivered before.
    pub not_before: Option<Instant>,
    /// For lists.
    pub labels: BTreeMap<String, String>,
    /// The caller's options, encoded.
    pub options: Bytes,
}

/// A step to write.
#[derive(Debug)]
pub struct Write {
    /// The run.
    pub run: RunId,
    /// The newest attempt before it.
    pub attempt: Attempt,
    /// The number of the newest entry before it.
    pub head: u64,
    /// What changes.
    pub change: Change,
    /// The entries, their numbers those after `head`.
    pub entries: Vec<NewEntry>,
}

/// An entry to write.
#[derive(Debug)]
pub struct NewEntry {
    /// Whose it is.
    pub attempt: Attempt,
    /// Its worker's number of it; 0 where the harness wrote it.
    pub worker_seq: u64,
    /// When it was taken.
    pub at: Instant,
    /// What it says.
    pub content: Said,
}

/// What an entry to write says.
#[derive(Debug)]
pub enum Said {
    /// What the journals in memory hold too.
    Content(Content),
    /// The run was made, for this.
    Asked(Arc<Request>),
    /// The run has ended with this.
    Ended(Outcome),
}

/// What a step changes.
#[derive(Debug)]
pub enum Change {
    /// The run is made.
    Enqueue {
        /// What StartRun gave.
        start: Box<Start>,
        /// What is asked, and of whom.
        request: Arc<Request>,
        /// Its priority.
        priority: i32,
        /// When it was made.
        created: Instant,
        /// When it ends at the latest.
        deadline: Instant,
        /// Who gets its first attempt, where a slot was free.
        first: Option<Holder>,
    },
    /// The next attempt begins.
    StartAttempt(Holder),
    /// Nothing but that entries come. The version of the agent that wrote them, when they are the
    /// first that are replayed.
    Append(Option<Arc<str>>),
    /// The attempt is over and the run waits.
    EndAttempt {
        /// What counts so far.
        counts: Counts,
        /// When its back-off is over.
        not_before: Option<Instant>,
        /// The worker's number of the attempt's reply, 0 when none was taken.
        reply_seq: u64,
    },
    /// The run has ended.
    Finish {
        /// How.
        state: State,
        /// The worker's number of the newest attempt's reply, 0 when none was taken.
        reply_seq: u64,
    },
    /// The run has ended before; the entry tells what became of its work.
    Note,
}

/// What came of a step.
#[derive(Debug)]
pub enum Stored {
    /// It is on disk.
    Done,
    /// It was to make a run, but its key has one that asks the same.
    Existing(RunId),
    /// It was to make a run, but its key has one that asks something else.
    Conflict(RunId),
    /// It was not written.
    Failed(Failure),
}

/// Entries that a worker is given again with a request.
#[derive(Debug, Default)]
pub struct Replay {
    /// The first of them, in order: more than these are read when they have been written.
    pub entries: Vec<Entry>,
    /// How many there are.
    pub count: u32,
    /// The bytes of all.
    pub bytes: u64,
    /// The bytes of the largest.
    pub largest: u64,
}

impl Replay {
    /// The bytes of them that are kept, unless the first is larger.
    pub const KEPT: u64 = 64 * 1024;

    /// There is one more, after those before.
    pub fn add(&mut self, entry: Entry) {
        let bytes = entry.content.len() as u64;
        self.bytes += bytes;
        self.largest = self.largest.max(bytes);
        let all_kept = self.entries.len() == self.count as usize;
        if all_kept && (self.count == 0 || self.bytes <= Self::KEPT) {
            self.entries.push(entry);
        }
        self.count += 1;
    }
}
