//! What a lost call leaves, and what each answer to a resume makes of it.

use std::time::{Duration, Instant};

use super::super::tests::{INTERVAL, LIMITS, append, end, names, replied, request, welcome};
use super::super::{
    Action, Delivery, EndCode, Event, Inbound, Next, Session, WELCOME_TIMEOUT, Welcome,
};
use super::Suspended;
use crate::context::CancelReason;

pub(super) const WINDOW: Duration = Duration::from_secs(10);

/// What a call holds when it is lost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum In {
    /// Two appends are unacknowledged.
    Busy,
    /// And a third has no room.
    Waiting,
    /// The agent has answered too.
    Replied,
}

const HELD: [In; 3] = [In::Busy, In::Waiting, In::Replied];

pub(super) fn durable(window: Duration) -> Delivery {
    Delivery {
        durable: true,
        reattach_window: window,
        ..request()
    }
}

pub(super) fn interactive() -> Delivery {
    Delivery {
        durable: false,
        ..durable(WINDOW)
    }
}

pub(super) fn call(now: Instant, delivery: Delivery) -> Session {
    let mut session = Session::new(now);
    session.apply(now, Event::Frame(welcome()));
    session.apply(now, Event::Frame(Inbound::Request(Box::new(delivery))));
    session
}

pub(super) fn session(held: In, now: Instant) -> Session {
    let mut session = call(now, durable(WINDOW));
    let events = match held {
        In::Busy => vec![append(10), append(10)],
        In::Waiting => vec![append(10), append(10), append(10)],
        In::Replied => vec![append(10), append(10), replied()],
    };
    for event in events {
        session.apply(now, event);
    }
    session
}

pub(super) fn lost() -> Event {
    Event::Ended(end(EndCode::Unavailable, None))
}

pub(super) fn suspended(actions: Vec<Action>) -> Box<Suspended> {
    let Ok([Action::Over(Next::Resume { suspended, .. })]) = <[Action; 1]>::try_from(actions)
    else {
        panic!("it goes on, and nothing else");
    };
    suspended
}

/// A call that resumes what another held.
pub(super) fn resuming(held: In, now: Instant) -> Session {
    let suspended = suspended(session(held, now).apply(now, lost()));
    Session::resuming(now, suspended)
}

pub(super) fn resumed(taken: u64) -> Event {
    Event::Frame(Inbound::Welcome(Welcome {
        heartbeat_interval: INTERVAL,
        limits: LIMITS,
        resumed: Some(taken),
    }))
}

pub(super) fn appended(worker_seq: u64) -> Event {
    Event::Frame(Inbound::Appended { worker_seq })
}

/// What one event does to a call that resumes, by what was held.
fn row(what: &str, event: impl Fn() -> Event, expected: [&str; 3]) {
    let now = Instant::now();
    for (held, expected) in HELD.into_iter().zip(expected) {
        let actions = resuming(held, now).apply(now, event());
        assert_eq!(names(&actions).join(", "), expected, "{what}, {held:?}");
    }
}

#[test]
fn what_ends_a_call_with_work_in_hand_suspends_or_stops_it() {
    let now = Instant::now();
    let goes_on = ["resume call"; 3];
    let told = |why: &'static str| [why, why, "at once released"];
    for (code, reason, expected) in [
        (EndCode::Unavailable, None, goes_on),
        (EndCode::Cancelled, None, goes_on),
        (EndCode::Ok, None, goes_on),
        (EndCode::Other, None, goes_on),
        (EndCode::Unavailable, Some("STORE_UNAVAILABLE"), goes_on),
        (EndCode::Unavailable, Some("LEAVING"), ["resume harness"; 3]),
        (
            EndCode::Unavailable,
            Some("HEARTBEATS_MISSED"),
            ["resume connection"; 3],
        ),
        (
            EndCode::Cancelled,
            Some("CANCELLED"),
            told("stop Cancelled, at once released"),
        ),
        (
            EndCode::Aborted,
            Some("SUPERSEDED"),
            told("stop Reassigned, at once released"),
        ),
        (
            EndCode::DeadlineExceeded,
            Some("DEADLINE_EXCEEDED"),
            told("stop DeadlineExceeded, at once released"),
        ),
        (
            EndCode::InvalidArgument,
            Some("PROTOCOL_VIOLATION"),
            [
                "stop Refused, back off released refusal",
                "stop Refused, back off released refusal",
                "back off released refusal",
            ],
        ),
        (
            EndCode::FailedPrecondition,
            Some("DRAINED"),
            ["stop Refused, gone", "stop Refused, gone", "gone"],
        ),
    ] {
        for (held, expected) in HELD.into_iter().zip(expected) {
            let actions = session(held, now).apply(now, Event::Ended(end(code, reason)));
            let names = names(&actions).join(", ");
            assert_eq!(names, expected, "{code:?} {reason:?}, {held:?}");
        }
    }
}

