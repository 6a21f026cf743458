//! What a store says and does when its file or its disk is not as it should be.

use std::fs;
use std::sync::Arc;

use tempfile::TempDir;

use super::contract_tests::{agent, enqueue, entry, run, write};
use super::sqlite::tests::open_small;
use super::*;

fn folder() -> TempDir {
    TempDir::new().expect("a folder of its own")
}

fn refusal(folder: &TempDir) -> StoreError {
    Sqlite::open(folder.path())
        .map(|_| "a store")
        .expect_err("refused")
}

#[test]
fn what_was_told_of_is_there_after_it_is_opened_again() {
    let folder = folder();
    let run = run(1);
    {
        let store = Sqlite::open(folder.path()).expect("a store");
        assert_eq!(write(&store, enqueue(&run, "asked")), Ok(Written::Done));
    }
    let store = Sqlite::open(folder.path()).expect("a store");
    let record = store.get(run.id).expect("readable").expect("known");
    assert_eq!((record.run, record.head), (run, 1));
}

#[test]
fn a_store_that_is_closed_leaves_no_log_behind() {
    for at in 1..=20 {
        let folder = folder();
        let store = Sqlite::open(folder.path()).expect("a store");
        assert_eq!(write(&store, enqueue(&run(at), "asked")), Ok(Written::Done));
        assert!(store.agents().expect("readable").is_empty());
        drop(store);
        let log = folder.path().join("harness.db-wal");
        assert!(!log.exists(), "the log is in the file");
    }
}

#[test]
fn whoever_is_told_of_a_step_may_be_the_last_to_hold_the_store() {
    let folder = folder();
    let store = Arc::new(Sqlite::open(folder.path()).expect("a store"));
    let (done, told) = std::sync::mpsc::channel();
    let (let_go, free) = std::sync::mpsc::channel::<()>();
    let last = store.clone();
    let tell: Done = Box::new(move |_| {
        free.recv().expect("the test lets go first");
        drop(last);
        done.send(()).expect("the test waits");
    });
    store.write(enqueue(&run(1), "asked"), tell);
    drop(store);
    let_go.send(()).expect("it waits");
    told.recv()
        .expect("the thread that writes has not panicked");
}

#[test]
fn a_folder_has_one_harness_at_a_time() {
    let folder = folder();
    let store = Sqlite::open(folder.path()).expect("a store");
    assert_eq!(refusal(&folder), StoreError::InUse);
    drop(store);
    Sqlite::open(folder.path()).expect("a store");
}

#[test]
fn a_newer_schema_is_refused_and_left_as_it_is() {
    let folder = folder();
    drop(Sqlite::open(folder.path()).expect("a store"));
    let file = folder.path().join("harness.db");
    let connection = rusqlite::Connection::open(&file).expect("a file");
    connection
        .pragma_update(None, "user_version", 99)
        .expect("writable");
    assert_eq!(refusal(&folder), StoreError::NewerSchema);
    let version: i64 = connection
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .expect("readable");
    assert_eq!(version, 99);
}

#[test]
fn a_file_that_is_no_store_is_refused() {
    let folder = folder();
    let noise: Vec<u8> = (0..8192_u32).map(|at| (at * 7 % 251) as u8).collect();
    fs::write(folder.path().join("harness.db"), noise).expect("writable");
    assert_eq!(refusal(&folder), StoreError::Corrupt);
}

#[test]
fn a_file_that_becomes_corrupt_fails_what_is_asked_of_it() {
    let folder = folder();
    let file = folder.path().join("harness.db");
    let run = run(1);
    {
        let store = Sqlite::open(folder.path()).expect("a store");
        assert_eq!(write(&store, enqueue(&run, "asked")), Ok(Written::Done));
    }
    // All but the first page, which says that it is a file of SQLite's.
    let mut bytes = fs::read(&file).expect("readable");
    bytes[4096..].fill(0xA5);
    fs::write(&file, bytes).expect("writable");
    let store = Sqlite::open(folder.path()).expect("its first page is whole");
    assert_eq!(store.get(run.id), Err(StoreError::Corrupt));
    let made = write(&store, enqueue(&super::contract_tests::run(2), "asked"));
    assert_eq!(made, Err(StoreError::Corrupt));
}

