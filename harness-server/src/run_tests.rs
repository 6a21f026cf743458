//! Every state of a run with every event and every cause, as one table; then attempts and where
//! the time went.

use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::{Cause, Event, Next, Run, State, Terms};
use crate::envelope::{Code, Failure, Payload};
use crate::ids::{Attempt, RunId, SlotId};
use crate::retry::Policy;

#[path = "run_walk_tests.rs"]
mod walk;

use Cell::{Again, Nothing, Replies, Runs, Waits, With};

const SECOND: Duration = Duration::from_secs(1);
const SLOT: SlotId = SlotId(3);
const ID: RunId = RunId(Uuid::from_u128(1));

/// What a cell expects: what follows, and where the run then stands.
#[derive(Clone, Copy, Debug)]
enum Cell {
    /// Nothing follows and nothing changes.
    Nothing,
    /// Nothing follows, it runs.
    Runs,
    /// Nothing follows, its worker may come back.
    Away,
    /// It waits for a slot again, at once.
    Again,
    /// It waits for a slot again after the first back-off.
    Waits,
    /// It ends with the reply.
    Replies,
    /// It ends with this code.
    With(Code),
}

struct Row(&'static str, fn() -> Event, [Cell; 5]);

fn failed(cause: Cause) -> Event {
    failed_with(cause, Code::WorkerLost)
}

fn failed_with(cause: Cause, code: Code) -> Event {
    Event::Failed(cause, Failure::new(code, "it broke"))
}

fn agent_error(retryable: bool) -> Event {
    let mut failure = Failure::new(Code::AgentError, "it broke");
    failure.retryable = retryable;
    Event::Failed(Cause::AgentError, failure)
}

const LOST: Cell = With(Code::WorkerLost);
const SLOW: Cell = With(Code::AttemptTimeout);
const BROKE: Cell = With(Code::ProtocolViolation);
const INVAL: Cell = With(Code::InvalidReply);
const AGENT: Cell = With(Code::AgentError);
const LARGE: Cell = With(Code::PayloadTooLarge);
const BUSY: Cell = With(Code::Busy);
const LATE: Cell = With(Code::DeadlineExceeded);
const STOP: Cell = With(Code::Cancelled);

/// The columns: queued; running the only attempt; running the first of three; the same with its
/// call lost; ended.
const COLUMNS: [&str; 5] = [
    "queued",
    "running 1 of 1",
    "running 1 of 3",
    "away 1 of 3",
    "ended",
];

#[rustfmt::skip]
const TABLE: &[Row] = &[
    //                                                                        queued   1 of 1   1 of 3   away     ended
    Row("delivered",                || Event::Delivered(SLOT),               [Runs   , Nothing, Nothing, Nothing, Nothing]),
    Row("replied",                  || Event::Replied(Payload::default()),   [Nothing, Replies, Replies, Nothing, Nothing]),
    Row("agent error",              || agent_error(false),                   [Nothing, AGENT  , AGENT  , AGENT  , Nothing]),
    Row("agent error, retryable",   || agent_error(true),                    [Nothing, AGENT  , Waits  , Waits  , Nothing]),
    Row("agent says invalid",       || failed_with(Cause::AgentError, Code::InvalidRequest),
                                                                             [Nothing, With(Code::InvalidRequest), With(Code::InvalidRequest), With(Code::InvalidRequest), Nothing]),
    Row("invalid reply",            || failed_with(Cause::InvalidReply, Code::InvalidReply),
                                                                             [Nothing, INVAL  , Waits  , Waits  , Nothing]),
    Row("protocol violation",       || failed_with(Cause::ProtocolViolation, Code::ProtocolViolation),
                                                                             [Nothing, BROKE  , Waits  , Waits  , Nothing]),
    Row("frame too large",          || failed_with(Cause::FrameTooLarge, Code::PayloadTooLarge),
                                                                             [Nothing, LARGE  , LARGE  , LARGE  , Nothing]),
    Row("lost",                     || failed(Cause::Lost),                  [Nothing, LOST   , Waits  , Waits  , Nothing]),
    Row("died",                     || failed(Cause::Died),                  [Nothing, LOST   , Waits  , Waits  , Nothing]),
    Row("attempt timeout",          || failed_with(Cause::AttemptTimeout, Code::AttemptTimeout),
                                                                             [Nothing, SLOW   , Waits  , Waits  , Nothing]),
    Row("not accepted",             || failed(Cause::NotAccepted),           [Nothing, Again  , Again  , Again  , Nothing]),
    Row("declined",                 || failed(Cause::Declined),              [Nothing, Again  , Again  , Again  , Nothing]),
    Row("restarted",                || failed(Cause::Restarted),             [Nothing, Again  , Again  , Again  , Nothing]),
    Row("call lost",                || Event::Lost,                          [Nothing, Cell::Away, Cell::Away, Nothing, Nothing]),
    Row("resumed",                  || Event::Resumed(SLOT),                 [Nothing, Runs   , Runs   , Runs   , Nothing]),
    Row("output seen",              || Event::OutputSeen,                    [Nothing, Nothing, Nothing, Nothing, Nothing]),
    Row("refused",                  || Event::Refused(Failure::new(Code::Busy, "full")),
                                                                             [BUSY   , BUSY   , BUSY   , BUSY   , Nothing]),
    Row("deadline passed",          || Event::DeadlinePassed("here".into()), [LATE   , LATE   , LATE   , LATE   , Nothing]),
    Row("cancelled",                || Event::Cancelled("hung up".into()),   [STOP   , STOP   , STOP   , STOP   , Nothing]),
];

fn terms(max_attempts: u32, now: Instant) -> Terms {
    Terms {
        deadline: now + 60 * SECOND,
        retry: Arc::new(Policy::attempts(max_attempts)),
        uncounted_max: 2,
        poison_max: 3,
    }
}

fn run_in(column: &str, now: Instant) -> Run {
    let max_attempts = if column.ends_with("of 3") { 3 } else { 1 };
    let mut run = Run::new(ID, terms(max_attempts, now), now);
    if column != "queued" {
        run.apply(now, Event::Delivered(SLOT));
    }
    if column == "away 1 of 3" {
        run.apply(now, Event::Lost);
    }
    if column == "ended" {
        run.apply(now, Event::Replied(Payload::default()));
    }
    run
}

fn standing(run: &Run) -> &'static str {
    match run.state() {
        State::Queued => "queued",
        State::Running(_) => "running",
        State::Away => "away",
        State::Ended => "ended",
    }
}

