//! Durable runs on disk: the steps in which one changes, and what can be asked of them.
//!
//! A [`Store`] is told domain steps, each of them all or nothing, and never to save a struct: that
//! is what lets replicas share a database one day. How steps share a commit is the backend's own
//! affair. What an entry says is bytes here; what a run may become is `run`'s and `dispatch`'s.

mod faulty;
mod memory;
mod page;
mod sqlite;

#[cfg(test)]
#[path = "store_contract_tests.rs"]
mod contract_tests;
#[cfg(test)]
#[path = "store_fault_contract_tests.rs"]
mod fault_contract_tests;
#[cfg(test)]
#[path = "store_fault_tests.rs"]
mod fault_tests;
#[cfg(test)]
#[path = "store_reply_contract_tests.rs"]
mod reply_contract_tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::envelope::Code;
use crate::ids::{AgentKey, Attempt, Lease, RunId, WorkerId};
use crate::run::Counts;

pub use faulty::{Fault, Faulty};
pub use memory::Memory;
pub use page::{Filter, Page};
pub use sqlite::{Sqlite, read_file};

/// An instant of the wall clock: microseconds since 1970-01-01 00:00:00 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(pub i64);

/// An entry of a journal, placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number in the run, from 1.
    pub seq: u64,
    /// Whose it is; zero for entries about the run.
    pub attempt: Attempt,
    /// Its worker's number of it in the attempt; 0 where the harness wrote it.
    pub worker_seq: u64,
    /// When it was taken.
    pub time: Stamp,
    /// An encoded `harness.v1.Entry`.
    pub content: Bytes,
}

/// What a run is made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRun {
    /// Which.
    pub id: RunId,
    /// Whom it asks.
    pub agent: AgentKey,
    /// The caller's idempotency key, may be empty.
    pub key: String,
    /// -100 to 100.
    pub priority: i32,
    /// When it was made.
    pub created: Stamp,
    /// Not to be delivered before.
    pub start: Option<Stamp>,
    /// When it ends at the latest.
    pub deadline: Stamp,
    /// Who asked.
    pub caller: String,
    /// How many runs stand above it.
    pub depth: u32,
    /// The rest of what the caller asked for, encoded.
    pub options: Bytes,
    /// For lists.
    pub labels: BTreeMap<String, String>,
}

/// Who holds an attempt, and the proof of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The worker.
    pub worker: WorkerId,
    /// What came with its request.
    pub lease: Lease,
}

/// What must still be so for a step to be written: it is checked in the statement that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The run, not ended.
    pub run: RunId,
    /// Its newest attempt.
    pub attempt: Attempt,
    /// The number of the newest entry of its journal.
    pub head: u64,
}

/// How a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Waiting for a slot, its start or the end of its back-off.
    Queued,
    /// An attempt is under way.
    Running,
    /// Ended with a value.
    Succeeded,
    /// Ended with an error.
    Failed,
    /// Ended because somebody cancelled it.
    Cancelled,
    /// Ended because its deadline passed.
    TimedOut,
}

impl State {
    /// How a run stands that has ended, with this error or with a value.
    #[must_use]
    pub fn ended(error: Option<Code>) -> Self {
        match error {
            None => Self::Succeeded,
            Some(Code::Cancelled) => Self::Cancelled,
            Some(Code::DeadlineExceeded) => Self::TimedOut,
            Some(_) => Self::Failed,
        }
    }
}

