//! What is known of runs, live and ended, and for how long.

use super::{
    Action, Code, EntryKind, Event, Frame, Lease, MINUTE, Reply, RunId, SECOND, SlotId, World, ask,
    lease_in, minimal,
};
use crate::dispatch::RunState;
use crate::envelope::Payload;
use crate::journal::{Content, Ended, Proof};
use crate::pool::Rung;

/// A world with one slot, and one run that it has answered.
fn answered() -> (World, SlotId, RunId) {
    let mut world = World::with(|limits| limits.ended_runs = 3);
    let slot = world.attach(minimal("echo", 1));
    let run = world.ask("echo");
    world.reply(slot);
    (world, slot, run)
}

fn state(world: &World, run: RunId) -> Option<RunState> {
    let view = world.core.view_run(world.now, run);
    view.map(|view| view.state)
}

/// Asks and answers one more run, which makes room for itself.
fn one_more(world: &mut World, slot: SlotId) -> RunId {
    let run = world.ask("echo");
    world.reply(slot);
    run
}

fn watch(world: &mut World, run: RunId, more: bool) -> Vec<Action> {
    world.apply(Event::Watched { run, more })
}

/// What the journal of a run says, and whether its work has stopped.
fn journal(world: &World, run: RunId) -> (Vec<Content>, bool) {
    let reading = world
        .core
        .read_journal(run, 1, usize::MAX)
        .expect("it is known");
    let entries = reading.page.entries.into_iter();
    (
        entries.map(|entry| entry.content).collect(),
        reading.stopped,
    )
}

#[test]
fn a_run_is_queued_then_running_then_ended() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    let first = world.ask("echo");
    let (second, _) = world.ask_and_see(ask("echo").priority(7));
    assert_eq!(state(&world, first), Some(RunState::Running));
    assert_eq!(state(&world, second), Some(RunState::Queued));
    world.pass(SECOND);
    world.reply(slot);
    world.cancel(second);
    let view = |run| world.core.view_run(world.now, run).expect("it is known");
    assert_eq!(view(first).state, RunState::Ended);
    assert!(matches!(view(first).ended, Some((at, Ended::Value(_))) if at == world.now));
    assert!(
        matches!(&view(second).ended, Some((_, Ended::Failure(f))) if f.code == Code::Cancelled)
    );
    assert_eq!((view(first).priority, view(second).priority), (0, 7));
    assert_eq!(view(first).created, world.now - SECOND);
    assert!(view(first).head >= 4);
    assert_eq!(state(&world, RunId(uuid::Uuid::from_u128(77))), None);
}

#[test]
fn an_ended_run_is_known_for_its_time() {
    let (mut world, _, run) = answered();
    world.pass(MINUTE - SECOND / 1000);
    assert_eq!(state(&world, run), Some(RunState::Ended));
    world.pass(SECOND / 1000);
    assert_eq!(state(&world, run), None, "not a moment longer");
}

#[test]
fn what_is_old_goes_when_another_run_ends() {
    let (mut world, slot, _) = answered();
    one_more(&mut world, slot);
    assert_eq!(world.core.census().ended, 2);
    world.pass(MINUTE - SECOND);
    one_more(&mut world, slot);
    assert_eq!(world.core.census().ended, 3, "they are young");
    world.pass(SECOND);
    one_more(&mut world, slot);
    assert_eq!(world.core.census().ended, 2, "two are old");
}

#[test]
fn the_oldest_makes_room_unless_somebody_watches_it() {
    let (mut world, slot, first) = answered();
    let second = one_more(&mut world, slot);
    one_more(&mut world, slot);
    watch(&mut world, first, true);
    one_more(&mut world, slot);
    assert_eq!(state(&world, first), Some(RunState::Ended), "it is watched");
    assert_eq!(state(&world, second), None);
    world.pass(2 * MINUTE);
    assert_eq!(
        state(&world, first),
        Some(RunState::Ended),
        "for as long as it is"
    );
    watch(&mut world, first, false);
    assert_eq!(state(&world, first), None);
    watch(&mut world, first, false);
    for _ in 0..3 {
        one_more(&mut world, slot);
    }
    assert!(world.core.read_journal(first, 1, 9).is_none(), "it is gone");
}

