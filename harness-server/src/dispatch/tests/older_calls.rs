//! A worker's hello about work that is still in an older call of its own, which the harness has not
//! found lost yet.

use super::samples::{Ask, ask, offer};
use super::*;
use crate::slot::{Refusal, Violation};

const WORKER: WorkerId = WorkerId(Uuid::from_u128(1));

fn windowed() -> World {
    World::with(|limits| limits.interactive_reattach_window = MINUTE)
}

/// An ask in a full level slot of the first worker that has accepted it.
fn working(world: &mut World, ask: Ask) -> (SlotId, Delivery, Lease) {
    let slot = world.attach(offer("echo", 1));
    let (_, actions) = world.ask_and_see(ask);
    world.accept(slot);
    let delivery = world.held(slot).expect("it works");
    (slot, delivery, lease_in(&actions))
}

fn released(world: &mut World, worker: WorkerId, delivery: Delivery, lease: Lease) -> Vec<Action> {
    world.apply(Event::Released {
        worker,
        delivery,
        lease,
    })
}

#[test]
fn a_released_ends_the_older_call_of_its_work_and_is_not_waited_for() {
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
            let actions = released(&mut world, worker, delivery, lease);
            assert_eq!(ends(&actions), [], "it proves nothing");
        }
        assert_eq!(world.held(older), Some(delivery));

        world.attach(offer("echo", 1));
        let actions = released(&mut world, WORKER, delivery, lease);
        assert_eq!(ends(&actions), [(older, End::Superseded(delivery))]);
        world.assert_failed(delivery.run, Code::WorkerLost, &["it stopped"]);
    }
}

#[test]
fn a_request_that_nobody_saw_is_not_waited_for() {
    for is_lost in [true, false] {
        let mut world = windowed();
        let (slot, delivery, lease) = working(&mut world, ask("echo"));
        let work = (WORKER, delivery, lease);
        let undelivered = Event::Undelivered { work };
        if is_lost {
            world.lose(slot);
            world.apply(undelivered);
            world.assert_failed(delivery.run, Code::WorkerLost, &["the connection broke"]);
        } else {
            let actions = world.apply(undelivered);
            assert_eq!(
                ends(&actions),
                [],
                "the loss of its call tells what follows"
            );
            assert_eq!(world.held(slot), Some(delivery));
        }
    }
}

#[test]
fn what_a_released_has_stopped_is_tried_again_by_its_policy() {
    let mut world = windowed();
    let (_, delivery, lease) = working(&mut world, ask("echo").max_attempts(2));
    let next = world.attach(offer("echo", 1));
    released(&mut world, WORKER, delivery, lease);
    assert!(!world.is_answered(delivery.run), "it backs off");
    world.pass(BACK_OFF);
    assert_eq!(world.held(next).map(|it| it.attempt), Some(Attempt(2)));
    world.reply(next);
    assert!(world.answer(delivery.run).outcome.is_ok());
}

#[test]
fn what_a_drained_worker_may_not_resume_ends_with_its_older_call() {
    let mut world = windowed();
    let (older, delivery, lease) = working(&mut world, ask("echo"));
    let (worker, reason) = (WORKER, "a new version".to_owned());
    world.apply(Event::Drain { worker, reason });
    let (_, actions) = world.resume(offer("echo", 1), delivery, Lease([9; 16]));
    assert_eq!(ends(&actions)[0].1, End::Refused(Refusal::Drained));
    assert!(!world.is_answered(delivery.run), "it proves nothing");

    let (again, actions) = world.resume(offer("echo", 1), delivery, lease);
    let superseded = (older, End::Superseded(delivery));
    let refused = (again, End::Refused(Refusal::Drained));
    assert_eq!(ends(&actions), [superseded, refused]);
    world.assert_failed(delivery.run, Code::WorkerLost, &[]);
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