#[test]
fn every_state_answers_every_event_as_the_table_says() {
    let now = Instant::now();
    for Row(name, make, cells) in TABLE {
        for (column, cell) in COLUMNS.into_iter().zip(*cells) {
            let mut run = run_in(column, now);
            let before = standing(&run);
            let next = run.apply(now, make());
            let (fits, then) = match (cell, &next) {
                (Nothing, Next::Nothing) => (true, before),
                (Runs, Next::Nothing) => (true, "running"),
                (Cell::Away, Next::Nothing) => (true, "away"),
                (Again, Next::Requeue) | (Waits, Next::BackOff(1, _)) => (true, "queued"),
                (Replies, Next::Ended(Ok(_))) => (true, "ended"),
                (With(code), Next::Ended(Err(failure))) => (failure.code == code, "ended"),
                (Nothing | Runs | Cell::Away | Again | Waits | Replies | With(_), _) => (false, ""),
            };
            assert!(fits, "{name}, {column}: {next:?} is not {cell:?}");
            assert_eq!(standing(&run), then, "{name}, {column}");
        }
    }
}

/// The events by name, so that a new one does not compile until it is counted here.
fn kind(event: &Event) -> &'static str {
    match event {
        Event::Delivered(_) => "delivered",
        Event::Replied(_) => "replied",
        Event::Failed(Cause::AgentError, _) => "agent error",
        Event::Failed(Cause::InvalidReply, _) => "invalid reply",
        Event::Failed(Cause::ProtocolViolation, _) => "protocol violation",
        Event::Failed(Cause::FrameTooLarge, _) => "frame too large",
        Event::Failed(Cause::Lost, _) => "lost",
        Event::Failed(Cause::Died, _) => "died",
        Event::Failed(Cause::AttemptTimeout, _) => "attempt timeout",
        Event::Failed(Cause::NotAccepted, _) => "not accepted",
        Event::Failed(Cause::Declined, _) => "declined",
        Event::Failed(Cause::Restarted, _) => "restarted",
        Event::Lost => "call lost",
        Event::Resumed(_) => "resumed",
        Event::OutputSeen => "output seen",
        Event::Refused(_) => "refused",
        Event::DeadlinePassed(_) => "deadline passed",
        Event::Cancelled(_) => "cancelled",
    }
}

#[test]
fn the_table_has_every_event_and_every_cause() {
    const KINDS: usize = 18;
    let mut kinds: Vec<&str> = TABLE.iter().map(|Row(_, make, _)| kind(&make())).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds.len(), KINDS, "{kinds:?}");
}

#[test]
fn a_run_never_has_two_outcomes() {
    let now = Instant::now();
    for Row(first, make_first, _) in TABLE {
        for Row(second, make_second, _) in TABLE {
            for column in COLUMNS {
                let mut run = run_in(column, now);
                let ended = [make_first(), make_second(), make_first()]
                    .into_iter()
                    .map(|event| run.apply(now, event))
                    .filter(|next| matches!(next, Next::Ended(_)))
                    .count();
                let most = usize::from(column != "ended");
                assert!(ended <= most, "{first}, then {second}, {column}");
            }
        }
    }
}