#[test]
fn who_watches_is_told_of_every_entry_and_who_ceased_is_not() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    world.ask_and_see(ask("echo").timeout(600 * SECOND));
    let run = world.ask("echo");
    let grew = |actions: &[Action]| {
        let grew = |action: &&Action| matches!(action, Action::Grew { run: of } if *of == run);
        actions.iter().filter(grew).count()
    };
    for more in [true, true, false] {
        watch(&mut world, run, more);
    }
    assert_eq!(grew(&world.reply(slot)), 1, "its attempt began");
    let append = |world: &World, seq| Frame::Append {
        delivery: world.held(slot).expect("it runs"),
        seq,
        kind: EntryKind::Plain,
        entry: vec![0; 10].into(),
        acknowledged: 0,
    };
    let first = append(&world, 1);
    assert_eq!(grew(&world.frame(slot, first)), 1, "its worker wrote");
    watch(&mut world, run, false);
    let second = append(&world, 2);
    assert_eq!(grew(&world.frame(slot, second)), 0);
    assert_eq!(grew(&world.reply(slot)), 0);
}

#[test]
fn a_journal_says_when_cancelled_work_has_stopped() {
    for says_so in [true, false] {
        let mut world = World::new();
        let slot = world.attach(minimal("echo", 1));
        let (run, actions) = world.ask_and_see(ask("echo"));
        let (delivery, lease) = (world.held(slot).expect("it runs"), lease_in(&actions));
        // Who reads it keeps it known.
        watch(&mut world, run, true);
        world.cancel(run);
        let (entries, stopped) = journal(&world, run);
        assert!(matches!(
            entries.last(),
            Some(Content::AttemptStopping(Rung::CallEnded))
        ));
        assert!(!stopped, "it may go on");
        let worker = super::WorkerId(uuid::Uuid::from_u128(1));
        if says_so {
            let wrong = Lease([9; 16]);
            for lease in [wrong, lease] {
                world.apply(Event::Released {
                    worker,
                    delivery,
                    lease,
                });
            }
        } else {
            world.pass(10 * MINUTE);
        }
        let due = if says_so {
            Proof::Released
        } else {
            Proof::GaveUp
        };
        let (entries, stopped) = journal(&world, run);
        assert!(
            matches!(entries.last(), Some(Content::AttemptStopped { proof, .. }) if *proof == due),
            "{entries:?}"
        );
        assert!(stopped);
    }
}

#[test]
fn a_journal_names_every_attempt_and_the_outcome() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    let run = world.ask("echo");
    world.reply_with(slot, Reply::Declined);
    world.reply(slot);
    let (entries, stopped) = journal(&world, run);
    assert!(
        matches!(
            &entries[..],
            [
                Content::RunStarted,
                Content::AttemptStarted(_),
                Content::AttemptEnded(Some(_)),
                Content::AttemptStarted(_),
                Content::AttemptEnded(None),
                Content::RunEnded(Ended::Value(_)),
            ]
        ),
        "{entries:?}"
    );
    assert!(stopped);
}

#[test]
fn ended_runs_are_forgotten_although_nothing_more_happens() {
    let (mut world, _, run) = answered();
    watch(&mut world, run, true);
    world.pass(2 * MINUTE);
    assert_eq!(world.core.census().ended, 1, "somebody reads it");
    watch(&mut world, run, false);
    world.pass(MINUTE);
    assert_eq!(world.core.census().ended, 0);
}

#[test]
fn what_workers_wrote_is_kept_in_all_up_to_a_limit_and_the_oldest_goes() {
    let mut world = World::with(|limits| limits.ended_bytes = 100);
    let slot = world.attach(minimal("echo", 1));
    let runs = [(); 4].map(|()| {
        let run = world.ask("echo");
        let delivery = world.held(slot).expect("it runs");
        let told = Frame::Append {
            delivery,
            seq: 1,
            kind: EntryKind::Plain,
            entry: vec![0; 40].into(),
            acknowledged: 0,
        };
        world.frame(slot, told);
        let reply = Reply::Value(Payload::default());
        let seq = 2;
        world.frame(
            slot,
            Frame::Reply {
                delivery,
                seq,
                reply,
            },
        );
        run
    });
    let known = runs.map(|run| state(&world, run).is_some());
    assert_eq!(known, [false, false, true, true]);
}
