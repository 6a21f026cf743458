//! What of an attempt is kept until it is acknowledged, and what waits for that.

use std::time::Instant;

use super::super::tests::{INTERVAL, append, end, names, replied, request};
use super::super::{Action, Delivery, EndCode, Event, Inbound, Outbound, Reply, Session};
use super::tests::{
    In, WINDOW, appended, call, durable, interactive, lost, resumed, resuming, session, suspended,
};
use crate::journal::{Entry, Recorded, Step};
use crate::payload::Payload;

#[test]
fn the_reply_of_a_durable_run_is_kept_until_it_is_acknowledged() {
    let now = Instant::now();
    let mut session = session(In::Replied, now);
    // Its appends are, the reply is not.
    session.apply(now, appended(2));
    let suspended = suspended(session.apply(now, lost()));
    let mut call = Session::resuming(now, suspended);
    assert_eq!(names(&call.apply(now, resumed(2))), ["welcomed", "value 3"]);
    assert!(names(&call.apply(now, appended(3))).is_empty());
    let actions = call.apply(now, lost());
    assert_eq!(names(&actions), ["back off call"]);
}

#[test]
fn the_reply_of_an_interactive_run_is_sent_again_until_a_welcome_says_that_it_was_taken() {
    let now = Instant::now();
    let mut first = call(now, interactive());
    assert_eq!(names(&first.apply(now, append(10))), ["append 1", "admit"]);
    assert_eq!(names(&first.apply(now, replied())), ["value 2"]);
    let mut kept = suspended(first.apply(now, lost()));
    for taken in [0, 1] {
        let mut call = Session::resuming(now, kept);
        let again = ["welcomed, append 1, value 2", "welcomed, value 2"];
        let expected = again[usize::try_from(taken).expect("small")];
        assert_eq!(names(&call.apply(now, resumed(taken))).join(", "), expected);
        kept = suspended(call.apply(now, lost()));
    }
    let mut call = Session::resuming(now, kept);
    assert_eq!(names(&call.apply(now, resumed(2))), ["welcomed"]);
    assert_eq!(names(&call.apply(now, lost())), ["back off call"]);
}

#[test]
fn the_reply_of_an_interactive_run_is_kept_for_as_long_as_its_loss_may_go_unnoticed() {
    let now = Instant::now();
    let heard = || Event::Frame(Inbound::Heartbeat);
    for (intervals, expected) in [(3, "resume call"), (4, "back off call")] {
        let mut session = call_that_replied(now);
        let mut later = now;
        for _ in 0..intervals {
            later += INTERVAL;
            session.apply(later, heard());
            session.apply(later, Event::Tick);
        }
        let actions = session.apply(later, lost());
        assert_eq!(names(&actions), [expected], "after {intervals}");
    }
}

#[test]
fn nothing_of_an_interactive_run_goes_on_after_its_harness_has_left() {
    let now = Instant::now();
    let left = || Event::Ended(end(EndCode::Unavailable, Some("LEAVING")));
    let mut busy = call(now, interactive());
    let ended = names(&busy.apply(now, left())).join(", ");
    assert_eq!(ended, "stop HarnessLost, back off released harness");
    let ended = names(&call_that_replied(now).apply(now, left())).join(", ");
    assert_eq!(ended, "back off released harness");
}

#[test]
fn a_leaving_worker_waits_for_no_acknowledgement_of_an_interactive_run() {
    let now = Instant::now();
    let mut answered = call_that_replied(now);
    let kept = suspended(call_that_replied(now).apply(now, lost()));
    let leaving = names(&answered.apply(now, Event::Leave)).join(", ");
    assert_eq!(leaving, "leave, half-close");
    let mut busy = call(now, interactive());
    assert_eq!(names(&busy.apply(now, Event::Leave)), ["leave"]);
    let replying = names(&busy.apply(now, replied())).join(", ");
    assert_eq!(replying, "value 1, half-close");
    let mut resuming = Session::resuming(now, kept);
    assert_eq!(names(&resuming.apply(now, Event::Leave)), ["leave"]);
    let again = names(&resuming.apply(now, resumed(0))).join(", ");
    assert_eq!(again, "welcomed, value 1, half-close");
}

fn call_that_replied(now: Instant) -> Session {
    let mut session = call(now, interactive());
    session.apply(now, replied());
    session
}

#[test]
fn a_request_after_a_reply_acknowledges_it() {
    let now = Instant::now();
    let mut session = session(In::Replied, now);
    let actions = session.apply(now, Event::Frame(Inbound::Request(Box::new(request()))));
    assert_eq!(names(&actions), ["start"]);
    let actions = session.apply(now, lost());
    assert_eq!(
        names(&actions).join(", "),
        "stop HarnessLost, back off released call"
    );
}

