//! A caller hangs up or somebody cancels, in every state a run may be in.

use super::{
    Code, Event, Frame, Reply, SECOND, TIMEOUT, World, ask, deliveries, ends, minimal, offer,
};
use crate::slot::End;

#[test]
fn a_hang_up_while_queued_takes_the_run_out_of_the_queue() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    world.ask("echo");
    let run = world.ask("echo");
    let actions = world.cancel(run);
    assert!(ends(&actions).is_empty());
    world.assert_failed(run, Code::Cancelled, &["the caller hung up"]);
    let actions = world.reply(slot);
    assert!(deliveries(&actions).is_empty());
}

#[test]
fn a_hang_up_while_waiting_for_an_agent_forgets_the_agent() {
    let mut world = World::new();
    let (run, _) = world.ask_and_see(ask("echo").wait_for_agent());
    world.cancel(run);
    world.assert_failed(run, Code::Cancelled, &[]);
    assert!(world.core.agents.is_empty());
}

#[test]
fn a_hang_up_while_running_ends_the_call() {
    for leaves in [false, true] {
        let mut world = World::new();
        let slot = world.attach(offer("echo", 1));
        let run = world.ask("echo");
        let delivery = world.held(slot).expect("it runs");
        if leaves {
            world.frame(slot, Frame::Leave);
        }
        let actions = world.cancel(run);
        assert_eq!(ends(&actions), [(slot, End::Cancelled(delivery))]);
        world.assert_failed(run, Code::Cancelled, &["the caller hung up"]);
    }
}

#[test]
fn a_hang_up_between_two_attempts_is_the_outcome() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let (run, _) = world.ask_and_see(ask("echo").max_attempts(2));
    world.lose(slot);
    world.cancel(run);
    world.assert_failed(run, Code::Cancelled, &[]);
    let slot = world.attach(offer("echo", 1));
    assert_eq!(world.held(slot), None);
}

#[test]
fn a_hang_up_after_the_answer_changes_nothing() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let run = world.ask("echo");
    world.reply(slot);
    assert!(world.cancel(run).is_empty());
    assert!(world.answer(run).outcome.is_ok());
    assert!(world.core.slots.contains_key(&slot));
}

#[test]
fn a_second_hang_up_changes_nothing() {
    let mut world = World::new();
    world.attach(offer("echo", 1));
    let run = world.ask("echo");
    world.cancel(run);
    assert!(world.cancel(run).is_empty());
}

#[test]
fn a_hang_up_after_the_deadline_is_the_deadline() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    let (running, queued) = (world.ask("echo"), world.ask("echo"));
    let delivery = world.held(slot).expect("it runs");
    world.now += TIMEOUT;
    let actions = world.cancel(running);
    assert_eq!(ends(&actions), [(slot, End::DeadlineExceeded(delivery))]);
    world.cancel(queued);
    world.assert_failed(running, Code::DeadlineExceeded, &["60.000 s running"]);
    world.assert_failed(queued, Code::DeadlineExceeded, &["60.000 s queued"]);
}

#[test]
fn the_slots_next_call_is_not_hit_by_a_late_hang_up() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let first = world.ask("echo");
    let second = world.ask("echo");
    world.reply(slot);
    assert_eq!(world.run_in(slot), Some(second));
    assert!(world.cancel(first).is_empty());
    assert_eq!(world.run_in(slot), Some(second));
}

#[test]
fn a_hang_up_of_a_run_that_was_given_back_reaches_only_its_new_slot() {
    let mut world = World::new();
    let first = world.attach(offer("echo", 1));
    let second = world.attach(offer("echo", 2));
    let run = world.ask("echo");
    world.reply_with(first, Reply::Declined);
    world.now += SECOND;
    let delivery = world.held(second).expect("it went there");
    let actions = world.cancel(run);
    assert_eq!(ends(&actions), [(second, End::Cancelled(delivery))]);
    assert!(world.core.slots.contains_key(&first));
}

#[test]
fn a_run_that_somebody_cancels_says_who_and_why() {
    for (why, said) in [
        ("too late", "cancelled by ann: too late"),
        ("", "cancelled by ann"),
    ] {
        let mut world = World::new();
        let slot = world.attach(minimal("echo", 1));
        let run = world.ask("echo");
        let event = |run, why: &str| Event::CancelRequested {
            run,
            who: "ann".into(),
            why: why.to_owned(),
        };
        let actions = world.apply(event(run, why));
        assert!(matches!(ends(&actions)[..], [(of, End::Cancelled(_))] if of == slot));
        world.assert_failed(run, Code::Cancelled, &[]);
        assert_eq!(world.failure(run).message, said);
        let again = world.apply(event(run, why));
        assert!(again.is_empty(), "it has ended: {again:?}");
        let nobody = super::RunId(uuid::Uuid::from_u128(77));
        assert!(world.apply(event(nobody, why)).is_empty());
    }
}
