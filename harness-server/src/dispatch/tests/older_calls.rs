//! A worker's hello about work that is still in an older call of its own, which the harness has not
//! found lost yet.

use super::interactive_lost::{windowed, working};
use super::samples::{ask, offer};
use super::*;
use crate::slot::{Refusal, Violation};

const WORKER: WorkerId = WorkerId(Uuid::from_u128(1));

fn released(world: &mut World, worker: WorkerId, delivery: Delivery, lease: Lease) -> Vec<Action> {
    world.apply(Event::Released {
        worker,
        delivery,
        lease,
    })
}

#[test]
fn a_worker_that_has_said_released_is_not_waited_for_when_its_older_call_is_lost() {
    for mut world in [World::new(), windowed()] {
        let (older, delivery, lease) = working(&mut world, ask("echo"));
        let other_attempt = Delivery {
            attempt: Attempt(2),
            ..delivery
        };
        for (worker, delivery, lease) in [
            (WorkerId(Uuid::from_u128(2)), delivery, lease),
            (WORKER, other_attempt, lease),
            (WORKER, delivery, Lease([9; 16])),
        ] {
            released(&mut world, worker, delivery, lease);
            assert!(
                world.core.slots[&older].lease.is_some(),
                "it proves nothing"
            );
        }
        let actions = released(&mut world, WORKER, delivery, lease);
        assert_eq!(ends(&actions), [], "what it has written may still come");
        world.lose(older);
        world.assert_failed(delivery.run, Code::WorkerLost, &["the connection broke"]);
    }
}

#[test]
fn a_reply_that_comes_after_a_released_of_its_work_counts() {
    let mut world = windowed();
    let (older, delivery, lease) = working(&mut world, ask("echo"));
    released(&mut world, WORKER, delivery, lease);
    world.reply(older);
    assert!(world.answer(delivery.run).outcome.is_ok());
    // The slot's next request is not of that.
    world.ask("echo");
    let next = world.held(older).expect("it works");
    world.accept(older);
    world.lose(older);
    assert!(!world.is_answered(next.run), "its worker may come back");
}

#[test]
fn nothing_is_owed_for_work_that_has_stopped_before_it_was_cancelled() {
    let mut world = windowed();
    let (_, delivery, lease) = working(&mut world, ask("echo"));
    released(&mut world, WORKER, delivery, lease);
    world.cancel(delivery.run);
    assert_eq!(world.core.unreleased, 0);
}

#[test]
fn what_a_released_has_stopped_is_tried_again_by_its_policy() {
    let mut world = windowed();
    let (older, delivery, lease) = working(&mut world, ask("echo").max_attempts(2));
    let next = world.attach(offer("echo", 1));
    released(&mut world, WORKER, delivery, lease);
    world.lose(older);
    assert!(!world.is_answered(delivery.run), "it backs off");
    world.pass(BACK_OFF);
    assert_eq!(world.held(next).map(|it| it.attempt), Some(Attempt(2)));
    world.reply(next);
    assert!(world.answer(delivery.run).outcome.is_ok());
}

#[test]
fn what_a_drained_worker_may_not_resume_fails_when_its_older_call_is_lost() {
    let mut world = windowed();
    let (older, delivery, lease) = working(&mut world, ask("echo"));
    let (worker, reason) = (WORKER, "a new version".to_owned());
    world.apply(Event::Drain { worker, reason });
    let (_, actions) = world.resume(offer("echo", 1), delivery, lease);
    assert_eq!(ends(&actions)[0].1, End::Refused(Refusal::Drained));
    world.lose(older);
    world.assert_failed(delivery.run, Code::WorkerLost, &["the connection broke"]);
}

#[test]
fn a_resume_takes_the_place_of_the_older_call_where_a_worker_has_all_its_slots() {
    let mut world = World::with(|limits| {
        limits.interactive_reattach_window = MINUTE;
        limits.worker_slots = 1;
    });
    let (older, delivery, lease) = working(&mut world, ask("echo"));
    for (lease, why) in [(None, "no resume"), (Some(Lease([9; 16])), "lease")] {
        let (_, actions) = match lease {
            Some(lease) => world.resume(offer("echo", 1), delivery, lease),
            None => world.attach_and_see(offer("echo", 1)),
        };
        let refused = &ends(&actions)[0].1;
        let too_many = matches!(refused, End::Refused(Refusal::TooMany(_)));
        assert!(too_many, "{why}: {refused:?}");
    }
    let (again, actions) = world.resume(offer("echo", 1), delivery, lease);
    assert_eq!(ends(&actions), [(older, End::Superseded(delivery))]);
    assert_eq!(world.held(again), Some(delivery));
    world.reply(again);
    assert!(world.answer(delivery.run).outcome.is_ok());
}

#[test]
fn the_window_of_unacknowledged_appends_is_no_wider_after_a_resume() {
    let mut world = windowed();
    let mut streamed = ask("echo");
    streamed.placing.paced = true;
    let (slot, delivery, lease) = working(&mut world, streamed);
    let append = |world: &mut World, slot, seq| {
        let append = Frame::Append {
            delivery,
            seq,
            kind: EntryKind::Plain,
            entry: vec![0; 10].into(),
            acknowledged: 0,
        };
        ends(&world.frame(slot, append))
    };
    let window = world.core.limits.slot.unacked_entries as u64;
    for seq in 1..=window {
        assert_eq!(append(&mut world, slot, seq), []);
    }
    let (again, actions) = world.resume(offer("echo", 1), delivery, lease);
    assert_eq!(resumed(&actions).map(|it| it.last_seq), Some(0));
    // What is sent again is no more than was there.
    assert_eq!(append(&mut world, again, window), []);
    let passed = End::Violation(Violation::WindowPassed);
    assert_eq!(append(&mut world, again, window + 1), [(again, passed)]);
}
