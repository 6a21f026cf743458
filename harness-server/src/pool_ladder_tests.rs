//! How a process that must go is brought to its end.

use super::*;

#[test]
fn the_ladder_has_a_rung_for_each_grace_and_ends_with_a_replacement() {
    let mut world = World::running(rules());
    assert_eq!(world.detached(1, Detached::Cancelled), []);
    assert_eq!(world.phase(1), Some(PhaseView::Stopping(Rung::CallEnded)));
    assert_eq!(world.wake(), (500 * MS, vec![terminate(1)]));
    assert_eq!(world.wake(), (2 * SECOND, vec![kill(1)]));
    world.pass(100 * MS);
    world.exits(1, Exit::Signal(9));
    assert_eq!(world.reaped(1), [start(2)]);
    world.pass(200 * MS);
    world.ready(2);
    let view = world.view();
    let [stop] = &view.stops[..] else {
        panic!("one stop, not {:?}", view.stops);
    };
    assert_eq!((stop.reason, stop.pid), (Reason::Cancelled, Some(1_001)));
    assert_eq!(stop.terminated_after, Some(500 * MS));
    assert_eq!(stop.killed_after, Some(2_500 * MS));
    assert_eq!(stop.reaped_after, 2_600 * MS);
    assert_eq!(stop.replaced_after, Some(2_800 * MS));
    assert_eq!((view.crashes, view.failed_starts), (0, 0), "killed by us");
}

#[test]
fn a_worker_back_within_cancel_grace_has_released_and_serves_on() {
    let mut world = World::running(rules());
    world.detached(1, Detached::Cancelled);
    world.pass(400 * MS);
    assert_eq!(world.apply(Event::Attached(ProcessId(1))), []);
    assert_eq!(world.phase(1), Some(PhaseView::Ready));
    assert_eq!(world.pass(3600 * SECOND), []);
}

#[test]
fn released_is_not_believed_after_sigterm_nor_in_per_request_mode_nor_after_a_broken_rule() {
    let mut late = World::running(rules());
    late.detached(1, Detached::Cancelled);
    late.pass(500 * MS);
    assert_eq!(late.apply(Event::Attached(ProcessId(1))), [dismiss(1)]);
    assert_eq!(late.wake().1, [kill(1)]);

    for (per_request, why) in [(true, Detached::Cancelled), (false, Detached::Broke)] {
        let mut world = World::running(Rules {
            per_request,
            ..rules()
        });
        world.detached(1, why);
        assert_eq!(world.apply(Event::Attached(ProcessId(1))), [dismiss(1)]);
        assert_eq!(world.wake(), (500 * MS, vec![terminate(1)]));
    }
}

#[test]
fn a_process_that_was_to_go_does_not_come_back_when_its_last_request_is_cancelled() {
    let mut world = World::running(rules());
    world.apply(Event::Restart);
    assert_eq!(world.ready(2), [dismiss(1)]);
    assert_eq!(world.detached(1, Detached::Cancelled), []);
    assert_eq!(world.apply(Event::Attached(ProcessId(1))), [dismiss(1)]);
    assert_eq!(world.wake(), (500 * MS, vec![terminate(1)]));
}

#[test]
fn a_process_of_a_leaving_pool_whose_call_was_ended_with_all_others_gets_sigterm_at_once() {
    let mut world = World::running(rules());
    assert_eq!(world.apply(Event::Leave), [dismiss(1)]);
    assert_eq!(world.detached(1, Detached::Left), [terminate(1)]);

    // One that is only replaced has heard that it is to leave, and ends by itself.
    let mut replaced = World::running(rules());
    replaced.apply(Event::Restart);
    assert_eq!(replaced.ready(2), [dismiss(1)]);
    assert_eq!(replaced.detached(1, Detached::Left), []);
    assert_eq!(replaced.wake(), (500 * MS, vec![terminate(1)]));
}

#[test]
fn a_json_lines_worker_at_work_gets_sigterm_at_once() {
    for why in [Detached::Cancelled, Detached::Broke] {
        let mut world = World::running(jsonl());
        assert_eq!(world.detached(1, why), [terminate(1)]);
        assert_eq!(world.wake(), (2 * SECOND, vec![kill(1)]));
        assert_eq!(world.pool.next_wake(), None);
    }
}

#[test]
fn a_json_lines_worker_that_has_answered_may_end_by_itself_first() {
    let mut world = World::running(Rules {
        per_request: true,
        ..jsonl()
    });
    world.answered(1);
    assert_eq!(world.detached(1, Detached::Left), []);
    let mut slow = World::running(Rules {
        per_request: true,
        ..jsonl()
    });
    slow.answered(1);
    slow.detached(1, Detached::Left);

    let spent = ended(1, Ended::Stopped(Reason::Spent));
    assert_eq!(world.exits(1, Exit::Code(0)), [spent]);
    assert_eq!(world.reaped(1), [start(2)]);
    assert_eq!(world.view().stops, [], "it went as it should");

    assert_eq!(slow.wake(), (500 * MS, vec![terminate(1)]));

    // One that waits for more would not end by itself.
    for per_request in [true, false] {
        let mut idle = World::running(Rules {
            per_request,
            ..jsonl()
        });
        idle.apply(Event::Restart);
        assert_eq!(idle.ready(2), [dismiss(1)]);
        assert_eq!(idle.detached(1, Detached::Left), [terminate(1)]);
    }
}

#[test]
fn a_child_without_the_call_it_should_have_gets_the_ladder() {
    let mut world = World::running(rules());
    assert_eq!(world.detached(1, Detached::Lost), []);
    world.pass(29 * SECOND);
    world.apply(Event::Attached(ProcessId(1)));
    world.detached(1, Detached::Lost);
    assert_eq!(world.wake(), (30 * SECOND, vec![terminate(1)]));
    assert_eq!(world.view().failed_starts, 0, "it had been ready");
}
