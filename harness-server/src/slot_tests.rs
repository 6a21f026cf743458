//! Every state of a slot with every event, at both levels, as one table. Its timers are in
//! `slot_timer_tests`, random walks in `slot_walk_tests`.

use std::time::{Duration, Instant};

use uuid::Uuid;

use super::{
    Acceptance, End, EntryKind, Event, Level, Over, Rules, Slot, State, Verdict, Violation,
};
use crate::ids::{Attempt, Delivery, RunId};

#[path = "slot_timer_tests.rs"]
mod timers;
#[path = "slot_walk_tests.rs"]
mod walk;

use Cell::{Again, Back, Breaks, Done, Ends, Fine, Free, Holds, Left, NotNow, Stale, Take, Wrong};

const SECOND: Duration = Duration::from_secs(1);

const RULES: Rules = Rules {
    heartbeat_interval: Duration::from_secs(5),
    unacked_entries: 2,
    unacked_bytes: 100,
    idle_stopping_timeout: Duration::from_secs(5),
};

/// What the slot holds in the BUSY columns.
const HELD: Delivery = delivery(7, 2);
/// What it answered before; only STARTING has answered nothing.
const PAST: Delivery = delivery(6, 1);
/// What it never held: another attempt of the same run.
const OTHER: Delivery = delivery(7, 1);
/// What it is given in the assigned row.
const NEW: Delivery = delivery(8, 1);

const fn delivery(run: u128, attempt: u32) -> Delivery {
    Delivery {
        run: RunId(Uuid::from_u128(run)),
        attempt: Attempt(attempt),
    }
}

/// The columns of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Starting,
    Ready,
    /// The request was written, the worker has not named it.
    Given,
    /// The worker has named it; its appends 1 and 2, ten bytes each, were taken.
    Busy,
    /// As `Given`, and leaving.
    GivenLeaving,
    /// As `Busy`, and leaving.
    BusyLeaving,
    /// Leaving, holds nothing.
    Leaving,
}

const COLUMNS: [At; 7] = [
    At::Starting,
    At::Ready,
    At::Given,
    At::Busy,
    At::GivenLeaving,
    At::BusyLeaving,
    At::Leaving,
];

/// What a cell expects: the verdict and where the slot then stands.
#[derive(Clone, Copy, Debug)]
enum Cell {
    /// Nothing follows and nothing changes.
    Fine,
    /// It becomes READY and can take a request.
    Free,
    /// Nothing follows, but it now holds a request, or is known to have taken it.
    Holds,
    /// Nothing follows, but it is STOPPING from now on.
    Left,
    /// The request is not for this state and is handed back.
    NotNow,
    /// The entry is taken.
    Take,
    /// The frame was taken before: acknowledged up to 2 again and dropped.
    Again,
    /// Dropped: it is about what this call has just answered.
    Stale,
    /// The reply ends the request in the slot.
    Done,
    /// The request in the slot goes elsewhere.
    Back,
    /// The call ends: this request is not the one it holds.
    Wrong,
    /// The call ends: a rule was broken.
    Breaks(Violation),
    /// The call ends.
    Ends(fn(Delivery) -> End),
}

const HELLO: Cell = Breaks(Violation::SecondHello);
const CASE: Cell = Breaks(Violation::UnknownFrame);
const EARLY: Cell = Breaks(Violation::BeforeWelcome);
const WINDOW: Cell = Breaks(Violation::WindowPassed);
const STEP: Cell = Breaks(Violation::StepFromMinimal);
const ALIEN: Cell = Breaks(Violation::ForeignEntry);
const fn gap(expected: u64, got: u64) -> Cell {
    Breaks(Violation::Gap { expected, got })
}
const ZERO_1: Cell = gap(1, 0);
const ZERO_3: Cell = gap(3, 0);
const GAP_1: Cell = gap(1, 2);
const GAP_3: Cell = gap(3, 4);
const CLOSED: Cell = Ends(|_| End::Closed);
const BIG: Cell = Ends(|_| End::FrameTooLarge { bytes: 9, limit: 8 });
const LATE: Cell = Ends(End::DeadlineExceeded);
const CANCEL: Cell = Ends(End::Cancelled);
const LEAVE: Cell = Ends(|_| End::Leaving);
const STORE: Cell = Ends(|_| End::StoreFailed);

const BOTH: &[Level] = &[Level::Minimal, Level::Full];
const FULL: &[Level] = &[Level::Full];
const MIN: &[Level] = &[Level::Minimal];

/// Makes a row's event, given the number that the next append or reply must have.
type Make = fn(u64) -> Event;