#[test]
fn work_without_a_window_stops_with_its_call() {
    let now = Instant::now();
    let mut session = call(now, durable(Duration::ZERO));
    let actions = session.apply(now, lost());
    assert_eq!(
        names(&actions).join(", "),
        "stop HarnessLost, back off released call"
    );
}

#[test]
fn an_interactive_run_with_a_window_goes_on() {
    let now = Instant::now();
    let suspended = suspended(call(now, interactive()).apply(now, lost()));
    assert_eq!(suspended.until(), now + WINDOW);
}

#[test]
fn work_whose_call_is_lost_goes_on_to_its_deadline_at_most() {
    let now = Instant::now();
    let time_left = WINDOW / 2;
    let first = || {
        let delivery = Delivery {
            time_left,
            ..interactive()
        };
        call(now, delivery)
    };
    let suspended = suspended(first().apply(now + Duration::from_secs(1), lost()));
    assert_eq!(suspended.until(), now + time_left);
    assert_eq!(suspended.over(), CancelReason::DeadlineExceeded);
    let mut call = Session::resuming(now + Duration::from_secs(2), suspended);
    assert_eq!(call.next_wake(), Some(now + time_left));
    let actions = names(&call.apply(now + time_left, Event::Tick)).join(", ");
    assert_eq!(actions, "stop DeadlineExceeded, at once released");

    let late = names(&first().apply(now + time_left, lost())).join(", ");
    assert_eq!(late, "stop HarnessLost, back off released call");
}

#[test]
fn a_silent_harness_is_a_lost_call_and_a_wrong_one_is_not() {
    let start = Instant::now();
    for held in HELD {
        let mut silent = session(held, start);
        let late = start + INTERVAL * 3;
        let suspended = suspended(silent.apply(late, Event::Tick));
        assert_eq!(suspended.until(), late + WINDOW, "counted from the loss");
        let actions = session(held, start).apply(start, Event::Frame(welcome()));
        assert!(
            names(&actions)
                .join(", ")
                .ends_with("back off released call"),
            "{held:?}: {actions:?}"
        );
    }
}

#[test]
fn a_welcome_that_resumes_sends_again_what_it_has_not_taken() {
    for (taken, expected) in [
        (
            0,
            [
                "welcomed, append 1, append 2",
                "welcomed, append 1, append 2",
                "welcomed, append 1, append 2, value 3",
            ],
        ),
        (
            1,
            [
                "welcomed, append 2",
                "welcomed, append 2, append 3, admit",
                "welcomed, append 2, value 3",
            ],
        ),
        (
            2,
            ["welcomed", "welcomed, append 3, admit", "welcomed, value 3"],
        ),
        (
            3,
            // Only who replied has sent a third.
            [
                "welcomed, stop HarnessLost, at once released",
                "welcomed, stop HarnessLost, at once released",
                "welcomed",
            ],
        ),
    ] {
        row(&format!("taken up to {taken}"), || resumed(taken), expected);
    }
}

#[test]
fn a_harness_that_forgot_what_it_acknowledged_is_not_gone_on_with() {
    let now = Instant::now();
    let mut first = session(In::Busy, now);
    first.apply(now, appended(1));
    let suspended = suspended(first.apply(now, lost()));
    let actions = Session::resuming(now, suspended).apply(now, resumed(0));
    assert_eq!(
        names(&actions).join(", "),
        "welcomed, stop HarnessLost, at once released"
    );
}

