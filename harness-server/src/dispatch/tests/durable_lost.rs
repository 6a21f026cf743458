//! Durable runs whose call broke, whose step was not written, or whose harness was started anew.

use super::durable::*;
use super::samples::{ask, minimal, offer};
use super::*;
use crate::dispatch::claim::Away;
use crate::dispatch::{Change, Stored};
use crate::run::Counts;
use crate::store::Holder;

#[test]
fn a_worker_whose_call_broke_goes_on_with_its_attempt() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let (run, _) = world.start("echo");
    let lease = lease_in(&world.stored(run));
    world.append(slot, 1, EntryKind::Step, 10);
    world.stored(run);
    let delivery = world.held(slot).expect("it works");
    assert_eq!(writes(&world.lose(slot)), Vec::<&str>::new());

    for (worker, lease, why) in [(2, lease, "worker"), (1, Lease([9; 16]), "lease")] {
        let (_, actions) = world.resume(offer("echo", worker), delivery, lease);
        let refused = End::Refused(crate::slot::Refusal::NotYours);
        assert_eq!(ends(&actions)[0].1, refused, "another {why}");
    }
    let (again, actions) = world.resume(offer("echo", 1), delivery, lease);
    assert_eq!(resumed(&actions).map(|it| it.last_seq), Some(1));
    assert_eq!(world.held(again), Some(delivery));
    // Its numbers go on.
    world.append(again, 2, EntryKind::Plain, 10);
    assert_eq!(acknowledged(&world.stored(run)), Some(2));

    // A call that only seems to be there loses against it.
    let (third, actions) = world.resume(offer("echo", 1), delivery, lease);
    assert_eq!(ends(&actions), [(again, End::Superseded(delivery))]);
    world.reply(third);
    world.stored(run);
}

#[test]
fn a_worker_that_does_not_come_back_in_its_window_is_lost() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let (run, _) = world.start("echo");
    let lease = lease_in(&world.stored(run));
    let delivery = world.held(slot).expect("it works");
    world.accept(slot);
    world.lose(slot);
    let other = world.attach(minimal("echo", 2));
    assert_eq!(writes(&world.pass(10 * SECOND)), ["end attempt"]);
    world.settled(run);
    let (_, actions) = world.resume(offer("echo", 1), delivery, lease);
    assert_eq!(ends(&actions)[0].1, End::Superseded(delivery));
    world.pass(SECOND);
    world.load(run);
    world.stored(run);
    assert_eq!(world.run_in(other), Some(run));
    world.reply(other);
    world.stored(run);
}

#[test]
fn released_instead_of_resume_ends_the_waiting() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let (run, _) = world.start("echo");
    let lease = lease_in(&world.stored(run));
    let delivery = world.held(slot).expect("it works");
    world.accept(slot);
    world.lose(slot);
    let worker = WorkerId(Uuid::from_u128(1));
    let actions = world.apply(Event::Released {
        worker,
        delivery,
        lease,
    });
    assert_eq!(writes(&actions), ["end attempt"]);
    world.end(run);
}

#[test]
fn what_is_released_before_its_call_is_lost_is_not_waited_for_and_its_reply_counts() {
    for replies in [false, true] {
        let mut world = World::new();
        let slot = world.attach(offer("echo", 1));
        let (run, _) = world.start("echo");
        let lease = lease_in(&world.stored(run));
        let delivery = world.held(slot).expect("it works");
        world.append(slot, 1, EntryKind::Step, 10);
        let worker = WorkerId(Uuid::from_u128(1));
        let actions = world.apply(Event::Released {
            worker,
            delivery,
            lease,
        });
        assert_eq!((writes(&actions), ends(&actions)), (vec![], vec![]));
        world.stored(run);
        if replies {
            assert_eq!(writes(&world.reply(slot)), ["finish"]);
        }
        let lost = writes(&world.lose(slot));
        assert_eq!(lost, if replies { vec![] } else { vec!["end attempt"] });
        world.end(run);
    }
}

