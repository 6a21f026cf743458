//! Interactive runs whose call broke, where the config gives their workers a window to come back in.

use super::durable::acknowledged;
use super::samples::{Ask, ask, minimal, offer};
use super::*;
use crate::slot::Refusal;

const WINDOW: Duration = Duration::from_secs(3);

pub(super) fn windowed() -> World {
    World::with(|limits| limits.interactive_reattach_window = WINDOW)
}

/// An ask in a full level slot that has accepted it.
pub(super) fn working(world: &mut World, ask: Ask) -> (SlotId, Delivery, Lease) {
    let slot = world.attach(offer("echo", 1));
    let (_, actions) = world.ask_and_see(ask);
    world.accept(slot);
    let delivery = world.held(slot).expect("it works");
    (slot, delivery, lease_in(&actions))
}

/// The same, with its call lost.
fn away(world: &mut World, ask: Ask) -> (Delivery, Lease) {
    let (slot, delivery, lease) = working(world, ask);
    world.lose(slot);
    (delivery, lease)
}

/// How a resume of the first worker ends that has nothing to go on with.
fn missed(world: &mut World, delivery: Delivery, lease: Lease) -> End {
    let (_, actions) = world.resume(offer("echo", 1), delivery, lease);
    assert_eq!(resumed(&actions), None);
    ends(&actions).remove(0).1
}

/// That a resume of the first worker is told of its reply, and that its slot is free.
fn is_told_of_its_reply(world: &mut World, (delivery, lease): (Delivery, Lease), last_seq: u64) {
    let (slot, actions) = world.resume(offer("echo", 1), delivery, lease);
    assert_eq!(resumed(&actions), Some(replied(delivery, last_seq)));
    assert_eq!(world.held(slot), None);
    world.lose(slot);
}

#[test]
fn a_worker_goes_on_with_an_ask_whose_call_broke() {
    let mut world = windowed();
    let (slot, delivery, lease) = working(&mut world, ask("echo"));
    let actions = world.append(slot, 1, EntryKind::Plain, 10);
    assert_eq!(acknowledged(&actions), Some(1));
    world.lose(slot);
    world.pass(WINDOW - SECOND);

    let others = [
        (offer("echo", 2), lease, "worker"),
        (offer("echo", 1), Lease([9; 16]), "lease"),
        (offer("upper", 1), lease, "agent"),
        (minimal("echo", 1), lease, "level"),
    ];
    for (other, lease, why) in others {
        let (_, actions) = world.resume(other, delivery, lease);
        let refused = End::Refused(Refusal::NotYours);
        assert_eq!(ends(&actions)[0].1, refused, "another {why}");
    }
    let (again, actions) = world.resume(offer("echo", 1), delivery, lease);
    let going_on = Resumed {
        delivery,
        last_seq: 1,
        deadline: Some(world.now + TIMEOUT - (WINDOW - SECOND)),
    };
    assert_eq!(resumed(&actions), Some(going_on));
    assert_eq!(world.held(again), Some(delivery));
    // What is sent again is taken once, and its numbers go on.
    assert_eq!(
        acknowledged(&world.append(again, 1, EntryKind::Plain, 10)),
        Some(1)
    );
    world.append(again, 2, EntryKind::Plain, 10);
    world.pass(WINDOW);
    assert!(!world.is_answered(delivery.run), "nobody waits any more");

    // A call that only seems to be there loses against it.
    let (third, actions) = world.resume(offer("echo", 1), delivery, lease);
    assert_eq!(ends(&actions), [(again, End::Superseded(delivery))]);
    assert_eq!(resumed(&actions).map(|it| it.last_seq), Some(2));
    world.reply(third);
    let answer = world.answer(delivery.run);
    assert!(answer.outcome.is_ok());
    assert_eq!(answer.attempt, Attempt(1));
    let journal = world.core.read_journal(delivery.run, 1, 100);
    let entries = journal.expect("it is kept").page.entries.len();
    assert_eq!(entries, 6, "started twice over, two entries, ended twice");
}