struct Row(&'static str, &'static [Level], Make, [Cell; 7]);

const fn append(delivery: Delivery, seq: u64, kind: EntryKind, bytes: u64, acked: u64) -> Event {
    Event::Append {
        delivery,
        seq,
        kind,
        bytes,
        acknowledged: acked,
    }
}

const fn plain(delivery: Delivery, seq: u64) -> Event {
    append(delivery, seq, EntryKind::Plain, 10, 2)
}

const fn reply(delivery: Delivery, seq: u64, declined: bool) -> Event {
    Event::Reply {
        delivery,
        seq,
        declined,
    }
}

const fn assigned(delivery: Delivery) -> Event {
    Event::Assigned {
        delivery,
        accept_timeout: Duration::from_secs(5),
    }
}

#[rustfmt::skip]
const TABLE: &[Row] = &[
    //                                                                                     Starting Ready   Given   Busy    Given+L Busy+L  Leaving
    Row("welcomed",                  BOTH, |_| Event::Welcomed,                           [Free,    Fine,   Fine,   Fine,   Fine,   Fine,   Fine]),
    Row("assigned",                  BOTH, |_| assigned(NEW),                             [NotNow,  Holds,  NotNow, NotNow, NotNow, NotNow, NotNow]),
    Row("a second hello",            BOTH, |_| Event::HelloAgain,                         [HELLO,   HELLO,  HELLO,  HELLO,  HELLO,  HELLO,  HELLO]),
    Row("a frame of no known case",  BOTH, |_| Event::UnknownFrame,                       [CASE,    CASE,   CASE,   CASE,   CASE,   CASE,   CASE]),

    Row("heartbeat, idle",           BOTH, |_| Event::Heartbeat(None),                    [Fine,    Fine,   Fine,   Fine,   Fine,   Fine,   Fine]),
    Row("heartbeat, held",           BOTH, |_| Event::Heartbeat(Some(HELD)),              [EARLY,   Wrong,  Holds,  Fine,   Holds,  Fine,   Wrong]),
    Row("heartbeat, answered",       BOTH, |_| Event::Heartbeat(Some(PAST)),              [EARLY,   Stale,  Stale,  Stale,  Stale,  Stale,  Stale]),
    Row("heartbeat, other attempt",  BOTH, |_| Event::Heartbeat(Some(OTHER)),             [EARLY,   Wrong,  Wrong,  Wrong,  Wrong,  Wrong,  Wrong]),

    Row("append",                    BOTH, |n| plain(HELD, n),                            [EARLY,   Wrong,  Take,   Take,   Take,   Take,   Wrong]),
    Row("append, answered",          BOTH, |n| plain(PAST, n),                            [EARLY,   Stale,  Stale,  Stale,  Stale,  Stale,  Stale]),
    Row("append, other attempt",     BOTH, |n| plain(OTHER, n),                           [EARLY,   Wrong,  Wrong,  Wrong,  Wrong,  Wrong,  Wrong]),
    Row("append, last again",        BOTH, |n| plain(HELD, n - 1),                        [EARLY,   Wrong,  ZERO_1, Again,  ZERO_1, Again,  Wrong]),
    Row("append, number 1",          BOTH, |_| plain(HELD, 1),                            [EARLY,   Wrong,  Take,   Again,  Take,   Again,  Wrong]),
    Row("append, number 0",          BOTH, |_| plain(HELD, 0),                            [EARLY,   Wrong,  ZERO_1, ZERO_3, ZERO_1, ZERO_3, Wrong]),
    Row("append, gap",               BOTH, |n| plain(HELD, n + 1),                        [EARLY,   Wrong,  GAP_1,  GAP_3,  GAP_1,  GAP_3,  Wrong]),
    Row("usage",                     BOTH, |n| append(HELD, n, EntryKind::Usage, 10, 2),  [EARLY,   Wrong,  Take,   Take,   Take,   Take,   Wrong]),
    Row("step",                      FULL, |n| append(HELD, n, EntryKind::Step, 10, 2),   [EARLY,   Wrong,  Take,   Take,   Take,   Take,   Wrong]),
    Row("step",                      MIN,  |n| append(HELD, n, EntryKind::Step, 10, 2),   [EARLY,   Wrong,  STEP,   STEP,   STEP,   STEP,   Wrong]),
    Row("the harness's own entry",   BOTH, |n| append(HELD, n, EntryKind::Foreign, 1, 2), [EARLY,   Wrong,  ALIEN,  ALIEN,  ALIEN,  ALIEN,  Wrong]),
    Row("third unacked append",      FULL, |n| append(HELD, n, EntryKind::Plain, 10, 0),  [EARLY,   Wrong,  Take,   WINDOW, Take,   WINDOW, Wrong]),
    Row("second unacked append",     FULL, |n| append(HELD, n, EntryKind::Plain, 10, 1),  [EARLY,   Wrong,  Take,   Take,   Take,   Take,   Wrong]),
    Row("unacked bytes at the limit",FULL, |n| append(HELD, n, EntryKind::Plain, 90, 1),  [EARLY,   Wrong,  Take,   Take,   Take,   Take,   Wrong]),
    Row("one byte past the limit",   FULL, |n| append(HELD, n, EntryKind::Step, 91, 1),   [EARLY,   Wrong,  Take,   WINDOW, Take,   WINDOW, Wrong]),
    Row("a large entry alone",       FULL, |n| append(HELD, n, EntryKind::Plain, 101, 2), [EARLY,   Wrong,  Take,   Take,   Take,   Take,   Wrong]),
    Row("a large entry in company",  FULL, |n| append(HELD, n, EntryKind::Plain, 101, 1), [EARLY,   Wrong,  Take,   WINDOW, Take,   WINDOW, Wrong]),
    Row("past any window",           MIN,  |n| append(HELD, n, EntryKind::Plain, 101, 0), [EARLY,   Wrong,  Take,   Take,   Take,   Take,   Wrong]),
    Row("acked more than was sent",  FULL, |n| append(HELD, n, EntryKind::Plain, 10, 99), [EARLY,   Wrong,  Take,   Take,   Take,   Take,   Wrong]),

    Row("reply",                     BOTH, |n| reply(HELD, n, false),                     [EARLY,   Wrong,  Done,   Done,   Done,   Done,   Wrong]),
    Row("reply, answered",           BOTH, |n| reply(PAST, n, false),                     [EARLY,   Stale,  Stale,  Stale,  Stale,  Stale,  Stale]),
    Row("reply, other attempt",      BOTH, |n| reply(OTHER, n, false),                    [EARLY,   Wrong,  Wrong,  Wrong,  Wrong,  Wrong,  Wrong]),
    Row("reply, last again",         BOTH, |n| reply(HELD, n - 1, false),                 [EARLY,   Wrong,  ZERO_1, Again,  ZERO_1, Again,  Wrong]),
    Row("reply, number 0",           BOTH, |_| reply(HELD, 0, false),                     [EARLY,   Wrong,  ZERO_1, ZERO_3, ZERO_1, ZERO_3, Wrong]),
    Row("reply, gap",                BOTH, |n| reply(HELD, n + 1, false),                 [EARLY,   Wrong,  GAP_1,  GAP_3,  GAP_1,  GAP_3,  Wrong]),
    Row("declined",                  BOTH, |n| reply(HELD, n, true),                      [EARLY,   Wrong,  Back,   Back,   Back,   Back,   Wrong]),
    Row("declined, answered",        BOTH, |n| reply(PAST, n, true),                      [EARLY,   Stale,  Stale,  Stale,  Stale,  Stale,  Stale]),
    Row("declined, other attempt",   BOTH, |n| reply(OTHER, n, true),                     [EARLY,   Wrong,  Wrong,  Wrong,  Wrong,  Wrong,  Wrong]),

    Row("leave",                     BOTH, |_| Event::Leave,                              [Left,    Left,   Left,   Left,   Fine,   Fine,   Fine]),
    Row("drained",                   BOTH, |_| Event::Drained,                            [Left,    Left,   Left,   Left,   Fine,   Fine,   Fine]),
    Row("half-closed",               BOTH, |_| Event::HalfClosed,                         [CLOSED,  CLOSED, CLOSED, CLOSED, CLOSED, CLOSED, CLOSED]),
    Row("a frame too large",         BOTH, |_| Event::FrameTooLarge { bytes: 9, limit: 8 },[BIG,    BIG,    BIG,    BIG,    BIG,    BIG,    BIG]),
    Row("deadline of the run",       BOTH, |_| Event::Over(Over::DeadlineExceeded),       [Fine,    Fine,   LATE,   LATE,   LATE,   LATE,   Fine]),
    Row("the run is cancelled",      BOTH, |_| Event::Over(Over::Cancelled),              [Fine,    Fine,   CANCEL, CANCEL, CANCEL, CANCEL, Fine]),
    Row("the store failed",          BOTH, |_| Event::StoreFailed,                        [STORE,   STORE,  STORE,  STORE,  STORE,  STORE,  STORE]),
    Row("the harness is leaving",    BOTH, |_| Event::ServerLeaving,                      [LEAVE,   LEAVE,  Fine,   Fine,   Fine,   Fine,   LEAVE]),
    Row("the harness leaves",        BOTH, |_| Event::ServerLeft,                         [LEAVE,   LEAVE,  LEAVE,  LEAVE,  LEAVE,  LEAVE,  LEAVE]),
    Row("tick, nothing due",         BOTH, |_| Event::Tick,                               [Fine,    Fine,   Fine,   Fine,   Fine,   Fine,   Fine]),
];

