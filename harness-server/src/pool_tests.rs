//! Each rule of a pool by itself: here starts, ends, failures and back-off.

use std::time::{Duration, Instant};

use super::{
    Action, Detached, Dialect, Ended, Event, Exit, PhaseView, Pool, Reason, Restart, Rules, Rung,
    Standing, State, Stop, View,
};
use crate::ids::ProcessId;
use crate::retry::{Policy, Waits};

#[path = "pool_ladder_tests.rs"]
mod ladder;
#[path = "pool_seats_tests.rs"]
mod seats;
#[path = "pool_totals_tests.rs"]
mod totals;
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
fn one_that_breaks_a_rule_or_leaves_before_it_was_asked_counts_as_one_that_died_then() {
    let restart = Restart {
        max_failed_starts: 3,
        max_crashes: 3,
        ..rules().restart
    };
    for (dialect, counted) in [(Dialect::Jsonl, (2, 0)), (Dialect::Grpc, (0, 2))] {
        let mut world = World::running(Rules {
            dialect,
            restart,
            ..rules()
        });
        for (id, wait) in [(1, 200), (2, 400)] {
            world.detached(id, Detached::Useless);
            let stopped = ended(id, Ended::Stopped(Reason::Useless));
            assert_eq!(world.exits(id, Exit::Code(0)), [stopped]);
            assert_eq!(world.reaped(id), [], "its seat waits");
            assert_eq!(world.wake(), (wait * MS, vec![start(id + 1)]));
            world.ready(id + 1);
        }
        let view = world.view();
        assert_eq!((view.failed_starts, view.crashes), counted, "{dialect:?}");
        world.detached(3, Detached::Useless);
        assert_eq!(world.view().state, State::CrashLooping, "{dialect:?}");
        world.exits(3, Exit::Code(0));
        assert_eq!(world.reaped(3), []);
        assert_eq!(world.apply(Event::Restart), [start(4)]);
    }
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
