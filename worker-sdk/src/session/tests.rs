//! Every event in every state, and the rules that need more than one.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::*;
use crate::agent::AgentError;
use crate::journal::Entry;
use crate::payload::Payload;

pub(super) const INTERVAL: Duration = Duration::from_secs(5);
pub(super) const LIMITS: Limits = Limits {
    unacked_entries: 2,
    unacked_bytes: 100,
    payload_bytes: 1000,
    entry_bytes: 500,
};

/// The states a call can be in, as tests reach them.
#[derive(Debug, Clone, Copy, PartialEq)]
enum In {
    Greeting,
    Ready,
    Answered,
    Busy,
    Waiting,
    BusyLeaving,
    Closing,
    Over,
}

const STATES: [In; 8] = [
    In::Greeting,
    In::Ready,
    In::Answered,
    In::Busy,
    In::Waiting,
    In::BusyLeaving,
    In::Closing,
    In::Over,
];

fn lease() -> Lease {
    Lease {
        held: Held {
            run_id: "run".to_owned(),
            attempt: 3,
        },
        token: Bytes::from_static(b"0123456789abcdef"),
    }
}

pub(super) fn delivery() -> Inbound {
    Inbound::Request(Box::new(request()))
}

pub(super) fn request() -> Delivery {
    Delivery {
        lease: lease(),
        payload: Payload::json(&1).unwrap(),
        time_left: Duration::from_secs(60),
        max_reply_bytes: 0,
        durable: false,
        metadata: Default::default(),
        caller_subject: String::new(),
        namespace: String::new(),
        depth: 0,
        traceparent: String::new(),
        tracestate: String::new(),
        idempotency_key: String::new(),
        reattach_window: Duration::ZERO,
        replay_entries: 0,
        recorded: Vec::new(),
    }
}

pub(super) fn welcome() -> Inbound {
    Inbound::Welcome(Welcome {
        heartbeat_interval: INTERVAL,
        limits: LIMITS,
        resumed: None,
    })
}

fn entry() -> Entry {
    Entry::Log {
        level: crate::context::LogLevel::Info,
        message: "line".to_owned(),
    }
}

pub(super) fn append(entry_bytes: u64) -> Event {
    Event::Append {
        entry: entry(),
        entry_bytes,
    }
}

pub(super) fn replied() -> Event {
    Event::Replied(Reply::Value(Payload::json(&2).unwrap()))
}

pub(super) fn end(code: EndCode, reason: Option<&str>) -> End {
    End {
        code,
        reason: reason.map(str::to_owned),
        message: "why".to_owned(),
        retry_after: None,
        broken: false,
    }
}

fn session(state: In, now: Instant) -> Session {
    let mut session = Session::new(now);
    let events = match state {
        In::Greeting => vec![],
        In::Ready => vec![Event::Frame(welcome())],
        In::Answered => vec![Event::Frame(welcome()), Event::Frame(delivery()), replied()],
        In::Busy => vec![Event::Frame(welcome()), Event::Frame(delivery())],
        In::Waiting => {
            vec![
                Event::Frame(welcome()),
                Event::Frame(delivery()),
                append(80),
                append(80),
            ]
        }
        In::BusyLeaving => vec![
            Event::Frame(welcome()),
            Event::Frame(delivery()),
            Event::Leave,
        ],
        In::Closing => vec![Event::Frame(welcome()), Event::Leave],
        In::Over => vec![
            Event::Frame(welcome()),
            Event::Ended(end(EndCode::Unavailable, None)),
        ],
    };
    for event in events {
        session.apply(now, event);
    }
    session
}

/// The actions in short, so that a table fits on a page.
pub(super) fn names(actions: &[Action]) -> Vec<String> {
    actions.iter().map(name).collect()
}

fn name(action: &Action) -> String {
    match action {
        Action::Send(Outbound::Heartbeat { held: None }) => "idle heartbeat".to_owned(),
        Action::Send(Outbound::Heartbeat { held: Some(_) }) => "busy heartbeat".to_owned(),
        Action::Send(Outbound::Append { worker_seq, .. }) => format!("append {worker_seq}"),
        Action::Send(Outbound::Reply {
            worker_seq, reply, ..
        }) => match reply {
            Reply::Value(_) => format!("value {worker_seq}"),
            Reply::Error(error) => format!("error {worker_seq} {}", error.error_type),
        },
        Action::Send(Outbound::Leave) => "leave".to_owned(),
        Action::Welcomed => "welcomed".to_owned(),
        Action::Start(_) => "start".to_owned(),
        Action::Stop(reason) => format!("stop {reason:?}"),
        Action::Admit => "admit".to_owned(),
        Action::Await { worker_seq } => format!("await {worker_seq}"),
        Action::Acknowledged { worker_seq } => format!("acknowledged {worker_seq}"),
        Action::Refuse { entry_bytes, limit } => format!("refuse {entry_bytes}>{limit}"),
        Action::Oversize { bytes, limit } => format!("oversize {bytes}>{limit}"),
        Action::Drained { .. } => "drained".to_owned(),
        Action::HalfClose => "half-close".to_owned(),
        Action::Over(next) => match next {
            Next::AtOnce { released } => format!("at once{}", said(released)),
            Next::BackOff {
                released, fault, ..
            } => format!("back off{} {fault:?}", said(released)).to_lowercase(),
            Next::Resume { fault, .. } => format!("resume {fault:?}").to_lowercase(),
            Next::Left => "left".to_owned(),
            Next::Drained => "gone".to_owned(),
            Next::GiveUp(_) => "give up".to_owned(),
        },
    }
}