/// One step of one run. All of it is written or nothing, after every step that came before.
#[derive(Clone, Debug)]
pub enum Step {
    /// Makes a run, with its first attempt where a slot is free.
    Enqueue {
        /// What it is made with.
        run: Arc<NewRun>,
        /// `run_started`, and `attempt_started` with the first attempt.
        entries: Vec<Entry>,
        /// Who gets the first attempt.
        first: Option<Holder>,
    },
    /// Begins the next attempt.
    StartAttempt {
        /// The attempt before.
        fence: Fence,
        /// Who gets it.
        holder: Holder,
        /// `attempt_started`.
        entries: Vec<Entry>,
    },
    /// Adds entries.
    Append {
        /// What must be so.
        fence: Fence,
        /// What comes, each one's number the one before plus 1.
        entries: Vec<Entry>,
        /// The version of the agent that wrote them, when they are the first to be replayed.
        replayed: Option<String>,
    },
    /// Ends an attempt after which the run waits for another.
    EndAttempt {
        /// What must be so.
        fence: Fence,
        /// What counts so far.
        counts: Counts,
        /// When its back-off is over.
        not_before: Option<Stamp>,
        /// The worker's number of the attempt's reply, 0 when none was taken.
        reply_seq: u64,
        /// `attempt_ended`.
        entries: Vec<Entry>,
    },
    /// Ends a run. A cancel is one as well: `cancel_requested` and `run_ended` are one commit.
    Finish {
        /// What must be so.
        fence: Fence,
        /// How it ended.
        state: State,
        /// The worker's number of the newest attempt's reply, 0 when none was taken.
        reply_seq: u64,
        /// Up to `run_ended`, which is the last.
        entries: Vec<Entry>,
    },
    /// Adds what became of an attempt's work to the journal of a run that has ended.
    Note {
        /// The run.
        run: RunId,
        /// The attempt.
        attempt: Attempt,
        /// When.
        time: Stamp,
        /// An encoded `harness.v1.Entry`.
        content: Bytes,
    },
    /// Remembers that an agent was there.
    KeepAgent {
        /// Which.
        agent: AgentKey,
        /// When.
        seen: Stamp,
    },
    /// Deletes runs that ended before an instant, and agents last seen before it.
    Forget {
        /// The instant.
        before: Stamp,
        /// Runs at most; fewer at once where their journals are long.
        max: usize,
    },
    /// Nothing: it is done once everything before it is.
    Flush,
}

/// What came of a step that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is durable.
    Done,
    /// The key has a run, which asks the same.
    Existing(RunId),
    /// The key has a run, which asks something else.
    Conflict(RunId),
    /// So many runs were deleted.
    Forgotten(usize),
}

/// Why the store did not do what it was told. Nothing of it was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The disk is full.
    #[error("the disk or the store's quota is full")]
    Full,
    /// It cannot be written.
    #[error(
        "the store cannot be written: its folder, a file in it or the file system is read-only, or \
         belongs to another user; make it writable"
    )]
    ReadOnly,
    /// What is in the file is no store.
    #[error("the store's file is corrupt: restore it from a backup, or start with another folder")]
    Corrupt,
    /// A later version of this program made it.
    #[error("the store was made by a newer harness: start that one, or another folder")]
    NewerSchema,
    /// Another process has it.
    #[error("another harness uses this folder: each needs one of its own")]
    InUse,
    /// Something else has written to the run.
    #[error("the run was changed by somebody else")]
    Fenced,
    /// More is waiting to be written than may.
    #[error("{}", overloaded(*by_run))]
    Overloaded {
        /// Whether so much waits of this run, while there is room for others.
        by_run: bool,
    },
    /// Something else is wrong.
    #[error("the store failed: {0}")]
    Failed(String),
}

fn overloaded(by_run: bool) -> &'static str {
    match by_run {
        true => "so much of this run waits to be written that other runs come first",
        false => "the store is slower than what comes",
    }
}

/// What is told when a step is durable, or was not written.
pub type Done = Box<dyn FnOnce(Result<Written, StoreError>) + Send>;

/// What is known of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What it was made with.
    pub run: NewRun,
    /// How it stands.
    pub state: State,
    /// Its newest attempt.
    pub attempt: Attempt,
    /// What counts so far.
    pub counts: Counts,
    /// When its back-off is over.
    pub not_before: Option<Stamp>,
    /// Who got the newest attempt.
    pub holder: Option<Holder>,
    /// The version of the agent that wrote what is replayed, where something is.
    pub replayed: Option<String>,
    /// The worker's number of the newest attempt's reply, 0 when none was taken.
    pub reply_seq: u64,
    /// When it ended, and the number of `run_ended`.
    pub ended: Option<(Stamp, u64)>,
    /// The number of the newest entry of its journal.
    pub head: u64,
}

/// What a journal holds of an attempt and in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// The bytes of its workers' entries.
    pub bytes: u64,
    /// The last number its newest attempt's worker gave.
    pub worker_seq: u64,
    /// When that attempt began.
    pub began: Option<Stamp>,
}

