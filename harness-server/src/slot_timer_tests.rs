//! The timers of a slot: acceptance, missed heartbeats, leaving and idle.

use std::time::{Duration, Instant};

use super::{At, COLUMNS, HELD, PAST, RULES, SECOND, plain, reply, slot_in};
use crate::slot::{End, Event, Level, Verdict};

#[test]
fn a_request_not_named_in_time_ends_a_full_call() {
    for at in [At::Given, At::GivenLeaving] {
        let now = Instant::now();
        let mut slot = slot_in(at, Level::Full, now);
        let due = now + 5 * SECOND;
        assert_eq!(slot.next_wake(&RULES), Some(due));
        let early = slot.apply(due - Duration::from_nanos(1), &RULES, Event::Tick);
        assert_eq!(early, Verdict::Fine);
        let verdict = slot.apply(due, &RULES, Event::Tick);
        assert_eq!(verdict, Verdict::End(End::NotAccepted(HELD), Some(HELD)));
    }
}

#[test]
fn an_idle_heartbeat_accepts_nothing() {
    let now = Instant::now();
    let mut slot = slot_in(At::Given, Level::Full, now);
    slot.apply(now + SECOND, &RULES, Event::Heartbeat(None));
    assert_eq!(slot.next_wake(&RULES), Some(now + 5 * SECOND));
    assert!(!slot.has_taken());
}

#[test]
fn three_missed_heartbeats_end_a_full_call_in_every_state() {
    for at in COLUMNS.into_iter().filter(|at| *at != At::Leaving) {
        let now = Instant::now();
        let mut slot = slot_in(at, Level::Full, now);
        if matches!(at, At::Given | At::GivenLeaving) {
            slot.apply(now, &RULES, Event::Heartbeat(Some(HELD)));
        }
        let due = now + 15 * SECOND;
        assert_eq!(slot.next_wake(&RULES), Some(due), "{at:?}");
        let early = slot.apply(due - Duration::from_nanos(1), &RULES, Event::Tick);
        assert_eq!(early, Verdict::Fine, "{at:?}");
        let holds = slot.delivery();
        let verdict = slot.apply(due, &RULES, Event::Tick);
        assert_eq!(
            verdict,
            Verdict::End(End::HeartbeatsMissed, holds),
            "{at:?}"
        );
    }
}

#[test]
fn any_frame_counts_as_a_heartbeat() {
    let later = 4 * SECOND;
    for event in [
        Event::Heartbeat(None),
        Event::Heartbeat(Some(PAST)),
        plain(HELD, 3),
        plain(HELD, 1),
        reply(HELD, 3, false),
    ] {
        let now = Instant::now();
        let mut slot = slot_in(At::Busy, Level::Full, now);
        slot.apply(now + later, &RULES, event);
        let wake = slot.next_wake(&RULES);
        assert_eq!(wake, Some(now + later + 15 * SECOND), "{event:?}");
    }
    let now = Instant::now();
    let mut slot = slot_in(At::BusyLeaving, Level::Full, now);
    slot.apply(now + later, &RULES, Event::Leave);
    assert_eq!(slot.next_wake(&RULES), Some(now + later + 15 * SECOND));
}

#[test]
fn a_minimal_call_owes_neither_acceptance_nor_heartbeats() {
    for at in COLUMNS.into_iter().filter(|at| *at != At::Leaving) {
        let now = Instant::now();
        let mut slot = slot_in(at, Level::Minimal, now);
        assert_eq!(slot.next_wake(&RULES), None, "{at:?}");
        let verdict = slot.apply(now + 3600 * SECOND, &RULES, Event::Tick);
        assert_eq!(verdict, Verdict::Fine, "{at:?}");
    }
}

#[test]
fn a_call_that_left_and_is_idle_for_five_seconds_is_ended() {
    for level in [Level::Minimal, Level::Full] {
        let now = Instant::now();
        let mut slot = slot_in(At::BusyLeaving, level, now);
        let answered = now + 3 * SECOND;
        slot.apply(answered, &RULES, reply(HELD, 3, false));
        let due = answered + 5 * SECOND;
        assert_eq!(slot.next_wake(&RULES), Some(due), "counted from the reply");
        let early = slot.apply(due - Duration::from_nanos(1), &RULES, Event::Tick);
        assert_eq!(early, Verdict::Fine);
        let verdict = slot.apply(due, &RULES, Event::Tick);
        assert_eq!(verdict, Verdict::End(End::Idle, None));
    }
}

#[test]
fn a_tick_finds_something_exactly_when_next_wake_says() {
    for at in COLUMNS {
        for level in [Level::Minimal, Level::Full] {
            let now = Instant::now();
            for tenths in 0..=200 {
                let then = now + tenths * SECOND / 10;
                let mut slot = slot_in(at, level, now);
                let due = slot.next_wake(&RULES).is_some_and(|wake| wake <= then);
                let verdict = slot.apply(then, &RULES, Event::Tick);
                let found = verdict != Verdict::Fine;
                assert_eq!(found, due, "{at:?}, {level:?}, {tenths} tenths");
            }
        }
    }
}
