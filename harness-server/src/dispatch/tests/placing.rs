//! Which slot gets which run.

use super::{
    Action, Attempt, BACK_OFF, Code, Event, Frame, Level, Offer, Reply, SECOND, World, ask,
    deliveries, ends, minimal, offer,
};
use crate::slot::End;

#[test]
fn a_free_slot_gets_the_request_at_once() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let (run, actions) = world.ask_and_see(ask("echo"));
    let [
        Action::Deliver {
            slot: to,
            delivery,
            request,
            deadline,
            ..
        },
    ] = &actions[..]
    else {
        panic!("{actions:?}");
    };
    assert_eq!(
        (*to, delivery.run, delivery.attempt),
        (slot, run, Attempt(1))
    );
    assert_eq!(&*request.agent.name, "echo");
    assert_eq!(*deadline, world.now + super::TIMEOUT);

    let actions = world.reply(slot);
    assert!(
        matches!(actions[..], [Action::Answer { .. }]),
        "{actions:?}"
    );
    assert_eq!(world.answer(run).attempt, Attempt(1));
    let value = world.answer(run).outcome.as_ref().expect("a value");
    assert_eq!(value.data, "\"done\"");
}

#[test]
fn the_slot_that_is_free_longest_is_taken_first() {
    let mut world = World::new();
    let slots = [(); 3].map(|()| world.attach(offer("echo", 1)));
    world.ask("echo");
    world.reply(slots[0]);
    for slot in [slots[1], slots[2], slots[0]] {
        let run = world.ask("echo");
        assert_eq!(world.run_in(slot), Some(run));
    }
}

#[test]
fn every_delivery_has_a_lease_of_its_own() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let first = super::lease_in(&world.ask_and_see(ask("echo")).1);
    world.reply(slot);
    let second = super::lease_in(&world.ask_and_see(ask("echo")).1);
    assert_ne!(first, second);
}

#[test]
fn agents_and_namespaces_do_not_share_slots() {
    let mut world = World::new();
    let other = super::AgentKey::new("staging", "echo");
    world.attach(offer("upper", 1));
    world.attach(Offer {
        agent: other,
        ..offer("echo", 2)
    });
    let run = world.ask("echo");
    world.assert_failed(run, Code::UnknownAgent, &["echo", "connected: upper"]);
}

#[test]
fn a_declined_request_goes_to_another_worker() {
    let mut world = World::new();
    let first = world.attach(offer("echo", 1));
    let second = world.attach(offer("echo", 2));
    let run = world.ask("echo");
    let actions = world.reply_with(first, Reply::Declined);
    assert_eq!(deliveries(&actions).len(), 1);
    assert_eq!(world.run_in(second), Some(run));
    assert_eq!(
        world.held(second).map(|held| held.attempt),
        Some(Attempt(2))
    );
    world.reply(second);
    assert!(world.answer(run).outcome.is_ok(), "it spent no attempt");
}

#[test]
fn a_declined_request_waits_for_another_worker_that_is_busy() {
    let mut world = World::new();
    let second = world.attach(offer("echo", 2));
    world.ask("echo");
    let first = world.attach(offer("echo", 1));
    let run = world.ask("echo");
    world.reply_with(first, Reply::Declined);
    assert_eq!(world.held(first), None, "it is not given back at once");
    world.reply(second);
    assert_eq!(world.run_in(second), Some(run));
}

#[test]
fn the_only_worker_gets_back_what_it_declined_and_the_third_time_counts() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let run = world.ask("echo");
    for attempt in 1..=3 {
        let held = world.held(slot).expect("it is the only worker");
        assert_eq!(held.attempt, Attempt(attempt));
        world.reply_with(slot, Reply::Declined);
    }
    world.assert_failed(
        run,
        Code::WorkerLost,
        &["3 deliveries in a row", "\"w1\" gave the request back"],
    );
}

/// A run that worker 1 declined, and that waits for worker 2's busy slot.
fn waits_for_the_other() -> (World, super::SlotId, super::SlotId, super::RunId) {
    let mut world = World::new();
    let second = world.attach(minimal("echo", 2));
    world.ask_and_see(ask("echo").timeout(600 * SECOND));
    let first = world.attach(minimal("echo", 1));
    let run = world.ask("echo");
    world.reply_with(first, Reply::Declined);
    assert_eq!(world.held(first), None);
    (world, first, second, run)
}

