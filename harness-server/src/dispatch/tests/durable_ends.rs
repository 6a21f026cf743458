//! What is on its way to the disk when a durable run ends, is tried again, or its harness leaves.

use std::time::Duration;

use super::durable::*;
use super::samples::{ask, minimal, offer};
use super::*;
use crate::store::{Holder, State};

fn loads(actions: &[Action]) -> usize {
    let load = |action: &&Action| matches!(action, Action::Load { .. });
    actions.iter().filter(load).count()
}

#[test]
fn a_run_is_not_read_again_before_all_that_was_written_of_it_is_on_disk() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let (run, _) = world.start_as(ask("echo").max_attempts(3), start_of());
    world.stored(run);
    world.append(slot, 1, EntryKind::Step, 10);
    let free = world.attach(offer("echo", 2));
    // Its step is not on disk yet, and must go with its next request.
    let died = Failure::new(Code::WorkerLost, "died");
    world.apply(Event::Died {
        slot,
        failure: died,
    });
    assert_eq!(loads(&world.pass(5 * SECOND)), 0, "the step is missing");
    assert_eq!(loads(&world.stored(run)), 0, "the end of its attempt too");
    assert_eq!(loads(&world.stored(run)), 1);
    world.load(run);
    world.stored(run);
    assert_eq!(world.run_in(free), Some(run));
    world.end(run);
}

#[test]
fn what_comes_behind_an_end_that_is_not_on_disk_is_neither_taken_nor_acknowledged() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let (run, _) = world.start("echo");
    world.stored(run);
    let delivery = world.held(slot).expect("it works");
    world.apply(Event::CancelRequested {
        run,
        who: "test".into(),
        why: String::new(),
    });
    assert!(writes(&world.append(slot, 1, EntryKind::Step, 10)).is_empty());
    let reply = Frame::Reply {
        delivery,
        seq: 2,
        reply: Reply::Value(Default::default()),
    };
    assert!(writes(&world.frame(slot, reply)).is_empty());
    assert_eq!(world.held(slot), Some(delivery), "its work has not stopped");
    let actions = world.stored(run);
    assert_eq!(acknowledged(&actions), None);
    assert_eq!(ends(&actions), [(slot, End::Cancelled(delivery))]);
}

#[test]
fn a_harness_that_waits_no_longer_ends_no_durable_run() {
    for offer in [offer("echo", 1), minimal("echo", 1)] {
        let mut world = World::new();
        let slot = world.attach(offer);
        let (run, _) = world.start("echo");
        world.stored(run);
        world.apply(Event::ServerLeaving);
        let actions = world.apply(Event::ServerLeft);
        assert_eq!(ends(&actions), [(slot, End::Leaving)]);
        assert!(
            writes(&actions).is_empty(),
            "the next harness goes on with it"
        );
        assert!(!world.is_here(run));
    }
}

#[test]
fn a_leaving_harness_does_not_wait_for_a_worker_that_is_away() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let (run, _) = world.start("echo");
    world.stored(run);
    world.accept(slot);
    world.lose(slot);
    assert!(world.is_here(run), "it waits for its worker");
    assert!(writes(&world.apply(Event::ServerLeaving)).is_empty());
    assert!(!world.is_here(run));
}

#[test]
fn an_attempt_that_is_taken_in_ends_when_its_timeout_is_over() {
    let mut world = World::new();
    let holder = Holder {
        worker: WorkerId(Uuid::from_u128(1)),
        lease: Lease([5; 16]),
    };
    let began = world.now;
    world.pass(2 * SECOND);
    let (run, _) = world.adopt_timed(holder, began, 5 * SECOND);
    let delivery = Delivery {
        run,
        attempt: Attempt(1),
    };
    let (slot, actions) = world.resume(offer("echo", 1), delivery, holder.lease);
    let ends_at = began + 5 * SECOND;
    assert_eq!(resumed(&actions).and_then(|it| it.deadline), Some(ends_at));
    world.frame(slot, Frame::Heartbeat(Some(delivery)));
    assert!(writes(&world.pass(Duration::from_millis(2900))).is_empty());
    let actions = world.pass(Duration::from_millis(200));
    assert_eq!(finished(&actions), Some(State::Failed));
    assert_eq!(ends(&actions), [(slot, End::DeadlineExceeded(delivery))]);
    world.settled(run);
}
