//! Each rule of a pool by itself: starts, failures and back-off, the ladder, replacing, resizing,
//! leaving.

use std::time::{Duration, Instant};

use super::{
    Action, Detached, Dialect, Ended, Event, Exit, PhaseView, Pool, Reason, Restart, Rules, Rung,
    Standing, State, Stop, View,
};
use crate::ids::ProcessId;
use crate::retry::{Policy, Waits};

#[path = "pool_walk_tests.rs"]
mod walk;

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// Every wait is the longest it may be.
struct Longest;

impl Waits for Longest {
    fn wait(&mut self, policy: &Policy, retry: u32) -> Duration {
        (policy.initial_backoff * 2_u32.saturating_pow(retry - 1)).min(policy.max_backoff)
    }
}

fn rules() -> Rules {
    Rules {
        size: 1,
        dialect: Dialect::Grpc,
        per_request: false,
        ready_timeout: 30 * SECOND,
        max_requests: 0,
        max_age: Duration::ZERO,
        stop: Stop {
            cancel_grace: 500 * MS,
            term_grace: 2 * SECOND,
        },
        restart: Restart {
            min_uptime: 5 * SECOND,
            max_failed_starts: 5,
            max_crashes: 10,
            window: 60 * SECOND,
        },
        back_off: Policy::attempts(1),
    }
}

fn jsonl() -> Rules {
    Rules {
        dialect: Dialect::Jsonl,
        ..rules()
    }
}

/// A pool and its clock.
struct World {
    pool: Pool,
    now: Instant,
}

impl World {
    /// A pool whose first processes have been asked for.
    fn new(rules: Rules) -> Self {
        let mut world = Self {
            pool: Pool::new(rules, Box::new(Longest)),
            now: Instant::now(),
        };
        let size = world.pool.rules().size as u64;
        let expected: Vec<Action> = (1..=size).map(start).collect();
        assert_eq!(world.apply(Event::Tick), expected);
        world
    }

    /// A pool whose processes are all ready.
    fn running(rules: Rules) -> Self {
        let mut world = Self::new(rules);
        for id in 1..=world.pool.rules().size as u64 {
            assert_eq!(world.ready(id), []);
        }
        assert_eq!(world.view().state, State::Running);
        world
    }

    fn apply(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        self.pool.apply(self.now, event, &mut actions);
        actions
    }

    fn ready(&mut self, id: u64) -> Vec<Action> {
        let process = ProcessId(id);
        let pid = 1_000 + u32::try_from(id).unwrap_or_default();
        assert_eq!(self.apply(Event::Started { process, pid }), []);
        self.apply(Event::Attached(process))
    }

    fn answered(&mut self, id: u64) -> Vec<Action> {
        self.apply(Event::Answered(ProcessId(id)))
    }

    fn detached(&mut self, id: u64, why: Detached) -> Vec<Action> {
        self.apply(Event::Detached(ProcessId(id), why))
    }

    /// A process that had been given a request ends.
    fn exits(&mut self, id: u64, exit: Exit) -> Vec<Action> {
        self.ends(id, exit, true)
    }

    fn ends(&mut self, id: u64, exit: Exit, was_asked: bool) -> Vec<Action> {
        self.apply(Event::Exited {
            process: ProcessId(id),
            exit,
            was_asked,
        })
    }

    fn reaped(&mut self, id: u64) -> Vec<Action> {
        self.apply(Event::Reaped(ProcessId(id)))
    }

    /// Lets time pass to the next wake and gives how long that was.
    fn wake(&mut self) -> (Duration, Vec<Action>) {
        let at = self.pool.next_wake().expect("a wake is set");
        let waited = at.saturating_duration_since(self.now);
        self.now = at;
        (waited, self.apply(Event::Tick))
    }

    /// Lets so much time pass, ticking when it is due.
    fn pass(&mut self, time: Duration) -> Vec<Action> {
        let end = self.now + time;
        let mut actions = Vec::new();
        while let Some(at) = self.pool.next_wake().filter(|at| *at <= end) {
            assert!(at >= self.now, "a wake in the past");
            self.now = at;
            actions.extend(self.apply(Event::Tick));
        }
        self.now = end;
        actions
    }

    fn view(&self) -> View {
        self.pool.view(self.now)
    }

    fn phase(&self, id: u64) -> Option<PhaseView> {
        let view = self.view();
        let mut processes = view.processes.iter();
        processes
            .find(|process| process.process == ProcessId(id))
            .map(|process| process.phase)
    }
}

