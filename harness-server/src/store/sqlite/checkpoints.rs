//! Moving the log into the file, off the way of commits, and often enough that the log stays short.
//!
//! A commit that writes over what the log held before takes half the time of one that makes the log
//! longer. SQLite begins the log anew when all of it has been moved and nobody reads it; a checkpoint
//! that runs beside the writer never gets that far under load. So each time the log has grown, a
//! thread moves what there is, and then the writer stops for the little that has come meanwhile.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rusqlite::Connection;
use tracing::warn;

/// How much longer the log gets before it is moved, in pages of 4 KiB.
const EVERY_PAGES: i32 = 2048;

thread_local! {
    /// How long the log was after the newest commit of this thread, in pages.
    static LOG_PAGES: Cell<i32> = const { Cell::new(0) };
}

#[derive(Default)]
pub(super) struct Checkpoints {
    state: Mutex<State>,
    changed: Condvar,
    /// Whether little is left to be moved.
    nearly: AtomicBool,
}

#[derive(Default)]
struct State {
    due: bool,
    stopped: bool,
}

/// The writer's side.
pub(super) struct Log<'a> {
    checkpoints: &'a Checkpoints,
    /// How long the log was when it was moved last, as it may not have begun anew.
    moved_at: i32,
}

impl<'a> Log<'a> {
    /// The log of a connection, to be used on the thread that writes over that.
    pub(super) fn new(checkpoints: &'a Checkpoints, connection: &Connection) -> Self {
        connection.wal_hook(Some(|_, pages| {
            LOG_PAGES.set(pages);
            Ok(())
        }));
        Self {
            checkpoints,
            moved_at: 0,
        }
    }

    /// Something was committed.
    pub(super) fn committed(&mut self, connection: &Connection) {
        let pages = LOG_PAGES.get();
        if self.checkpoints.nearly.swap(false, Ordering::Relaxed) {
            checkpoint(connection);
            self.moved_at = pages;
        }
        if pages < self.moved_at {
            self.moved_at = 0;
        }
        if pages - self.moved_at >= EVERY_PAGES {
            self.moved_at = pages;
            self.checkpoints.lock().due = true;
            self.checkpoints.changed.notify_one();
        }
    }
}

impl Checkpoints {
    pub(super) fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_one();
    }

    /// Runs until it is stopped.
    pub(super) fn run(&self, connection: &Connection) {
        loop {
            let mut state = self.lock();
            while !state.due && !state.stopped {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if state.stopped {
                return;
            }
            state.due = false;
            drop(state);
            checkpoint(connection);
            self.nearly.store(true, Ordering::Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn checkpoint(connection: &Connection) {
    let moved = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    if let Err(error) = moved {
        // The log goes on and is longer than it might be; nothing is lost.
        warn!(%error, "cannot move the store's log into its file");
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::super::super::{Step, Store};
    use super::super::Sqlite;
    use crate::ids::AgentKey;
    use crate::store::Stamp;

    /// Commits until the log has been moved so many times its limit.
    fn write(store: &Sqlite, commits: usize) {
        for at in 0..commits {
            let (done, told) = mpsc::channel();
            let agent = AgentKey::new("", &format!("agent-{at}-{}", "x".repeat(3000)));
            let step = Step::KeepAgent {
                agent,
                seen: Stamp(1),
            };
            store.write(
                step,
                Box::new(move |outcome| done.send(outcome).expect("the test waits")),
            );
            let outcome = told.recv_timeout(Duration::from_secs(10));
            outcome.expect("it is told").expect("it is written");
        }
    }

    fn log_pages(folder: &Path) -> u64 {
        let log = folder.join("harness.db-wal");
        std::fs::metadata(log).expect("a log").len() / 4120
    }

    #[test]
    fn the_log_is_written_over_and_not_made_longer_for_ever() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let store = Sqlite::open(folder.path()).expect("a store");
        let limit = u64::try_from(super::EVERY_PAGES).expect("a length");
        // Each commit is a page at the least, so this is many times the limit.
        let begun = Instant::now();
        let mut commits = 0;
        while commits < 4 * limit && begun.elapsed() < Duration::from_secs(60) {
            write(&store, 256);
            commits += 256;
        }
        assert!(commits >= 2 * limit, "{commits} commits");
        let pages = log_pages(folder.path());
        assert!(pages < 2 * limit, "{pages} pages after {commits} commits");
    }
}
