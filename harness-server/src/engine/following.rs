//! Following the journal of a durable run. What comes on disk while somebody follows is handed on
//! from here, so that only what came before is read.
//!
//! A follower sees nothing that is not on disk: a tail grows when the store has told of a step.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::watch;

use crate::dispatch::trim;
use crate::envelope::Failure;
use crate::ids::RunId;
use crate::store::{Entry, Page};

use super::Engine;
use super::durable::told;
use super::storing::Storage;

/// Entries of a journal that are read at once, and their bytes.
const PAGE: (usize, usize) = (64, 256 * 1024);

/// The newest entries that are kept of a run that is followed, and their bytes. Who falls behind
/// them reads.
const TAIL: (usize, usize) = (64, 64 * 1024);

/// What has come on disk of a run since somebody follows it.
#[derive(Default)]
pub(super) struct Tail {
    bell: watch::Sender<()>,
    /// The newest ones, each one's number the one before plus 1, the last one's `head`.
    entries: VecDeque<Entry>,
    bytes: usize,
    /// The number of the newest entry on disk; none where that is not known here.
    head: Option<u64>,
    ended: bool,
}

impl Tail {
    /// A run has these entries more, after which it has ended or not.
    pub(super) fn add(&mut self, entries: Vec<Entry>, ended: bool) {
        for entry in entries {
            if self.head.is_none_or(|head| entry.seq != head + 1) {
                self.lose();
            }
            self.head = Some(entry.seq);
            self.bytes += entry.content.len();
            self.entries.push_back(entry);
        }
        while self.entries.len() > TAIL.0 || self.bytes > TAIL.1 {
            let oldest = self.entries.pop_front();
            self.bytes -= oldest.map_or(0, |oldest| oldest.content.len());
        }
        self.ended |= ended;
    }

    /// Something was written whose number is known on disk only.
    pub(super) fn lose(&mut self) {
        self.entries.clear();
        self.bytes = 0;
        self.head = None;
    }

    /// What tells followers that something came.
    pub(super) fn bell(&self) -> watch::Sender<()> {
        self.bell.clone()
    }

    /// What there is from a number on; none when that has to be read.
    fn read(&self, from: u64) -> Option<Page> {
        let head = self.head?;
        let oldest = head + 1 - self.entries.len() as u64;
        let skipped = usize::try_from(from.checked_sub(oldest)?).unwrap_or(usize::MAX);
        Some(Page {
            entries: self.entries.iter().skip(skipped).cloned().collect(),
            head,
            ended: self.ended,
        })
    }
}

/// A reader of a durable run's journal; what is not on disk it does not see.
pub struct Followed {
    engine: Engine,
    storage: Arc<Storage>,
    run: RunId,
    from: u64,
    grown: watch::Receiver<()>,
}

impl Engine {
    /// Follows the journal of a durable run of a namespace from a number on, as long as the run is
    /// in memory: none for one that has ended, or is not made yet.
    #[must_use]
    pub fn follow_live(&self, run: RunId, namespace: &str, from: u64) -> Option<Followed> {
        let storage = self.0.storage.clone()?;
        let grown = {
            let mut state = self.lock();
            let (agent, head) = state.core.durable_on_disk(run)?;
            if *agent.namespace != *namespace {
                return None;
            }
            let tail = state.tails.entry(run).or_default();
            tail.head.get_or_insert(head);
            tail.bell.subscribe()
        };
        Some(self.followed(storage, run, from, grown))
    }

    /// Follows the journal of a durable run, which is on disk, from a number on.
    #[must_use]
    pub fn follow(&self, run: RunId, from: u64) -> Option<Followed> {
        let storage = self.0.storage.clone()?;
        let grown = {
            let mut state = self.lock();
            state.tails.entry(run).or_default().bell.subscribe()
        };
        Some(self.followed(storage, run, from, grown))
    }

