//! What operators are shown.

use super::{AgentKey, Code, Frame, Level, Offer, SECOND, SlotId, World, ask, minimal, offer};
use crate::dispatch::{AgentLoad, SlotStateView};

#[test]
fn agents_are_shown_with_their_slots_and_queue() {
    let mut world = World::new();
    let versioned = |version: &str, worker| Offer {
        version: version.to_owned(),
        description: format!("says it {version}"),
        ..minimal("echo", worker)
    };
    world.attach(versioned("2", 1));
    let leaves = world.attach(versioned("1", 1));
    world.attach(versioned("1", 2));
    world.attach(minimal("a-first", 3));
    world.frame(leaves, Frame::Leave);
    world.ask_and_see(ask("echo").timeout(600 * SECOND));
    let views = world.core.view_agents("default");
    let names: Vec<&str> = views.iter().map(|view| &*view.name).collect();
    assert_eq!(names, ["a-first", "echo"]);
    let echo = &views[1];
    assert_eq!(echo.versions, ["1", "2"]);
    assert_eq!(echo.description, "says it 1", "the newest slot's");
    assert_eq!(
        (echo.slots_ready, echo.slots_busy, echo.slots_other),
        (1, 1, 1)
    );
    assert_eq!((echo.workers, echo.queued, echo.unreleased), (2, 0, 0));

    world.ask("echo");
    let queued = world.ask("echo");
    assert_eq!(world.core.view_agents("default")[1].queued, 1);
    assert!(!world.is_answered(queued));
}

#[test]
fn each_namespace_is_shown_its_own() {
    let mut world = World::new();
    world.attach(Offer {
        agent: AgentKey::new("staging", "echo"),
        ..offer("echo", 1)
    });
    assert!(world.core.view_agents("default").is_empty());
    assert!(world.core.view_workers(world.now, "default", "").is_empty());
    assert_eq!(world.core.view_agents("staging").len(), 1);
    assert_eq!(world.core.view_workers(world.now, "staging", "").len(), 1);
}

#[test]
fn an_agent_without_slots_is_shown_and_one_only_waited_for_is_not() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    world.lose(slot);
    world.ask_and_see(ask("upper").wait_for_agent());
    let views = world.core.view_agents("default");
    assert_eq!(views.len(), 1);
    assert_eq!((&*views[0].name, views[0].workers), ("echo", 0));
}

#[test]
fn workers_are_shown_by_agent_then_name() {
    let mut world = World::new();
    for (agent, worker) in [("echo", 2), ("upper", 3), ("echo", 1)] {
        world.attach(offer(agent, worker));
    }
    let names = |agent: &str| -> Vec<String> {
        let views = world.core.view_workers(world.now, "default", agent);
        views.iter().map(|v| v.offer.info.name.clone()).collect()
    };
    assert_eq!(names(""), ["w1", "w2", "w3"]);
    assert_eq!(names("upper"), ["w3"]);
    assert!(names("lower").is_empty());
}

#[test]
fn slots_are_shown_with_their_state_and_what_they_hold() {
    let mut world = World::new();
    let ids = [(); 3].map(|()| world.attach(minimal("echo", 1)));
    world.pass(SECOND);
    let run = world.ask("echo");
    world.frame(ids[1], Frame::Leave);
    world.pass(2 * SECOND);
    let views = world.core.view_workers(world.now, "default", "echo");
    assert_eq!(views.len(), 1);
    assert_eq!(views[0].attached_for, 3 * SECOND);
    let shown: Vec<(SlotId, SlotStateView, _)> = views[0]
        .slots
        .iter()
        .map(|slot| (slot.id, slot.state, slot.in_state_for))
        .collect();
    assert_eq!(
        shown,
        [
            (ids[0], SlotStateView::Busy, 2 * SECOND),
            (ids[1], SlotStateView::Stopping, 2 * SECOND),
            (ids[2], SlotStateView::Ready, 3 * SECOND),
        ]
    );
    assert_eq!(views[0].slots[0].delivery.map(|held| held.run), Some(run));
    assert_eq!(views[0].offer.level, Level::Minimal);
}

