//! Waiting: order, limits, and what is said of it.

use super::{BACK_OFF, Code, Failure, Reply, RunId, SECOND, SlotId, World, ask, minimal, offer};

/// A world with one slot, busy for long.
fn busy() -> (World, SlotId) {
    busy_with(|_| {})
}

fn busy_with(change: impl FnOnce(&mut super::Limits)) -> (World, SlotId) {
    let mut world = World::with(change);
    let slot = world.attach(minimal("echo", 1));
    world.ask_and_see(ask("echo").timeout(600 * SECOND));
    (world, slot)
}

/// Answers until the queue is empty and returns the runs in the order they were worked on.
fn work_off(world: &mut World, slot: SlotId) -> Vec<RunId> {
    let mut order = Vec::new();
    while let Some(run) = world.run_in(slot) {
        order.push(run);
        world.reply(slot);
    }
    order
}

#[test]
fn a_queue_is_worked_off_in_the_order_of_asking() {
    let (mut world, slot) = busy();
    let asked = [(); 4].map(|()| world.ask("echo"));
    assert_eq!(work_off(&mut world, slot)[1..], asked);
}

#[test]
fn a_run_that_comes_back_keeps_its_place() {
    let (mut world, slot) = busy();
    let (first, _) = world.ask_and_see(ask("echo").max_attempts(2));
    let second = world.ask("echo");
    world.reply(slot);
    let broken = Failure::new(Code::InvalidReply, "it is no reply");
    world.reply_with(slot, Reply::Invalid(broken));
    assert_eq!(world.run_in(slot), Some(second), "the slot does not idle");
    let third = world.ask("echo");
    world.pass(BACK_OFF);
    assert_eq!(work_off(&mut world, slot), [second, first, third]);
}

#[test]
fn a_run_that_a_lost_slot_had_is_first_for_the_next_slot() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let (first, _) = world.ask_and_see(ask("echo").max_attempts(2));
    let second = world.ask("echo");
    world.lose(slot);
    world.pass(BACK_OFF);
    let slot = world.attach(offer("echo", 2));
    assert_eq!(work_off(&mut world, slot), [first, second]);
}

#[test]
fn an_agent_that_has_no_slot_any_more_is_waited_for() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    world.lose(slot);
    let run = world.ask("echo");
    assert!(!world.is_answered(run));
    let slot = world.attach(offer("echo", 1));
    assert_eq!(world.run_in(slot), Some(run));
}

#[test]
fn a_full_queue_is_busy_at_once() {
    let (mut world, slot) = busy_with(|limits| limits.queue_runs = 2);
    let waiting = [(); 2].map(|()| world.ask("echo"));
    let refused = world.ask("echo");
    let parts = ["\"echo\" is busy", "its only slot is busy", "2 runs wait"];
    world.assert_failed(refused, Code::Busy, &parts);
    assert!(world.failure(refused).retryable);
    assert!(world.failure(refused).retry_after.is_some());
    assert_eq!(work_off(&mut world, slot)[1..], waiting);
    let after = world.ask("echo");
    assert_eq!(world.run_in(slot), Some(after), "there is room again");
}

#[test]
fn queues_of_agents_are_limited_apart() {
    let (mut world, _) = busy_with(|limits| limits.queue_runs = 1);
    world.ask("echo");
    world.attach(minimal("upper", 2));
    world.ask("upper");
    let run = world.ask("upper");
    assert!(!world.is_answered(run));
}

#[test]
fn waiting_payloads_are_limited_together() {
    let (mut world, slot) = busy_with(|limits| limits.queue_bytes = 1000);
    world.attach(minimal("upper", 2));
    world.ask_and_see(ask("upper"));
    let (first, _) = world.ask_and_see(ask("echo").bytes(600));
    let (exactly, _) = world.ask_and_see(ask("upper").bytes(400));
    assert!(!world.is_answered(first) && !world.is_answered(exactly));
    let (refused, _) = world.ask_and_see(ask("upper").bytes(1));
    world.assert_failed(refused, Code::Busy, &["payloads of waiting runs"]);
    world.reply(slot);
    let (after, _) = world.ask_and_see(ask("upper").bytes(600));
    assert!(!world.is_answered(after), "there is room again");
}

#[test]
fn with_no_queue_a_free_slot_still_answers_and_a_busy_one_does_not() {
    let mut world = World::with(|limits| limits.queue_runs = 0);
    let slot = world.attach(offer("echo", 1));
    let run = world.ask("echo");
    assert_eq!(world.run_in(slot), Some(run));
    let refused = world.ask("echo");
    world.assert_failed(refused, Code::Busy, &["its only slot is busy"]);
    world.lose(slot);
    let refused = world.ask("echo");
    world.assert_failed(refused, Code::Busy, &["no worker of agent \"echo\""]);
}

#[test]
fn a_run_that_comes_back_is_not_refused_by_a_full_queue() {
    let (mut world, _) = busy_with(|limits| limits.queue_runs = 1);
    let other = world.attach(minimal("echo", 2));
    let (run, _) = world.ask_and_see(ask("echo").max_attempts(2));
    assert_eq!(world.run_in(other), Some(run));
    let waiting = world.ask("echo");
    world.lose(other);
    assert!(!world.is_answered(run) && !world.is_answered(waiting));
    let refused = world.ask("echo");
    world.assert_failed(refused, Code::Busy, &["2 runs wait"]);
}

#[test]
fn a_cancelled_run_leaves_room_in_the_queue() {
    let (mut world, _) = busy_with(|limits| limits.queue_runs = 1);
    let first = world.ask("echo");
    world.cancel(first);
    let second = world.ask("echo");
    assert!(!world.is_answered(second));
}
