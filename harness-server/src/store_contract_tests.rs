//! What every store does, run on each: another backend is one more line at the end.

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;
use uuid::Uuid;

use super::*;

pub(super) const BOUND: Duration = Duration::from_secs(10);

/// A store and what it stands on.
pub(super) struct Subject {
    pub(super) store: Arc<dyn Store>,
    _folder: Option<TempDir>,
}

fn memory() -> Subject {
    Subject {
        store: Arc::new(Memory::default()),
        _folder: None,
    }
}

fn sqlite() -> Subject {
    let folder = TempDir::new().expect("a folder of its own");
    Subject {
        store: Arc::new(Sqlite::open(folder.path()).expect("a store")),
        _folder: Some(folder),
    }
}

/// One that can be told to fail, and has not been.
fn faulty() -> Subject {
    Subject {
        store: Arc::new(Faulty::over(memory().store)),
        _folder: None,
    }
}

pub(super) fn write(store: &dyn Store, step: Step) -> Result<Written, StoreError> {
    let (done, told) = mpsc::channel();
    let done: Done = Box::new(move |outcome| done.send(outcome).expect("the test waits"));
    store.write(step, done);
    told.recv_timeout(BOUND).expect("every step is told of")
}

pub(super) fn agent() -> AgentKey {
    AgentKey::new("", "echo")
}

/// A run made at the millisecond `at`.
pub(super) fn run(at: u64) -> NewRun {
    let id = Uuid::new_v7(uuid::Timestamp::from_unix_time(
        at / 1000,
        (at % 1000) as u32 * 1_000_000,
        0,
        0,
    ));
    NewRun {
        id: RunId(id),
        agent: agent(),
        key: String::new(),
        priority: 0,
        created: Stamp(at as i64 * 1000),
        start: None,
        deadline: Stamp(i64::MAX),
        caller: "anonymous".to_owned(),
        depth: 3,
        options: Bytes::from_static(b"options"),
        labels: BTreeMap::new(),
    }
}

pub(super) fn entry(seq: u64, attempt: u32, text: &'static str) -> Entry {
    Entry {
        seq,
        attempt: Attempt(attempt),
        worker_seq: 0,
        time: Stamp(seq as i64),
        content: Bytes::from_static(text.as_bytes()),
    }
}

pub(super) fn enqueue(run: &NewRun, asked: &'static str) -> Step {
    Step::Enqueue {
        run: Arc::new(run.clone()),
        entries: vec![entry(1, 0, asked)],
        first: None,
    }
}

fn holder(number: u8) -> Holder {
    Holder {
        worker: WorkerId(Uuid::from_u128(number.into())),
        lease: Lease([number; 16]),
    }
}

pub(super) fn fence(run: &NewRun, attempt: u32, head: u64) -> Fence {
    Fence {
        run: run.id,
        attempt: Attempt(attempt),
        head,
    }
}

pub(super) fn start(run: &NewRun, attempt: u32, head: u64) -> Step {
    Step::StartAttempt {
        fence: fence(run, attempt, head),
        holder: holder(7),
        entries: vec![entry(head + 1, attempt + 1, "started")],
    }
}

pub(super) fn append(run: &NewRun, attempt: u32, head: u64) -> Step {
    let mut first = entry(head + 1, attempt, "step");
    first.worker_seq = 1;
    let mut second = entry(head + 2, attempt, "output");
    second.worker_seq = 2;
    Step::Append {
        fence: fence(run, attempt, head),
        entries: vec![first, second],
        replayed: Some("v1".to_owned()),
    }
}

pub(super) fn finish(run: &NewRun, attempt: u32, head: u64) -> Step {
    Step::Finish {
        fence: fence(run, attempt, head),
        state: State::Succeeded,
        reply_seq: 3,
        entries: vec![
            entry(head + 1, attempt, "attempt ended"),
            entry(head + 2, 0, "run ended"),
        ],
    }
}

