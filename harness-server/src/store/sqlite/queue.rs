//! The steps that wait for the writer, in their order.
//!
//! Bounded: what comes beyond is refused at once. Half of the room is for runs that have little in
//! here, so that a few that write faster than the disk do not keep all others out.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use ahash::AHashMap;

use super::super::{Done, Step, StoreError};
use crate::ids::RunId;

/// Steps that may wait.
const STEPS_MAX: usize = 65_536;

/// Bytes they may hold.
const BYTES_MAX: usize = 64 * 1024 * 1024;

/// Steps of one run, and their bytes, that may wait once half of the room is taken: more than a
/// worker may have unacknowledged.
const LITTLE: Held = Held {
    steps: 256,
    bytes: 1024 * 1024,
};

/// Steps that share a commit at most, so that none waits long for the others.
const GROUP_MAX: usize = 1024;

#[derive(Default)]
pub(super) struct Queue {
    backlog: Mutex<Backlog>,
    changed: Condvar,
}

/// Steps that wait, and what they hold.
#[derive(Default)]
struct Backlog {
    steps: VecDeque<(Step, Done)>,
    bytes: usize,
    runs: AHashMap<RunId, Held>,
    closed: bool,
    /// Whether the writer is to be woken: not while it commits, as waking is a system call.
    writer_sleeps: bool,
}

/// What waits of a run.
#[derive(Clone, Copy, Default)]
struct Held {
    steps: usize,
    bytes: usize,
}

impl Backlog {
    /// Why a step may not wait, if it may not.
    fn refusal(&self, step: &Step) -> Option<StoreError> {
        if self.closed {
            return Some(StoreError::Failed("it is closed".to_owned()));
        }
        let (steps, bytes) = (self.steps.len(), self.bytes);
        let is_full = steps >= STEPS_MAX || bytes > BYTES_MAX;
        let is_half_full = steps >= STEPS_MAX / 2 || bytes > BYTES_MAX / 2;
        let held = step.run().and_then(|run| self.runs.get(&run));
        let holds_much =
            held.is_some_and(|held| held.steps >= LITTLE.steps || held.bytes > LITTLE.bytes);
        let by_run = !is_full;
        (is_full || (is_half_full && holds_much)).then_some(StoreError::Overloaded { by_run })
    }

    fn put(&mut self, step: Step, done: Done) {
        self.bytes += step.bytes();
        if let Some(run) = step.run() {
            let held = self.runs.entry(run).or_default();
            held.steps += 1;
            held.bytes += step.bytes();
        }
        self.steps.push_back((step, done));
    }

    fn take(&mut self, max: usize) -> Vec<(Step, Done)> {
        let count = self.steps.len().min(max);
        let group: Vec<_> = self.steps.drain(..count).collect();
        for (step, _) in &group {
            self.bytes -= step.bytes();
            if let Some(run) = step.run()
                && let Some(held) = self.runs.get_mut(&run)
            {
                held.steps -= 1;
                held.bytes -= step.bytes();
                if held.steps == 0 {
                    self.runs.remove(&run);
                }
            }
        }
        group
    }
}

impl Queue {
    pub(super) fn put(&self, step: Step, done: Done) {
        let mut backlog = self.lock();
        if let Some(error) = backlog.refusal(&step) {
            drop(backlog);
            return done(Err(error));
        }
        backlog.put(step, done);
        let wakes = std::mem::take(&mut backlog.writer_sleeps);
        drop(backlog);
        if wakes {
            self.changed.notify_one();
        }
    }

    /// Waits for steps and takes those that may share a commit; none when it is closed and empty.
    pub(super) fn take(&self) -> Option<Vec<(Step, Done)>> {
        let mut backlog = self.lock();
        while backlog.steps.is_empty() {
            if backlog.closed {
                return None;
            }
            backlog.writer_sleeps = true;
            backlog = self
                .changed
                .wait(backlog)
                .unwrap_or_else(PoisonError::into_inner);
        }
        Some(backlog.take(GROUP_MAX))
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Backlog> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::store::{Entry, Fence, Stamp};
    use uuid::Uuid;

    /// An append of a run. Whether it may wait.
    fn waits(queue: &Queue, run: u128, bytes: usize) -> bool {
        refusal(queue, run, bytes).is_none()
    }

    /// An append of a run. Why it may not wait, if so.
    fn refusal(queue: &Queue, run: u128, bytes: usize) -> Option<StoreError> {
        let run = RunId(Uuid::from_u128(run));
        let entry = Entry {
            seq: 2,
            attempt: crate::ids::Attempt(1),
            worker_seq: 1,
            time: Stamp(0),
            content: vec![0; bytes].into(),
        };
        let step = Step::Append {
            fence: Fence {
                run,
                attempt: entry.attempt,
                head: 1,
            },
            entries: vec![entry],
            replayed: None,
        };
        let (refused, told) = mpsc::channel();
        // One that waits is told nothing here.
        queue.put(step, Box::new(move |outcome| drop(refused.send(outcome))));
        told.try_recv().ok().and_then(Result::err)
    }

    #[test]
    fn a_run_that_writes_faster_than_the_disk_keeps_no_other_out() {
        for (size, count) in [(1 << 20, 33), (0, STEPS_MAX / 2)] {
            let queue = Queue::default();
            let taken = (0..2 * STEPS_MAX).take_while(|_| waits(&queue, 1, size));
            assert!(taken.count().abs_diff(count) <= 1, "half of the room");
            let flood = StoreError::Overloaded { by_run: true };
            assert_eq!(refusal(&queue, 1, size), Some(flood));
            for other in 2..200 {
                assert!(waits(&queue, other, 128 * 1024), "run {other}");
            }
            while !queue.lock().steps.is_empty() {
                queue.take().expect("it is not closed");
            }
            assert!(queue.lock().runs.is_empty(), "nothing is left of a run");
            assert_eq!(queue.lock().bytes, 0);
            assert!(waits(&queue, 1, size), "it has room again");
        }
    }

    #[test]
    fn all_that_waits_together_is_bounded() {
        let queue = Queue::default();
        let taken = (0..1000).take_while(|run| waits(&queue, *run, 1 << 20));
        assert!(taken.count() <= BYTES_MAX / (1 << 20) + 1);
        let full = StoreError::Overloaded { by_run: false };
        assert_eq!(refusal(&queue, 1000, 0), Some(full));
    }
}