#[test]
fn without_a_window_and_at_the_minimal_level_a_lost_call_fails_its_ask_at_once() {
    for (mut world, offer) in [
        (World::new(), offer("echo", 1)),
        (windowed(), minimal("echo", 1)),
    ] {
        let slot = world.attach(offer.clone());
        let (run, actions) = world.ask_and_see(ask("echo"));
        let delivery = world.held(slot).expect("it works");
        world.lose(slot);
        world.assert_failed(run, Code::WorkerLost, &["the connection broke"]);
        let (_, actions) = world.resume(offer, delivery, lease_in(&actions));
        assert_eq!(ends(&actions)[0].1, End::Refused(Refusal::NotYours));
    }
}

#[test]
fn a_worker_that_stays_away_fails_its_ask_or_has_it_tried_again() {
    let mut world = windowed();
    let (first, _) = away(&mut world, ask("echo"));
    let (second, lease) = away(&mut world, ask("echo").max_attempts(2));
    world.pass(WINDOW);
    let waited = ["the connection broke", "was not back in 3s"];
    world.assert_failed(first.run, Code::WorkerLost, &waited);
    assert!(!world.is_answered(second.run), "it backs off");
    assert_eq!(
        missed(&mut world, second, lease),
        End::Superseded(second),
        "another attempt is to come"
    );
    world.pass(BACK_OFF);
    let slot = world.attach(offer("echo", 1));
    assert_eq!(world.held(slot).map(|it| it.attempt), Some(Attempt(2)));
    assert_eq!(missed(&mut world, second, lease), End::Superseded(second));
    world.reply(slot);
    assert_eq!(missed(&mut world, second, lease), End::Superseded(second));
}

#[test]
fn released_and_the_known_death_of_the_process_end_the_waiting() {
    let worker = WorkerId(Uuid::from_u128(1));
    for died in [false, true] {
        let mut world = windowed();
        let (delivery, lease) = away(&mut world, ask("echo"));
        let event = match died {
            true => Event::Perished {
                work: (worker, delivery),
                failure: Some(Failure::new(Code::WorkerLost, "exit code 3")),
            },
            false => Event::Released {
                worker,
                delivery,
                lease,
            },
        };
        world.apply(event);
        let why = if died {
            "exit code 3"
        } else {
            "the connection broke"
        };
        world.assert_failed(delivery.run, Code::WorkerLost, &[why]);
    }
}

#[test]
fn a_worker_that_was_away_learns_the_end_it_missed() {
    let mut world = windowed();
    let (delivery, lease) = away(&mut world, ask("echo"));
    world.cancel(delivery.run);
    world.assert_failed(delivery.run, Code::Cancelled, &[]);
    assert_eq!(
        missed(&mut world, delivery, lease),
        End::Cancelled(delivery)
    );
    let (_, actions) = world.resume(offer("echo", 2), delivery, lease);
    assert_eq!(ends(&actions)[0].1, End::Refused(Refusal::NotYours));

    let (delivery, lease) = away(&mut world, ask("echo").timeout(SECOND));
    world.pass(SECOND);
    world.assert_failed(delivery.run, Code::DeadlineExceeded, &["call is lost"]);
    assert_eq!(
        missed(&mut world, delivery, lease),
        End::DeadlineExceeded(delivery)
    );

    let (delivery, lease) = away(&mut world, ask("echo").attempt_timeout(SECOND));
    world.pass(SECOND);
    world.assert_failed(delivery.run, Code::AttemptTimeout, &["call is lost"]);
    assert_eq!(
        missed(&mut world, delivery, lease),
        End::Superseded(delivery)
    );

    world.pass(MINUTE);
    let forgotten = missed(&mut world, delivery, lease);
    assert_eq!(forgotten, End::Refused(Refusal::NotYours));
}

