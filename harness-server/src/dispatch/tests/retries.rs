//! Retries: the back-off, the timeout of an attempt, and what stops them.

use super::{
    Action, Attempt, BACK_OFF, Code, Event, Failure, Frame, MINUTE, Note, Offer, Reply, RunId,
    SECOND, SchemaId, SlotId, TIMEOUT, World, ask, deliveries, ends, lease_in, minimal,
};
use crate::slot::End;

const MOMENT: super::Duration = super::Duration::from_millis(1);

/// A run of three attempts whose first has just failed, and the slot it failed in.
fn backing_off() -> (World, SlotId, RunId) {
    backing_off_with(|_| {})
}

fn backing_off_with(change: impl FnOnce(&mut super::Limits)) -> (World, SlotId, RunId) {
    let mut world = World::with(change);
    let slot = world.attach(minimal("echo", 1));
    let (run, _) = world.ask_and_see(ask("echo").max_attempts(3));
    fail(&mut world, slot);
    assert_eq!(world.held(slot), None, "it waits first");
    assert!(!world.is_answered(run));
    (world, slot, run)
}

fn fail(world: &mut World, slot: SlotId) -> Vec<Action> {
    let failure = Failure::new(Code::InvalidReply, "it is no reply");
    world.reply_with(slot, Reply::Invalid(failure))
}

#[test]
fn a_retry_waits_for_its_back_off_and_not_longer() {
    let (mut world, slot, run) = backing_off();
    world.pass(BACK_OFF - MOMENT);
    assert_eq!(world.held(slot), None);
    let actions = world.pass(MOMENT);
    assert_eq!(deliveries(&actions).len(), 1);
    let held = world.held(slot).expect("it is tried again");
    assert_eq!((held.run, held.attempt), (run, Attempt(2)));
    fail(&mut world, slot);
    world.pass(BACK_OFF);
    assert_eq!(world.held(slot), None, "the second wait is longer");
    world.pass(BACK_OFF);
    world.reply(slot);
    assert_eq!(world.answer(run).attempt, Attempt(3));
    assert!(world.answer(run).outcome.is_ok());
}

#[test]
fn a_slot_works_for_others_while_a_run_backs_off() {
    let (mut world, slot, run) = backing_off();
    let other = world.ask("echo");
    assert_eq!(world.run_in(slot), Some(other));
    world.pass(BACK_OFF);
    world.reply(slot);
    assert_eq!(world.run_in(slot), Some(run));
}

#[test]
fn a_run_that_backs_off_counts_against_the_queue() {
    let (mut world, slot, run) = backing_off_with(|limits| limits.queue_runs = 1);
    world.ask("echo");
    let refused = world.ask("echo");
    world.assert_failed(refused, Code::Busy, &["1 runs wait"]);
    world.pass(BACK_OFF);
    let refused = world.ask("echo");
    world.assert_failed(refused, Code::Busy, &["1 runs wait"]);
    world.reply(slot);
    assert_eq!(world.run_in(slot), Some(run));
    let waits = world.ask("echo");
    assert!(!world.is_answered(waits), "there is room again");
}

#[test]
fn its_payload_counts_too() {
    let mut world = World::with(|limits| limits.queue_bytes = 1000);
    let slot = world.attach(minimal("echo", 1));
    world.ask_and_see(ask("echo").bytes(600).max_attempts(2));
    fail(&mut world, slot);
    world.ask("echo");
    let (refused, _) = world.ask_and_see(ask("echo").bytes(401));
    world.assert_failed(refused, Code::Busy, &["payloads of waiting runs"]);
}

#[test]
fn a_run_that_backs_off_can_be_cancelled() {
    let (mut world, _, run) = backing_off();
    let actions = world.cancel(run);
    assert_eq!(actions.len(), 1, "{actions:?}");
    world.assert_failed(run, Code::Cancelled, &["hung up"]);
    assert_eq!(world.failure(run).attempt, Attempt(1));
    assert!(world.pass(BACK_OFF).is_empty());
}

#[test]
fn a_deadline_in_the_back_off_says_so() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    let short = ask("echo").max_attempts(2).timeout(BACK_OFF + MOMENT);
    let (run, _) = world.ask_and_see(short);
    fail(&mut world, slot);
    // The clock leaps over the end of the back-off and the deadline at once.
    let actions = world.pass(BACK_OFF + MOMENT);
    assert!(deliveries(&actions).is_empty(), "it would be of no use");
    world.assert_failed(run, Code::DeadlineExceeded, &["queued"]);

    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    let (run, _) = world.ask_and_see(ask("echo").max_attempts(2).timeout(SECOND));
    fail(&mut world, slot);
    world.now += SECOND;
    world.cancel(run);
    let said = "waiting to be tried again after attempt 1";
    world.assert_failed(run, Code::DeadlineExceeded, &[said]);
}

