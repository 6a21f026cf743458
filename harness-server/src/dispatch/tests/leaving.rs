//! Leaving: a worker's leave and half-close, and the harness's own.

use super::{Code, Event, Frame, Reply, SECOND, World, ask, deliveries, ends, minimal, offer};
use crate::slot::End;

#[test]
fn a_worker_that_left_gets_no_new_request() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    assert!(world.frame(slot, Frame::Leave).is_empty());
    let run = world.ask("echo");
    assert_eq!(world.held(slot), None);
    assert!(!world.is_answered(run));
    let actions = world.frame(slot, Frame::HalfClosed);
    assert_eq!(ends(&actions), [(slot, End::Closed)]);
    let slot = world.attach(offer("echo", 2));
    assert_eq!(world.run_in(slot), Some(run));
}

#[test]
fn a_worker_that_left_finishes_what_it_has() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let (run, waits) = (world.ask("echo"), world.ask("echo"));
    world.frame(slot, Frame::Leave);
    world.reply(slot);
    assert!(world.answer(run).outcome.is_ok());
    assert!(!world.is_answered(waits), "it gets no other");
    let actions = world.pass(5 * SECOND);
    assert_eq!(ends(&actions), [(slot, End::Idle)]);
}

#[test]
fn a_request_that_crossed_a_leave_may_be_declined() {
    let mut world = World::new();
    let first = world.attach(offer("echo", 1));
    let second = world.attach(offer("echo", 2));
    let run = world.ask("echo");
    world.frame(first, Frame::Leave);
    world.reply_with(first, Reply::Declined);
    assert_eq!(world.run_in(second), Some(run));
    world.reply(second);
    assert!(world.answer(run).outcome.is_ok());
}

#[test]
fn a_request_that_crossed_a_half_close_goes_elsewhere_uncounted() {
    let mut world = World::new();
    let first = world.attach(offer("echo", 1));
    let second = world.attach(offer("echo", 2));
    let run = world.ask("echo");
    let actions = world.frame(first, Frame::HalfClosed);
    assert_eq!(ends(&actions), [(first, End::Closed)]);
    assert_eq!(deliveries(&actions).len(), 1);
    assert_eq!(world.run_in(second), Some(run));
}

#[test]
fn a_request_that_was_begun_is_lost_by_a_half_close() {
    for minimal_level in [false, true] {
        let mut world = World::new();
        let make = if minimal_level { minimal } else { offer };
        let first = world.attach(make("echo", 1));
        let second = world.attach(make("echo", 2));
        let run = world.ask("echo");
        world.accept(first);
        world.frame(first, Frame::HalfClosed);
        assert_eq!(world.held(second), None, "it may not be done twice");
        world.assert_failed(run, Code::WorkerLost, &["\"w1\" left without a reply"]);
    }
}

#[test]
fn a_half_close_of_an_idle_worker_is_answered() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let actions = world.frame(slot, Frame::HalfClosed);
    assert_eq!(ends(&actions), [(slot, End::Closed)]);
    assert_eq!(actions.len(), 1);
}

#[test]
fn a_leaving_harness_ends_idle_calls_and_lets_busy_ones_finish() {
    let mut world = World::new();
    let busy = world.attach(offer("echo", 1));
    let idle = world.attach(offer("echo", 2));
    let run = world.ask("echo");
    let actions = world.apply(Event::ServerLeaving);
    assert_eq!(ends(&actions), [(idle, End::Leaving)]);
    let actions = world.reply(busy);
    assert_eq!(ends(&actions), [(busy, End::Leaving)]);
    assert!(world.answer(run).outcome.is_ok());
    assert!(world.core.is_idle());
}

#[test]
fn a_leaving_harness_answers_those_who_wait_and_takes_nothing_new() {
    let mut world = World::new();
    world.attach(minimal("echo", 1));
    world.ask("echo");
    let queued = world.ask("echo");
    let (elsewhere, _) = world.ask_and_see(ask("upper").wait_for_agent());
    world.apply(Event::ServerLeaving);
    let new = world.ask("echo");
    for run in [queued, elsewhere, new] {
        world.assert_failed(run, Code::ShuttingDown, &["shutting down"]);
        assert!(world.failure(run).retryable);
    }
    let (slot, actions) = world.attach_and_see(offer("echo", 2));
    assert_eq!(ends(&actions), [(slot, End::Leaving)]);
}

#[test]
fn a_run_that_comes_back_to_a_leaving_harness_is_answered() {
    for reply in [false, true] {
        let mut world = World::new();
        let slot = world.attach(offer("echo", 1));
        let (run, _) = world.ask_and_see(ask("echo").max_attempts(3));
        world.apply(Event::ServerLeaving);
        if reply {
            let actions = world.reply_with(slot, Reply::Declined);
            assert_eq!(ends(&actions), [(slot, End::Leaving)]);
        } else {
            world.lose(slot);
        }
        world.assert_failed(run, Code::ShuttingDown, &[]);
    }
}

#[test]
fn a_harness_that_waits_no_longer_ends_the_rest() {
    for warned in [false, true] {
        let mut world = World::new();
        let slots = [1, 2].map(|worker| world.attach(minimal("echo", worker)));
        let runs = [(); 3].map(|()| world.ask("echo"));
        if warned {
            world.apply(Event::ServerLeaving);
        }
        let actions = world.apply(Event::ServerLeft);
        let all = slots.map(|slot| (slot, End::Leaving));
        assert_eq!(ends(&actions), all);
        for run in runs {
            world.assert_failed(run, Code::ShuttingDown, &[]);
        }
        assert!(world.core.is_idle());
    }
}

#[test]
fn deadlines_are_kept_while_the_harness_leaves() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    let run = world.ask("echo");
    world.apply(Event::ServerLeaving);
    let actions = world.pass(super::TIMEOUT);
    assert!(matches!(ends(&actions)[..], [(of, End::DeadlineExceeded(_))] if of == slot));
    world.assert_failed(run, Code::DeadlineExceeded, &[]);
}
