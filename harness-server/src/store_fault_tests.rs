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
fn what_does_not_fit_is_refused_whole_and_what_does_is_written() {
    let folder = folder();
    let store = open_small(folder.path(), 40);
    let small = run(1);
    assert_eq!(write(&store, enqueue(&small, "asked")), Ok(Written::Done));
    let large = run(2);
    let mut step = enqueue(&large, "asked");
    if let Step::Enqueue { entries, .. } = &mut step {
        entries[0].content = vec![0; 1 << 20].into();
    }
    assert_eq!(write(&store, step), Err(StoreError::Full));
    assert_eq!(store.get(large.id), Ok(None), "nothing of it");
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
        let mut step = enqueue(&run(at), "asked");
        if let (10, Step::Enqueue { entries, .. }) = (at, &mut step) {
            entries[0].content = vec![0; 1 << 20].into();
        }
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