#[test]
fn a_reply_that_was_taken_is_acknowledged_to_whoever_resumes_its_attempt() {
    let mut world = windowed();
    let (slot, delivery, lease) = working(&mut world, ask("echo"));
    world.append(slot, 1, EntryKind::Plain, 10);
    world.reply(slot);
    world.lose(slot);
    is_told_of_its_reply(&mut world, (delivery, lease), 2);

    let (slot, delivery, lease) = working(&mut world, ask("echo").max_attempts(2));
    let mut failure = Failure::new(Code::AgentError, "it broke");
    failure.retryable = true;
    world.reply_with(slot, Reply::Error(failure));
    world.lose(slot);
    is_told_of_its_reply(&mut world, (delivery, lease), 1);
    world.pass(BACK_OFF);
    let slot = world.attach(offer("echo", 1));
    assert_eq!(world.held(slot).map(|it| it.attempt), Some(Attempt(2)));
    assert_eq!(
        missed(&mut world, delivery, lease),
        End::Superseded(delivery)
    );
}

#[test]
fn what_a_slow_caller_has_not_read_is_not_acknowledged_by_a_resume() {
    let mut world = windowed();
    let mut streamed = ask("echo");
    streamed.placing.paced = true;
    let (slot, delivery, lease) = working(&mut world, streamed);
    for seq in 1..=3 {
        assert_eq!(
            acknowledged(&world.append(slot, seq, EntryKind::Plain, 10)),
            None
        );
    }
    let (run, output) = (delivery.run, true);
    let read = |seq| Event::Read { run, seq, output };
    // The first two of the journal are of the harness.
    assert_eq!(acknowledged(&world.apply(read(3))), Some(1));
    world.lose(slot);
    assert_eq!(acknowledged(&world.apply(read(4))), None, "nobody is there");

    let (slot, actions) = world.resume(offer("echo", 1), delivery, lease);
    assert_eq!(resumed(&actions).map(|it| it.last_seq), Some(2));
    assert_eq!(
        acknowledged(&world.append(slot, 3, EntryKind::Plain, 10)),
        Some(2),
        "it was taken, and is not read yet"
    );
    assert_eq!(acknowledged(&world.apply(read(5))), Some(3));
}

#[test]
fn a_leaving_harness_answers_what_is_away_and_waits_for_nobody() {
    let mut world = windowed();
    let (gone, lease) = away(&mut world, ask("echo"));
    let (slot, works, _) = working(&mut world, ask("echo"));
    world.apply(Event::ServerLeaving);
    world.assert_failed(gone.run, Code::ShuttingDown, &[]);
    assert_eq!(missed(&mut world, gone, lease), End::Leaving);
    world.lose(slot);
    world.assert_failed(works.run, Code::WorkerLost, &["the connection broke"]);
}

#[test]
fn work_whose_call_is_lost_may_still_ask() {
    let mut world = windowed();
    let (parent, _) = away(&mut world, ask("echo"));
    let slot = world.attach(minimal("upper", 2));
    let (run, _) = world.ask_and_see(ask("upper").parent(parent));
    assert_eq!(world.run_in(slot), Some(run));
    world.pass(WINDOW);
    let (run, _) = world.ask_and_see(ask("upper").parent(parent));
    world.assert_failed(run, Code::InvalidRequest, &["does not run now"]);
}

#[test]
fn the_agent_of_a_run_whose_worker_is_away_makes_room_for_no_other() {
    let mut world = World::with(|limits| {
        limits.interactive_reattach_window = WINDOW;
        limits.agents = 1;
    });
    let (delivery, _) = away(&mut world, ask("echo").max_attempts(2));
    let (_, actions) = world.attach_and_see(offer("upper", 2));
    let refused = &ends(&actions)[0].1;
    assert!(
        matches!(refused, End::Refused(Refusal::TooMany(_))),
        "{refused:?}"
    );
    world.pass(WINDOW);
    world.pass(BACK_OFF);
    let slot = world.attach(offer("echo", 1));
    assert_eq!(world.run_in(slot), Some(delivery.run));
    world.reply(slot);
    world.lose(slot);
    world.attach(offer("upper", 2));
}

