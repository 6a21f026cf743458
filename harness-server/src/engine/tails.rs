//! The newest entries of durable runs that somebody follows. What comes on disk meanwhile is told
//! from here, so that only what came before is read. So are the ends of runs that have just ended:
//! whoever starts a short run often comes to follow it when it is over.
//!
//! Knows nothing of the store, nor of who follows.

use std::collections::VecDeque;
use std::sync::Arc;

use ahash::AHashMap;
use tokio::sync::watch;

use crate::dispatch::trim;
use crate::ids::RunId;
use crate::store::{Entry, Page};

/// The newest entries that are kept of a run that is followed, and their bytes. Who falls behind
/// them reads.
const TAIL: (usize, usize) = (64, 64 * 1024);

/// Runs that have just ended of which the end is kept, and the bytes of each.
const ENDED: (usize, usize) = (1024, 4 * 1024);

/// The tails of runs that are followed, and of such as have just ended.
#[derive(Default)]
pub(super) struct Tails {
    of: AHashMap<RunId, Tail>,
    /// The runs that ended while nobody followed them, the oldest first.
    ended: VecDeque<RunId>,
}

impl Tails {
    /// A run has these entries more on disk; gives the bell of who follows it.
    pub(super) fn add(&mut self, run: RunId, entries: Vec<Entry>) -> Option<watch::Sender<()>> {
        let tail = self.of.get_mut(&run)?;
        tail.add(entries);
        Some(tail.bell.clone())
    }

    /// A run of a namespace has ended with these entries.
    pub(super) fn end(
        &mut self,
        run: RunId,
        namespace: Option<Arc<str>>,
        entries: Vec<Entry>,
    ) -> Option<watch::Sender<()>> {
        let tail = self.of.entry(run).or_default();
        tail.add(entries);
        tail.ended = true;
        tail.namespace = namespace;
        if tail.followers > 0 {
            return Some(tail.bell.clone());
        }
        if tail.bytes > ENDED.1 {
            self.remove(run);
            return None;
        }
        self.ended.push_back(run);
        if self.ended.len() > ENDED.0 {
            self.forget_oldest();
        }
        None
    }

    /// Something was written of a run that only the disk knows; gives the bell of who follows it.
    pub(super) fn lose(&mut self, run: RunId) -> Option<watch::Sender<()>> {
        let tail = self.of.get_mut(&run)?;
        tail.lose();
        Some(tail.bell.clone())
    }

    /// Forgets the runs that have ended: they may be deleted.
    pub(super) fn forget_ended(&mut self) {
        while !self.ended.is_empty() {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(run) = self.ended.pop_front()
            && self.followers(run) == 0
        {
            self.remove(run);
        }
    }

    fn followers(&self, run: RunId) -> usize {
        self.of.get(&run).map_or(0, |tail| tail.followers)
    }

    fn remove(&mut self, run: RunId) {
        self.of.remove(&run);
        trim(&mut self.of);
    }

    /// Begins to follow a run whose journal is on disk up to `head`.
    pub(super) fn follow(&mut self, run: RunId, head: Option<u64>) -> watch::Receiver<()> {
        let tail = self.of.entry(run).or_default();
        tail.head = tail.head.or(head);
        tail.follow()
    }

    /// Begins to follow a run of a namespace that has just ended.
    pub(super) fn follow_ended(
        &mut self,
        run: RunId,
        namespace: &str,
    ) -> Option<watch::Receiver<()>> {
        let tail = self.of.get_mut(&run)?;
        let is_theirs = tail.namespace.as_deref()? == namespace;
        is_theirs.then(|| tail.follow())
    }

    /// What there is of a run from a number on; none when that has to be read.
    pub(super) fn read(&self, run: RunId, from: u64) -> Option<Page> {
        self.of.get(&run)?.read(from)
    }

    /// A follower leaves. Its end of the bell may be there for a moment longer, so that ends are not
    /// what is counted.
    pub(super) fn leave(&mut self, run: RunId) {
        let Some(tail) = self.of.get_mut(&run) else {
            return;
        };
        tail.followers = tail.followers.saturating_sub(1);
        if tail.followers == 0 {
            self.remove(run);
        }
    }
}

/// What has come on disk of a run lately.
#[derive(Default)]
struct Tail {
    bell: watch::Sender<()>,
    followers: usize,
    /// The newest ones, each one's number the one before plus 1, the last one's `head`.
    entries: VecDeque<Entry>,
    bytes: usize,
    /// The number of the newest entry on disk; none where that is not known here.
    head: Option<u64>,
    ended: bool,
    /// Whose a run is that has ended.
    namespace: Option<Arc<str>>,
}

impl Tail {
    fn follow(&mut self) -> watch::Receiver<()> {
        self.followers += 1;
        self.bell.subscribe()
    }