fn a_run_goes_from_its_start_to_its_end_by_steps(store: &dyn Store) {
    let run = run(1);
    assert_eq!(store.get(run.id), Ok(None));
    for step in [
        enqueue(&run, "asked"),
        start(&run, 0, 1),
        append(&run, 1, 2),
        Step::EndAttempt {
            fence: fence(&run, 1, 4),
            counts: Counts {
                counted: 1,
                uncounted_in_row: 2,
                killed: 3,
            },
            not_before: Some(Stamp(50)),
            entries: vec![entry(5, 1, "lost")],
        },
    ] {
        assert_eq!(write(store, step), Ok(Written::Done));
    }
    let record = store.get(run.id).expect("readable").expect("known");
    assert_eq!(
        (record.state, record.attempt, record.head),
        (State::Queued, Attempt(1), 5)
    );
    assert_eq!(
        (record.counts.counted, record.counts.killed),
        (1, 3),
        "{record:?}"
    );
    assert_eq!(record.counts.uncounted_in_row, 2);
    assert_eq!(record.not_before, Some(Stamp(50)));
    assert_eq!(record.replayed.as_deref(), Some("v1"));
    assert_eq!(record.run, run);
    let extent = store.extent(run.id, Attempt(1)).expect("readable");
    let written = "step".len() + "output".len();
    assert_eq!((extent.worker_seq, extent.bytes), (2, written as u64));
    let journal = store.journal(run.id, 1, 99, usize::MAX).expect("readable");
    let mut first = journal.entries.iter().filter(|it| it.attempt == Attempt(1));
    assert_eq!(extent.began, first.next().map(|entry| entry.time));
    assert!(extent.began.is_some(), "{extent:?}");

    for step in [start(&run, 1, 5), finish(&run, 2, 6)] {
        assert_eq!(write(store, step), Ok(Written::Done));
    }
    let record = store.get(run.id).expect("readable").expect("known");
    assert_eq!(record.state, State::Succeeded);
    assert_eq!(record.ended, Some((Stamp(8), 8)));
    assert_eq!((record.reply_seq, record.not_before), (3, None));
    assert_eq!(record.holder, Some(holder(7)));

    let note = Step::Note {
        run: run.id,
        attempt: Attempt(2),
        time: Stamp(9),
        content: Bytes::from_static(b"stopped"),
    };
    assert_eq!(write(store, note), Ok(Written::Done));
    let page = store.journal(run.id, 0, 100, 1 << 20).expect("readable");
    let seqs: Vec<u64> = page.entries.iter().map(|entry| entry.seq).collect();
    assert_eq!((seqs, page.head, page.ended), ((1..=9).collect(), 9, true));
    assert_eq!(page.entries[2].worker_seq, 1);
}

fn a_first_attempt_may_come_with_the_run(store: &dyn Store) {
    let run = run(1);
    let step = Step::Enqueue {
        run: Arc::new(run.clone()),
        entries: vec![entry(1, 0, "asked"), entry(2, 1, "started")],
        first: Some(holder(3)),
    };
    assert_eq!(write(store, step), Ok(Written::Done));
    let record = store.get(run.id).expect("readable").expect("known");
    assert_eq!(
        (record.state, record.attempt, record.holder),
        (State::Running, Attempt(1), Some(holder(3)))
    );
}

fn a_step_behind_another_attempt_or_head_writes_nothing(store: &dyn Store) {
    let run = run(1);
    for step in [enqueue(&run, "asked"), start(&run, 0, 1)] {
        assert_eq!(write(store, step), Ok(Written::Done));
    }
    let before = store.get(run.id);
    for stale in [
        append(&run, 0, 2),
        append(&run, 1, 1),
        append(&run, 1, 3),
        append(&run, 2, 2),
        start(&run, 0, 2),
        start(&run, 1, 1),
        finish(&run, 1, 1),
        finish(&run, 0, 2),
        Step::Note {
            run: run.id,
            attempt: Attempt(1),
            time: Stamp(1),
            content: Bytes::new(),
        },
    ] {
        assert_eq!(write(store, stale), Err(StoreError::Fenced));
    }
    assert_eq!(store.get(run.id), before);
    assert_eq!(write(store, finish(&run, 1, 2)), Ok(Written::Done));
    for late in [append(&run, 1, 4), start(&run, 1, 4), finish(&run, 1, 4)] {
        assert_eq!(write(store, late), Err(StoreError::Fenced));
    }
    let page = store.journal(run.id, 1, 100, 1 << 20).expect("readable");
    assert_eq!(page.entries.len(), 4);
}

fn one_key_has_one_run(store: &dyn Store) {
    let keyed = |at, key: &str| NewRun {
        key: key.to_owned(),
        ..run(at)
    };
    let first = keyed(1, "k");
    assert_eq!(write(store, enqueue(&first, "same")), Ok(Written::Done));
    let again = write(store, enqueue(&keyed(2, "k"), "same"));
    assert_eq!(again, Ok(Written::Existing(first.id)));
    let other = write(store, enqueue(&keyed(3, "k"), "other"));
    assert_eq!(other, Ok(Written::Conflict(first.id)));
    assert_eq!(store.find(&agent(), "k"), Ok(Some(first.id)));
    assert_eq!(store.find(&agent(), ""), Ok(None));

    let elsewhere = NewRun {
        agent: AgentKey::new("other", "echo"),
        ..keyed(4, "k")
    };
    assert_eq!(write(store, enqueue(&elsewhere, "x")), Ok(Written::Done));
    for at in 5..7 {
        assert_eq!(write(store, enqueue(&run(at), "")), Ok(Written::Done));
    }
}

