//! What every store does when a step fails or stalls, wherever in a run's life that is; run on each
//! with the other laws.

use std::sync::{Arc, mpsc};

use super::contract_tests::{BOUND, append, enqueue, entry, fence, finish, run, start, write};
use super::*;

/// A run's life in steps, its second attempt the one that ends it.
fn life(run: &NewRun) -> Vec<Step> {
    let ends = Step::EndAttempt {
        fence: fence(run, 1, 4),
        counts: Counts::default(),
        not_before: None,
        entries: vec![entry(5, 1, "lost")],
    };
    vec![
        enqueue(run, "asked"),
        start(run, 0, 1),
        append(run, 1, 2),
        ends,
        start(run, 1, 5),
        finish(run, 2, 6),
    ]
}

/// All that a store tells of a run.
fn told_of(store: &dyn Store, run: &NewRun) -> (Option<Record>, Vec<Entry>) {
    let record = store.get(run.id).expect("readable");
    let journal = store.journal(run.id, 1, 99, usize::MAX).expect("readable");
    (record, journal.entries)
}

fn assert_whole(store: &dyn Store, run: &NewRun) {
    let (record, entries) = told_of(store, run);
    assert_eq!(record.expect("known").state, State::Succeeded);
    let seqs: Vec<u64> = entries.iter().map(|entry| entry.seq).collect();
    assert_eq!(seqs, (1..=8).collect::<Vec<u64>>());
}

pub(super) fn nothing_is_there_of_a_step_that_failed_and_it_can_be_written_afterwards(
    store: &Arc<dyn Store>,
) {
    let errors = [
        StoreError::Full,
        StoreError::ReadOnly,
        StoreError::Corrupt,
        StoreError::Failed("it broke".to_owned()),
    ];
    for error in errors {
        let steps = life(&run(1)).len();
        for at in 0..steps {
            let (run, faulty) = (run(1), Faulty::over(store.clone()));
            faulty.begin(at, Fault::FailsWrites(error.clone()));
            for (number, step) in life(&run).into_iter().enumerate() {
                if number == at {
                    let before = told_of(&faulty, &run);
                    assert_eq!(write(&faulty, step.clone()), Err(error.clone()), "{at}");
                    assert_eq!(told_of(&faulty, &run), before, "nothing of step {at}");
                    faulty.end();
                }
                assert_eq!(write(&faulty, step), Ok(Written::Done), "{number} of {at}");
            }
            assert_whole(&faulty, &run);
        }
    }
}

pub(super) fn nothing_is_told_of_a_step_that_stalls_nor_of_those_behind_it(store: &Arc<dyn Store>) {
    let steps = life(&run(1)).len();
    for at in 0..steps {
        let (run, faulty) = (run(1), Faulty::over(store.clone()));
        let mut first = life(&run);
        let behind = first.split_off(at);
        for step in first {
            assert_eq!(write(&faulty, step), Ok(Written::Done), "before {at}");
        }
        faulty.begin(0, Fault::Stalls);
        let before = told_of(&faulty, &run);
        let (tell, told) = mpsc::channel();
        let count = behind.len();
        for (number, step) in behind.into_iter().enumerate() {
            let tell = tell.clone();
            let done: Done = Box::new(move |outcome| {
                tell.send((number, outcome)).expect("the test waits");
            });
            faulty.write(step, done);
        }
        assert!(told.try_recv().is_err(), "neither written nor refused");
        assert_eq!(told_of(&faulty, &run), before, "nothing of step {at}");
        faulty.end();
        for number in 0..count {
            let (of, outcome) = told.recv_timeout(BOUND).expect("every step is told of");
            assert_eq!((of, outcome), (number, Ok(Written::Done)), "behind {at}");
        }
        assert_whole(&faulty, &run);
    }
}