#[test]
fn every_delivery_has_its_own_number() {
    let now = Instant::now();
    let mut run = Run::new(ID, terms(1, now), now);
    assert_eq!(run.attempt(), Attempt(0));
    for attempt in 1..=2 {
        assert_eq!(run.next_delivery().attempt, Attempt(attempt));
        run.apply(now, Event::Delivered(SLOT));
        assert_eq!(run.attempt(), Attempt(attempt));
        run.apply(now, failed(Cause::NotAccepted));
    }
}

/// Delivers and fails with each cause in turn, and returns the failure the last one ends with.
fn fail_with(max_attempts: u32, causes: &[Cause]) -> Option<Box<Failure>> {
    let now = Instant::now();
    let mut run = Run::new(ID, terms(max_attempts, now), now);
    let mut ended = None;
    for cause in causes {
        assert!(ended.is_none(), "it ended before {cause:?}");
        run.apply(now, Event::Delivered(SLOT));
        match run.apply(now, failed(*cause)) {
            Next::Requeue | Next::BackOff(..) => {}
            Next::Ended(outcome) => ended = Some(outcome.expect_err("it failed")),
            Next::Nothing => panic!("a failure of a running delivery has a consequence"),
        }
    }
    ended
}

#[test]
fn the_third_uncounted_delivery_in_a_row_counts() {
    use Cause::{Declined, Lost, NotAccepted};

    assert!(fail_with(1, &[Declined, NotAccepted]).is_none());
    let failure = fail_with(1, &[Declined, NotAccepted, Declined]).expect("the third counts");
    assert_eq!(failure.attempt, Attempt(3));
    assert_eq!(failure.run, Some(ID));
    let said = "3 deliveries in a row were not taken, the last: it broke";
    assert_eq!(failure.message, said);

    // Something counted in between starts the row anew.
    let row = [Declined, Declined, Lost, Declined, Declined];
    assert!(fail_with(2, &row).is_none());
    // Two are no third, whatever follows.
    let failure = fail_with(1, &[Declined, Declined, Lost]).expect("the loss counts");
    assert_eq!(failure.message, "it broke");
    // The third of a row counts as one attempt and starts the row anew.
    let twice = [Declined; 6];
    assert!(fail_with(3, &twice).is_none());
    assert!(fail_with(2, &twice).is_some());
}

#[test]
fn when_attempts_run_out_the_last_error_says_how_many() {
    let failure = fail_with(3, &[Cause::Lost; 3]).expect("three attempts were all");
    assert_eq!(failure.message, "it broke (attempt 3 of 3)");
    assert_eq!(failure.attempt, Attempt(3));
    let only = fail_with(1, &[Cause::Lost]).expect("one attempt was all");
    assert_eq!(only.message, "it broke", "one of one is not worth a word");
}

#[test]
fn an_end_from_outside_counts_no_attempt() {
    let now = Instant::now();
    let mut run = Run::new(ID, terms(4, now), now);
    for _ in 0..2 {
        run.apply(now, Event::Delivered(SLOT));
        run.apply(now, failed(Cause::Lost));
    }
    run.apply(now, Event::Delivered(SLOT));
    let next = run.apply(now, Event::Cancelled("the caller hung up".into()));
    assert_eq!(message(next), "the caller hung up");
}

fn message(next: Next) -> String {
    match next {
        Next::Ended(Err(failure)) => failure.message,
        Next::Ended(Ok(_)) | Next::Nothing | Next::Requeue | Next::BackOff(..) => {
            panic!("{next:?} is no failure")
        }
    }
}

#[test]
fn a_deadline_while_queued_says_how_long_and_why() {
    let now = Instant::now();
    let mut run = Run::new(ID, terms(1, now), now);
    let why = Event::DeadlinePassed("all 4 slots busy".into());
    assert_eq!(
        message(run.apply(now + 1700 * SECOND / 1000, why)),
        "deadline passed after 1.700 s: 1.700 s queued: all 4 slots busy"
    );
}

#[test]
fn a_deadline_while_running_says_where() {
    let now = Instant::now();
    let mut run = Run::new(ID, terms(1, now), now);
    run.apply(now + SECOND / 2, Event::Delivered(SLOT));
    let place = Event::DeadlinePassed("on worker \"w\"".into());
    assert_eq!(
        message(run.apply(now + 2 * SECOND, place)),
        "deadline passed after 2.000 s: 0.500 s queued, 1.500 s running: attempt 1 on worker \"w\""
    );
}

