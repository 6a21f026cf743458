//! The deadline of a run: it is kept in every state, and it says where the time went.

use super::{
    Action, Attempt, Code, Frame, Reply, SECOND, TIMEOUT, World, ask, ends, minimal, offer,
};
use crate::slot::End;

#[test]
fn a_deadline_while_queued_says_that_the_slots_are_busy() {
    let mut world = World::new();
    for worker in 1..=2 {
        world.attach(minimal("echo", worker));
        world.ask_and_see(ask("echo").timeout(600 * SECOND));
    }
    let run = world.ask("echo");
    let actions = world.pass(TIMEOUT);
    assert!(
        ends(&actions).is_empty(),
        "no slot has anything to do with it"
    );
    let parts = ["after 60.000 s: 60.000 s queued: all 2 slots busy"];
    world.assert_failed(run, Code::DeadlineExceeded, &parts);
    assert_eq!(world.failure(run).attempt, Attempt(0));
}

#[test]
fn a_deadline_while_running_answers_and_ends_the_call() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    let run = world.ask("echo");
    let delivery = world.held(slot).expect("it runs");
    world.pass(TIMEOUT - SECOND / 1000);
    assert!(!world.is_answered(run), "not a moment too soon");
    let actions = world.pass(SECOND / 1000);
    assert!(
        matches!(actions[..], [Action::Answer { .. }, Action::End { .. }]),
        "the caller comes first: {actions:?}"
    );
    assert_eq!(ends(&actions), [(slot, End::DeadlineExceeded(delivery))]);
    let parts = ["60.000 s running", "attempt 1 on worker \"w1\""];
    world.assert_failed(run, Code::DeadlineExceeded, &parts);
    assert_eq!(world.failure(run).attempt, Attempt(1));
}

#[test]
fn a_deadline_ends_a_call_that_is_leaving_too() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    world.ask("echo");
    world.frame(slot, Frame::Leave);
    let actions = world.pass(TIMEOUT);
    assert!(matches!(
        ends(&actions)[..],
        [(_, End::DeadlineExceeded(_))]
    ));
}

#[test]
fn a_reply_that_crosses_the_deadline_is_stale() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    let run = world.ask("echo");
    let delivery = world.held(slot).expect("it runs");
    world.pass(TIMEOUT);
    let reply = Reply::Value(super::Payload::default());
    let actions = world.frame(
        slot,
        Frame::Reply {
            delivery,
            seq: 1,
            reply,
        },
    );
    assert!(matches!(
        actions[..],
        [Action::Note(super::Note::Stale { .. })]
    ));
    world.assert_failed(run, Code::DeadlineExceeded, &[]);
}

#[test]
fn a_reply_before_the_tick_is_the_outcome() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    let run = world.ask("echo");
    world.now += TIMEOUT;
    world.reply(slot);
    assert!(world.answer(run).outcome.is_ok());
    world.pass(SECOND);
}

#[test]
fn deadlines_of_many_runs_are_kept_by_one_tick() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    let runs = [(); 5].map(|()| world.ask("echo"));
    world.pass(TIMEOUT + SECOND);
    for run in runs {
        world.assert_failed(run, Code::DeadlineExceeded, &["after 61.000 s"]);
    }
    assert!(!world.core.slots.contains_key(&slot));
}

#[test]
fn next_wake_is_the_earliest_deadline() {
    let mut world = World::new();
    assert_eq!(world.core.next_wake(), None);
    world.attach(minimal("echo", 1));
    assert_eq!(world.core.next_wake(), None, "a minimal slot owes nothing");
    world.ask("echo");
    world.ask_and_see(ask("echo").timeout(SECOND));
    assert_eq!(world.core.next_wake(), Some(world.now + SECOND));
    world.pass(SECOND);
    assert_eq!(world.core.next_wake(), Some(world.now + TIMEOUT - SECOND));
}

#[test]
fn a_deadline_names_the_attempts_it_had_and_what_is_still_in_cancelled_work() {
    let mut world = World::new();
    let first = world.attach(minimal("echo", 1));
    let stuck = world.attach(minimal("echo", 2));
    let (run, _) = world.ask_and_see(ask("echo").max_attempts(2));
    let cancelled = world.ask("echo");
    assert_eq!(world.run_in(stuck), Some(cancelled));
    world.cancel(cancelled);
    world.lose(first);
    world.pass(TIMEOUT);
    let parts = ["no worker of agent", "1 more still in cancelled work"];
    world.assert_failed(run, Code::DeadlineExceeded, &parts);
    assert_eq!(world.failure(run).attempt, Attempt(1));
}

#[test]
fn missed_heartbeats_end_the_call_and_lose_the_run() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let run = world.ask("echo");
    world.accept(slot);
    let actions = world.pass(15 * SECOND);
    assert_eq!(ends(&actions), [(slot, End::HeartbeatsMissed)]);
    world.assert_failed(run, Code::WorkerLost, &["\"w1\"", "three heartbeats"]);
}

#[test]
fn heartbeats_keep_a_full_call() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let (run, _) = world.ask_and_see(ask("echo").timeout(600 * SECOND));
    for _ in 0..20 {
        world.accept(slot);
        let actions = world.pass(14 * SECOND);
        assert!(actions.is_empty(), "{actions:?}");
    }
    assert_eq!(world.run_in(slot), Some(run));
}

#[test]
fn only_the_agents_own_cancelled_work_is_named() {
    let mut world = World::new();
    for (agent, worker) in [("echo", 1), ("echo", 2), ("upper", 3)] {
        world.attach(minimal(agent, worker));
        let run = world.ask(agent);
        world.cancel(run);
    }
    world.attach(minimal("lower", 4));
    world.ask_and_see(ask("lower").timeout(600 * SECOND));
    let [echo, upper, lower] = ["echo", "upper", "lower"].map(|agent| world.ask(agent));
    world.pass(TIMEOUT);
    let said = |run| world.failure(run).message.clone();
    assert!(
        said(echo).contains(", 2 more still in cancelled work"),
        "{}",
        said(echo)
    );
    assert!(
        said(upper).contains(", 1 more still in cancelled work"),
        "{}",
        said(upper)
    );
    assert!(!said(lower).contains("cancelled work"), "{}", said(lower));
}
