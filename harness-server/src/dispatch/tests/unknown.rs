//! Agents nobody has offered, and how long one stays known.

use super::{Code, MINUTE, SECOND, World, ask, offer};

/// A harness that has been up for long.
fn settled() -> World {
    let mut world = World::new();
    world.pass(MINUTE);
    world
}

#[test]
fn an_unknown_agent_is_answered_at_once() {
    let mut world = settled();
    let run = world.ask("echo");
    let parts = ["agent \"echo\" is unknown", "no agent is connected"];
    world.assert_failed(run, Code::UnknownAgent, &parts);
    let failure = world.failure(run);
    assert!(!failure.retryable && failure.retry_after.is_none());
    assert_eq!(failure.run, Some(run));
}

#[test]
fn the_near_name_and_what_is_connected_are_told() {
    let mut world = settled();
    world.attach(offer("summarise", 1));
    world.attach(offer("echo", 2));
    let run = world.ask("summarize");
    let parts = ["did you mean \"summarise\"?", "connected: echo, summarise"];
    world.assert_failed(run, Code::UnknownAgent, &parts);
    let run = world.ask("xyzzy");
    assert!(!world.failure(run).message.contains("did you mean"));
}

#[test]
fn an_agent_without_slots_may_be_near_but_is_not_connected() {
    let mut world = settled();
    let slot = world.attach(offer("echo", 1));
    world.lose(slot);
    let run = world.ask("ecko");
    let parts = ["did you mean \"echo\"?", "no agent is connected"];
    world.assert_failed(run, Code::UnknownAgent, &parts);
}

#[test]
fn a_long_list_of_names_is_cut() {
    let mut world = World::with(|limits| limits.agents = 20);
    for worker in 0..12 {
        world.attach(offer(&format!("agent-{worker:02}"), worker));
    }
    let run = world.ask("echo");
    world.assert_failed(run, Code::UnknownAgent, &["agent-09 and 2 more"]);
    assert!(!world.failure(run).message.contains("agent-10"));
}

#[test]
fn in_the_first_ten_seconds_asking_again_may_help() {
    let mut world = World::new();
    world.pass(10 * SECOND - SECOND / 1000);
    let run = world.ask("echo");
    world.assert_failed(run, Code::UnknownAgent, &["may still be connecting"]);
    assert!(world.failure(run).retryable);
    assert_eq!(world.failure(run).retry_after, Some(SECOND / 2));
    world.pass(SECOND / 1000);
    let run = world.ask("echo");
    assert!(!world.failure(run).retryable);
}

#[test]
fn wait_for_agent_waits_for_the_first_worker() {
    let mut world = settled();
    let (run, _) = world.ask_and_see(ask("echo").wait_for_agent());
    assert!(!world.is_answered(run));
    let impatient = world.ask("echo");
    world.assert_failed(impatient, Code::UnknownAgent, &["is unknown"]);
    let slot = world.attach(offer("echo", 1));
    assert_eq!(world.run_in(slot), Some(run));
}

#[test]
fn wait_for_agent_ends_at_the_deadline() {
    let mut world = settled();
    let (run, _) = world.ask_and_see(ask("echo").wait_for_agent());
    world.pass(super::TIMEOUT);
    let parts = [
        "60.000 s queued",
        "no worker of agent \"echo\" is connected",
    ];
    world.assert_failed(run, Code::DeadlineExceeded, &parts);
    assert!(world.core.agents.is_empty(), "nobody waits for it any more");
}

#[test]
fn an_agent_is_known_for_an_hour_after_its_last_slot() {
    let mut world = settled();
    let slot = world.attach(offer("echo", 1));
    world.lose(slot);
    world.pass(60 * MINUTE - SECOND);
    let run = world.ask("echo");
    assert!(!world.is_answered(run));
    world.cancel(run);
    world.pass(SECOND);
    let run = world.ask("echo");
    world.assert_failed(run, Code::UnknownAgent, &[]);
}

#[test]
fn a_slot_in_between_starts_the_hour_anew() {
    let mut world = settled();
    for _ in 0..2 {
        let slot = world.attach(offer("echo", 1));
        world.lose(slot);
        world.pass(40 * MINUTE);
    }
    let run = world.ask("echo");
    assert!(!world.is_answered(run));
}

#[test]
fn an_agent_is_not_forgotten_while_somebody_waits_for_it() {
    let mut world = settled();
    let slot = world.attach(offer("echo", 1));
    world.lose(slot);
    let (run, _) = world.ask_and_see(ask("echo").timeout(90 * MINUTE));
    world.pass(70 * MINUTE);
    assert!(!world.is_answered(run));
    let slot = world.attach(offer("echo", 1));
    assert_eq!(world.run_in(slot), Some(run));
}

#[test]
fn waiting_for_agents_is_limited_too() {
    let mut world = World::with(|limits| limits.agents = 2);
    let slot = world.attach(offer("echo", 1));
    world.ask_and_see(ask("upper").wait_for_agent());
    let (refused, _) = world.ask_and_see(ask("lower").wait_for_agent());
    world.assert_failed(refused, Code::Busy, &["2 agents are known"]);
    // One that nobody uses makes room.
    world.lose(slot);
    let (waits, _) = world.ask_and_see(ask("lower").wait_for_agent());
    assert!(!world.is_answered(waits));
    let (refused, _) = world.ask_and_see(ask("third").wait_for_agent());
    world.assert_failed(refused, Code::Busy, &[]);
}

#[test]
fn what_is_not_left_out_is_not_counted() {
    let mut world = World::new();
    world.attach(offer("echo", 1));
    let run = world.ask("none-such");
    let message = &world.failure(run).message;
    assert!(
        message.contains("; connected: echo") && !message.contains("more"),
        "{message}"
    );
}