fn said(released: &Option<Lease>) -> &'static str {
    if released.is_some() { " released" } else { "" }
}

/// What one event does in every state, in the order of [`STATES`].
fn row(what: &str, event: impl Fn() -> Event, expected: [&str; 8]) {
    let now = Instant::now();
    for (state, expected) in STATES.into_iter().zip(expected) {
        let actions = session(state, now).apply(now, event());
        assert_eq!(names(&actions).join(", "), expected, "{what} in {state:?}");
    }
}

#[test]
fn every_frame_in_every_state() {
    row(
        "welcome",
        || Event::Frame(welcome()),
        [
            "welcomed",
            "back off call",
            "back off released call",
            "stop HarnessLost, back off released call",
            "stop HarnessLost, back off released call",
            "stop HarnessLost, back off released call",
            "welcomed",
            "",
        ],
    );
    row(
        "request",
        || Event::Frame(delivery()),
        [
            "back off harness",
            "start",
            "start",
            "stop HarnessLost, back off released call",
            "stop HarnessLost, back off released call",
            "stop HarnessLost, back off released call",
            "",
            "",
        ],
    );
    row(
        "appended",
        || Event::Frame(Inbound::Appended { worker_seq: 1 }),
        ["", "", "", "", "append 2, admit", "", "", ""],
    );
    row(
        "drain",
        || {
            Event::Frame(Inbound::Drain {
                reason: "bye".to_owned(),
            })
        },
        [
            "drained, leave, half-close",
            "drained, leave, half-close",
            "drained, leave, half-close",
            "drained, leave",
            "drained, leave",
            "drained",
            "drained",
            "",
        ],
    );
    for frame in [Inbound::Heartbeat, Inbound::Unknown] {
        row(
            "a frame that asks for nothing",
            || Event::Frame(frame.clone()),
            [""; 8],
        );
    }
}

#[test]
fn a_recorded_entry_that_is_not_due_in_every_state() {
    row(
        "a recorded entry that is not due",
        || Event::Frame(Inbound::Entry(None)),
        [
            "back off harness",
            "back off call",
            "back off released call",
            "stop HarnessLost, back off released call",
            "stop HarnessLost, back off released call",
            "stop HarnessLost, back off released call",
            "",
            "",
        ],
    );
}

#[test]
fn every_event_of_this_side_in_every_state() {
    row(
        "leave",
        || Event::Leave,
        [
            "leave, half-close",
            "leave, half-close",
            "leave, half-close",
            "leave",
            "leave",
            "",
            "",
            "",
        ],
    );
    row(
        "reply",
        replied,
        [
            "",
            "",
            "",
            "value 1",
            "value 2",
            "value 1, half-close",
            "",
            "",
        ],
    );
    row(
        "append",
        || append(10),
        [
            "",
            "",
            "",
            "append 1, admit",
            "append 2, admit",
            "append 1, admit",
            "",
            "",
        ],
    );
    row(
        "too large an append",
        || append(501),
        [
            "",
            "",
            "",
            "refuse 501>500",
            "refuse 501>500",
            "refuse 501>500",
            "",
            "",
        ],
    );
    row("a tick too early", || Event::Tick, [""; 8]);
}

