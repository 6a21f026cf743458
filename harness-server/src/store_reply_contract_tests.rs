//! What every store keeps of the reply that an attempt has ended with; run on each with the other laws.

use super::contract_tests::{enqueue, entry, fence, holder, run, start, write};
use super::*;

pub(super) fn a_row_has_the_number_of_its_newest_attempts_reply(store: &dyn Store) {
    let run = run(1);
    let failed = |attempt, head, reply_seq| Step::EndAttempt {
        fence: fence(&run, attempt, head),
        counts: Counts::default(),
        not_before: None,
        reply_seq,
        entries: vec![entry(head + 1, attempt, "failed")],
    };
    let known = || store.get(run.id).expect("readable").expect("known");
    for (step, reply_seq) in [
        (enqueue(&run, "asked"), 0),
        (start(&run, 0, 1), 0),
        (failed(1, 2, 9), 9),
        (start(&run, 1, 3), 0),
        (failed(2, 4, 4), 4),
    ] {
        assert_eq!(write(store, step), Ok(Written::Done));
        let record = known();
        assert_eq!(record.reply_seq, reply_seq, "{record:?}");
    }
    assert_eq!(write(store, failed(2, 4, 8)), Err(StoreError::Fenced));
    assert_eq!(known().reply_seq, 4);
    let unfinished = store.unfinished(None, 10).expect("readable");
    assert_eq!(unfinished[0].reply_seq, 4, "it is taken in with that");
    assert_eq!(known().holder, Some(holder(7)), "and with whose it was");

    // The end that no reply has brought keeps the one before.
    let ended = Step::Finish {
        fence: fence(&run, 2, 5),
        state: State::Cancelled,
        reply_seq: 4,
        entries: vec![entry(6, 0, "run ended")],
    };
    assert_eq!(write(store, ended), Ok(Written::Done));
    let record = known();
    assert_eq!((record.state, record.reply_seq), (State::Cancelled, 4));
}