#[test]
fn a_file_system_that_cannot_be_written_is_refused() {
    let sealed = std::path::Path::new("/proc/harness-store");
    let refused = Sqlite::open(sealed).map(|_| "a store");
    assert!(
        matches!(refused, Err(StoreError::ReadOnly | StoreError::Failed(_))),
        "{refused:?}"
    );
}

#[test]
fn what_is_in_the_place_of_a_store_is_told_in_words() {
    let folder = folder();
    let file = folder.path().join("harness.db");
    let other = rusqlite::Connection::open(&file).expect("a file");
    other
        .execute_batch("CREATE TABLE runs (of TEXT)")
        .expect("writable");
    drop(other);
    let refused = refusal(&folder).to_string();
    assert!(refused.contains("something else"), "{refused}");
    assert!(!refused.contains("CREATE"), "{refused}");
    for place in [file.clone(), file.join("below")] {
        let refused = Sqlite::open(&place).map(|_| "a store").expect_err("a file");
        assert!(refused.to_string().contains("name a folder"), "{refused}");
    }
    let read = read_file(&file, None, |_, _| true).expect_err("no journal");
    assert!(read.to_string().contains("holds no journal"), "{read}");
}

#[test]
fn nothing_is_acknowledged_once_a_file_is_not_where_it_was() {
    for file in ["harness.db", "harness.db-wal", "harness.lock"] {
        let folder = folder();
        // As one that is opened again, its log empty.
        drop(Sqlite::open(folder.path()).expect("a store"));
        let store = Sqlite::open(folder.path()).expect("a store");
        assert_eq!(
            write(&store, enqueue(&run(1), "asked")),
            Ok(Written::Done),
            "{file}"
        );
        let (file, aside) = (folder.path().join(file), folder.path().join("aside"));
        fs::rename(&file, &aside).expect("movable");
        for replaced in [false, true] {
            if replaced {
                fs::copy(&aside, &file).expect("copyable");
            }
            let refused = write(&store, enqueue(&run(2), "asked"));
            let refused = refused.expect_err("it would be lost").to_string();
            assert!(refused.contains(&file.display().to_string()), "{refused}");
        }
        fs::rename(&aside, &file).expect("movable");
        let back = write(&store, enqueue(&run(3), "asked"));
        assert_eq!(back, Ok(Written::Done), "what was not lost goes on");
    }
}

#[test]
fn whoever_reads_a_file_slowly_does_not_keep_its_log_from_being_moved() {
    let folder = folder();
    let store = Sqlite::open(folder.path()).expect("a store");
    let runs = [run(1), run(2), run(3)];
    for run in &runs {
        assert_eq!(write(&store, large(run, 1 << 20)), Ok(Written::Done));
    }
    let file = folder.path().join("harness.db");
    let other = rusqlite::Connection::open(&file).expect("a file");
    other
        .busy_timeout(std::time::Duration::ZERO)
        .expect("a setting");
    let mut seen = Vec::new();
    let slow = |of: RunId, entry: Entry| {
        let moving = "PRAGMA wal_checkpoint(TRUNCATE)";
        let busy = other.query_row(moving, [], |row| row.get::<_, i64>(0));
        assert_eq!(busy, Ok(0), "nobody reads in the log");
        seen.push((of, entry.seq));
        true
    };
    read_file(&file, None, slow).expect("readable");
    assert_eq!(seen, runs.each_ref().map(|run| (run.id, 1)));
    let mut of_one = Vec::new();
    let one = |of: RunId, _| {
        of_one.push(of);
        true
    };
    read_file(&file, Some(runs[1].id), one).expect("readable");
    assert_eq!(of_one, [runs[1].id], "no other's");
}

