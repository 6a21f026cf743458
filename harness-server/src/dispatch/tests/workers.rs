//! Workers: their loss, and the limits on what they offer.

use super::{
    Action, AgentKey, BACK_OFF, Code, Event, MINUTE, Note, Offer, Reply, SchemaId, World, ask,
    deliveries, ends, minimal, offer,
};
use crate::dispatch::Pooled;
use crate::slot::{End, Refusal};

#[test]
fn a_lost_worker_is_told_to_the_caller_at_once() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let run = world.ask("echo");
    let actions = world.lose(slot);
    assert!(ends(&actions).is_empty(), "there is no call to end");
    let parts = ["worker \"w1\" was lost: the connection broke"];
    world.assert_failed(run, Code::WorkerLost, &parts);
    assert!(world.failure(run).retryable);
}

#[test]
fn a_lost_idle_worker_is_nobodys_error() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    assert!(world.lose(slot).is_empty());
    assert!(world.lose(slot).is_empty(), "nor is a second loss");
}

#[test]
fn a_lost_slot_leaves_the_workers_others_alone() {
    let mut world = World::new();
    let first = world.attach(offer("echo", 1));
    let second = world.attach(offer("echo", 1));
    let (lost, kept) = (world.ask("echo"), world.ask("echo"));
    world.lose(first);
    world.assert_failed(lost, Code::WorkerLost, &[]);
    assert_eq!(world.run_in(second), Some(kept));
}

#[test]
fn a_lost_run_with_attempts_left_goes_to_another_slot() {
    let mut world = World::new();
    let first = world.attach(offer("echo", 1));
    let second = world.attach(offer("echo", 2));
    let (run, _) = world.ask_and_see(ask("echo").max_attempts(2));
    let noted = world.lose(first);
    assert!(matches!(noted[..], [Action::Note(Note::Failed { .. })]));
    let actions = world.pass(BACK_OFF);
    assert_eq!(deliveries(&actions).len(), 1);
    assert_eq!(world.run_in(second), Some(run));
    world.lose(second);
    world.assert_failed(run, Code::WorkerLost, &["w2", "(attempt 2 of 2)"]);
}

#[test]
fn the_agents_own_error_is_the_answer() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let run = world.ask("echo");
    let mut failure = super::Failure::new(Code::AgentError, "no such city");
    failure.kind = "NotFound".to_owned();
    world.reply_with(slot, Reply::Error(failure));
    world.assert_failed(run, Code::AgentError, &["no such city"]);
    assert_eq!(world.failure(run).kind, "NotFound");
    assert_eq!(world.failure(run).attempt, super::Attempt(1));
    let next = world.ask("echo");
    assert_eq!(world.run_in(slot), Some(next), "the slot is free again");
}

#[test]
fn a_reply_over_the_limit_is_never_tried_again() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let (run, _) = world.ask_and_see(ask("echo").max_attempts(3));
    let failure = super::Failure::new(Code::PayloadTooLarge, "5 MiB, the limit is 4");
    world.reply_with(slot, Reply::TooLarge(failure));
    world.assert_failed(run, Code::PayloadTooLarge, &["5 MiB"]);
    assert!(world.core.slots.contains_key(&slot));
}

/// That a hello is refused with a text that has this part.
fn assert_refused(world: &mut World, offer: Offer, part: &str) {
    let (slot, actions) = world.attach_and_see(offer);
    let text = match &ends(&actions)[..] {
        [(ended, End::Refused(Refusal::Invalid(text) | Refusal::TooMany(text)))] => {
            assert_eq!(*ended, slot);
            text.clone()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(actions.len(), 1, "{actions:?}");
    assert!(text.contains(part), "{text}");
    assert!(!world.core.slots.contains_key(&slot));
}

#[test]
fn a_worker_has_so_many_slots() {
    let mut world = World::with(|limits| limits.worker_slots = 2);
    let first = world.attach(offer("echo", 1));
    world.attach(offer("echo", 1));
    assert_refused(&mut world, offer("echo", 1), "\"w1\" has 2 slots");
    world.attach(offer("echo", 2));
    world.lose(first);
    world.attach(offer("echo", 1));
}

#[test]
fn a_worker_offers_one_agent() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    assert_refused(
        &mut world,
        offer("upper", 1),
        "already offers agent \"echo\"",
    );
    world.lose(slot);
    world.attach(offer("upper", 1));
}

#[test]
fn so_many_agents_are_known() {
    let mut world = World::with(|limits| limits.agents = 2);
    let first = world.attach(offer("echo", 1));
    world.attach(offer("upper", 2));
    assert_refused(&mut world, offer("lower", 3), "2 agents are known");
    world.attach(offer("echo", 4));
    world.lose(first);
    assert_refused(&mut world, offer("lower", 3), "2 agents are known");
}

#[test]
fn the_agent_unused_for_longest_makes_room() {
    let mut world = World::with(|limits| limits.agents = 2);
    let first = world.attach(offer("echo", 1));
    let second = world.attach(offer("upper", 2));
    world.lose(second);
    world.pass(MINUTE / 60);
    world.lose(first);
    world.attach(offer("lower", 3));
    let known = |world: &World, name| world.core.agents.contains_key(&AgentKey::new("", name));
    assert!(known(&world, "echo") && !known(&world, "upper"));
}

#[test]
fn agents_of_pools_take_no_room_until_they_have_lost_theirs() {
    let mut world = World::with(|limits| limits.agents = 1);
    let pooled = |world: &mut World, pool| {
        let agent = AgentKey::new("", "pooled");
        world.apply(Event::Pooled { agent, pool });
    };
    let known = |world: &World, name| world.core.agents.contains_key(&AgentKey::new("", name));
    pooled(&mut world, Some(Pooled::Open));
    let of_pool = world.attach(offer("pooled", 1));
    let first = world.attach(offer("echo", 2));
    assert_refused(&mut world, offer("lower", 3), "1 agents are known");
    pooled(&mut world, None);
    world.lose(first);
    // Both are known and only one may be: leaving out one alone makes no room.
    assert_refused(&mut world, offer("lower", 3), "1 agents are known");
    assert!(known(&world, "pooled") && known(&world, "echo"));
    world.lose(of_pool);
    world.attach(offer("lower", 3));
    assert!(!known(&world, "pooled") && !known(&world, "echo"));
}

#[test]
fn an_agent_that_is_waited_for_makes_no_room() {
    let mut world = World::with(|limits| limits.agents = 1);
    let slot = world.attach(offer("echo", 1));
    world.lose(slot);
    let run = world.ask("echo");
    assert_refused(&mut world, offer("lower", 3), "1 agents are known");
    world.cancel(run);
    world.attach(offer("lower", 3));
}

#[test]
fn the_slots_of_an_agent_differ_in_so_many_ways() {
    let mut world = World::with(|limits| limits.agent_classes = 2);
    let with_schema = |schema, worker| Offer {
        request_schema: Some(SchemaId(schema)),
        ..offer("echo", worker)
    };
    let first = world.attach(with_schema(1, 1));
    world.attach(with_schema(2, 2));
    world.attach(with_schema(2, 3));
    assert_refused(&mut world, with_schema(3, 4), "2 different request schemas");
    world.lose(first);
    world.attach(with_schema(3, 4));
}

#[test]
fn a_worker_with_unreleased_work_may_come_back_with_all_its_slots() {
    let mut world = World::with(|limits| limits.worker_slots = 1);
    world.attach(minimal("echo", 1));
    let run = world.ask("echo");
    world.cancel(run);
    world.attach(minimal("echo", 1));
    assert_refused(&mut world, minimal("echo", 1), "1 slots");
}