#[test]
fn cancelled_work_is_shown_after_its_call_is_gone() {
    let mut world = World::new();
    world.attach(minimal("echo", 1));
    let run = world.ask("echo");
    world.cancel(run);
    world.pass(3 * SECOND);
    let views = world.core.view_workers(world.now, "default", "echo");
    assert!(views[0].slots.is_empty());
    let held = &views[0].unreleased[0];
    assert_eq!((held.delivery.run, held.code), (run, Code::Cancelled));
    assert_eq!(held.ended_ago, 3 * SECOND);
    let agent = &world.core.view_agents("default")[0];
    assert_eq!((agent.workers, agent.unreleased), (0, 1));
}

#[test]
fn a_slot_is_busy_while_it_holds_a_request() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    assert!(!world.core.is_busy(slot));
    world.ask("echo");
    assert!(world.core.is_busy(slot));
    world.reply(slot);
    assert!(!world.core.is_busy(slot));
    assert!(!world.core.is_busy(SlotId(99)), "it is not there");
}

#[test]
fn a_harness_is_idle_without_slots_and_without_runs() {
    let mut world = World::new();
    assert!(world.core.is_idle());
    let slot = world.attach(minimal("echo", 1));
    assert!(!world.core.is_idle(), "a slot is there");
    world.ask("echo");
    world.reply(slot);
    world.lose(slot);
    assert!(world.core.is_idle());
    world.ask("echo");
    assert!(!world.core.is_idle(), "a run waits");
}

#[test]
fn the_census_counts_everything() {
    let mut world = World::new();
    world.attach(minimal("echo", 1));
    let slot = world.attach(minimal("upper", 2));
    world.ask_and_see(ask("echo").bytes(7));
    world.ask_and_see(ask("echo").bytes(8));
    let cancelled = world.ask("upper");
    world.cancel(cancelled);
    world.attach(minimal("upper", 3));
    let census = world.core.census();
    assert_eq!(census.slots, 2);
    assert_eq!((census.ready, census.runs, census.queued), (1, 2, 1));
    assert_eq!((census.waiting, census.queued_bytes), (1, 8));
    assert_eq!(
        (census.agents, census.workers, census.unreleased),
        (2, 3, 1)
    );
    assert_eq!(
        census.timers, 4,
        "two deadlines, a release and what has ended"
    );
    assert!(!world.core.slots.contains_key(&slot));
}

#[test]
fn an_agent_serves_while_a_slot_of_it_is_not_leaving() {
    let mut world = World::new();
    let serves = |world: &World, name: &str| world.core.serves(&AgentKey::new("", name));
    world.attach(minimal("upper", 9));
    assert_eq!(serves(&world, "echo"), None);
    world.ask_and_see(ask("echo").wait_for_agent());
    assert_eq!(serves(&world, "echo"), None, "it is only waited for");
    let [first, second] = [1, 2].map(|worker| world.attach(minimal("echo", worker)));
    assert_eq!(serves(&world, "echo"), Some(true), "busy is serving");
    world.frame(first, Frame::Leave);
    assert_eq!(serves(&world, "echo"), Some(true));
    world.frame(second, Frame::Leave);
    assert_eq!(serves(&world, "echo"), Some(false));
    world.lose(second);
    assert_eq!(serves(&world, "echo"), Some(false));
}

#[test]
fn the_load_of_every_agent_is_counted_over_all_namespaces() {
    let mut world = World::new();
    world.attach(minimal("echo", 1));
    let leaves = world.attach(minimal("echo", 1));
    world.frame(leaves, Frame::Leave);
    world.attach(Offer {
        agent: AgentKey::new("staging", "echo"),
        ..offer("echo", 2)
    });
    world.ask_and_see(ask("echo"));
    world.ask("echo");
    world.ask("echo");
    world.ask_and_see(ask("upper").wait_for_agent());
    let loads = world.core.loads();
    let names: Vec<String> = loads.keys().map(ToString::to_string).collect();
    assert_eq!(names, ["echo", "staging/echo"], "not one only waited for");
    let echo = AgentLoad {
        queued: 2,
        busy: 1,
        stopping: 1,
        ..AgentLoad::default()
    };
    let staging = AgentLoad {
        ready: 1,
        ..AgentLoad::default()
    };
    assert_eq!(loads.into_values().collect::<Vec<_>>(), [echo, staging]);
}
