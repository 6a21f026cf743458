//! The ended runs that are still known, in the order of their ends.
//!
//! Owns how long and how many. They lie in a row, each over the one that was forgotten: at full load
//! they come and go with every ask, and what is scattered is cold when it goes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ahash::AHashMap;

use crate::ids::RunId;
use crate::journal::Journal;

use super::claim::Claim;
use super::{RunView, trim};

/// Runs that are looked at for each that ends: those that are read stay, and more may be too much
/// than one.
const LOOKED_AT: usize = 16;

/// An ended run.
#[derive(Debug)]
pub(super) struct Past {
    pub(super) id: RunId,
    pub(super) at: Instant,
    pub(super) view: RunView,
    pub(super) journal: Journal,
    pub(super) watchers: u32,
    /// Who had its last attempt, where its worker may have come back to it.
    pub(super) claim: Option<Box<Claim>>,
    /// Whether its worker still owes a released.
    pub(super) owed: bool,
}

/// What is kept at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) time: Duration,
    pub(super) runs: usize,
    /// Of what workers wrote into the journals.
    pub(super) bytes: usize,
}

/// The ended runs, the oldest first.
#[derive(Debug, Default)]
pub(super) struct History {
    runs: VecDeque<Past>,
    /// The place of each, counted from the first that ever was.
    places: AHashMap<RunId, u64>,
    forgotten: u64,
    bytes: usize,
    /// When they are looked through next; none when all that are left are read.
    pub(super) wake: Option<Instant>,
}

impl History {
    pub(super) fn len(&self) -> usize {
        self.runs.len()
    }

    pub(super) fn get(&self, id: RunId) -> Option<&Past> {
        self.runs.get(self.place(id)?)
    }

    pub(super) fn get_mut(&mut self, id: RunId) -> Option<&mut Past> {
        let place = self.place(id)?;
        self.runs.get_mut(place)
    }

    /// Adds a run that has just ended, in place of what is too old or too much.
    pub(super) fn keep(&mut self, now: Instant, past: Past, kept: Kept) {
        self.bytes += past.journal.written_bytes();
        let old = |history: &Self| {
            history.runs.front().is_some_and(|oldest| {
                now >= oldest.at + kept.time
                    || history.runs.len() >= kept.runs
                    || history.bytes > kept.bytes
            })
        };
        for _ in 0..LOOKED_AT {
            if !old(self) {
                break;
            }
            self.forget_oldest();
        }
        self.push(past);
    }

    /// Forgets those that ended so long ago, but for those that are read; gives when the next that
    /// can be forgotten ended.
    pub(super) fn forget_old(&mut self, now: Instant, time: Duration) -> Option<Instant> {
        let is_old = |past: &Past| now >= past.at + time;
        for _ in 0..self.runs.len() {
            if !self.runs.front().is_some_and(is_old) {
                break;
            }
            self.forget_oldest();
        }
        if self.runs.is_empty() {
            self.runs = VecDeque::new();
        }
        self.runs
            .front()
            .filter(|past| !is_old(past))
            .map(|past| past.at)
    }

    #[cfg(test)]
    pub(super) fn all_are_read(&self) -> bool {
        self.runs.iter().all(|past| past.watchers > 0)
    }

    fn forget_oldest(&mut self) {
        let Some(oldest) = self.runs.pop_front() else {
            return;
        };
        self.forgotten += 1;
        if oldest.watchers > 0 {
            return self.push(oldest);
        }
        self.places.remove(&oldest.id);
        trim(&mut self.places);
        self.bytes -= oldest.journal.written_bytes();
    }

    fn push(&mut self, past: Past) {
        let place = self.forgotten + self.runs.len() as u64;
        self.places.insert(past.id, place);
        self.runs.push_back(past);
    }

    fn place(&self, id: RunId) -> Option<usize> {
        let place = self.places.get(&id)? - self.forgotten;
        usize::try_from(place).ok()
    }
}
