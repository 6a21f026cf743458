//! Streamed asks: what their slow callers have not read is not acknowledged.

use super::{Action, Attempt, BACK_OFF, Delivery, EntryKind, Event, Frame, SlotId, World, ask};
use super::{minimal, offer};

/// A paced run in a full level slot.
fn paced() -> (World, SlotId, Delivery) {
    let mut world = World::new();
    let slot = world.attach(offer("echo", 1));
    let mut streamed = ask("echo").max_attempts(2);
    streamed.placing.paced = true;
    world.ask_and_see(streamed);
    let held = world.held(slot).expect("it runs");
    (world, slot, held)
}

fn append(world: &mut World, slot: SlotId, delivery: Delivery, seq: u64) -> Vec<Action> {
    world.frame(
        slot,
        Frame::Append {
            delivery,
            seq,
            kind: EntryKind::Plain,
            entry: vec![0; 10].into(),
            acknowledged: 0,
        },
    )
}

fn read(world: &mut World, run: super::RunId, seq: u64) -> Vec<Action> {
    let output = false;
    world.apply(Event::Read { run, seq, output })
}

/// What is acknowledged.
fn acknowledged(actions: &[Action]) -> Vec<u64> {
    let seq = |action: &Action| {
        if let Action::Acknowledge { seq, .. } = action {
            Some(*seq)
        } else {
            None
        }
    };
    actions.iter().filter_map(seq).collect()
}

/// The place in the journal of the newest entry.
fn head(world: &World, run: super::RunId) -> u64 {
    let view = world.core.view_run(world.now, run);
    view.expect("it is known").head
}

#[test]
fn entries_are_acknowledged_as_they_are_read() {
    let (mut world, slot, held) = paced();
    let mut places = Vec::new();
    for seq in 1..=3 {
        assert!(append(&mut world, slot, held, seq).is_empty());
        places.push(head(&world, held.run));
    }
    assert_eq!(acknowledged(&read(&mut world, held.run, places[1])), [2]);
    assert!(
        read(&mut world, held.run, places[1]).is_empty(),
        "nothing new"
    );
    assert_eq!(
        acknowledged(&read(&mut world, held.run, places[2] + 9)),
        [3]
    );
}

#[test]
fn an_entry_sent_again_does_not_acknowledge_what_is_unread() {
    let (mut world, slot, held) = paced();
    append(&mut world, slot, held, 1);
    assert!(append(&mut world, slot, held, 1).is_empty(), "none is read");
    let first = head(&world, held.run);
    append(&mut world, slot, held, 2);
    append(&mut world, slot, held, 3);
    read(&mut world, held.run, first);
    assert_eq!(acknowledged(&append(&mut world, slot, held, 3)), [1]);
    read(&mut world, held.run, first + 2);
    assert_eq!(acknowledged(&append(&mut world, slot, held, 2)), [3]);
}

#[test]
fn what_an_attempt_left_unread_is_not_acknowledged_to_the_next() {
    let (mut world, slot, held) = paced();
    append(&mut world, slot, held, 1);
    world.lose(slot);
    let next = world.attach(offer("echo", 2));
    world.pass(BACK_OFF);
    let place = head(&world, held.run);
    assert_eq!(world.held(next).map(|held| held.attempt), Some(Attempt(2)));
    assert!(read(&mut world, held.run, place).is_empty());
}

#[test]
fn a_minimal_worker_is_not_paced() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    let mut streamed = ask("echo");
    streamed.placing.paced = true;
    let (run, _) = world.ask_and_see(streamed);
    let held = world.held(slot).expect("it runs");
    append(&mut world, slot, held, 1);
    let place = head(&world, run);
    assert!(read(&mut world, run, place).is_empty());
}
