//! Pools under random events, in a world where processes come, work, break and go as they do.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// What may happen to one of the processes, picked by a number, or to all.
#[derive(Clone, Copy, Debug)]
enum Step {
    Progress(usize),
    Answer(usize),
    Detach(usize, Detached),
    Exit(usize, Exit),
    Pass(u64),
    Restart,
    Resize(usize, bool),
}

/// A process as the system has it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Real {
    Asked,
    Ready,
    Detached,
    Exited,
}

fn step() -> impl Strategy<Value = Step> {
    let detached = prop_oneof![
        Just(Detached::Cancelled),
        Just(Detached::Broke),
        Just(Detached::Useless),
        Just(Detached::Lost),
        Just(Detached::Left),
    ];
    let exit = prop_oneof![
        Just(Exit::Code(0)),
        Just(Exit::Code(1)),
        Just(Exit::Signal(9))
    ];
    prop_oneof![
        8 => any::<usize>().prop_map(Step::Progress),
        3 => any::<usize>().prop_map(Step::Answer),
        2 => (any::<usize>(), detached).prop_map(|(at, why)| Step::Detach(at, why)),
        3 => (any::<usize>(), exit).prop_map(|(at, exit)| Step::Exit(at, exit)),
        4 => (0..20_000_u64).prop_map(Step::Pass),
        1 => Just(Step::Restart),
        1 => (0..5_usize, any::<bool>()).prop_map(|(size, replace)| Step::Resize(size, replace)),
    ]
}

fn any_rules() -> impl Strategy<Value = Rules> {
    let numbers = (1..5_usize, 0..4_u64, 0..3_u64, 0..4_u32, 0..4_u32);
    (numbers, any::<bool>(), any::<bool>()).prop_map(
        |((size, max_requests, age, failed, crashes), grpc, per_request)| Rules {
            size,
            dialect: if grpc { Dialect::Grpc } else { Dialect::Jsonl },
            per_request,
            max_requests,
            max_age: Duration::from_secs(20 * age),
            restart: Restart {
                max_failed_starts: failed,
                max_crashes: crashes,
                ..rules().restart
            },
            ..rules()
        },
    )
}

/// A pool and what the system has of it.
struct Walk {
    world: World,
    real: BTreeMap<u64, Real>,
}

impl Walk {
    fn new(rules: Rules) -> Self {
        let pool = Pool::new(rules, Box::new(Longest));
        let now = Instant::now();
        let mut walk = Self {
            world: World { pool, now },
            real: BTreeMap::new(),
        };
        walk.apply(Event::Tick);
        walk
    }

    fn apply(&mut self, event: Event) {
        let may_start = *self.world.pool.standing() == Standing::Open
            || matches!(event, Event::Restart | Event::Reload { .. });
        let ticked = matches!(event, Event::Tick);
        for action in self.world.apply(event) {
            match action {
                Action::Start(id) => {
                    assert!(may_start, "started while it does not");
                    assert_eq!(self.real.insert(id.0, Real::Asked), None, "an id twice");
                }
                Action::Dismiss(id) | Action::Terminate(id) | Action::Kill(id) => {
                    assert!(self.real.contains_key(&id.0), "{id} is gone");
                }
                Action::Ended(..) => {}
            }
        }
        let size = self.world.pool.rules().size;
        let serving = self.world.pool.serving().count();
        assert!(serving <= size + 1, "{serving} serve in {size} seats");
        let wake = self.world.pool.next_wake();
        assert!(
            !ticked || wake.is_none_or(|at| at > self.world.now),
            "a wake that is due after its tick"
        );
    }