#[test]
fn a_worker_whose_process_is_dead_is_not_waited_for() {
    for by_itself in [true, false] {
        let mut world = World::new();
        let slot = world.attach(offer("echo", 1));
        let (run, _) = world.start("echo");
        world.stored(run);
        let delivery = world.held(slot).expect("it works");
        world.accept(slot);
        let perished = |worker, delivery| Event::Perished {
            work: (WorkerId(Uuid::from_u128(worker)), delivery),
            failure: by_itself.then(|| Failure::new(Code::WorkerLost, "it died: exit code 3")),
        };
        let actions = world.apply(perished(1, delivery));
        assert_eq!(writes(&actions), Vec::<&str>::new(), "its call tells");
        world.lose(slot);
        let earlier = Delivery {
            attempt: Attempt(0),
            ..delivery
        };
        for other in [perished(2, delivery), perished(1, earlier)] {
            assert_eq!(writes(&world.apply(other)), Vec::<&str>::new());
        }
        let actions = world.apply(perished(1, delivery));
        assert_eq!(writes(&actions), ["end attempt"]);
        let counts = actions.iter().find_map(|action| {
            let Action::Write(write) = action else {
                return None;
            };
            let Change::EndAttempt { counts, .. } = &write.change else {
                return None;
            };
            Some(*counts)
        });
        let counts = counts.expect("an end");
        assert_eq!((counts.counted, counts.killed), (1, u32::from(by_itself)));
        world.end(run);
    }
}

#[test]
fn a_run_whose_step_is_not_written_is_taken_in_as_it_is_on_disk() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let (run, _) = world.start("echo");
    world.stored(run);
    world.append(slot, 1, EntryKind::Step, 10);
    let actions = world.unwritten(run);
    assert_eq!(ends(&actions), [(slot, End::StoreFailed)], "it comes back");
    assert!(!world.is_here(run));
    let actions = world.pass(SECOND);
    let reload = |action: &Action| matches!(action, Action::Reload { run: id } if *id == run);
    assert!(actions.iter().any(reload));
    // It could not be read either: it is tried again.
    assert!(world.pass(SECOND).iter().any(reload));
    let read = |again| Event::Adopt {
        run,
        adopted: None,
        again,
    };
    world.apply(read(false));
    assert!(
        world.pass(SECOND).iter().any(reload),
        "that was read before"
    );
    world.apply(read(true));
    assert!(!world.pass(SECOND).iter().any(reload));
}

#[test]
fn a_worker_that_stays_away_is_told_of_with_what_parted_it_from_its_run() {
    let mut world = World::new();
    let holder = Some(Holder {
        worker: WorkerId(Uuid::from_u128(1)),
        lease: Lease([1; 16]),
    });
    let slot = world.attach(offer("echo", 1));
    let (adrift, _) = world.start("echo");
    world.stored(adrift);
    world.append(slot, 1, EntryKind::Step, 10);
    world.unwritten(adrift);
    let (restarted, _) = world.adopt(holder);
    world.adopt_again(adrift, holder);
    let window = |run| world.away(run).until - world.now;
    // Those of a restart are not all delivered again at once.
    assert_eq!(window(adrift), world.core.limits.reattach_window);
    assert!(window(restarted) > window(adrift));
    for (run, why) in [(adrift, "the store failed"), (restarted, "started anew")] {
        let message = &world.away(run).failure.message;
        assert!(message.contains(why), "{message}");
        world.end(run);
    }
}