#[test]
fn when_the_other_worker_is_lost_the_one_avoided_gets_the_run() {
    let (mut world, first, second, run) = waits_for_the_other();
    let actions = world.lose(second);
    assert_eq!(deliveries(&actions).len(), 1);
    assert_eq!(world.run_in(first), Some(run));
}

#[test]
fn when_the_other_worker_is_leaving_the_one_avoided_gets_the_run() {
    let (mut world, first, second, run) = waits_for_the_other();
    world.frame(second, Frame::Leave);
    assert_eq!(world.run_in(first), Some(run));
}

#[test]
fn when_the_other_worker_is_ended_the_one_avoided_gets_the_run() {
    let (mut world, first, second, run) = waits_for_the_other();
    let cancelled = world.run_in(second).expect("it is busy");
    world.cancel(cancelled);
    assert_eq!(world.run_in(first), Some(run));
}

#[test]
fn a_worker_that_cannot_take_the_request_is_no_other_worker() {
    let mut world = World::new();
    world.attach(Offer {
        max_receive_bytes: 10,
        ..offer("echo", 2)
    });
    let first = world.attach(offer("echo", 1));
    let run = world.ask("echo");
    world.reply_with(first, Reply::Declined);
    assert_eq!(world.run_in(first), Some(run));
}

#[test]
fn a_request_not_accepted_goes_to_another_worker_and_spends_no_attempt() {
    let mut world = World::new();
    let deaf = world.attach(offer("echo", 1));
    let also_deaf = world.attach(offer("echo", 1));
    let other = world.attach(minimal("echo", 2));
    let run = world.ask("echo");
    let delivery = world.held(deaf).expect("it was free longest");
    let actions = world.pass(5 * SECOND + SECOND / 100);
    assert_eq!(ends(&actions), [(deaf, End::NotAccepted(delivery))]);
    assert_eq!(world.held(also_deaf), None, "it is the same worker's");
    assert_eq!(world.run_in(other), Some(run));
    world.reply(other);
    assert_eq!(world.answer(run).attempt, Attempt(2));
    assert!(world.answer(run).outcome.is_ok());
}

#[test]
fn a_large_request_has_longer_to_be_accepted() {
    let mut world = World::with(|limits| limits.queue_bytes = 10 << 20);
    let slot = world.attach(offer("echo", 1));
    world.ask_and_see(ask("echo").bytes(2 << 20));
    let actions = world.pass(6 * SECOND + SECOND * 9 / 10);
    assert!(ends(&actions).is_empty(), "5 s and 1 s for each MiB");
    let actions = world.pass(SECOND / 5);
    assert_eq!(ends(&actions).len(), 1);
    assert!(!world.core.slots.contains_key(&slot));
}

#[test]
fn a_minimal_worker_need_not_accept() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    let run = world.ask("echo");
    world.pass(30 * SECOND);
    assert_eq!(world.run_in(slot), Some(run));
    assert_eq!(world.core.slots[&slot].slot.level(), Level::Minimal);
}

#[test]
fn a_failed_attempt_is_retried_up_to_its_number() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    let (run, _) = world.ask_and_see(ask("echo").max_attempts(2));
    for attempt in 1..=2 {
        let held = world.held(slot).expect("it is tried again");
        assert_eq!(held.attempt, Attempt(attempt));
        let broken = super::Failure::new(Code::InvalidReply, "it is no reply");
        world.reply_with(slot, Reply::Invalid(broken));
        world.pass(BACK_OFF);
    }
    world.assert_failed(run, Code::InvalidReply, &["no reply (attempt 2 of 2)"]);
}

#[test]
fn a_run_past_its_deadline_is_not_given_to_a_slot() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    world.ask_and_see(ask("echo").timeout(600 * SECOND));
    let late = world.ask("echo");
    let next = world.ask_and_see(ask("echo").timeout(600 * SECOND)).0;
    world.now += super::TIMEOUT;
    world.reply(slot);
    assert_eq!(world.run_in(slot), Some(next), "the tick has yet to come");
    world.apply(Event::Tick);
    world.assert_failed(late, Code::DeadlineExceeded, &["queued"]);
}
