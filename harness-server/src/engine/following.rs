//! Following the journal of a durable run: from its tail where that reaches, else from the store.
//!
//! A follower sees nothing that is not on disk: a tail grows when the store has told of a step.

use std::sync::Arc;

use tokio::sync::watch;

use crate::envelope::Failure;
use crate::ids::RunId;
use crate::store::Page;

use super::Engine;
use super::durable::told;
use super::storing::Storage;

/// Entries of a journal that are read at once, and their bytes: what a follower that reads nothing
/// costs.
const PAGE: (usize, usize) = (64, 64 * 1024);

/// A reader of a durable run's journal; what is not on disk it does not see.
pub struct Followed {
    engine: Engine,
    storage: Arc<Storage>,
    run: RunId,
    from: u64,
    /// Whether what becomes of the work after the run's end is waited for, too.
    include_stop: bool,
    /// Whether it has been seen to have ended, which a tail that began later does not know.
    ended: bool,
    grown: watch::Receiver<()>,
}

impl Engine {
    /// Follows the journal of a durable run of a namespace from a number on, where the run is in
    /// memory or has just ended.
    #[must_use]
    pub fn follow_known(&self, run: RunId, namespace: &str, from: u64) -> Option<Followed> {
        let storage = self.0.storage.clone()?;
        let grown = {
            let state = &mut *self.lock();
            match state.core.durable_on_disk(run) {
                Some((agent, _)) if *agent.namespace != *namespace => return None,
                Some((_, head)) => state.tails.follow(run, Some(head)),
                None => state.tails.follow_ended(run, namespace)?,
            }
        };
        Some(self.followed(storage, run, from, grown))
    }

    /// Follows the journal of a durable run, which is on disk, from a number on.
    #[must_use]
    pub fn follow(&self, run: RunId, from: u64) -> Option<Followed> {
        let storage = self.0.storage.clone()?;
        let grown = self.lock().tails.follow(run, None);
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
            include_stop: false,
            ended: false,
            grown,
        }
    }
}

impl Followed {
    /// Has it end only when the run's work has stopped and that is on disk, too.
    #[must_use]
    pub fn including_stop(mut self, include_stop: bool) -> Self {
        self.include_stop = include_stop;
        self
    }

    /// The next entries, none when there are no more yet. The page has ended when none will come.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn next(&mut self) -> Result<Page, Box<Failure>> {
        self.grown.mark_unchanged();
        let (run, from) = (self.run, self.from);
        // Asked before the disk: what is owed no more by then is found there.
        let (kept, is_owed) = {
            let state = self.engine.lock();
            let is_owed = self.include_stop && state.core.is_owed(run);
            (state.tails.read(run, from), is_owed)
        };
        let mut page = match kept {
            Some(page) => page,
            None => {
                let read = self.engine.reading(&self.storage, move |_, storage| {
                    storage.store().journal(run, from, PAGE.0, PAGE.1)
                });
                read.await.map_err(told)?
            }
        };
        self.ended |= page.ended;
        page.ended = self.ended && !is_owed;
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
        self.engine.lock().tails.leave(self.run);
    }
}