#[test]
fn a_run_that_is_not_made_is_told_so_and_gives_its_slot_up() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let (run, _) = world.start("echo");
    let actions = world.unwritten(run);
    let refused = refusal(&actions);
    assert_eq!(refused.map(|it| it.code), Some(Code::StoreUnavailable));
    let asked = world.ask("echo");
    assert_eq!(world.run_in(slot), Some(asked));

    let (run, _) = world.start("echo");
    let other = RunId(Uuid::from_u128(7));
    let stored = Stored::Existing(other);
    let actions = world.apply(Event::Stored { run, stored });
    let existing =
        |it: &Action| matches!(it, Action::Started { started: Ok(made), .. } if *made == other);
    assert!(actions.iter().any(existing));
    assert!(!world.is_here(run));
}

#[test]
fn durable_runs_have_a_limit_of_their_own() {
    let mut world = World::new();
    world.attach(offer("other", 9));
    let runs: Vec<RunId> = (0..5).map(|_| world.start_waiting().0).collect();
    let (_, actions) = world.start_waiting();
    let busy = refusal(&actions);
    assert_eq!(busy.map(|it| it.code), Some(Code::Busy));
    for run in runs {
        world.end(run);
    }
}

impl World {
    fn away(&self, run: RunId) -> &Away {
        let claim = self.core.runs[&run].claim.as_ref().expect("a claim");
        claim.away.as_ref().expect("its worker is away")
    }

    fn start_waiting(&mut self) -> (RunId, Vec<Action>) {
        self.start_as(ask("echo").wait_for_agent(), start_of())
    }
}

#[test]
fn a_run_is_not_delivered_before_its_start() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    let mut start = start_of();
    start.not_before = Some(world.now + 5 * SECOND);
    let (run, actions) = world.start_as(ask("echo"), start);
    assert_eq!(writes(&actions), ["enqueue"]);
    world.stored(run);
    world.pass(4 * SECOND);
    let actions = world.pass(SECOND);
    assert!(actions.iter().any(|it| matches!(it, Action::Load { .. })));
    world.load(run);
    world.stored(run);
    assert_eq!(world.run_in(slot), Some(run));
    world.reply(slot);
    world.stored(run);
}

#[test]
fn after_a_restart_a_worker_may_come_back_and_else_the_run_is_delivered_uncounted() {
    let mut world = World::new();
    let holder = Holder {
        worker: WorkerId(Uuid::from_u128(1)),
        lease: Lease([5; 16]),
    };
    let (run, _) = world.adopt(Some(holder));
    let delivery = Delivery {
        run,
        attempt: Attempt(1),
    };
    let (slot, _) = world.resume(offer("echo", 1), delivery, holder.lease);
    assert_eq!(world.held(slot), Some(delivery));
    assert_eq!(
        writes(&world.append(slot, 5, EntryKind::Plain, 1)),
        ["append"]
    );
    world.stored(run);
    world.end(run);

    let (run, _) = world.adopt(Some(holder));
    let other = world.attach(minimal("echo", 2));
    world.pass(10 * SECOND);
    let actions = world.pass(SECOND);
    assert!(actions.is_empty() || !world.core.runs[&run].is_backing_off());
    assert_eq!(world.core.runs[&run].run.counts(), Counts::default());
    world.settled(run);
    world.load(run);
    world.stored(run);
    assert_eq!(world.run_in(other), Some(run));
    world.reply(other);
    world.stored(run);
}

#[test]
fn a_leaving_harness_leaves_what_waits_on_disk_and_lets_work_end() {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let (works, _) = world.start("echo");
    world.stored(works);
    world.accept(slot);
    let (waits, _) = world.start("echo");
    world.stored(waits);
    let (unmade, _) = world.start("echo");
    world.apply(Event::ServerLeaving);
    assert!(!world.is_here(waits), "it is on disk");
    assert!(world.is_here(unmade), "it is on its way there");
    assert!(is_started(&world.stored(unmade), unmade));
    assert!(!world.is_here(unmade));

    let actions = world.reply(slot);
    assert!(ends(&actions).is_empty(), "its acknowledgement comes first");
    let actions = world.stored(works);
    assert_eq!(acknowledged(&actions), Some(1));
    assert_eq!(ends(&actions), [(slot, End::Leaving)]);
}