    fn pick(&self, at: usize) -> Option<(u64, Real)> {
        let count = self.real.len().max(1);
        self.real
            .iter()
            .nth(at % count)
            .map(|(id, real)| (*id, *real))
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Progress(at) => self.progress(at),
            Step::Answer(at) => {
                if let Some((id, Real::Ready)) = self.pick(at) {
                    self.apply(Event::Answered(ProcessId(id)));
                }
            }
            Step::Detach(at, why) => {
                if let Some((id, Real::Ready)) = self.pick(at) {
                    self.real.insert(id, Real::Detached);
                    self.apply(Event::Detached(ProcessId(id), why));
                }
            }
            Step::Exit(at, exit) => {
                if let Some((id, real)) = self.pick(at)
                    && real != Real::Exited
                {
                    self.exit(id, exit);
                }
            }
            Step::Pass(ms) => self.pass(Duration::from_millis(ms)),
            Step::Restart => self.apply(Event::Restart),
            Step::Resize(size, replace) => {
                let rules = Rules {
                    size,
                    ..self.world.pool.rules().clone()
                };
                self.apply(Event::Reload { rules, replace });
            }
        }
    }

    /// A process comes one step on: it is ready, comes back, or is reaped.
    fn progress(&mut self, at: usize) {
        let Some((id, real)) = self.pick(at) else {
            return;
        };
        let process = ProcessId(id);
        match real {
            Real::Asked | Real::Detached => {
                self.real.insert(id, Real::Ready);
                self.apply(Event::Attached(process));
            }
            Real::Exited => {
                self.real.remove(&id);
                self.apply(Event::Reaped(process));
            }
            Real::Ready => {}
        }
    }

    fn exit(&mut self, id: u64, exit: Exit) {
        let was_asked = self.real.insert(id, Real::Exited) != Some(Real::Asked);
        self.apply(Event::Exited {
            process: ProcessId(id),
            exit,
            was_asked,
        });
    }

    /// Lets time pass as it does: to each wake.
    fn pass(&mut self, time: Duration) {
        let end = self.world.now + time;
        while let Some(at) = self.world.pool.next_wake().filter(|at| *at <= end) {
            self.world.now = at;
            self.apply(Event::Tick);
        }
        self.world.now = end;
    }

    /// The system obeys: what is told to go goes, what starts is ready. Gives when nothing changes
    /// any more.
    fn calm_down(&mut self) {
        for _ in 0..200 {
            let phases: Vec<(u64, PhaseView)> = self
                .world
                .view()
                .processes
                .iter()
                .map(|process| (process.process.0, process.phase))
                .collect();
            let before = self.real.clone();
            for (id, phase) in phases {
                match phase {
                    PhaseView::Starting | PhaseView::Detached => {
                        self.real.insert(id, Real::Ready);
                        self.apply(Event::Attached(ProcessId(id)));
                    }
                    PhaseView::Leaving => {
                        self.real.insert(id, Real::Detached);
                        self.apply(Event::Detached(ProcessId(id), Detached::Left));
                    }
                    PhaseView::Stopping(_) => self.exit(id, Exit::Code(0)),
                    PhaseView::Exited => {
                        self.real.remove(&id);
                        self.apply(Event::Reaped(ProcessId(id)));
                    }
                    PhaseView::Ready => {}
                }
            }
            self.pass(Duration::from_secs(1));
            if self.real == before && self.world.view().next_start.is_none() {
                return;
            }
        }
        panic!("the pool does not calm down: {:?}", self.world.view());
    }
}

proptest! {
    #[test]
    fn whatever_happens_seats_are_kept_and_a_pool_that_may_is_full_again(
        rules in any_rules(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut walk = Walk::new(Rules { max_age: Duration::ZERO, ..rules.clone() });
        for step in &steps {
            walk.step(*step);
        }
        walk.apply(Event::Restart);
        walk.calm_down();
        let view = walk.world.view();
        prop_assert_eq!(view.state, State::Running);
        prop_assert_eq!(view.ready, view.size);
        prop_assert_eq!(walk.real.len(), view.size);
    }

    #[test]
    fn whatever_happens_a_leaving_pool_is_gone_when_its_processes_obey(
        rules in any_rules(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut walk = Walk::new(rules);
        for step in steps {
            walk.step(step);
        }
        walk.apply(Event::Leave);
        walk.calm_down();
        prop_assert!(walk.world.pool.is_gone());
        prop_assert!(walk.real.is_empty());
    }

    #[test]
    fn a_process_that_ignores_everything_is_killed_within_both_graces(
        rules in any_rules(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut walk = Walk::new(rules);
        for step in steps {
            walk.step(step);
        }
        let graces = rules_graces(walk.world.pool.rules());
        let stopping = |walk: &Walk| -> Vec<ProcessId> {
            let view = walk.world.view();
            let processes = view.processes.iter();
            processes
                .filter(|process| matches!(process.phase, PhaseView::Stopping(_)))
                .map(|process| process.process)
                .collect()
        };
        let before = stopping(&walk);
        walk.pass(graces);
        for process in &walk.world.view().processes {
            if before.contains(&process.process) {
                prop_assert_eq!(process.phase, PhaseView::Stopping(Rung::Sigkill));
            }
        }
    }
}

fn rules_graces(rules: &Rules) -> Duration {
    rules.stop.cancel_grace + rules.stop.term_grace
}