fn start(id: u64) -> Action {
    Action::Start(ProcessId(id))
}

fn dismiss(id: u64) -> Action {
    Action::Dismiss(ProcessId(id))
}

fn terminate(id: u64) -> Action {
    Action::Terminate(ProcessId(id))
}

fn kill(id: u64) -> Action {
    Action::Kill(ProcessId(id))
}

fn ended(id: u64, ended: Ended) -> Action {
    Action::Ended(ProcessId(id), ended)
}

#[test]
fn every_seat_is_filled_at_once_and_the_pool_runs_when_all_are_ready() {
    let mut world = World::new(Rules { size: 3, ..rules() });
    assert_eq!(world.view().state, State::Starting);
    for id in 1..=3 {
        assert_eq!(world.ready(id), []);
    }
    let view = world.view();
    assert_eq!((view.state, view.ready, view.size), (State::Running, 3, 3));
}

/// How a process of a dialect ends, what it had done, and what it then counts as.
#[test]
fn each_end_of_a_process_counts_as_the_protocol_says() {
    let (zero, one, killed) = (Exit::Code(0), Exit::Code(1), Exit::Signal(9));
    let crash = Ended::Crashed;
    #[rustfmt::skip]
    let table = [
        // answered, asked, exit, what it is
        (0, false, zero,   Ended::FailedStart),
        (0, false, one,    Ended::FailedStart),
        (0, false, killed, Ended::FailedStart),
        (0, true,  zero,   crash),
        (0, true,  one,    crash),
        (0, true,  killed, crash),
        (0, true,  Exit::Unknown, crash),
        (2, true,  zero,   Ended::Normal),
        (2, true,  one,    crash),
        (2, true,  killed, crash),
    ];
    for (answered, asked, exit, expected) in table {
        let mut world = World::running(jsonl());
        for _ in 0..answered {
            assert_eq!(world.answered(1), []);
        }
        let actions = world.ends(1, exit, asked);
        let case = format!("{answered} answered, asked: {asked}, {exit}");
        assert_eq!(actions, [ended(1, expected)], "{case}");
        let view = world.view();
        let counted = (view.failed_starts, view.crashes);
        let expected = (
            u32::from(expected == Ended::FailedStart),
            u32::from(expected == crash),
        );
        assert_eq!(counted, expected, "{case}");
        assert_eq!(view.last_exit, Some(exit));
    }
}

#[test]
fn a_seat_is_free_only_when_nothing_of_its_process_is_left() {
    let mut world = World::running(jsonl());
    world.answered(1);
    assert_eq!(world.exits(1, Exit::Code(0)), [ended(1, Ended::Normal)]);
    assert_eq!(world.pass(60 * SECOND), []);
    assert_eq!(world.phase(1), Some(PhaseView::Exited));
    assert_eq!(world.reaped(1), [start(2)]);
}

#[test]
fn a_crash_of_a_process_that_was_useful_is_replaced_at_once_and_of_another_after_a_wait() {
    let mut useful = World::running(jsonl());
    useful.answered(1);
    useful.exits(1, Exit::Signal(11));
    assert_eq!(useful.reaped(1), [start(2)]);

    let mut proved = World::running(jsonl());
    proved.pass(5 * SECOND);
    proved.exits(1, Exit::Signal(11));
    assert_eq!(proved.reaped(1), [start(2)]);

    let mut useless = World::running(jsonl());
    useless.exits(1, Exit::Signal(11));
    assert_eq!(useless.reaped(1), []);
    assert_eq!(useless.view().state, State::BackingOff);
    assert_eq!(useless.view().next_start, Some(200 * MS));
    assert_eq!(useless.wake(), (200 * MS, vec![start(2)]));
}

#[test]
fn waits_grow_with_every_failure_in_a_row_and_the_fifth_is_a_crash_loop() {
    let mut world = World::new(jsonl());
    for (id, wait) in [(1, 200), (2, 400), (3, 800), (4, 1_600)] {
        world.ready(id);
        assert_eq!(
            world.ends(id, Exit::Code(1), false),
            [ended(id, Ended::FailedStart)]
        );
        assert_eq!(world.reaped(id), []);
        assert_eq!(world.wake(), (wait * MS, vec![start(id + 1)]));
    }
    world.ready(5);
    world.ends(5, Exit::Code(1), false);
    let why = "5 starts in a row failed".to_owned();
    assert_eq!(world.pool.standing(), &Standing::CrashLooping(why));
    assert_eq!(world.view().state, State::CrashLooping);
    assert_eq!(world.reaped(5), []);
    assert_eq!(world.pool.next_wake(), None);
    assert_eq!(world.apply(Event::Restart), [start(6)]);
    assert_eq!(world.view().failed_starts, 0);
}