fn slot_in(at: At, level: Level, now: Instant) -> Slot {
    let mut slot = Slot::new(level, now);
    let mut apply = |event| slot.apply(now, &RULES, event);
    if at == At::Starting {
        return slot;
    }
    apply(Event::Welcomed);
    apply(assigned(PAST));
    assert_eq!(apply(reply(PAST, 1, false)), Verdict::Answered(PAST));
    if matches!(
        at,
        At::Given | At::Busy | At::GivenLeaving | At::BusyLeaving
    ) {
        apply(assigned(HELD));
    }
    if matches!(at, At::Busy | At::BusyLeaving) {
        for seq in [1, 2] {
            let taken = apply(append(HELD, seq, EntryKind::Plain, 10, 0));
            assert_eq!(taken, Verdict::Take);
        }
    }
    if matches!(at, At::GivenLeaving | At::BusyLeaving | At::Leaving) {
        apply(Event::Leave);
    }
    slot
}

/// Which column a slot stands in.
fn column(slot: &Slot) -> At {
    let named = |work: &super::Work| matches!(work.acceptance, Acceptance::Given);
    assert_eq!(
        slot.has_taken(),
        matches!(slot.state(), State::Busy(work) | State::StoppingBusy(work) if named(work))
    );
    match slot.state() {
        State::Starting => At::Starting,
        State::Ready => At::Ready,
        State::Busy(work) if named(work) => At::Busy,
        State::Busy(_) => At::Given,
        State::StoppingBusy(work) if named(work) => At::BusyLeaving,
        State::StoppingBusy(_) => At::GivenLeaving,
        State::StoppingIdle(_) => At::Leaving,
    }
}

