//! Chains of runs: an agent that asks another agent.

use super::{Action, Attempt, Code, Delivery, Event, Reply, SECOND, World, ask, minimal, offer};

/// Attaches a slot for the agent, asks it on behalf of a parent, and returns the new delivery.
fn ask_below(world: &mut World, agent: &str, parent: Option<Delivery>) -> Delivery {
    let slot = world.attach(minimal(agent, 100 + u128::from(world.next_slot)));
    let mut next = ask(agent);
    next.request.parent = parent;
    let (run, _) = world.ask_and_see(next);
    let held = world.held(slot).expect("its slot is free");
    assert_eq!(held.run, run);
    held
}

#[test]
fn the_depth_of_a_chain_is_counted_and_not_believed() {
    let mut world = World::new();
    let mut parent = None;
    for depth in 0..4 {
        world.attach(minimal("echo", depth));
        let mut next = ask("echo");
        next.request.depth = 9;
        next.request.parent = parent;
        let (_, actions) = world.ask_and_see(next);
        let [
            Action::Deliver {
                delivery, request, ..
            },
        ] = &actions[..]
        else {
            panic!("{actions:?}");
        };
        assert_eq!(u128::from(request.depth), depth);
        assert_eq!(request.parent, parent);
        parent = Some(*delivery);
    }
}

#[test]
fn sixteen_runs_may_stand_above_one() {
    let mut world = World::new();
    let mut parent = None;
    for _ in 0..=16 {
        parent = Some(ask_below(&mut world, "echo", parent));
    }
    world.attach(minimal("echo", 1));
    let below = ask("echo").parent(parent.expect("a chain"));
    let (run, _) = world.ask_and_see(below);
    world.assert_failed(run, Code::InvalidRequest, &["16 runs stand above"]);
}

#[test]
fn only_what_runs_now_can_be_a_parent() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    let queued = world.attach(minimal("upper", 2));
    let run = world.ask("echo");
    let first = world.held(slot).expect("it runs");
    let refused = |world: &mut World, parent: Delivery| {
        let (run, _) = world.ask_and_see(ask("upper").parent(parent));
        let said = [&*format!("{parent}, which does not run now")];
        world.assert_failed(run, Code::InvalidRequest, &said);
    };
    refused(
        &mut world,
        Delivery {
            attempt: Attempt(2),
            ..first
        },
    );
    let unknown = super::RunId(uuid::Uuid::from_u128(77));
    refused(
        &mut world,
        Delivery {
            run: unknown,
            ..first
        },
    );

    world.reply_with(slot, Reply::Declined);
    let second = world.held(slot).expect("it is the only worker");
    refused(&mut world, first);
    let (child, _) = world.ask_and_see(ask("upper").parent(second));
    assert_eq!(world.run_in(queued), Some(child));
    let waits = world.ask("echo");
    refused(
        &mut world,
        Delivery {
            run: waits,
            attempt: Attempt(0),
        },
    );

    world.reply(slot);
    assert!(world.is_answered(run));
    refused(&mut world, second);
}

#[test]
fn a_chain_that_holds_every_slot_of_the_agent_is_busy() {
    let mut world = World::new();
    let echo = ask_below(&mut world, "echo", None);
    let upper = ask_below(&mut world, "upper", Some(echo));
    let (run, _) = world.ask_and_see(ask("echo").parent(upper));
    let said = "every slot waits for this run: echo -> upper -> echo";
    world.assert_failed(run, Code::Busy, &["\"echo\" is busy", said]);
    assert!(world.failure(run).retry_after.is_some());
}

#[test]
fn a_chain_that_holds_the_slot_of_a_worker_that_is_away_is_busy() {
    let mut world = World::with(|limits| limits.interactive_reattach_window = SECOND);
    let slot = world.attach(offer("echo", 1));
    world.ask("echo");
    let parent = world.held(slot).expect("it runs");
    world.lose(slot);
    let (run, _) = world.ask_and_see(ask("echo").parent(parent));
    world.assert_failed(run, Code::Busy, &["echo -> echo"]);
}

#[test]
fn an_agent_that_asks_itself_in_its_only_slot_is_busy() {
    let mut world = World::new();
    let echo = ask_below(&mut world, "echo", None);
    let (run, _) = world.ask_and_see(ask("echo").parent(echo));
    world.assert_failed(run, Code::Busy, &["echo -> echo"]);
}

#[test]
fn a_chain_waits_where_a_slot_works_for_another() {
    let mut world = World::new();
    let other = world.attach(minimal("echo", 1));
    world.ask("echo");
    let echo = ask_below(&mut world, "echo", None);
    let upper = ask_below(&mut world, "upper", Some(echo));
    let (run, _) = world.ask_and_see(ask("echo").parent(upper));
    assert!(!world.is_answered(run), "that slot will be free");
    world.reply(other);
    assert_eq!(world.run_in(other), Some(run));
}

#[test]
fn a_chain_waits_for_an_agent_without_slots() {
    let mut world = World::new();
    let echo = ask_below(&mut world, "echo", None);
    let below = ask("upper").wait_for_agent().parent(echo);
    let (run, _) = world.ask_and_see(below);
    assert!(!world.is_answered(run));
    let slot = world.attach(minimal("upper", 9));
    assert_eq!(world.run_in(slot), Some(run));
}

#[test]
fn a_parent_that_ended_breaks_the_chain() {
    let mut world = World::new();
    let echo = ask_below(&mut world, "echo", None);
    let upper = ask_below(&mut world, "upper", Some(echo));
    world.cancel(upper.run);
    let (run, _) = world.ask_and_see(ask("echo").parent(upper));
    world.assert_failed(run, Code::InvalidRequest, &["does not run now"]);
}

#[test]
fn an_ask_with_a_wrong_parent_leaves_nothing_behind() {
    let mut world = World::new();
    world.attach(minimal("echo", 1));
    let nothing = Delivery {
        run: super::RunId(uuid::Uuid::from_u128(77)),
        attempt: Attempt(1),
    };
    world.ask_and_see(ask("lower").wait_for_agent().parent(nothing));
    assert_eq!(world.core.agents.len(), 1);
    world.apply(Event::ServerLeaving);
    let (run, _) = world.ask_and_see(ask("echo").parent(nothing));
    world.assert_failed(run, Code::ShuttingDown, &[]);
}