#[test]
fn every_other_answer_to_a_resume() {
    let stop = "stop HarnessLost, at once released";
    let unknown = format!("welcomed, {stop}");
    row(
        "a welcome that knows nothing of it",
        || Event::Frame(welcome()),
        [&unknown, &unknown, "welcomed, at once released"],
    );
    for (code, reason, stopped, fault) in [
        (
            EndCode::DeadlineExceeded,
            "DEADLINE_EXCEEDED",
            "DeadlineExceeded",
            "at once released",
        ),
        (
            EndCode::Cancelled,
            "CANCELLED",
            "Cancelled",
            "at once released",
        ),
        (
            EndCode::Aborted,
            "SUPERSEDED",
            "Reassigned",
            "at once released",
        ),
        (EndCode::Aborted, "NOT_YOURS", "Reassigned", "at once"),
        (
            EndCode::ResourceExhausted,
            "TOO_MANY",
            "Refused",
            "back off released refusal",
        ),
        (
            EndCode::Unauthenticated,
            "UNAUTHENTICATED",
            "Refused",
            "give up",
        ),
        (
            EndCode::InvalidArgument,
            "INVALID_HELLO",
            "Refused",
            "give up",
        ),
        (EndCode::FailedPrecondition, "DRAINED", "Refused", "gone"),
    ] {
        let working = format!("stop {stopped}, {fault}");
        row(
            reason,
            || Event::Ended(end(code, Some(reason))),
            [&working, &working, fault],
        );
    }
    row(
        "a request before the welcome",
        || Event::Frame(Inbound::Request(Box::new(request()))),
        [
            "stop HarnessLost, back off released harness",
            "stop HarnessLost, back off released harness",
            "back off released harness",
        ],
    );
}

#[test]
fn a_resume_that_was_lost_or_not_read_is_tried_again() {
    for (code, reason) in [
        (EndCode::Unavailable, None),
        (EndCode::Other, None),
        (EndCode::Unavailable, Some("LEAVING")),
        (EndCode::DeadlineExceeded, Some("NO_HELLO")),
    ] {
        row(
            "lost again",
            || Event::Ended(end(code, reason)),
            match reason {
                Some("NO_HELLO") => ["resume refusal"; 3],
                Some(_) | None => ["resume harness"; 3],
            },
        );
    }
}

#[test]
fn the_window_ends_the_work_however_often_it_was_tried() {
    let start = Instant::now();
    for held in HELD {
        let mut first = session(held, start);
        let lost_at = start + Duration::from_secs(1);
        let mut suspended = suspended(first.apply(lost_at, lost()));
        let until = lost_at + WINDOW;
        // The first welcome is late and the next harness is lost: the window stays.
        let mut call = Session::resuming(lost_at, suspended);
        assert_eq!(call.next_wake(), Some(until.min(lost_at + WELCOME_TIMEOUT)));
        let actions = call.apply(lost_at + Duration::from_secs(3), lost());
        suspended = self::suspended(actions);
        assert_eq!(suspended.until(), until);
        let mut call = Session::resuming(lost_at + Duration::from_secs(4), suspended);
        assert_eq!(call.next_wake(), Some(until));
        let actions = names(&call.apply(until, Event::Tick)).join(", ");
        let expected = match held {
            In::Busy | In::Waiting => "stop HarnessLost, at once released",
            In::Replied => "at once released",
        };
        assert_eq!(actions, expected, "{held:?}");
        assert_eq!(call.next_wake(), None);
    }
}

#[test]
fn a_late_welcome_is_tried_again_while_the_window_lasts() {
    let now = Instant::now();
    let mut first = call(now, durable(WELCOME_TIMEOUT * 2));
    let suspended = suspended(first.apply(now, lost()));
    let mut call = Session::resuming(now, suspended);
    let actions = call.apply(now + WELCOME_TIMEOUT, Event::Tick);
    assert_eq!(names(&actions), ["resume connection"]);
}