#[test]
fn a_deadline_while_queued_again_adds_both_up() {
    let now = Instant::now();
    let mut run = Run::new(ID, terms(2, now), now);
    run.apply(now + SECOND, Event::Delivered(SLOT));
    run.apply(now + 3 * SECOND, failed(Cause::Lost));
    let why = Event::DeadlinePassed("its only slot is busy".into());
    assert_eq!(
        message(run.apply(now + 7 * SECOND, why)),
        "deadline passed after 7.000 s: 5.000 s queued, 2.000 s running: its only slot is busy"
    );
}

#[test]
fn the_wait_before_a_retry_is_numbered_by_the_attempts_that_counted() {
    let now = Instant::now();
    let mut run = Run::new(ID, terms(4, now), now);
    let mut waits = Vec::new();
    for cause in [
        Cause::Lost,
        Cause::Declined,
        Cause::Died,
        Cause::AttemptTimeout,
    ] {
        run.apply(now, Event::Delivered(SLOT));
        waits.push(match run.apply(now, failed(cause)) {
            Next::BackOff(retry, failure) => {
                assert_eq!(failure.message, "it broke", "it may be the answer");
                Some(retry)
            }
            Next::Requeue => None,
            next @ (Next::Nothing | Next::Ended(_)) => panic!("{next:?}"),
        });
    }
    assert_eq!(waits, [Some(1), None, Some(2), Some(3)]);
}

#[test]
fn a_run_that_kills_its_workers_is_poisoned() {
    let killed = fail_with(16, &[Cause::Died, Cause::Lost, Cause::Died, Cause::Died]);
    let failure = killed.expect("the third worker is the last");
    assert_eq!(failure.code, Code::Poisoned);
    let said = "the run has killed 3 workers, which is the limit; the last: it broke";
    assert_eq!(failure.message, said);
    assert_eq!((failure.run, failure.attempt), (Some(ID), Attempt(4)));
    let cause = failure.cause.as_ref().expect("what killed the last");
    assert_eq!(cause.code, Code::WorkerLost);
    assert!(!failure.retryable);
    assert!(
        fail_with(16, &[Cause::Lost; 15]).is_none(),
        "a loss kills nobody"
    );
    assert!(fail_with(16, &[Cause::Died, Cause::Died, Cause::Lost]).is_none());
    let spent = fail_with(3, &[Cause::Died; 3]).expect("three were all");
    assert_eq!(spent.code, Code::Poisoned, "it is worse than spent");
    let spent = fail_with(2, &[Cause::Died; 2]).expect("two were all");
    assert_eq!(spent.code, Code::WorkerLost);
}

#[test]
fn after_its_output_was_seen_no_failure_is_tried_again() {
    let now = Instant::now();
    for Row(name, make, _) in TABLE {
        let mut run = run_in("running 1 of 3", now);
        assert!(matches!(run.apply(now, Event::OutputSeen), Next::Nothing));
        let fails = matches!(make(), Event::Failed(..));
        let ended = matches!(run.apply(now, make()), Next::Ended(Err(_)));
        assert!(ended || !fails, "{name}");
    }
    let mut run = run_in("queued", now);
    run.apply(now, Event::OutputSeen);
    run.apply(now, Event::Delivered(SLOT));
    let ended = run.apply(now, failed_with(Cause::InvalidReply, Code::InvalidReply));
    assert!(matches!(ended, Next::Ended(Err(_))), "it was seen before");
}

#[test]
fn an_error_type_may_be_never_retried() {
    let now = Instant::now();
    for (kind, retryable, tried) in [
        ("Forbidden", true, false),
        ("Overloaded", true, true),
        ("", true, true),
        ("Overloaded", false, false),
    ] {
        let mut terms = terms(2, now);
        let mut policy = Policy::attempts(2);
        policy.non_retryable_types = vec!["Other".into(), "Forbidden".into()];
        terms.retry = Arc::new(policy);
        let mut run = Run::new(ID, terms, now);
        run.apply(now, Event::Delivered(SLOT));
        let mut failure = Failure::new(Code::AgentError, "no");
        failure.kind = kind.to_owned();
        failure.retryable = retryable;
        let next = run.apply(now, Event::Failed(Cause::AgentError, failure));
        assert_eq!(
            matches!(next, Next::BackOff(1, _)),
            tried,
            "{kind} {retryable}"
        );
    }
}

#[test]
fn a_wait_between_attempts_is_time_queued() {
    let now = Instant::now();
    let mut run = Run::new(ID, terms(2, now), now);
    run.apply(now, Event::Delivered(SLOT));
    run.apply(now + SECOND, failed(Cause::Lost));
    let why = Event::DeadlinePassed("waiting to be tried again after attempt 1".into());
    assert_eq!(
        message(run.apply(now + 3 * SECOND, why)),
        "deadline passed after 3.000 s: 2.000 s queued, 1.000 s running: \
         waiting to be tried again after attempt 1"
    );
}
