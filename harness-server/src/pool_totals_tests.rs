//! What is counted for metrics.

use super::*;
use crate::pool::{Climbs, Totals};

fn totals(world: &World) -> Totals {
    world.view().totals
}

fn climbs(count: u64, time: Duration) -> Climbs {
    Climbs { count, time }
}

#[test]
fn each_rung_is_counted_with_its_time_from_the_end_of_the_call() {
    let mut world = World::running(rules());
    world.detached(1, Detached::Cancelled);
    world.pass(400 * MS);
    world.apply(Event::Attached(ProcessId(1)));
    assert_eq!(totals(&world).released, climbs(1, 400 * MS));

    world.detached(1, Detached::Cancelled);
    world.wake();
    world.wake();
    world.pass(100 * MS);
    world.exits(1, Exit::Signal(9));
    world.reaped(1);
    let told = totals(&world);
    assert_eq!(told.released, climbs(1, 400 * MS));
    assert_eq!(told.sigterm, climbs(1, 500 * MS));
    assert_eq!(told.sigkill, climbs(1, 2_500 * MS));
    assert_eq!(told.reaped, climbs(1, 2_600 * MS));
    assert_eq!(
        (told.crashes, told.failed_starts),
        (0, 0),
        "ended by the harness"
    );
}

#[test]
fn failures_are_counted_for_ever_and_a_restart_forgets_none() {
    let mut world = World::running(jsonl());
    world.answered(1);
    world.exits(1, Exit::Code(1));
    world.reaped(1);
    world.apply(Event::NotStarted(ProcessId(2)));
    let told = totals(&world);
    assert_eq!((told.crashes, told.failed_starts), (1, 1));
    world.apply(Event::Restart);
    let view = world.view();
    assert_eq!((view.crashes, view.failed_starts), (0, 0), "forgiven");
    assert_eq!((view.totals.crashes, view.totals.failed_starts), (1, 1));
}

#[test]
fn a_restart_is_a_start_in_a_seat_that_had_a_process_before() {
    let mut world = World::running(Rules { size: 2, ..rules() });
    assert_eq!(totals(&world).restarts, 0, "the first of each seat");
    world.answered(1);
    world.exits(1, Exit::Code(1));
    world.reaped(1);
    assert_eq!(totals(&world).restarts, 1, "after a crash");
    world.ready(3);
    assert_eq!(world.apply(Event::Restart), [start(4)]);
    assert_eq!(totals(&world).restarts, 2, "beside the one it replaces");
}
