//! Frames of a worker: acknowledgements, and what a wrong one does to the run in the slot.

use super::{
    Action, Attempt, BACK_OFF, Code, Delivery, EntryKind, Frame, Level, Note, Offer, Payload,
    Reply, SlotId, World, ask, deliveries, ends, offer,
};
use crate::slot::{End, Violation};

fn append(delivery: Delivery, seq: u64, acknowledged: u64) -> Frame {
    Frame::Append {
        delivery,
        seq,
        kind: EntryKind::Plain,
        entry: vec![0; 10].into(),
        acknowledged,
    }
}

/// A full level slot that has taken a request of three attempts, and what it holds.
fn busy() -> (World, SlotId, Delivery) {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    world.ask_and_see(ask("echo").max_attempts(3));
    world.accept(slot);
    let held = world.held(slot).expect("it was free");
    (world, slot, held)
}

#[test]
fn entries_are_acknowledged_and_repeated_ones_again() {
    let (mut world, slot, held) = busy();
    for (seq, acknowledged) in [(1, 1), (2, 2), (1, 2), (2, 2), (3, 3)] {
        let actions = world.frame(slot, append(held, seq, 0));
        assert!(
            matches!(actions[..], [Action::Acknowledge { slot: to, seq, .. }]
                if to == slot && seq == acknowledged),
            "{seq}: {actions:?}"
        );
    }
}

#[test]
fn nothing_is_written_to_a_minimal_worker_before_the_end() {
    let mut world = World::new();
    let slot = world.attach(Offer {
        level: Level::Minimal,
        ..offer("echo", 1)
    });
    world.ask("echo");
    let held = world.held(slot).expect("it was free");
    for seq in [1, 2, 1, 3] {
        let actions = world.frame(slot, append(held, seq, 0));
        assert!(actions.is_empty(), "{actions:?}");
    }
    assert_eq!(world.core.slots[&slot].slot.last_seq(), Some(3));
}

/// That a frame ends the call, and that the run is tried again elsewhere as a counted attempt.
fn assert_breaks(frame: fn(Delivery) -> Frame, end: fn(Delivery) -> End, said: &str) {
    let (mut world, slot, held) = busy();
    let other = world.attach(offer("echo", 2));
    let actions = world.frame(slot, frame(held));
    assert_eq!(ends(&actions), [(slot, end(held))]);
    world.pass(BACK_OFF);
    assert_eq!(world.run_in(other), Some(held.run), "it is tried again");

    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let run = world.ask("echo");
    let held = world.held(slot).expect("it was free");
    world.frame(slot, frame(held));
    world.assert_failed(run, Code::ProtocolViolation, &["worker \"w1\"", said]);
}

fn other(held: Delivery) -> Delivery {
    Delivery {
        attempt: Attempt(9),
        ..held
    }
}

#[test]
fn a_frame_about_another_attempt_fails_the_run_in_the_slot() {
    let wrong = |held| End::WrongAttempt {
        named: other(held),
        holds: Some(held),
    };
    let said = "sent a frame about run";
    assert_breaks(|held| append(other(held), 1, 0), wrong, said);
    assert_breaks(|held| Frame::Heartbeat(Some(other(held))), wrong, said);
    let reply = |held| Frame::Reply {
        delivery: other(held),
        seq: 1,
        reply: Reply::Value(Payload::default()),
    };
    assert_breaks(reply, wrong, said);
}

#[test]
fn a_frame_that_breaks_a_rule_fails_the_run_in_the_slot() {
    let said = "broke the protocol";
    let hello = |_| End::Violation(Violation::SecondHello);
    assert_breaks(|_| Frame::HelloAgain, hello, said);
    let unknown = |_| End::Violation(Violation::UnknownFrame);
    assert_breaks(|_| Frame::Unknown, unknown, said);
    let gap = |_| {
        End::Violation(Violation::Gap {
            expected: 1,
            got: 2,
        })
    };
    assert_breaks(|held| append(held, 2, 0), gap, "expected 1, got 2");
}

