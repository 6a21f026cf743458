//! Which workers the processes of pools are: each another one.
//!
//! Owns the worker ids that are taken. Workers from elsewhere are not known here.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ids::WorkerId;

/// The worker ids that processes go by at present; clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Workers(Arc<Mutex<HashSet<WorkerId>>>);

/// Why a process cannot be the worker that its hello says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotItself {
    /// It said to be another one before.
    #[error(
        "worker.worker_id is another than that of the hello before: a process makes one when it \
         starts"
    )]
    Changed,
    /// Another process is it, and what is done to the one would happen to the other.
    #[error(
        "worker.worker_id is that of another process of a pool: each process makes its own when \
         it starts"
    )]
    Taken,
}

impl Workers {
    /// Takes a worker id; false when it is taken.
    pub(super) fn take(&self, worker: WorkerId) -> bool {
        self.lock().insert(worker)
    }

    pub(super) fn give_back(&self, worker: WorkerId) {
        self.lock().remove(&worker);
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<WorkerId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