fn a_journal_is_read_in_pieces(store: &dyn Store) {
    let run = run(1);
    for step in [
        enqueue(&run, "12345"),
        start(&run, 0, 1),
        append(&run, 1, 2),
    ] {
        assert_eq!(write(store, step), Ok(Written::Done));
    }
    let read = |from, max, bytes| {
        let page = store.journal(run.id, from, max, bytes).expect("readable");
        let seqs: Vec<u64> = page.entries.iter().map(|entry| entry.seq).collect();
        (seqs, page.head)
    };
    assert_eq!(read(0, 2, 1000), (vec![1, 2], 4));
    assert_eq!(read(3, 10, 1000), (vec![3, 4], 4));
    assert_eq!(read(1, 10, 12), (vec![1, 2], 4));
    assert_eq!(read(2, 10, 1), (vec![2], 4), "one at least");
    assert_eq!(read(5, 10, 1000), (vec![], 4));
    for beyond in [u64::MAX, i64::MAX as u64 + 1] {
        let page = store.journal(run.id, beyond, 10, 1000).expect("readable");
        assert!(
            page.entries.is_empty() && page.head > 0,
            "{beyond}: {page:?}"
        );
    }
    let nobody = store.journal(RunId(Uuid::nil()), 1, 10, 1000);
    assert_eq!(nobody, Ok(Page::default()));
}

fn runs_are_listed_newest_first_and_as_asked(store: &dyn Store) {
    let labelled = |at, agent: &str, team: &str| NewRun {
        agent: AgentKey::new("", agent),
        labels: BTreeMap::from([("team".to_owned(), team.to_owned())]),
        ..run(at)
    };
    let runs = [
        labelled(1, "echo", "a"),
        labelled(2, "echo", "b"),
        labelled(3, "other", "a"),
        labelled(4, "echo", "a"),
    ];
    for run in &runs {
        assert_eq!(write(store, enqueue(run, "x")), Ok(Written::Done));
    }
    assert_eq!(write(store, start(&runs[3], 0, 1)), Ok(Written::Done));
    let all = Filter {
        namespace: "default".to_owned(),
        ..Filter::default()
    };
    let listed = |filter: &Filter, before: Option<RunId>, max| -> Vec<i64> {
        let records = store.list(filter, before, max).expect("readable");
        records.iter().map(|it| it.run.created.0 / 1000).collect()
    };
    assert_eq!(listed(&all, None, 10), [4, 3, 2, 1]);
    assert_eq!(listed(&all, None, 2), [4, 3]);
    assert_eq!(listed(&all, Some(runs[2].id), 10), [2, 1]);
    let with = |change: fn(&mut Filter)| {
        let mut filter = all.clone();
        change(&mut filter);
        listed(&filter, None, 10)
    };
    assert_eq!(with(|f| f.agent = "echo".to_owned()), [4, 2, 1]);
    assert_eq!(with(|f| f.states = vec![State::Running]), [4]);
    let states = with(|f| f.states = vec![State::Queued, State::Failed]);
    assert_eq!(states, [3, 2, 1]);
    let team = |f: &mut Filter| drop(f.labels.insert("team".to_owned(), "a".to_owned()));
    assert_eq!(with(team), [4, 3, 1]);
    assert_eq!(with(|f| f.created_from = Some(Stamp(3000))), [4, 3]);
    assert_eq!(with(|f| f.created_before = Some(Stamp(3000))), [2, 1]);
    assert_eq!(with(|f| f.namespace = "other".to_owned()), [0; 0]);
    let record = &store.list(&all, None, 1).expect("readable")[0];
    assert_eq!(record.run.labels, runs[3].labels);
}

fn what_has_not_ended_is_loaded_in_pages(store: &dyn Store) {
    let runs: Vec<NewRun> = (1..=5).map(run).collect();
    for run in &runs {
        for step in [enqueue(run, "x"), start(run, 0, 1)] {
            assert_eq!(write(store, step), Ok(Written::Done));
        }
    }
    assert_eq!(write(store, finish(&runs[1], 1, 2)), Ok(Written::Done));
    let ids = |records: &[Record]| -> Vec<RunId> { records.iter().map(|it| it.run.id).collect() };
    let first = store.unfinished(None, 3).expect("readable");
    assert_eq!(ids(&first), [runs[0].id, runs[2].id, runs[3].id]);
    assert_eq!((first[0].head, first[0].state), (2, State::Running));
    let rest = store.unfinished(Some(runs[3].id), 3).expect("readable");
    assert_eq!(ids(&rest), [runs[4].id]);
}