/// The verdict a cell expects of a slot with this state, and the column it then stands in; none
/// when the call is over.
fn expected(cell: Cell, at: At, event: Event) -> (Verdict, Option<At>) {
    let holds = match at {
        At::Given | At::Busy | At::GivenLeaving | At::BusyLeaving => Some(HELD),
        At::Starting | At::Ready | At::Leaving => None,
    };
    let taken = match at {
        At::Given | At::Busy => At::Busy,
        At::GivenLeaving | At::BusyLeaving => At::BusyLeaving,
        At::Ready => At::Given,
        // Nothing is ever taken in these, so no cell of theirs says so.
        At::Starting | At::Leaving => at,
    };
    let empty = if matches!(at, At::GivenLeaving | At::BusyLeaving) {
        At::Leaving
    } else {
        At::Ready
    };
    let left = match at {
        At::Starting | At::Ready | At::Leaving => At::Leaving,
        At::Given | At::GivenLeaving => At::GivenLeaving,
        At::Busy | At::BusyLeaving => At::BusyLeaving,
    };
    let named = if let Event::Heartbeat(Some(named))
    | Event::Append {
        delivery: named, ..
    }
    | Event::Reply {
        delivery: named, ..
    } = event
    {
        named
    } else {
        HELD
    };
    match cell {
        Fine => (Verdict::Fine, Some(at)),
        Free => (Verdict::Free, Some(At::Ready)),
        Holds => (Verdict::Fine, Some(taken)),
        Left => (Verdict::Fine, Some(left)),
        NotNow => (Verdict::Declined(NEW), Some(at)),
        Take => (Verdict::Take, Some(taken)),
        Again => (Verdict::AcknowledgeAgain(2), Some(at)),
        Stale => (Verdict::Stale, Some(at)),
        Done => (Verdict::Answered(HELD), Some(empty)),
        Back => (Verdict::Declined(HELD), Some(empty)),
        Wrong => (
            Verdict::End(End::WrongAttempt { named, holds }, holds),
            None,
        ),
        Breaks(violation) => (Verdict::End(End::Violation(violation), holds), None),
        Ends(end) => (Verdict::End(end(HELD), holds), None),
    }
}

