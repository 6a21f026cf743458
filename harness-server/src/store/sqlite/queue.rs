//! The steps that wait for the writer, in their order.
//!
//! Bounded: what comes beyond is refused at once. A commit costs as much for one step as for ten, on
//! this side and on that of whoever is told, so the writer waits a little for as many as came last
//! time. One that comes by itself never waits.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::super::{Done, Step, StoreError};

/// Steps that may wait.
const STEPS_MAX: usize = 65_536;

/// Bytes they may hold.
const BYTES_MAX: usize = 64 * 1024 * 1024;

/// How long the writer waits at most for as many steps as the commit before had.
const GATHER: Duration = Duration::from_micros(300);

/// Steps that are always enough: waiting for more would only have runs in flight go in step.
const ENOUGH: usize = 8;

/// Steps that share a commit at most, so that none waits long for the others.
const GROUP_MAX: usize = 1024;

#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    steps: VecDeque<(Step, Done)>,
    bytes: usize,
    closed: bool,
    /// How many steps the sleeping writer is to be woken for; none while it commits, as waking is a
    /// system call.
    wake_at: Option<usize>,
    /// How many steps the commit before had.
    last: usize,
}

impl Waiting {
    /// How many steps are worth a commit.
    fn enough(&self) -> usize {
        self.last.min(ENOUGH)
    }

    /// Whether more are worth waiting for.
    fn are_few(&self) -> bool {
        self.steps.len() < self.enough() && !self.closed
    }
}

impl Queue {
    pub(super) fn put(&self, step: Step, done: Done) {
        let mut waiting = self.lock();
        let refused = if waiting.closed {
            Some(StoreError::Failed("it is closed".to_owned()))
        } else if waiting.steps.len() >= STEPS_MAX || waiting.bytes > BYTES_MAX {
            Some(StoreError::Overloaded)
        } else {
            None
        };
        if let Some(error) = refused {
            drop(waiting);
            return done(Err(error));
        }
        waiting.bytes += step.bytes();
        waiting.steps.push_back((step, done));
        let count = waiting.steps.len();
        let wakes = waiting.wake_at.take_if(|wake_at| count >= *wake_at);
        drop(waiting);
        if wakes.is_some() {
            self.changed.notify_one();
        }
    }

    /// Waits for steps and takes those that may share a commit; none when it is closed and empty.
    pub(super) fn take(&self) -> Option<Vec<(Step, Done)>> {
        let mut waiting = self.lock();
        while waiting.steps.is_empty() {
            if waiting.closed {
                return None;
            }
            waiting.wake_at = Some(1);
            waiting = self
                .changed
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if waiting.are_few() {
            waiting.wake_at = Some(waiting.enough());
            (waiting, _) = self
                .changed
                .wait_timeout_while(waiting, GATHER, |waiting| waiting.are_few())
                .unwrap_or_else(PoisonError::into_inner);
        }
        waiting.wake_at = None;
        let count = waiting.steps.len().min(GROUP_MAX);
        waiting.last = count;
        let group: Vec<_> = waiting.steps.drain(..count).collect();
        waiting.bytes -= group.iter().map(|(step, _)| step.bytes()).sum::<usize>();
        Some(group)
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn put(queue: &Queue, count: usize) {
        for _ in 0..count {
            queue.put(Step::Flush, Box::new(|_| {}));
        }
    }

    fn take(queue: &Queue) -> Option<usize> {
        queue.take().map(|group| group.len())
    }

    /// Whether those that wait would wait for more.
    fn are_few(queue: &Queue) -> bool {
        queue.lock().are_few()
    }

    #[test]
    fn one_that_comes_by_itself_does_not_wait() {
        let queue = Queue::default();
        for _ in 0..3 {
            put(&queue, 1);
            assert!(!are_few(&queue));
            assert_eq!(take(&queue), Some(1));
        }
    }

    #[test]
    fn as_many_as_last_time_are_waited_for_and_not_for_ever() {
        let queue = Queue::default();
        put(&queue, 3);
        assert_eq!(take(&queue), Some(3));
        put(&queue, 1);
        assert!(are_few(&queue));
        let begin = Instant::now();
        assert_eq!(take(&queue), Some(1));
        assert!(begin.elapsed() >= GATHER);
        // One came the last time, so one is enough now, and what there is goes together.
        put(&queue, 50);
        assert!(!are_few(&queue));
        assert_eq!(take(&queue), Some(50));
        put(&queue, ENOUGH - 1);
        assert!(are_few(&queue));
        put(&queue, 1);
        assert!(!are_few(&queue));
        assert_eq!(take(&queue), Some(ENOUGH));
    }

    #[test]
    fn a_closed_queue_gives_what_it_has_and_waits_for_nothing() {
        let queue = Queue::default();
        put(&queue, ENOUGH);
        assert_eq!(take(&queue), Some(ENOUGH));
        put(&queue, 2);
        queue.close();
        assert!(!are_few(&queue));
        assert_eq!((take(&queue), take(&queue)), (Some(2), None));
    }
}
