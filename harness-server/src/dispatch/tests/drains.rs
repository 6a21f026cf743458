//! Drain: a worker finishes, leaves and does not come back.

use super::{Action, Event, Offer, Reply, SECOND, SlotId, World, ends, minimal, offer};
use crate::slot::{End, Refusal};

fn drain(world: &mut World, offer: &Offer) -> Vec<Action> {
    let (worker, reason) = (offer.worker, "a new version".to_owned());
    world.apply(Event::Drain { worker, reason })
}

/// The slots that are told to drain.
fn told(actions: &[Action]) -> Vec<SlotId> {
    let told = |action: &Action| {
        if let Action::Drain { slot, reason } = action {
            assert_eq!(&**reason, "a new version");
            Some(*slot)
        } else {
            None
        }
    };
    actions.iter().filter_map(told).collect()
}

#[test]
fn a_drained_worker_finishes_and_gets_nothing_new() {
    let mut world = World::new();
    let [busy, idle] = [(); 2].map(|()| world.attach(offer("echo", 1)));
    let run = world.ask("echo");
    let actions = drain(&mut world, &offer("echo", 1));
    assert_eq!(told(&actions), [busy, idle]);
    let waits = world.ask("echo");
    assert_eq!(world.held(idle), None);
    let actions = world.reply(busy);
    assert!(world.answer(run).outcome.is_ok());
    assert!(told(&actions).is_empty(), "once is enough");
    assert!(!world.is_answered(waits));
    let actions = world.pass(5 * SECOND);
    assert_eq!(ends(&actions).len(), 2, "both are idle for too long");
    assert!(!world.is_answered(waits), "it waits for another worker");
}

#[test]
fn a_minimal_worker_is_told_when_it_has_answered() {
    for declines in [false, true] {
        let mut world = World::new();
        let busy = world.attach(minimal("echo", 1));
        let idle = world.attach(minimal("echo", 1));
        world.ask("echo");
        assert_eq!(told(&drain(&mut world, &minimal("echo", 1))), [idle]);
        let actions = if declines {
            world.reply_with(busy, Reply::Declined)
        } else {
            world.reply(busy)
        };
        assert_eq!(told(&actions), [busy]);
    }
}

#[test]
fn a_drained_worker_does_not_come_back_and_others_do() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    drain(&mut world, &offer("echo", 1));
    let (again, actions) = world.attach_and_see(offer("echo", 1));
    assert_eq!(ends(&actions), [(again, End::Refused(Refusal::Drained))]);
    world.lose(slot);
    let (again, actions) = world.attach_and_see(offer("echo", 1));
    assert_eq!(ends(&actions), [(again, End::Refused(Refusal::Drained))]);
    world.attach(offer("echo", 2));
}

#[test]
fn every_drained_worker_is_remembered() {
    let mut world = World::new();
    for worker in 1..=3 {
        world.attach(offer("echo", worker));
        drain(&mut world, &offer("echo", worker));
    }
    for worker in 1..=3 {
        let (again, actions) = world.attach_and_see(offer("echo", worker));
        assert_eq!(ends(&actions), [(again, End::Refused(Refusal::Drained))]);
    }
}

#[test]
fn draining_twice_or_nobody_says_nothing() {
    let mut world = World::new();
    world.attach(offer("echo", 1));
    assert!(drain(&mut world, &offer("echo", 9)).is_empty());
    assert_eq!(drain(&mut world, &offer("echo", 1)).len(), 1);
    assert!(drain(&mut world, &offer("echo", 1)).is_empty());
    world.attach(offer("echo", 9));
}