#[test]
fn a_reply_without_a_number_fails_the_run_instead_of_vanishing() {
    let (mut world, slot, delivery) = busy();
    let reply = Reply::Value(Payload::default());
    let actions = world.frame(
        slot,
        Frame::Reply {
            delivery,
            seq: 0,
            reply,
        },
    );
    assert!(matches!(ends(&actions)[..], [(_, End::Violation(_))]));
}

#[test]
fn appends_past_the_window_end_the_call() {
    let (mut world, slot, held) = busy();
    for seq in 1..=4 {
        world.frame(slot, append(held, seq, 0));
    }
    let actions = world.frame(slot, append(held, 5, 0));
    let end = End::Violation(Violation::WindowPassed);
    assert_eq!(ends(&actions), [(slot, end)]);
}

#[test]
fn a_frame_over_the_limit_is_never_tried_again() {
    let (mut world, slot, held) = busy();
    let actions = world.frame(slot, Frame::TooLarge { bytes: 9, limit: 8 });
    let end = End::FrameTooLarge { bytes: 9, limit: 8 };
    assert_eq!(ends(&actions), [(slot, end)]);
    let parts = ["9 bytes", "limit is 8"];
    world.assert_failed(held.run, Code::PayloadTooLarge, &parts);
}

#[test]
fn a_wrong_frame_of_an_idle_slot_hurts_no_run() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let busy = world.attach(offer("echo", 2));
    let run = world.ask("echo");
    world.reply(slot);
    let run = [run, world.ask("echo")][1];
    assert_eq!(world.run_in(busy), Some(run));
    let held = world.held(busy).expect("it is busy");
    let actions = world.frame(slot, append(held, 1, 0));
    assert_eq!(ends(&actions).len(), 1);
    assert_eq!(world.run_in(busy), Some(run), "not its to touch");
}

#[test]
fn a_frame_about_what_was_just_answered_is_counted_and_dropped() {
    let (mut world, slot, held) = busy();
    world.reply(slot);
    for frame in [append(held, 1, 0), Frame::Heartbeat(Some(held))] {
        let actions = world.frame(slot, frame);
        assert!(
            matches!(actions[..], [Action::Note(Note::Stale { slot: of })] if of == slot),
            "{actions:?}"
        );
    }
}

#[test]
fn a_frame_of_a_call_that_is_gone_is_counted_and_dropped() {
    let (mut world, slot, held) = busy();
    world.cancel(held.run);
    for frame in [append(held, 1, 0), Frame::HalfClosed, Frame::Leave] {
        let actions = world.frame(slot, frame);
        assert!(matches!(actions[..], [Action::Note(Note::Stale { .. })]));
    }
    assert!(deliveries(&world.lose(slot)).is_empty());
}

#[test]
fn the_log_is_told_who_failed_which_request_and_how() {
    type Failing = fn(&mut World, SlotId, Delivery) -> Vec<Action>;
    let cases: [(Failing, &str); 3] = [
        (
            |world, slot, _| world.frame(slot, Frame::Unknown),
            "broke the protocol",
        ),
        (|world, slot, _| world.lose(slot), "was lost"),
        (
            |world, _, _| world.pass(super::MINUTE),
            "missed three heartbeats",
        ),
    ];
    for (fail, how) in cases {
        let (mut world, slot, held) = busy();
        let actions = fail(&mut world, slot, held);
        let told = actions.iter().find_map(|action| {
            let Action::Note(Note::Failed { delivery, what, .. }) = action else {
                return None;
            };
            Some((*delivery, what))
        });
        let (delivery, what) = told.unwrap_or_else(|| panic!("{how}: {actions:?}"));
        assert_eq!(delivery, Some(held));
        assert!(
            what.contains("worker \"w1\"") && what.contains(how),
            "{what}"
        );
    }
}