#[test]
fn without_the_time_for_a_retry_the_failure_is_the_answer() {
    for (timeout, tried) in [(BACK_OFF, false), (BACK_OFF + MOMENT, true)] {
        let mut world = World::new();
        let slot = world.attach(minimal("echo", 1));
        let (run, _) = world.ask_and_see(ask("echo").max_attempts(2).timeout(timeout));
        let actions = fail(&mut world, slot);
        assert_eq!(actions.is_empty(), tried, "{actions:?}");
        if !tried {
            world.assert_failed(run, Code::InvalidReply, &["it is no reply"]);
            assert_eq!(world.failure(run).attempt, Attempt(1));
        }
    }
}

#[test]
fn a_leaving_harness_answers_a_run_that_backs_off() {
    let (mut world, _, run) = backing_off();
    world.apply(Event::ServerLeaving);
    world.assert_failed(run, Code::ShuttingDown, &["shutting down"]);
}

#[test]
fn a_failure_in_a_leaving_harness_is_not_tried_again() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    let (run, _) = world.ask_and_see(ask("echo").max_attempts(2));
    world.apply(Event::ServerLeaving);
    fail(&mut world, slot);
    world.assert_failed(run, Code::ShuttingDown, &[]);
}

#[test]
fn an_agent_is_not_forgotten_while_a_run_backs_off() {
    let mut world = World::with(|limits| limits.agents = 1);
    let slot = world.attach(minimal("echo", 1));
    let mut patient = ask("echo").max_attempts(2).timeout(600 * MINUTE);
    patient.retry.initial_backoff = 100 * MINUTE;
    let (run, _) = world.ask_and_see(patient);
    world.lose(slot);
    let (_, actions) = world.attach_and_see(minimal("upper", 2));
    assert_eq!(ends(&actions).len(), 1, "there is no room for another");
    // Two ends of knowing it pass, then the run comes back.
    world.pass(60 * MINUTE);
    world.pass(40 * MINUTE);
    assert!(!world.is_answered(run));
    let slot = world.attach(minimal("echo", 1));
    assert_eq!(world.run_in(slot), Some(run));
}

#[test]
fn a_judgement_that_comes_in_the_back_off_delivers_nothing() {
    let with_schema = |schema, worker| Offer {
        request_schema: Some(SchemaId(schema)),
        ..minimal("echo", worker)
    };
    let judged = |world: &mut World, run, schema, takes: bool| {
        let refusal = (!takes).then(|| Failure::new(Code::InvalidRequest, "no"));
        let schema = SchemaId(schema);
        world.apply(Event::Judged {
            run,
            schema,
            refusal,
        })
    };
    for takes in [true, false] {
        let mut world = World::new();
        let first = world.attach(with_schema(1, 1));
        let second = world.attach(with_schema(2, 2));
        let (run, _) = world.ask_and_see(ask("echo").max_attempts(2));
        judged(&mut world, run, 1, true);
        assert_eq!(world.run_in(first), Some(run));
        fail(&mut world, first);
        assert!(judged(&mut world, run, 2, takes).is_empty(), "it waits");
        world.pass(BACK_OFF);
        let to = if takes { second } else { first };
        assert_eq!(world.run_in(to), Some(run));
    }
}

#[test]
fn an_attempt_that_takes_too_long_is_ended_and_tried_elsewhere() {
    let mut world = World::new();
    let first = world.attach(minimal("echo", 1));
    let second = world.attach(minimal("echo", 2));
    let slow = ask("echo").max_attempts(2).attempt_timeout(SECOND);
    let (run, actions) = world.ask_and_see(slow);
    let lease = lease_in(&actions);
    let [Action::Deliver { deadline, .. }] = actions[..] else {
        panic!("{actions:?}");
    };
    assert_eq!(deadline, world.now + SECOND, "the worker is told");
    let held = world.held(first).expect("it was free longest");
    assert!(world.pass(SECOND - MOMENT).is_empty());
    let actions = world.pass(MOMENT);
    assert_eq!(ends(&actions), [(first, End::DeadlineExceeded(held))]);
    assert_eq!(actions.len(), 1, "nobody is answered yet");
    let views = world.core.view_workers(world.now, "default", "echo");
    assert_eq!(views[0].unreleased.len(), 1, "worker 1 may still work");
    world.pass(BACK_OFF);
    assert_eq!(world.run_in(second), Some(run));
    let worker = super::WorkerId(uuid::Uuid::from_u128(1));
    let note = world.apply(Event::Released {
        worker,
        delivery: held,
        lease,
    });
    assert!(matches!(note[..], [Action::Note(Note::Released { .. })]));
    world.pass(SECOND);
    let said = [
        "attempt 2 on worker \"w2\" took longer than its timeout of 1s",
        "(attempt 2 of 2)",
    ];
    world.assert_failed(run, Code::AttemptTimeout, &said);
}