#[test]
fn every_state_answers_every_event_as_the_table_says() {
    let now = Instant::now();
    for Row(name, levels, make, cells) in TABLE {
        for (&at, &cell) in COLUMNS.iter().zip(cells) {
            for &level in *levels {
                let mut slot = slot_in(at, level, now);
                assert_eq!(column(&slot), at);
                let event = make(slot.last_seq().unwrap_or_default() + 1);
                let verdict = slot.apply(now, &RULES, event);
                let (wanted, then) = expected(cell, at, event);
                assert_eq!(verdict, wanted, "{name}, {level:?}, {at:?}");
                if let Some(then) = then {
                    assert_eq!(column(&slot), then, "{name}, {level:?}, {at:?}");
                }
            }
        }
    }
}

/// The events by name, so that a new one does not compile until it is in the table's list.
fn kind(event: &Event) -> &'static str {
    match event {
        Event::Welcomed => "welcomed",
        Event::Assigned { .. } => "assigned",
        Event::HelloAgain => "hello again",
        Event::UnknownFrame => "unknown frame",
        Event::Heartbeat(_) => "heartbeat",
        Event::Append { .. } => "append",
        Event::Reply { .. } => "reply",
        Event::Leave => "leave",
        Event::Drained => "drained",
        Event::HalfClosed => "half-closed",
        Event::FrameTooLarge { .. } => "frame too large",
        Event::Over(Over::DeadlineExceeded) => "deadline exceeded",
        Event::Over(Over::Cancelled) => "cancelled",
        Event::StoreFailed => "store failed",
        Event::ServerLeaving => "server leaving",
        Event::ServerLeft => "server left",
        Event::Tick => "tick",
    }
}

#[test]
fn the_table_has_every_event_at_both_levels() {
    const KINDS: usize = 17;
    for level in BOTH {
        let mut kinds: Vec<&str> = TABLE
            .iter()
            .filter(|Row(_, levels, _, _)| levels.contains(level))
            .map(|Row(_, _, make, _)| kind(&make(1)))
            .collect();
        kinds.sort_unstable();
        kinds.dedup();
        assert_eq!(kinds.len(), KINDS, "{level:?}: {kinds:?}");
    }
}

#[test]
fn only_the_request_just_answered_is_stale() {
    let now = Instant::now();
    let mut slot = slot_in(At::Busy, Level::Full, now);
    slot.apply(now, &RULES, reply(HELD, 3, false));
    let heartbeat = |named| Event::Heartbeat(Some(named));
    assert_eq!(slot.apply(now, &RULES, heartbeat(HELD)), Verdict::Stale);
    let verdict = slot.apply(now, &RULES, heartbeat(PAST));
    let wrong = End::WrongAttempt {
        named: PAST,
        holds: None,
    };
    assert_eq!(verdict, Verdict::End(wrong, None));
}

#[test]
fn acknowledgements_open_the_window_again() {
    let now = Instant::now();
    let mut slot = slot_in(At::Busy, Level::Full, now);
    for seq in 3..200 {
        let event = append(HELD, seq, EntryKind::Plain, 50, seq - 2);
        let verdict = slot.apply(now, &RULES, event);
        assert_eq!(verdict, Verdict::Take, "{seq}");
    }
    assert_eq!(slot.last_seq(), Some(199));
}

#[test]
fn since_is_when_the_state_was_entered() {
    let now = Instant::now();
    let mut slot = slot_in(At::Ready, Level::Minimal, now);
    slot.apply(now + SECOND, &RULES, assigned(HELD));
    slot.apply(now + 2 * SECOND, &RULES, plain(HELD, 1));
    assert_eq!(slot.since(), now + SECOND, "an append changes no state");
    slot.apply(now + 3 * SECOND, &RULES, Event::Leave);
    assert_eq!(slot.since(), now + 3 * SECOND);
    slot.apply(now + 4 * SECOND, &RULES, Event::Leave);
    assert_eq!(
        slot.since(),
        now + 3 * SECOND,
        "a second leave changes nothing"
    );
}

#[test]
fn every_violation_says_what_to_do_in_one_line() {
    for violation in [
        Violation::SecondHello,
        Violation::UnknownFrame,
        Violation::BeforeWelcome,
        Violation::Gap {
            expected: 3,
            got: 9,
        },
        Violation::WindowPassed,
        Violation::StepFromMinimal,
        Violation::ForeignEntry,
    ] {
        let text = violation.to_string();
        assert!(text.len() > 20 && !text.contains('\n'), "{text}");
        assert!(!text.ends_with('.'), "{text}");
    }
    let gap = Violation::Gap {
        expected: 3,
        got: 9,
    };
    assert!(gap.to_string().ends_with("expected 3, got 9"), "{gap}");
}