    /// A run has these entries more.
    fn add(&mut self, entries: Vec<Entry>) {
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
    }

    /// Something was written whose number is known on disk only.
    fn lose(&mut self) {
        self.entries.clear();
        self.bytes = 0;
        self.head = None;
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
        tail.add(vec![entry(3, 1), entry(4, 1)]);
        assert_eq!(seqs(tail.read(2)), None);
        assert_eq!(seqs(tail.read(3)), Some((vec![3, 4], 4, false)));
        assert_eq!(seqs(tail.read(5)), Some((vec![], 4, false)));
        assert_eq!(seqs(tail.read(9)), Some((vec![], 4, false)));
    }

    #[test]
    fn a_gap_in_what_came_must_be_read() {
        let mut tail = Tail::default();
        tail.add(vec![entry(3, 1)]);
        tail.add(vec![entry(6, 1)]);
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
            tail.add(vec![entry(seq, 1)]);
        }
        assert_eq!(seqs(tail.read(3)), None);
        assert_eq!(seqs(tail.read(4)).map(|told| told.0.len()), Some(TAIL.0));
        tail.add(vec![entry(count + 1, TAIL.1 + 1)]);
        assert_eq!((tail.entries.len(), tail.bytes), (0, 0));
        assert_eq!(seqs(tail.read(count + 1)), None);
        assert_eq!(seqs(tail.read(count + 2)), Some((vec![], count + 1, false)));
    }

    fn run(number: u128) -> RunId {
        RunId(uuid::Uuid::from_u128(number))
    }

    fn end(tails: &mut Tails, number: u128, bytes: usize) -> bool {
        let entries = vec![entry(3, bytes), entry(4, 1)];
        tails
            .end(run(number), Some("here".into()), entries)
            .is_some()
    }

    #[test]
    fn a_run_that_has_just_ended_is_followed_from_memory_in_its_namespace() {
        let mut tails = Tails::default();
        assert!(!end(&mut tails, 1, 1), "nobody follows it");
        assert!(tails.follow_ended(run(1), "elsewhere").is_none());
        let follower = tails.follow_ended(run(1), "here").expect("it is known");
        assert_eq!(seqs(tails.read(run(1), 3)), Some((vec![3, 4], 4, true)));
        assert_eq!(seqs(tails.read(run(1), 2)), None);
        tails.forget_ended();
        assert_eq!(seqs(tails.read(run(1), 5)), Some((vec![], 4, true)));
        tails.leave(run(1));
        drop(follower);
        assert!(tails.of.is_empty() && tails.ended.is_empty());
    }

    #[test]
    fn nothing_is_left_of_followers_that_leave_at_once() {
        let mut tails = Tails::default();
        let both = [(); 2].map(|()| tails.follow(run(1), Some(2)));
        end(&mut tails, 1, 1);
        // Each has yet to let go of its end of the bell.
        tails.leave(run(1));
        assert_eq!(seqs(tails.read(run(1), 3)), Some((vec![3, 4], 4, true)));
        tails.leave(run(1));
        drop(both);
        assert!(tails.of.is_empty());
    }

    #[test]
    fn so_many_ended_runs_are_kept_and_none_that_is_large() {
        let mut tails = Tails::default();
        for number in 0..=ENDED.0 as u128 {
            end(&mut tails, number, 1);
        }
        end(&mut tails, u128::MAX, ENDED.1);
        assert_eq!((tails.of.len(), tails.ended.len()), (ENDED.0, ENDED.0));
        assert_eq!(seqs(tails.read(run(0), 3)), None);
        assert_eq!(seqs(tails.read(run(1), 3)), Some((vec![3, 4], 4, true)));
        assert_eq!(seqs(tails.read(run(u128::MAX), 3)), None);
    }

    #[test]
    fn who_follows_a_run_until_its_end_is_rung_for() {
        let mut tails = Tails::default();
        let follower = tails.follow(run(1), Some(2));
        assert!(tails.add(run(1), vec![entry(3, 1)]).is_some());
        assert_eq!(seqs(tails.read(run(1), 3)), Some((vec![3], 3, false)));
        let ended = tails.end(run(1), Some("here".into()), vec![entry(4, 1)]);
        ended.expect("it is followed").send_modify(|()| {});
        assert!(follower.has_changed().expect("its bell is there"));
        assert_eq!(seqs(tails.read(run(1), 3)), Some((vec![3, 4], 4, true)));
        assert!(tails.lose(run(1)).is_some());
        assert_eq!(seqs(tails.read(run(1), 3)), None);
    }
}