#[test]
fn every_end_in_every_state() {
    let lost = |before: &str, after: &str| {
        let [before, after] = [before, after].map(str::to_owned);
        let busy = format!("stop HarnessLost, back off released {after}");
        [
            format!("back off {before}"),
            format!("back off {after}"),
            format!("back off released {after}"),
            busy.clone(),
            busy.clone(),
            busy,
            "left".to_owned(),
            String::new(),
        ]
    };
    let row_of = |what: &str, end: &End, expected: [String; 8]| {
        row(
            what,
            || Event::Ended(end.clone()),
            expected.each_ref().map(String::as_str),
        );
    };
    row_of(
        "a harness that leaves",
        &end(EndCode::Unavailable, Some("LEAVING")),
        lost("harness", "harness"),
    );
    row_of(
        "our unavailable",
        &end(EndCode::Unavailable, Some("STORE_UNAVAILABLE")),
        lost("harness", "call"),
    );
    for code in [
        EndCode::Unavailable,
        EndCode::Cancelled,
        EndCode::Ok,
        EndCode::Other,
    ] {
        let reset = end(code, None);
        row_of("a reset", &reset, lost("harness", "call"));
        let broken = End {
            broken: true,
            ..reset
        };
        row_of("a break", &broken, lost("connection", "connection"));
    }
    for (code, why) in [
        (EndCode::DeadlineExceeded, "DeadlineExceeded"),
        (EndCode::Cancelled, "Cancelled"),
        (EndCode::Aborted, "Reassigned"),
    ] {
        let stop = format!("stop {why}, at once released");
        row(
            "told to stop",
            || Event::Ended(end(code, Some("REASON"))),
            [
                "back off refusal",
                "at once",
                "at once released",
                &stop,
                &stop,
                &stop,
                "left",
                "",
            ],
        );
    }
}

#[test]
fn every_refusal_in_every_state() {
    row(
        "refused",
        || Event::Ended(end(EndCode::InvalidArgument, Some("SEQ_GAP"))),
        [
            "give up",
            "back off refusal",
            "back off released refusal",
            "stop Refused, back off released refusal",
            "stop Refused, back off released refusal",
            "stop Refused, back off released refusal",
            "left",
            "",
        ],
    );
    row(
        "drained",
        || Event::Ended(end(EndCode::FailedPrecondition, Some("DRAINED"))),
        [
            "gone",
            "gone",
            "gone",
            "stop Refused, gone",
            "stop Refused, gone",
            "stop Refused, gone",
            "left",
            "",
        ],
    );
}

#[test]
fn only_the_listed_ends_before_a_welcome_are_for_good() {
    let now = Instant::now();
    for (code, for_good) in [
        (EndCode::Unauthenticated, true),
        (EndCode::PermissionDenied, true),
        (EndCode::FailedPrecondition, true),
        (EndCode::InvalidArgument, true),
        (EndCode::Unimplemented, true),
        (EndCode::Ok, false),
        (EndCode::Cancelled, false),
        (EndCode::DeadlineExceeded, false),
        (EndCode::Aborted, false),
        (EndCode::Unavailable, false),
        (EndCode::ResourceExhausted, false),
        (EndCode::Other, false),
    ] {
        let actions = session(In::Greeting, now).apply(now, Event::Ended(end(code, Some("R"))));
        let [Action::Over(next)] = actions.as_slice() else {
            panic!("{code:?}: {actions:?}");
        };
        assert_eq!(matches!(next, Next::GiveUp(_)), for_good, "{code:?}");
    }
}

#[test]
fn heartbeats_come_at_the_interval_and_name_what_is_in_hand() {
    let start = Instant::now();
    for (state, beat) in [(In::Ready, "idle heartbeat"), (In::Busy, "busy heartbeat")] {
        let mut session = session(state, start);
        let mut now = start;
        if state == In::Busy {
            // Nothing has named the request yet: it is accepted.
            now += ACCEPT_WITHIN;
            assert_eq!(session.next_wake(), Some(now));
            assert_eq!(names(&session.apply(now, Event::Tick)), [beat]);
        }
        for _ in 0..5 {
            assert_eq!(session.next_wake(), Some(now + INTERVAL));
            now += INTERVAL;
            session.apply(now, Event::Frame(Inbound::Heartbeat));
            assert_eq!(names(&session.apply(now, Event::Tick)), [beat]);
        }
    }
}

#[test]
fn three_silent_intervals_are_the_end_of_a_call() {
    let start = Instant::now();
    for (state, over) in [
        (In::Ready, "back off connection"),
        (In::Busy, "stop HarnessLost, back off released connection"),
    ] {
        let mut session = session(state, start);
        for beat in 1..3 {
            session.apply(start + INTERVAL * beat, Event::Tick);
        }
        let actions = session.apply(start + INTERVAL * 3, Event::Tick);
        assert_eq!(names(&actions).join(", "), over);
        assert_eq!(session.next_wake(), None);
    }
}

#[test]
fn a_harness_that_neither_welcomes_nor_closes_is_not_waited_for() {
    let start = Instant::now();
    let actions = session(In::Greeting, start).apply(start + WELCOME_TIMEOUT, Event::Tick);
    assert_eq!(names(&actions), ["back off connection"]);
    let actions = session(In::Closing, start).apply(start + CLOSE_TIMEOUT, Event::Tick);
    assert_eq!(names(&actions), ["left"]);
}