#[test]
fn the_timeout_of_an_attempt_ends_with_the_attempt() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    let slow = ask("echo").max_attempts(2).attempt_timeout(SECOND);
    let (run, _) = world.ask_and_see(slow);
    world.pass(SECOND - MOMENT);
    world.reply_with(slot, Reply::Declined);
    assert_eq!(world.run_in(slot), Some(run), "it is the only worker");
    assert!(world.pass(SECOND - MOMENT).is_empty(), "it began anew");
    assert_eq!(ends(&world.pass(MOMENT)).len(), 1);
    let slot = world.attach(minimal("echo", 1));
    world.pass(BACK_OFF);
    world.reply(slot);
    assert!(world.answer(run).outcome.is_ok());
    assert!(world.pass(MINUTE).is_empty(), "no timer is left");
}

#[test]
fn an_attempt_that_timed_out_elsewhere_ends_the_avoiding_of_a_worker() {
    let mut world = World::new();
    let declines = world.attach(minimal("echo", 1));
    let slow = world.attach(minimal("echo", 2));
    let patient = ask("echo").max_attempts(2).attempt_timeout(SECOND);
    let (run, _) = world.ask_and_see(patient);
    world.reply_with(declines, Reply::Declined);
    assert_eq!(world.run_in(slow), Some(run));
    world.pass(SECOND);
    world.attach(minimal("echo", 2));
    world.pass(BACK_OFF);
    assert_eq!(world.run_in(declines), Some(run), "it is free longest");
}

#[test]
fn a_deadline_before_the_end_of_the_attempt_is_the_runs() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    let slow = ask("echo").max_attempts(2).attempt_timeout(TIMEOUT);
    let (run, _) = world.ask_and_see(slow);
    let actions = world.pass(TIMEOUT);
    assert_eq!(ends(&actions).len(), 1);
    world.assert_failed(run, Code::DeadlineExceeded, &["running"]);
    assert!(!world.core.slots.contains_key(&slot));
}

#[test]
fn a_leap_over_attempt_and_deadline_answers_once() {
    let mut world = World::new();
    world.attach(minimal("echo", 1));
    let slow = ask("echo").max_attempts(2).attempt_timeout(SECOND);
    let (run, _) = world.ask_and_see(slow);
    let actions = world.pass(2 * TIMEOUT);
    assert_eq!(ends(&actions).len(), 1);
    world.assert_failed(run, Code::AttemptTimeout, &["attempt 1"]);
}

/// The caller has taken a piece of output.
fn seen(run: RunId) -> Event {
    Event::Read {
        run,
        seq: 2,
        output: true,
    }
}

#[test]
fn output_that_was_seen_is_not_taken_back_by_a_retry() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    let (run, _) = world.ask_and_see(ask("echo").max_attempts(3));
    assert!(world.apply(seen(run)).is_empty());
    fail(&mut world, slot);
    world.assert_failed(run, Code::InvalidReply, &["it is no reply"]);
    world.apply(seen(run));
}

#[test]
fn a_request_given_back_after_its_output_was_seen_goes_nowhere_else() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    world.attach(minimal("echo", 2));
    let (run, _) = world.ask_and_see(ask("echo").max_attempts(3));
    world.apply(seen(run));
    let actions = world.reply_with(slot, Reply::Declined);
    assert!(deliveries(&actions).is_empty(), "it would be seen twice");
    world.assert_failed(run, Code::WorkerLost, &["gave the request back"]);
}

#[test]
fn an_error_type_that_is_never_retried_is_the_answer() {
    for (kind, tried) in [("Forbidden", false), ("Overloaded", true)] {
        let mut world = World::new();
        let slot = world.attach(minimal("echo", 1));
        let mut picky = ask("echo").max_attempts(2);
        picky.retry.non_retryable_types = vec!["Forbidden".to_owned()];
        let (run, _) = world.ask_and_see(picky);
        let mut failure = Failure::new(Code::AgentError, "no");
        failure.kind = kind.to_owned();
        failure.retryable = true;
        world.reply_with(slot, Reply::Error(failure));
        assert_eq!(world.is_answered(run), !tried, "{kind}");
    }
}

#[test]
fn frames_of_an_attempt_that_timed_out_are_stale() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    world.ask_and_see(ask("echo").max_attempts(2).attempt_timeout(SECOND));
    let held = world.held(slot);
    world.pass(SECOND);
    let actions = world.frame(slot, Frame::Heartbeat(held));
    assert!(matches!(actions[..], [Action::Note(Note::Stale { .. })]));
}
