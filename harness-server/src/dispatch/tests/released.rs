//! Cancelled work is remembered until its worker says released, or for the release timeout.

use super::{
    Action, Code, Delivery, Event, Lease, MINUTE, Note, SECOND, TIMEOUT, WorkerId, World, ask,
    lease_in, minimal,
};
use uuid::Uuid;

const WORKER: WorkerId = WorkerId(Uuid::from_u128(1));

/// A worker whose only call was ended at a deadline.
fn stuck() -> (World, Delivery, Lease) {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    let (_, actions) = world.ask_and_see(ask("echo"));
    let delivery = world.held(slot).expect("it runs");
    world.pass(TIMEOUT);
    (world, delivery, lease_in(&actions))
}

fn released(world: &mut World, worker: WorkerId, delivery: Delivery, lease: Lease) -> Note {
    let mut actions = world.apply(Event::Released {
        worker,
        delivery,
        lease,
    });
    let Some(Action::Note(note)) = actions.pop() else {
        panic!("a released is told to the log");
    };
    note
}

fn unreleased(world: &World) -> u32 {
    let views = world.core.view_agents("default");
    views.iter().map(|view| view.unreleased).sum()
}

#[test]
fn a_released_with_its_lease_says_how_long_it_took() {
    let (mut world, delivery, lease) = stuck();
    assert_eq!(unreleased(&world), 1);
    world.pass(3 * SECOND);
    let note = released(&mut world, WORKER, delivery, lease);
    assert!(
        matches!(note, Note::Released { took, .. } if took == 3 * SECOND),
        "{note:?}"
    );
    assert_eq!(unreleased(&world), 0);
    let note = released(&mut world, WORKER, delivery, lease);
    assert!(matches!(note, Note::ReleasedUnknown { .. }), "only once");
}

#[test]
fn a_released_that_is_not_this_workers_proves_nothing() {
    let (mut world, delivery, lease) = stuck();
    let other_worker = WorkerId(Uuid::from_u128(2));
    let other_attempt = Delivery {
        attempt: delivery.attempt.next(),
        ..delivery
    };
    for (worker, delivery, lease) in [
        (other_worker, delivery, lease),
        (WORKER, other_attempt, lease),
        (WORKER, delivery, Lease([9; 16])),
    ] {
        let note = released(&mut world, worker, delivery, lease);
        assert!(matches!(note, Note::ReleasedUnknown { .. }), "{note:?}");
    }
    assert_eq!(unreleased(&world), 1);
}

#[test]
fn after_the_release_timeout_it_is_given_up() {
    let (mut world, delivery, lease) = stuck();
    let actions = world.pass(10 * MINUTE - SECOND);
    assert!(actions.is_empty());
    let actions = world.pass(SECOND);
    assert!(
        matches!(&actions[..], [Action::Note(Note::GaveUp { delivery: d, .. })] if *d == delivery),
        "{actions:?}"
    );
    assert_eq!(unreleased(&world), 0);
    let note = released(&mut world, WORKER, delivery, lease);
    assert!(matches!(note, Note::ReleasedUnknown { .. }), "too late");
}

#[test]
fn a_worker_may_have_other_slots_and_more_than_one_request_unreleased() {
    let mut world = World::new();
    let keeps = world.attach(minimal("echo", 1));
    world.attach(minimal("echo", 1));
    world.attach(minimal("echo", 1));
    world.ask_and_see(ask("echo").timeout(20 * MINUTE));
    let mut stuck = Vec::new();
    for _ in 0..2 {
        let (run, actions) = world.ask_and_see(ask("echo"));
        stuck.push((run, lease_in(&actions)));
        world.cancel(run);
    }
    assert_eq!(unreleased(&world), 2);
    let (run, lease) = stuck[1];
    let attempt = super::Attempt(1);
    let note = released(&mut world, WORKER, Delivery { run, attempt }, lease);
    assert!(matches!(note, Note::Released { .. }));
    assert_eq!(unreleased(&world), 1);
    assert!(world.held(keeps).is_some());
}

#[test]
fn only_ends_that_leave_work_behind_are_remembered() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    world.ask("echo");
    world.lose(slot);
    assert_eq!(unreleased(&world), 0, "a lost worker stops by itself");
    let slot = world.attach(minimal("echo", 1));
    world.ask("echo");
    world.frame(slot, super::Frame::Unknown);
    assert_eq!(unreleased(&world), 1, "one that broke a rule is told to");
    let view = &world.core.view_workers(world.now, "default", "")[0];
    assert_eq!(view.unreleased[0].code, Code::ProtocolViolation);
}

#[test]
fn what_is_remembered_is_limited() {
    let mut world = World::with(|limits| limits.unreleased = 2);
    for _ in 0..4 {
        world.attach(minimal("echo", 1));
        let run = world.ask("echo");
        world.cancel(run);
    }
    assert_eq!(unreleased(&world), 2);
}