#[test]
fn runs_with_long_journals_are_forgotten_one_by_one() {
    let folder = folder();
    let store = Sqlite::open(folder.path()).expect("a store");
    for run in [run(1), run(2), run(3)] {
        let ended = Step::Finish {
            fence: Fence {
                run: run.id,
                attempt: Attempt(0),
                head: 1,
            },
            state: State::Cancelled,
            reply_seq: 0,
            entries: vec![entry(2, 0, "ended")],
        };
        for step in [large(&run, 9 << 20), ended] {
            assert_eq!(write(&store, step), Ok(Written::Done));
        }
    }
    let forget = || {
        let (before, max) = (Stamp(3_600_000_000), 10);
        write(&store, Step::Forget { before, max })
    };
    for count in [1, 1, 1, 0] {
        assert_eq!(forget(), Ok(Written::Forgotten(count)));
    }
}

/// A run that asks so much.
fn large(run: &NewRun, bytes: usize) -> Step {
    let mut step = enqueue(run, "asked");
    if let Step::Enqueue { entries, .. } = &mut step {
        entries[0].content = vec![0; bytes].into();
    }
    step
}

#[test]
fn what_does_not_fit_is_refused_whole_and_what_does_is_written() {
    let folder = folder();
    let store = open_small(folder.path(), 40);
    let small = run(1);
    assert_eq!(write(&store, enqueue(&small, "asked")), Ok(Written::Done));
    let too_large = run(2);
    let step = large(&too_large, 1 << 20);
    assert_eq!(write(&store, step), Err(StoreError::Full));
    assert_eq!(store.get(too_large.id), Ok(None), "nothing of it");
    let append = Step::Append {
        fence: Fence {
            run: small.id,
            attempt: Attempt(0),
            head: 1,
        },
        entries: vec![entry(2, 0, "fits")],
        replayed: None,
    };
    assert_eq!(write(&store, append), Ok(Written::Done));
}

#[test]
fn steps_that_share_a_commit_with_one_that_does_not_fit_are_written() {
    let folder = folder();
    let store = open_small(folder.path(), 60);
    let (done, told) = std::sync::mpsc::channel();
    for at in 1..=20 {
        let step = match at {
            10 => large(&run(at), 1 << 20),
            _ => enqueue(&run(at), "asked"),
        };
        let done = done.clone();
        let tell: Done = Box::new(move |outcome| {
            done.send((at, outcome)).expect("the test waits");
        });
        store.write(step, tell);
    }
    drop(done);
    for (at, outcome) in told {
        let expected = match at {
            10 => Err(StoreError::Full),
            _ => Ok(Written::Done),
        };
        assert_eq!(outcome, expected, "run {at}");
    }
}

#[test]
fn a_planned_fault_comes_at_its_step_and_goes() {
    let store = Faulty::over(Arc::new(Memory::default()));
    store.begin(1, Fault::Fails(StoreError::Full));
    let (first, second) = (run(1), run(2));
    assert_eq!(write(&store, enqueue(&first, "x")), Ok(Written::Done));
    assert_eq!(write(&store, enqueue(&second, "x")), Err(StoreError::Full));
    assert_eq!(store.find(&agent(), "k"), Err(StoreError::Full));
    store.end();
    assert_eq!(write(&store, enqueue(&second, "x")), Ok(Written::Done));
    assert_eq!(store.seen(), ["enqueue", "enqueue", "enqueue"]);

    store.begin(0, Fault::Stalls);
    let (done, told) = std::sync::mpsc::channel();
    let tell: Done = Box::new(move |outcome| done.send(outcome).expect("the test waits"));
    store.write(enqueue(&run(3), "x"), tell);
    assert!(told.try_recv().is_err(), "neither written nor refused");
    store.end();
    assert_eq!(told.try_recv(), Ok(Ok(Written::Done)));
}
