//! What the disk and SQLite allow: the rows of durable runs written with nothing around them, over a
//! file that the store made, with the store's settings.

use std::time::{Duration, Instant};

use harness_server::store::{Sqlite, Store};
use rusqlite::{Connection, Transaction, params};
use tempfile::TempDir;
use uuid::Uuid;

use crate::report::median;

/// The bytes of an entry of a worker.
pub(super) const CONTENT: usize = 128;

/// How long the log gets before it is moved into the file, as the store has it.
const LOG_PAGES: i64 = 2048;

/// What runs came to.
pub(super) struct Bare {
    pub(super) runs_per_second: f64,
    /// The median of a commit with its statements.
    pub(super) commit: Duration,
}

fn connect(folder: &TempDir) -> Connection {
    Sqlite::open(folder.path()).expect("a store").close();
    let connection = Connection::open(folder.path().join("harness.db")).expect("a file");
    let set = |pragma: &str, value: &dyn rusqlite::ToSql| {
        connection
            .pragma_update(None, pragma, value)
            .expect("a setting");
    };
    set("synchronous", &"FULL");
    set("wal_autocheckpoint", &LOG_PAGES);
    connection
}

/// Rows a second when each of `group` runs gets one more in each commit.
pub(super) fn appends(group: usize, time: Duration) -> f64 {
    let folder = TempDir::new().expect("a folder");
    let mut connection = connect(&folder);
    let runs: Vec<[u8; 16]> = (0..group).map(|_| *Uuid::now_v7().as_bytes()).collect();
    let content = vec![b'x'; CONTENT];
    let (begin, mut rows) = (Instant::now(), 0_i64);
    while begin.elapsed() < time {
        let transaction = connection.transaction().expect("a transaction");
        for run in &runs {
            entry(&transaction, run, rows / group as i64 + 1, &content);
            rows += 1;
        }
        transaction.commit().expect("a commit");
    }
    rows as f64 / begin.elapsed().as_secs_f64()
}

/// Runs without steps, `group` at once, each of them in two commits as a durable run is.
pub(super) fn runs(group: usize, time: Duration) -> Bare {
    let folder = TempDir::new().expect("a folder");
    let mut connection = connect(&folder);
    let (begin, mut count, mut commits) = (Instant::now(), 0, Vec::new());
    while begin.elapsed() < time {
        let runs: Vec<[u8; 16]> = (0..group).map(|_| *Uuid::now_v7().as_bytes()).collect();
        for write in [made, ended] {
            let begun = Instant::now();
            let transaction = connection.transaction().expect("a transaction");
            for run in &runs {
                write(&transaction, run);
            }
            transaction.commit().expect("a commit");
            commits.push(begun.elapsed().as_secs_f64());
        }
        count += group;
    }
    Bare {
        runs_per_second: count as f64 / begin.elapsed().as_secs_f64(),
        commit: Duration::from_secs_f64(median(commits.into_iter())),
    }
}

fn made(transaction: &Transaction<'_>, run: &[u8; 16]) {
    transaction
        .prepare_cached(
            "INSERT INTO runs (run_id, namespace, agent, idempotency_key, priority, create_time, \
             deadline, caller, depth, options, state, attempt, counted, uncounted, killed, \
             worker_id, lease, reply_seq) VALUES (?1, 'default', 'echo', '', 0, 1, 1, 'anonymous', \
             0, x'', 2, 1, 0, 0, 0, ?1, ?1, 0)",
        )
        .and_then(|mut insert| insert.execute(params![run]))
        .expect("a row");
    entry(transaction, run, 1, &[0; 60]);
    entry(transaction, run, 2, &[0; CONTENT]);
}

fn ended(transaction: &Transaction<'_>, run: &[u8; 16]) {
    transaction
        .prepare_cached(
            "UPDATE runs SET state = 3, reply_seq = 1, end_time = 1, end_seq = 4, \
             not_before = NULL WHERE run_id = ?1",
        )
        .and_then(|mut update| update.execute(params![run]))
        .expect("a row");
    entry(transaction, run, 3, &[0; 4]);
    entry(transaction, run, 4, &[0; 32]);
}

fn entry(transaction: &Transaction<'_>, run: &[u8; 16], seq: i64, content: &[u8]) {
    transaction
        .prepare_cached("INSERT INTO journal VALUES (?1, ?2, 1, ?2, 0, ?3)")
        .and_then(|mut insert| insert.execute(params![run, seq, content]))
        .expect("a row");
}