#[test]
fn the_window_holds_entries_and_bytes_and_lets_a_large_one_go_alone() {
    let now = Instant::now();
    let mut session = session(In::Busy, now);
    assert_eq!(
        names(&session.apply(now, append(10))),
        ["append 1", "admit"]
    );
    assert_eq!(
        names(&session.apply(now, append(10))),
        ["append 2", "admit"]
    );
    assert!(session.takes_appends());
    assert!(
        names(&session.apply(now, append(400))).is_empty(),
        "two entries are out"
    );
    assert!(!session.takes_appends());
    let appended = |worker_seq| Event::Frame(Inbound::Appended { worker_seq });
    assert!(
        names(&session.apply(now, appended(1))).is_empty(),
        "400 bytes go alone"
    );
    assert_eq!(
        names(&session.apply(now, appended(2))),
        ["append 3", "admit"]
    );
    assert!(
        names(&session.apply(now, append(1))).is_empty(),
        "nothing beside it"
    );
    assert_eq!(
        names(&session.apply(now, replied())),
        ["value 4"],
        "a reply is exempt"
    );
}

#[test]
fn numbers_start_at_one_in_each_attempt() {
    let now = Instant::now();
    let mut session = session(In::Busy, now);
    session.apply(now, append(10));
    assert_eq!(names(&session.apply(now, replied())), ["value 2"]);
    session.apply(now, Event::Frame(delivery()));
    assert_eq!(
        names(&session.apply(now, append(10))),
        ["append 1", "admit"]
    );
}

#[test]
fn a_reply_over_its_limit_is_sent_for_the_harness_to_refuse() {
    let now = Instant::now();
    let mut session = session(In::Busy, now);
    let reply = Reply::Value(Payload::new("text/plain", vec![b'x'; 1001]));
    let actions = session.apply(now, Event::Replied(reply));
    assert_eq!(names(&actions), ["oversize 1001>1000", "value 1"]);
    let refused = end(EndCode::ResourceExhausted, Some("FRAME_TOO_LARGE"));
    let actions = session.apply(now, Event::Ended(refused));
    assert_eq!(names(&actions), ["back off released refusal"]);
}

#[test]
fn a_reply_no_frame_can_hold_becomes_an_error_with_both_sizes() {
    let reply = Reply::Value(Payload::new("text/plain", vec![b'x'; 1001]));
    assert_eq!(reply.clone().within(1001), reply);
    let Reply::Error(error) = reply.within(1000) else {
        panic!("an error");
    };
    assert_eq!(error.error_type, "PAYLOAD_TOO_LARGE");
    assert!(
        error.message.contains("1001") && error.message.contains("1000"),
        "{error:?}"
    );
}

#[test]
fn a_stop_that_crossed_the_reply_is_answered_only_while_it_can_have_crossed() {
    let start = Instant::now();
    let stop = || Event::Ended(end(EndCode::DeadlineExceeded, Some("DEADLINE")));
    let actions = session(In::Answered, start).apply(start + INTERVAL * 2, stop());
    assert_eq!(names(&actions), ["at once released"]);
    let later = start + INTERVAL * 2 + Duration::from_millis(1);
    let actions = session(In::Answered, start).apply(later, stop());
    assert_eq!(names(&actions), ["at once"]);
}

#[test]
fn a_stop_that_crossed_the_reply_of_a_slot_that_has_left_is_answered_too() {
    let start = Instant::now();
    let stop = || Event::Ended(end(EndCode::Cancelled, Some("CANCELLED")));
    for (state, last) in [(In::Answered, Event::Leave), (In::BusyLeaving, replied())] {
        let mut session = session(state, start);
        session.apply(start, last);
        let actions = session.apply(start, stop());
        assert_eq!(names(&actions), ["at once released"], "{state:?}");
    }
    let mut session = session(In::Answered, start);
    session.apply(start, Event::Leave);
    let actions = session.apply(start, Event::Ended(end(EndCode::Ok, None)));
    assert_eq!(names(&actions), ["left"]);
}

#[test]
fn an_agent_error_keeps_what_the_agent_said() {
    let error = AgentError::new("RateLimited", "slow down")
        .retryable()
        .retry_after(Duration::from_secs(2))
        .cause(std::io::Error::other("socket"));
    let Reply::Error(parts) = Reply::from(error) else {
        panic!("an error");
    };
    assert_eq!(parts.error_type, "RateLimited");
    assert!(parts.retryable && !parts.truncated);
    assert_eq!(parts.retry_after, Some(Duration::from_secs(2)));
    assert_eq!(parts.causes, ["socket"]);
}