    fn followed(
        &self,
        storage: Arc<Storage>,
        run: RunId,
        from: u64,
        grown: watch::Receiver<()>,
    ) -> Followed {
        Followed {
            engine: self.clone(),
            storage,
            run,
            from: from.max(1),
            grown,
        }
    }
}

impl Followed {
    /// Its run.
    #[must_use]
    pub fn run(&self) -> RunId {
        self.run
    }

    /// The next entries, none when there are no more yet.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn next(&mut self) -> Result<Page, Box<Failure>> {
        self.grown.mark_unchanged();
        let (run, from) = (self.run, self.from);
        let kept = {
            let state = self.engine.lock();
            state.tails.get(&run).and_then(|tail| tail.read(from))
        };
        let page = match kept {
            Some(page) => page,
            None => {
                let read = self.engine.reading(&self.storage, move |_, storage| {
                    storage.store().journal(run, from, PAGE.0, PAGE.1)
                });
                read.await.map_err(told)?
            }
        };
        if let Some(last) = page.entries.last() {
            self.from = last.seq + 1;
        }
        Ok(page)
    }

    /// Waits until the journal has grown since it was last read.
    pub async fn grown(&mut self) {
        if self.grown.changed().await.is_err() {
            // Its bell is gone with the engine: nothing grows any more.
            std::future::pending().await
        }
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        let mut state = self.engine.lock();
        let last = |tail: &Tail| tail.bell.receiver_count() == 1;
        if state.tails.get(&self.run).is_some_and(last) {
            state.tails.remove(&self.run);
            trim(&mut state.tails);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::ids::Attempt;
    use crate::store::Stamp;

    fn entry(seq: u64, bytes: usize) -> Entry {
        Entry {
            seq,
            attempt: Attempt(1),
            worker_seq: 0,
            time: Stamp(0),
            content: Bytes::from(vec![0; bytes]),
        }
    }

    fn seqs(page: Option<Page>) -> Option<(Vec<u64>, u64, bool)> {
        page.map(|page| {
            let seqs = page.entries.iter().map(|entry| entry.seq).collect();
            (seqs, page.head, page.ended)
        })
    }

    #[test]
    fn what_came_since_is_told_and_what_came_before_must_be_read() {
        let mut tail = Tail::default();
        assert_eq!(seqs(tail.read(1)), None);
        tail.head = Some(2);
        assert_eq!(seqs(tail.read(3)), Some((vec![], 2, false)));
        assert_eq!(seqs(tail.read(2)), None);
        tail.add(vec![entry(3, 1), entry(4, 1)], true);
        assert_eq!(seqs(tail.read(2)), None);
        assert_eq!(seqs(tail.read(3)), Some((vec![3, 4], 4, true)));
        assert_eq!(seqs(tail.read(5)), Some((vec![], 4, true)));
        assert_eq!(seqs(tail.read(9)), Some((vec![], 4, true)));
    }

    #[test]
    fn a_gap_in_what_came_must_be_read() {
        let mut tail = Tail::default();
        tail.add(vec![entry(3, 1)], false);
        tail.add(vec![entry(6, 1)], false);
        assert_eq!(seqs(tail.read(4)), None);
        assert_eq!(seqs(tail.read(6)), Some((vec![6], 6, false)));
        tail.lose();
        assert_eq!(seqs(tail.read(7)), None);
    }

    #[test]
    fn a_tail_holds_so_many_entries_and_bytes_and_no_more() {
        let mut tail = Tail::default();
        let count = TAIL.0 as u64 + 3;
        for seq in 1..=count {
            tail.add(vec![entry(seq, 1)], false);
        }
        assert_eq!(seqs(tail.read(3)), None);
        assert_eq!(seqs(tail.read(4)).map(|told| told.0.len()), Some(TAIL.0));
        tail.add(vec![entry(count + 1, TAIL.1 + 1)], false);
        assert_eq!((tail.entries.len(), tail.bytes), (0, 0));
        assert_eq!(seqs(tail.read(count + 1)), None);
        assert_eq!(
            seqs(tail.read(count + 2)),
            Some((vec![], count + 1, false))
        );
    }
}
