//! Moving the log into the file, off the way of commits.
//!
//! A checkpoint that runs beside the writer never catches up with it, so the log would grow as long
//! as there is load. Once it is long, the writer stops for the little that the last one has left.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use rusqlite::Connection;
use tracing::warn;

/// What is written before the next checkpoint, in bytes.
const EVERY_BYTES: usize = 4 * 1024 * 1024;

/// How long the log may be before the writer stops for it, in pages of 4 KiB.
const PAGES_LONG: i64 = 8 * 1024;

#[derive(Default)]
pub(super) struct Checkpoints {
    state: Mutex<State>,
    changed: Condvar,
    is_long: AtomicBool,
}

#[derive(Default)]
struct State {
    bytes: usize,
    stopped: bool,
}

impl Checkpoints {
    /// So much was written.
    pub(super) fn written(&self, connection: &Connection, bytes: usize) {
        let due = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.bytes += bytes;
            state.bytes >= EVERY_BYTES
        };
        if due {
            self.changed.notify_one();
        }
        if self.is_long.swap(false, Ordering::Relaxed) {
            checkpoint(connection, "PASSIVE");
        }
    }

    pub(super) fn stop(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.stopped = true;
        drop(state);
        self.changed.notify_one();
    }

    /// Runs until it is stopped.
    pub(super) fn run(&self, connection: &Connection) {
        loop {
            {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                while state.bytes < EVERY_BYTES && !state.stopped {
                    state = self
                        .changed
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                if state.stopped {
                    return;
                }
                state.bytes = 0;
            }
            let pages = checkpoint(connection, "PASSIVE");
            self.is_long.store(pages > PAGES_LONG, Ordering::Relaxed);
        }
    }
}

/// Gives the length of the log in pages.
fn checkpoint(connection: &Connection, mode: &str) -> i64 {
    let sql = format!("PRAGMA wal_checkpoint({mode})");
    let done = connection.query_row(&sql, [], |row| row.get::<_, i64>(1));
    done.unwrap_or_else(|error| {
        // The log goes on and is longer than it might be; nothing is lost.
        warn!(%error, "cannot move the store's log into its file");
        0
    })
}