#[test]
fn a_worker_that_was_not_heard_or_is_not_the_first_may_come_back_too() {
    let mut world = windowed();
    let other = world.attach(offer("echo", 2));
    world.ask("echo");
    world.frame(other, Frame::Leave);
    world.reply_with(other, Reply::Declined);
    let slot = world.attach(offer("echo", 1));
    let delivery = world.held(slot).expect("it goes elsewhere");
    assert_eq!(delivery.attempt, Attempt(2));
    world.accept(slot);
    let lease = world.core.slots[&slot].lease.expect("one of its own");
    let actions = world.pass(3 * world.core.limits.slot.heartbeat_interval);
    assert!(ends(&actions).contains(&(slot, End::HeartbeatsMissed)));
    let (again, _) = world.resume(offer("echo", 1), delivery, lease);
    assert_eq!(world.held(again), Some(delivery));
    world.reply(again);
    assert!(world.answer(delivery.run).outcome.is_ok());
}

#[test]
fn a_drained_worker_is_not_waited_for() {
    let worker = WorkerId(Uuid::from_u128(1));
    let drain = |world: &mut World| {
        let reason = "test".into();
        world.apply(Event::Drain { worker, reason })
    };
    let mut world = windowed();
    let (slot, first, _) = working(&mut world, ask("echo"));
    drain(&mut world);
    world.lose(slot);
    world.assert_failed(first.run, Code::WorkerLost, &["the connection broke"]);

    let mut world = windowed();
    let (second, _) = away(&mut world, ask("echo"));
    world.attach(offer("echo", 1));
    drain(&mut world);
    world.assert_failed(second.run, Code::WorkerLost, &["the connection broke"]);
}

#[test]
fn runs_that_are_away_have_a_limit_in_number_and_in_bytes() {
    let mut world = World::with(|limits| {
        limits.interactive_reattach_window = WINDOW;
        limits.away_runs = 2;
        limits.queue_bytes = 100;
    });
    let few = |bytes: usize| ask("echo").bytes(bytes);
    let (first, lease) = away(&mut world, few(60));
    let (large, _) = away(&mut world, few(60));
    world.assert_failed(large.run, Code::WorkerLost, &["the connection broke"]);
    let (second, _) = away(&mut world, few(40));
    let (third, _) = away(&mut world, few(0));
    world.assert_failed(third.run, Code::WorkerLost, &["the connection broke"]);
    assert!(!world.is_answered(first.run) && !world.is_answered(second.run));
    // Whoever comes back makes room.
    world.resume(offer("echo", 1), first, lease);
    let (fourth, _) = away(&mut world, few(60));
    assert!(!world.is_answered(fourth.run));
}

#[test]
fn workers_that_die_while_they_are_away_count_as_killed() {
    let mut world = windowed();
    let mut run = None;
    for killed in 1..=3 {
        let (slot, actions) = match run {
            None => {
                let slot = world.attach(offer("echo", 1));
                (slot, world.ask_and_see(ask("echo").max_attempts(9)).1)
            }
            Some(_) => world.attach_and_see(offer("echo", 1)),
        };
        let delivery = deliveries(&actions)[0].1;
        run = Some(delivery.run);
        world.accept(slot);
        world.lose(slot);
        world.apply(Event::Perished {
            work: (WorkerId(Uuid::from_u128(1)), delivery),
            failure: Some(Failure::new(Code::WorkerLost, "exit code 3")),
        });
        assert_eq!(world.is_answered(delivery.run), killed == 3, "{killed}");
        world.pass(8 * BACK_OFF);
    }
    let run = run.expect("it was asked");
    world.assert_failed(run, Code::Poisoned, &["exit code 3"]);
}
