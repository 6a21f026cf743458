//! The steps that wait for the writer, in their order.
//!
//! Bounded: what comes beyond is refused at once.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::super::{Done, Step, StoreError};

/// Steps that may wait.
const STEPS_MAX: usize = 65_536;

/// Bytes they may hold.
const BYTES_MAX: usize = 64 * 1024 * 1024;

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
    /// Whether the writer sleeps; while it commits nobody need wake it, which is a system call.
    sleeps: bool,
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
        let sleeps = std::mem::take(&mut waiting.sleeps);
        drop(waiting);
        if sleeps {
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
            waiting.sleeps = true;
            waiting = self
                .changed
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
        }
        waiting.sleeps = false;
        let count = waiting.steps.len().min(GROUP_MAX);
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
