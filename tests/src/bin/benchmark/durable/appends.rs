//! Rows of appends: through the store alone, beside bare SQLite.

use std::sync::{Arc, mpsc};
use std::time::Instant;

use bytes::Bytes;
use harness_server::ids::{AgentKey, Attempt, RunId};
use harness_server::store::{Entry, Fence, NewRun, Sqlite, Stamp, Step, Store};
use tempfile::TempDir;
use uuid::Uuid;

use super::{AGENT, LOAD, bare};
use crate::report::{Row, median, row};

/// Appends a second through the store and through bare SQLite, `group` at once.
pub(super) fn appends(group: usize, rounds: usize) -> Row {
    let pairs: Vec<(f64, f64)> = (0..rounds.max(1))
        .map(|_| (bare::appends(group, LOAD), stored(group)))
        .collect();
    let bare = median(pairs.iter().map(|pair| pair.0));
    let ours = median(pairs.iter().map(|pair| pair.1));
    let ratio = median(pairs.iter().map(|pair| pair.1 / pair.0));
    row(
        format!("appends in groups of {group}"),
        format!(
            "{:.0} k/s, bare SQLite {:.0} k/s: {ratio:.2}",
            ours / 1e3,
            bare / 1e3
        ),
        "0.7 in groups of 64",
    )
}

fn stored(group: usize) -> f64 {
    let folder = TempDir::new().expect("a folder");
    let store = Sqlite::open(folder.path()).expect("a store");
    let (done, told) = mpsc::channel();
    let write = |step: Step| {
        let done = done.clone();
        store.write(
            step,
            Box::new(move |outcome| {
                outcome.expect("it is written");
                done.send(()).expect("the benchmark waits");
            }),
        );
    };
    let wait = |count: usize| (0..count).for_each(|_| told.recv().expect("it is told"));
    let entry = |seq: u64| Entry {
        seq,
        attempt: Attempt(0),
        worker_seq: seq,
        time: Stamp(0),
        content: Bytes::from(vec![b'x'; bare::CONTENT]),
    };
    let runs: Vec<RunId> = (0..group).map(|_| RunId(Uuid::now_v7())).collect();
    for id in &runs {
        write(Step::Enqueue {
            run: Arc::new(NewRun {
                id: *id,
                agent: AgentKey::new("", AGENT),
                key: String::new(),
                priority: 0,
                created: Stamp(0),
                start: None,
                deadline: Stamp(i64::MAX),
                caller: String::new(),
                depth: 0,
                options: Bytes::new(),
                labels: Default::default(),
            }),
            entries: vec![entry(1)],
            first: None,
        });
    }
    wait(group);
    let (begin, mut head) = (Instant::now(), 1);
    while begin.elapsed() < LOAD {
        for run in &runs {
            write(Step::Append {
                fence: Fence {
                    run: *run,
                    attempt: Attempt(0),
                    head,
                },
                entries: vec![entry(head + 1)],
                replayed: None,
            });
        }
        wait(group);
        head += 1;
    }
    (head - 1) as f64 * group as f64 / begin.elapsed().as_secs_f64()
}