#[test]
fn a_process_that_cannot_be_started_is_a_failed_start() {
    let mut world = World::new(rules());
    for id in 1..5 {
        let actions = world.apply(Event::NotStarted(ProcessId(id)));
        assert_eq!(actions, [ended(id, Ended::FailedStart)]);
        assert_eq!(world.wake().1, [start(id + 1)]);
    }
    world.apply(Event::NotStarted(ProcessId(5)));
    assert_eq!(world.view().state, State::CrashLooping);
}

#[test]
fn a_process_not_ready_in_time_is_a_failed_start_and_gets_the_ladder() {
    let mut world = World::new(rules());
    assert_eq!(world.wake(), (30 * SECOND, vec![terminate(1)]));
    assert_eq!(world.view().failed_starts, 1);
    // The seat is not free yet, whatever its back-off.
    assert_eq!(world.pass(2 * SECOND), [kill(1)]);
    let actions = world.ends(1, Exit::Signal(9), false);
    let stopped = Ended::Stopped(Reason::NotReady);
    assert_eq!(actions, [ended(1, stopped)]);
    assert_eq!(world.view().failed_starts, 1, "counted once");
    assert_eq!(world.reaped(1), [start(2)]);
}

#[test]
fn living_for_min_uptime_forgives_the_failed_starts_before() {
    let mut world = World::new(jsonl());
    for id in 1..5 {
        world.ready(id);
        world.ends(id, Exit::Code(1), false);
        world.reaped(id);
        world.wake();
    }
    world.ready(5);
    assert_eq!(world.pass(5 * SECOND - MS), []);
    assert_eq!(world.view().failed_starts, 4);
    assert_eq!(world.pass(MS), []);
    assert_eq!(world.view().failed_starts, 0);
    // One that lives does so once; what fails beside it counts on.
    world.pass(3600 * SECOND);
    world.ends(5, Exit::Code(1), false);
    assert_eq!(world.view().failed_starts, 1);
}

#[test]
fn crashes_count_within_their_window_apart_from_failed_starts() {
    let mut world = World::running(jsonl());
    for id in 1..10 {
        world.answered(id);
        world.exits(id, Exit::Code(1));
        assert_eq!(world.reaped(id), [start(id + 1)]);
        world.ready(id + 1);
    }
    let view = world.view();
    assert_eq!((view.crashes, view.failed_starts), (9, 0));
    world.pass(60 * SECOND);
    assert_eq!(world.view().crashes, 0, "the window has passed");
    for id in 10..20 {
        assert_eq!(world.pool.standing(), &Standing::Open);
        world.answered(id);
        world.exits(id, Exit::Code(1));
        world.reaped(id);
        world.ready(id + 1);
    }
    let why = "10 crashes within 60s".to_owned();
    assert_eq!(world.pool.standing(), &Standing::CrashLooping(why));
}

#[test]
fn zero_is_no_limit() {
    let restart = Restart {
        max_failed_starts: 0,
        max_crashes: 0,
        ..rules().restart
    };
    let mut world = World::new(Rules { restart, ..jsonl() });
    for id in 1..3_000 {
        world.ready(id);
        world.ends(id, Exit::Code(1), id % 2 == 0);
        world.reaped(id);
        let (waited, actions) = world.wake();
        assert!(waited <= 30 * SECOND, "{waited:?}");
        assert_eq!(actions, [start(id + 1)]);
    }
    assert_eq!(world.pool.standing(), &Standing::Open);
}

#[test]
fn others_of_a_crash_looping_pool_serve_on() {
    let mut world = World::running(Rules { size: 2, ..jsonl() });
    world.pass(5 * SECOND);
    for id in 2..7 {
        world.ready(id);
        world.ends(id, Exit::Code(1), false);
        world.reaped(id);
        world.pass(2 * SECOND);
    }
    let view = world.view();
    assert_eq!((view.state, view.ready), (State::CrashLooping, 1));
    assert_eq!(world.phase(1), Some(PhaseView::Ready));
}

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