/// Where durable runs are. Steps are put in line and told of; everything else blocks and is asked
/// off the runtime.
pub trait Store: Send + Sync + 'static {
    /// Puts a step in line. `done` is told once it is durable, in the order of steps and together
    /// with all that share its commit; at once when the line is full.
    fn write(&self, step: Step, done: Done);

    /// What is known of a run.
    ///
    /// # Errors
    /// The store cannot be read.
    fn get(&self, run: RunId) -> Result<Option<Record>, StoreError>;

    /// The run of an idempotency key.
    ///
    /// # Errors
    /// The store cannot be read.
    fn find(&self, agent: &AgentKey, key: &str) -> Result<Option<RunId>, StoreError>;

    /// Runs of a namespace, the newest first: those older than `before`, at most `max`.
    ///
    /// # Errors
    /// The store cannot be read.
    fn list(
        &self,
        filter: &Filter,
        before: Option<RunId>,
        max: usize,
    ) -> Result<Vec<Record>, StoreError>;

    /// Runs that have not ended, the oldest first: those younger than `after`, at most `max`.
    ///
    /// # Errors
    /// The store cannot be read.
    fn unfinished(&self, after: Option<RunId>, max: usize) -> Result<Vec<Record>, StoreError>;

    /// Entries of a run from a number on, at most `max` and about `bytes_max`; at least one if
    /// there is one.
    ///
    /// # Errors
    /// The store cannot be read.
    fn journal(
        &self,
        run: RunId,
        from: u64,
        max: usize,
        bytes_max: usize,
    ) -> Result<Page, StoreError>;

    /// How much a run's journal holds.
    ///
    /// # Errors
    /// The store cannot be read.
    fn extent(&self, run: RunId, attempt: Attempt) -> Result<Extent, StoreError>;

    /// The agents that are remembered, and when each was last seen.
    ///
    /// # Errors
    /// The store cannot be read.
    fn agents(&self) -> Result<Vec<(AgentKey, Stamp)>, StoreError>;

    /// Writes what is in line and takes nothing more.
    fn close(&self);
}

impl Record {
    /// What is known of a run that was just made with so many entries.
    #[must_use]
    pub fn made(run: NewRun, first: Option<Holder>, head: u64) -> Self {
        let (state, attempt) = match first {
            Some(_) => (State::Running, 1),
            None => (State::Queued, 0),
        };
        Self {
            run,
            state,
            attempt: Attempt(attempt),
            counts: Counts::default(),
            not_before: None,
            holder: first,
            replayed: None,
            reply_seq: 0,
            ended: None,
            head,
        }
    }
}

impl State {
    /// Whether nothing changes it any more.
    #[must_use]
    pub fn is_ended(self) -> bool {
        match self {
            Self::Queued | Self::Running => false,
            Self::Succeeded | Self::Failed | Self::Cancelled | Self::TimedOut => true,
        }
    }
}

impl Step {
    /// The run it is about.
    #[must_use]
    pub fn run(&self) -> Option<RunId> {
        match self {
            Self::Enqueue { run, .. } => Some(run.id),
            Self::StartAttempt { fence, .. }
            | Self::Append { fence, .. }
            | Self::EndAttempt { fence, .. }
            | Self::Finish { fence, .. } => Some(fence.run),
            Self::Note { run, .. } => Some(*run),
            Self::KeepAgent { .. } | Self::Forget { .. } | Self::Flush => None,
        }
    }

    /// About how many bytes it holds.
    #[must_use]
    pub fn bytes(&self) -> usize {
        const ROW: usize = 256;
        let of = |entries: &[Entry]| -> usize {
            entries.iter().map(|entry| ROW + entry.content.len()).sum()
        };
        match self {
            Self::Enqueue { run, entries, .. } => ROW + run.options.len() + of(entries),
            Self::StartAttempt { entries, .. }
            | Self::Append { entries, .. }
            | Self::EndAttempt { entries, .. }
            | Self::Finish { entries, .. } => of(entries),
            Self::Note { content, .. } => ROW + content.len(),
            Self::KeepAgent { .. } | Self::Forget { .. } | Self::Flush => ROW,
        }
    }
}