fn what_ended_long_ago_is_forgotten_in_batches(store: &dyn Store) {
    let runs: Vec<NewRun> = (1..=4).map(run).collect();
    for run in &runs[..3] {
        for step in [enqueue(run, "x"), start(run, 0, 1), finish(run, 1, 2)] {
            assert_eq!(write(store, step), Ok(Written::Done));
        }
    }
    assert_eq!(write(store, enqueue(&runs[3], "x")), Ok(Written::Done));
    let forget = |before, max| {
        let before = Stamp(before);
        write(store, Step::Forget { before, max })
    };
    // Their last entry, and so their end, is of the microsecond 4.
    assert_eq!(forget(4, 10), Ok(Written::Forgotten(0)));
    let hour = 3_600_000_000;
    assert_eq!(forget(hour, 2), Ok(Written::Forgotten(2)));
    assert_eq!(forget(hour, 2), Ok(Written::Forgotten(1)));
    assert_eq!(store.get(runs[0].id), Ok(None));
    assert_eq!(forget(hour, 2), Ok(Written::Forgotten(0)));
    let gone = store.journal(runs[0].id, 1, 10, 1000).expect("readable");
    assert_eq!((gone.entries.len(), gone.head), (0, 0));
    assert!(store.get(runs[3].id).expect("readable").is_some());
}

fn agents_are_remembered_by_when_they_were_seen(store: &dyn Store) {
    let other = AgentKey::new("team", "other");
    for (agent, seen) in [(&agent(), 1), (&other, 2), (&agent(), 3)] {
        let (agent, seen) = (agent.clone(), Stamp(seen));
        let kept = write(store, Step::KeepAgent { agent, seen });
        assert_eq!(kept, Ok(Written::Done));
    }
    let mut agents = store.agents().expect("readable");
    agents.sort();
    assert_eq!(agents, [(agent(), Stamp(3)), (other, Stamp(2))]);
    let (before, max) = (Stamp(3), 1);
    write(store, Step::Forget { before, max }).expect("writable");
    assert_eq!(store.agents(), Ok(vec![(agent(), Stamp(3))]));
}

fn steps_are_told_of_in_their_order_and_reads_see_what_was_told(store: &dyn Store) {
    let (done, told) = mpsc::channel();
    let runs: Vec<NewRun> = (1..=200).map(run).collect();
    for (at, run) in runs.iter().enumerate() {
        let done = done.clone();
        let tell: Done = Box::new(move |outcome| {
            outcome.expect("writable");
            done.send(at).expect("the test waits");
        });
        store.write(enqueue(run, "x"), tell);
    }
    for (at, run) in runs.iter().enumerate() {
        assert_eq!(told.recv_timeout(BOUND), Ok(at));
        assert!(store.get(run.id).expect("readable").is_some());
    }
    assert_eq!(write(store, Step::Flush), Ok(Written::Done));
}

fn a_closed_store_takes_nothing(store: &dyn Store) {
    let run = run(1);
    assert_eq!(write(store, enqueue(&run, "x")), Ok(Written::Done));
    store.close();
    let late = write(store, start(&run, 0, 1));
    assert!(matches!(late, Err(StoreError::Failed(_))), "{late:?}");
}

macro_rules! contract {
    (faults $($backend:ident),+: $law:ident) => {
        mod $law {
            $(#[test]
            fn $backend() {
                let subject = super::$backend();
                super::super::fault_contract_tests::$law(&subject.store);
            })+
        }
    };
    ($($backend:ident),+: $($law:ident),+ $(,)?) => {
        contract!(@each [$($backend),+] [$($law),+]);
    };
    (@each [$($backend:ident),+] $laws:tt) => {
        $(contract!(@one $backend $laws);)+
    };
    (@one $backend:ident [$($law:ident),+]) => {
        mod $backend {
            $(#[test]
            fn $law() {
                super::$law(&*super::$backend().store);
            })+
        }
    };
}

contract! {
    memory, sqlite, faulty:
    a_run_goes_from_its_start_to_its_end_by_steps,
    a_first_attempt_may_come_with_the_run,
    a_step_behind_another_attempt_or_head_writes_nothing,
    one_key_has_one_run,
    a_journal_is_read_in_pieces,
    runs_are_listed_newest_first_and_as_asked,
    what_has_not_ended_is_loaded_in_pages,
    what_ended_long_ago_is_forgotten_in_batches,
    agents_are_remembered_by_when_they_were_seen,
    steps_are_told_of_in_their_order_and_reads_see_what_was_told,
    a_closed_store_takes_nothing,
}

contract! {
    faults memory, sqlite: nothing_is_there_of_a_step_that_failed_and_it_can_be_written_afterwards
}

contract! {
    faults memory, sqlite: nothing_is_told_of_a_step_that_stalls_nor_of_those_behind_it
}
