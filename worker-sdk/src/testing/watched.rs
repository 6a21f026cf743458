//! A journal that is watched and can crash.
//!
//! Owns what one attempt wrote, how large an entry may be and the count at which it writes no more. Keeps nothing for the next
//! attempt: that is the journal below.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::journal::{Appending, Entry, Journal, Recorded};
use crate::wire;

pub(super) struct Watched {
    journal: Arc<dyn Journal>,
    crash_at: usize,
    entry_bytes_max: u64,
    written: Mutex<Vec<Entry>>,
    crashed: CancellationToken,
}

impl Watched {
    pub(super) fn new(
        journal: Arc<dyn Journal>,
        crash_at: usize,
        entry_bytes_max: u64,
    ) -> Arc<Self> {
        Arc::new(Self {
            journal,
            crash_at,
            entry_bytes_max,
            written: Mutex::default(),
            crashed: CancellationToken::new(),
        })
    }

    pub(super) fn written(&self) -> Vec<Entry> {
        self.lock().clone()
    }

    pub(super) async fn crashed(&self) {
        self.crashed.cancelled().await;
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Journal for Watched {
    fn replay(&self) -> Vec<Recorded> {
        self.journal.replay()
    }

    fn append(&self, entry: Entry) -> Appending<'_> {
        Box::pin(async move {
            if self.lock().len() + 1 >= self.crash_at {
                self.crashed.cancel();
                return std::future::pending().await;
            }
            wire::entries::within(&entry, self.entry_bytes_max)?;
            self.journal.append(entry.clone()).await?;
            self.lock().push(entry);
            Ok(())
        })
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched")
            .field("crash_at", &self.crash_at)
            .field("written", &self.written())
            .finish_non_exhaustive()
    }
}