#[test]
fn a_leaving_worker_half_closes_once_its_reply_is_acknowledged() {
    let now = Instant::now();
    let mut first = session(In::Replied, now);
    assert_eq!(names(&first.apply(now, Event::Leave)), ["leave"]);
    assert!(names(&first.apply(now, appended(2))).is_empty());
    assert_eq!(names(&first.apply(now, appended(3))), ["half-close"]);
    // The same over a loss: it leaves with the call that resumes.
    for (taken, expected) in [(2, "welcomed, value 3"), (3, "welcomed, half-close")] {
        let mut call = resuming(In::Replied, now);
        assert_eq!(names(&call.apply(now, Event::Leave)), ["leave"]);
        assert_eq!(names(&call.apply(now, resumed(taken))).join(", "), expected);
    }
    let mut busy = resuming(In::Busy, now);
    assert_eq!(names(&busy.apply(now, Event::Leave)), ["leave"]);
    assert_eq!(names(&busy.apply(now, resumed(2))), ["welcomed"]);
    assert_eq!(names(&busy.apply(now, replied())), ["value 3"]);
    assert_eq!(names(&busy.apply(now, appended(3))), ["half-close"]);
}

#[test]
fn numbers_and_window_go_on_over_a_resume() {
    let now = Instant::now();
    let mut call = resuming(In::Busy, now);
    assert!(!names(&call.apply(now, resumed(0))).is_empty());
    assert!(
        names(&call.apply(now, append(10))).is_empty(),
        "two are out"
    );
    assert_eq!(names(&call.apply(now, appended(1))), ["append 3", "admit"]);
    assert_eq!(names(&call.apply(now, replied())), ["value 4"]);
}

#[test]
fn a_step_waits_for_its_acknowledgement_also_over_a_resume() {
    let now = Instant::now();
    let step = || Event::Append {
        entry: Entry::Step(Box::new(Step {
            name: "a".to_owned(),
            key: "1".to_owned(),
            idempotency_key: "run/a/1".to_owned(),
            outcome: None,
        })),
        entry_bytes: 10,
    };
    let mut first = call(now, durable(WINDOW));
    assert_eq!(names(&first.apply(now, append(10))), ["append 1", "admit"]);
    assert_eq!(names(&first.apply(now, step())), ["append 2", "await 2"]);
    assert_eq!(names(&first.apply(now, appended(1))), ["acknowledged 1"]);
    let suspended = suspended(first.apply(now, lost()));
    let mut call = Session::resuming(now, suspended);
    // The harness had taken it, and the word was lost.
    assert_eq!(
        names(&call.apply(now, resumed(2))),
        ["welcomed", "acknowledged 2"]
    );
    assert!(
        names(&call.apply(now, appended(2))).is_empty(),
        "nobody waits"
    );
}

#[test]
fn a_request_starts_when_all_its_recorded_entries_have_come() {
    let now = Instant::now();
    let entry = |seq| {
        let usage = Entry::Usage(Box::default());
        Event::Frame(Inbound::Entry(Some(Box::new(Recorded::new(seq, 1, usage)))))
    };
    let delivery = || Delivery {
        replay_entries: 3,
        ..durable(WINDOW)
    };
    let mut session = call(now, delivery());
    assert!(names(&session.apply(now, entry(4))).is_empty());
    // One of a kind that no worker writes counts and is passed over.
    assert!(names(&session.apply(now, Event::Frame(Inbound::Entry(None)))).is_empty());
    let actions = session.apply(now, entry(9));
    let [Action::Start(delivery_started)] = actions.as_slice() else {
        panic!("{actions:?}");
    };
    let seqs: Vec<u64> = delivery_started.recorded.iter().map(|it| it.seq).collect();
    assert_eq!(seqs, [4, 9]);

    // What has not started is neither stopped nor resumed.
    let mut session = call(now, delivery());
    session.apply(now, entry(4));
    let actions = session.apply(now, lost());
    assert_eq!(names(&actions), ["back off released call"]);
}

#[test]
fn what_is_sent_again_is_what_was_sent() {
    let now = Instant::now();
    let mut first = call(now, durable(WINDOW));
    let sent: Vec<Action> = [
        Event::Append {
            entry: Entry::Output(Payload::text("piece")),
            entry_bytes: 10,
        },
        Event::Replied(Reply::Value(Payload::text("reply"))),
    ]
    .into_iter()
    .flat_map(|event| first.apply(now, event))
    .filter(|action| {
        matches!(
            action,
            Action::Send(Outbound::Append { .. } | Outbound::Reply { .. })
        )
    })
    .collect();
    let suspended = suspended(first.apply(now, lost()));
    let again = Session::resuming(now, suspended).apply(now, resumed(0));
    assert_eq!(again[1..], sent);
    assert_eq!(sent.len(), 2);
}
