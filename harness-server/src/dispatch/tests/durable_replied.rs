//! Workers that come back to an attempt which their own reply has failed.

use super::durable::*;
use super::samples::{ask, minimal, offer};
use super::*;
use crate::dispatch::{Change, Write};
use crate::slot::Refusal;
use crate::store::Holder;

/// The numbers of the replies that steps write.
fn reply_seqs(actions: &[Action]) -> Vec<u64> {
    let seq = |action: &Action| {
        if let Action::Write(Write {
            change: Change::EndAttempt { reply_seq, .. } | Change::Finish { reply_seq, .. },
            ..
        }) = action
        {
            Some(*reply_seq)
        } else {
            None
        }
    };
    actions.iter().filter_map(seq).collect()
}

fn retryable() -> Reply {
    let mut failure = Failure::new(Code::AgentError, "it broke");
    failure.retryable = true;
    Reply::Error(failure)
}

/// A run whose first attempt has a step and a retryable error, number 2, which is not on disk yet.
fn failed(world: &mut World, timeout: Duration) -> (RunId, SlotId, Delivery, Lease, Vec<Action>) {
    let slot = world.attach(offer("echo", 1));
    let (run, _) = world.start_as(ask("echo").max_attempts(3).timeout(timeout), start_of());
    let lease = lease_in(&world.stored(run));
    world.append(slot, 1, EntryKind::Step, 10);
    world.stored(run);
    let delivery = world.held(slot).expect("it works");
    let actions = world.reply_with(slot, retryable());
    (run, slot, delivery, lease, actions)
}

#[test]
fn a_reply_that_failed_its_attempt_is_acknowledged_to_whoever_resumes_it() {
    let mut world = World::new();
    let (run, slot, delivery, lease, actions) = failed(&mut world, MINUTE);
    assert_eq!(writes(&actions), ["end attempt"]);
    assert_eq!(reply_seqs(&actions), [2]);
    world.lose(slot);

    // What came of it is known in a moment.
    let (_, actions) = world.resume(offer("echo", 1), delivery, lease);
    assert_eq!(ends(&actions)[0].1, End::StoreFailed);
    world.stored(run);

    let others = [
        (offer("echo", 2), lease),
        (offer("echo", 1), Lease([9; 16])),
        (minimal("echo", 1), lease),
    ];
    for (other, lease) in others {
        let (_, actions) = world.resume(other, delivery, lease);
        assert_eq!(resumed(&actions), None, "it is not its reply");
        assert_eq!(ends(&actions)[0].1, End::Refused(Refusal::NotYours));
    }
    let (again, actions) = world.resume(offer("echo", 1), delivery, lease);
    let known = replied(delivery, 2);
    assert_eq!(resumed(&actions), Some(known));
    assert_eq!(world.held(again), None, "its slot is free");

    // It gets the next attempt as any other slot; the one before is over with that.
    world.pass(SECOND);
    let (third, actions) = world.resume(offer("echo", 1), delivery, lease);
    assert_eq!(resumed(&actions), Some(known), "nothing has begun yet");
    assert_eq!(writes(&world.load(run)), ["start"]);
    let (_, actions) = world.resume(offer("echo", 1), delivery, lease);
    assert_eq!(ends(&actions)[0].1, End::Superseded(delivery));
    world.stored(run);
    let (_, actions) = world.resume(offer("echo", 1), delivery, lease);
    assert_eq!(ends(&actions)[0].1, End::Superseded(delivery));
    let works = |slot: &SlotId| world.run_in(*slot) == Some(run);
    let next = [again, third].into_iter().find(works).expect("it works");
    assert_eq!(world.held(next).map(|it| it.attempt), Some(Attempt(2)));

    // What fails without a reply has none, whatever the one before had.
    let died = Failure::new(Code::WorkerLost, "died");
    let actions = world.apply(Event::Died {
        slot: next,
        failure: died,
    });
    assert_eq!(reply_seqs(&actions), [0]);
    world.end(run);
}

#[test]
fn a_reply_without_time_for_another_attempt_is_of_the_run_that_ended_after_it() {
    let mut world = World::new();
    let timeout = Duration::from_millis(50);
    let (run, _, _, _, actions) = failed(&mut world, timeout);
    assert_eq!(writes(&actions), ["end attempt", "finish"]);
    assert_eq!(reply_seqs(&actions), [2, 2]);
    world.settled(run);
    assert!(!world.is_here(run));
}

#[test]
fn a_run_that_is_cancelled_while_it_backs_off_keeps_the_number_of_its_reply() {
    let mut world = World::new();
    let (run, _, _, _, _) = failed(&mut world, MINUTE);
    world.stored(run);
    let actions = world.apply(Event::CancelRequested {
        run,
        who: "test".into(),
        why: String::new(),
    });
    assert_eq!(writes(&actions), ["finish"]);
    assert_eq!(reply_seqs(&actions), [2]);
    world.stored(run);
}

#[test]
fn a_harness_that_was_started_anew_knows_the_reply_that_failed_an_attempt() {
    let mut world = World::new();
    let holder = Holder {
        worker: WorkerId(Uuid::from_u128(1)),
        lease: Lease([5; 16]),
    };
    let (run, _) = world.adopt_replied(holder, 7);
    let delivery = Delivery {
        run,
        attempt: Attempt(1),
    };
    let (slot, actions) = world.resume(offer("echo", 1), delivery, holder.lease);
    assert_eq!(resumed(&actions), Some(replied(delivery, 7)));
    assert_eq!(world.held(slot), None, "its slot is free");
    world.end(run);
}
