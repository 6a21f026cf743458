//! Replacing, resizing, reloading and leaving.

use super::*;

#[test]
fn a_process_is_replaced_after_max_requests_when_the_replacement_is_ready() {
    let mut world = World::running(Rules {
        max_requests: 2,
        ..rules()
    });
    assert_eq!(world.answered(1), []);
    assert_eq!(world.answered(1), [start(2)]);
    assert_eq!(world.answered(1), [], "it serves on meanwhile");
    assert_eq!(world.ready(2), [dismiss(1)]);
    assert_eq!(
        (world.view().ready, world.view().state),
        (1, State::Running)
    );
    assert_eq!(world.detached(1, Detached::Left), []);
    let replaced = ended(1, Ended::Stopped(Reason::Replaced));
    assert_eq!(world.exits(1, Exit::Code(0)), [replaced]);
    assert_eq!(world.reaped(1), [], "its seat is taken");
}

#[test]
fn processes_past_max_age_are_replaced_one_after_the_other() {
    let mut world = World::running(Rules {
        size: 2,
        max_age: 60 * SECOND,
        ..rules()
    });
    world.pass(60 * SECOND - MS);
    assert_eq!(world.pass(MS), [start(3)]);
    assert_eq!(world.ready(3), [dismiss(1), start(4)]);
    assert_eq!(world.ready(4), [dismiss(2)]);
}

#[test]
fn a_replacement_that_fails_leaves_the_old_process_where_it_is() {
    let mut world = World::running(Rules {
        max_requests: 1,
        ..jsonl()
    });
    assert_eq!(world.answered(1), [start(2)]);
    world.apply(Event::NotStarted(ProcessId(2)));
    assert_eq!(world.phase(1), Some(PhaseView::Ready));
    assert_eq!(world.wake(), (200 * MS, vec![start(3)]));
    assert_eq!(world.ready(3), [dismiss(1)]);
}

#[test]
fn a_replacement_takes_the_seat_of_a_process_that_dies_before_it_is_ready() {
    let mut world = World::running(Rules {
        max_requests: 1,
        ..jsonl()
    });
    world.answered(1);
    world.exits(1, Exit::Code(1));
    assert_eq!(world.reaped(1), [], "its replacement is on the way");
    assert_eq!(world.ready(2), []);
    assert_eq!(world.view().state, State::Running);
}

#[test]
fn a_restart_replaces_every_process_once_however_often_it_is_asked_for() {
    let mut world = World::running(Rules { size: 2, ..rules() });
    assert_eq!(world.apply(Event::Restart), [start(3)]);
    assert_eq!(world.apply(Event::Restart), []);
    assert_eq!(world.ready(3), [dismiss(1), start(4)]);
    for id in [1, 2] {
        let last = if id == 1 { world.ready(4) } else { Vec::new() };
        assert!(
            last.is_empty() || last == [dismiss(2), start(5)],
            "{last:?}"
        );
    }
}

#[test]
fn a_pool_grows_at_once_and_shrinks_by_those_that_matter_least() {
    let mut world = World::running(Rules { size: 2, ..rules() });
    let reload = |size| Event::Reload {
        rules: Rules { size, ..rules() },
        replace: false,
    };
    assert_eq!(world.apply(reload(4)), [start(3), start(4)]);
    world.ready(4);
    assert_eq!(world.apply(reload(2)), [terminate(3), dismiss(4)]);
    assert_eq!(world.apply(reload(0)), [dismiss(2), dismiss(1)]);
    for id in 1..=4 {
        world.exits(id, Exit::Code(0));
        world.reaped(id);
    }
    assert_eq!(world.apply(reload(1)), [start(5)]);
}

#[test]
fn a_reload_with_another_make_replaces_and_with_the_same_does_not() {
    let reload = |replace| Event::Reload {
        rules: rules(),
        replace,
    };
    let mut world = World::running(rules());
    assert_eq!(world.apply(reload(false)), []);
    assert_eq!(world.apply(reload(true)), [start(2)]);
}

#[test]
fn a_leaving_pool_starts_nothing_and_is_gone_when_the_last_process_is() {
    let mut world = World::running(Rules { size: 2, ..jsonl() });
    world.exits(2, Exit::Code(1));
    assert_eq!(world.apply(Event::Leave), [dismiss(1)]);
    assert_eq!(world.reaped(2), []);
    assert_eq!(world.pass(60 * SECOND), [], "a request in hand is finished");
    assert_eq!(world.detached(1, Detached::Left), [terminate(1)]);
    assert_eq!(world.apply(Event::Restart), [], "it leaves all the same");
    assert_eq!(world.view().state, State::Stopping);
    world.exits(1, Exit::Signal(15));
    assert!(!world.pool.is_gone());
    world.reaped(1);
    assert!(world.pool.is_gone());
}
