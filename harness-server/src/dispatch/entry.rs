//! A run as Core keeps it, beside what `run` decides of it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use crate::envelope::Request;
use crate::ids::{SchemaId, WorkerId};
use crate::journal::Journal;
use crate::run::Run;

use super::claim::Claim;
use super::durable::Durable;
use super::placing::Judgement;
use super::{Core, Placing, Timer};

/// A place in a queue: higher priority first, then the order of asking.
pub(super) type QueueKey = (Reverse<i32>, u64);

/// A run and what Core needs to place it.
#[derive(Debug)]
pub(super) struct RunEntry {
    pub(super) run: Run,
    pub(super) request: Arc<Request>,
    pub(super) frame_bytes: u64,
    /// Labels its slot must have.
    pub(super) selector: BTreeMap<String, String>,
    /// Its place in the queue, the same each time it comes back to it.
    pub(super) order: QueueKey,
    /// Whether it counts against the limits of the queue.
    pub(super) waiting: bool,
    /// The worker it was not accepted by, or that gave it back.
    pub(super) avoid: Option<WorkerId>,
    pub(super) judgements: Vec<(SchemaId, Judgement)>,
    /// When its back-off or its attempt is over, while one of the two is under way.
    pub(super) timer: Option<(Instant, Timer)>,
    pub(super) created: Instant,
    pub(super) journal: Journal,
    /// Who reads the journal as it grows.
    pub(super) watchers: u32,
    /// Whether a slow caller slows the worker.
    pub(super) paced: bool,
    /// Entries the caller of a paced run has not taken, and their worker_seq.
    pub(super) unread: VecDeque<(u64, u64)>,
    /// Who has the newest attempt, or had it while no other has begun. Interactive runs have one
    /// only where their worker may come back.
    pub(super) claim: Option<Box<Claim>>,
    /// What it has when it is durable.
    pub(super) durable: Option<Box<Durable>>,
}

impl RunEntry {
    /// Whether it waits for its next attempt, and is in no queue meanwhile.
    pub(super) fn is_backing_off(&self) -> bool {
        matches!(self.timer, Some((_, Timer::Retry(_))))
    }

    #[cfg(test)]
    pub(super) fn is_being_judged(&self) -> bool {
        let mut judgements = self.judgements.iter();
        judgements.any(|(_, judgement)| matches!(judgement, Judgement::Awaited))
    }

    /// What the worker of the newest attempt has sent is taken up to here.
    pub(super) fn has_taken(&mut self, worker_seq: u64) {
        if let Some(claim) = &mut self.claim {
            claim.taken = worker_seq;
        }
    }

    /// The worker_seq of the reply that the newest attempt has ended with; 0 where none was taken.
    pub(super) fn reply_seq(&self) -> u64 {
        self.claim.as_ref().map_or(0, |claim| claim.reply_seq)
    }

    /// The last worker_seq that the worker may be told of, of those up to `taken`.
    pub(super) fn acknowledged(&self, taken: u64) -> u64 {
        // What a slow caller has not read stays unacknowledged, however often it comes.
        let unread = self.unread.front();
        let seq = unread.map_or(taken, |(_, first)| first - 1);
        // Nor is what is on its way to the disk there yet.
        let durable = self.durable.as_ref();
        durable.map_or(seq, |durable| seq.min(durable.written))
    }
}

impl Core {
    /// A run as it begins in Core.
    pub(super) fn run_entry(
        &mut self,
        now: Instant,
        run: Run,
        request: Arc<Request>,
        placing: Placing,
    ) -> RunEntry {
        RunEntry {
            run,
            frame_bytes: request.frame_bytes(),
            request,
            selector: placing.selector,
            order: (Reverse(placing.priority), self.next_order()),
            waiting: false,
            avoid: None,
            judgements: Vec::new(),
            timer: None,
            created: now,
            journal: Journal::default(),
            watchers: 0,
            paced: placing.paced,
            unread: VecDeque::new(),
            claim: None,
            durable: None,
        }
    }
}
