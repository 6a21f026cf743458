//! Many durable runs that wait: what a slot becoming free costs, in runs that are held against it.

use super::durable::{start_of, writes};
use super::samples::labelled;
use super::*;

/// Runs that wait, far more than a slot may be held against.
const WAITING: usize = 200;

/// A slot with these labels that takes whatever is asked.
fn taking(worker: u128, labels: &[(&str, &str)]) -> Offer {
    Offer {
        request_schema: None,
        ..labelled("echo", worker, labels)
    }
}

/// A harness with room for all of them.
fn crowd() -> World {
    World::with(|limits| limits.durable_runs = 4 * WAITING)
}

impl World {
    /// A durable run with these labels, which is on disk and waits.
    fn waiting(&mut self, labels: &[(&str, &str)]) -> RunId {
        let asked = ask("echo").select(labels).timeout(600 * SECOND);
        let (run, actions) = self.start_as(asked, start_of());
        assert_eq!(writes(&actions), ["enqueue"]);
        self.settled(run);
        run
    }

    /// Lets the time of all that wait pass.
    fn over(&mut self) {
        self.pass(600 * SECOND);
        let left: Vec<RunId> = self.core.runs.keys().copied().collect();
        for run in left {
            self.settled(run);
        }
    }

    /// How many runs are held against slots while somebody asks and is answered.
    fn held_against(&mut self, slot: SlotId) -> usize {
        let before = self.core.held_against.get();
        let (run, _) = self.ask_and_see(ask("echo"));
        assert_eq!(self.run_in(slot), Some(run));
        self.reply(slot);
        self.core.held_against.get() - before
    }
}

#[test]
fn runs_that_select_other_slots_cost_a_free_one_nothing() {
    let mut world = crowd();
    let labels = [("disk", "fast"), ("gpu", "a100")];
    let slot = world.attach(taking(1, &labels));
    for at in 0..WAITING {
        let at = at.to_string();
        world.waiting(&[("gpu", "h100")]);
        world.waiting(&[("disk", "fast"), ("zone", "b")]);
        world.waiting(&[("host", &at)]);
    }
    assert_eq!(world.held_against(slot), 0);
    // The slot they wait for goes through them one by one.
    let other = world.attach(taking(2, &[("gpu", "h100")]));
    let before = world.core.held_against.get();
    assert!(world.core.slots[&other].kept_for.is_some());
    assert!(world.core.held_against.get() - before <= 1);
    world.over();
}

#[test]
fn while_nothing_may_be_read_runs_on_disk_cost_a_free_slot_nothing() {
    let mut world = crowd();
    let slot = world.attach(taking(1, &[]));
    world.ask_and_see(ask("echo").timeout(600 * SECOND));
    let runs: Vec<RunId> = (0..WAITING).map(|_| world.waiting(&[])).collect();
    world.reply(slot);
    assert_eq!(world.core.slots[&slot].kept_for, Some(runs[0]));
    let (run, loaded) = (runs[0], None);
    world.apply(Event::Loaded { run, loaded });
    assert_eq!(world.held_against(slot), 0);
    world.pass(2 * SECOND);
    assert_eq!(
        world.core.slots[&slot].kept_for,
        Some(runs[1]),
        "it is read again"
    );
    world.over();
}

#[test]
fn of_all_lines_a_slot_stands_in_the_first_run_goes_first() {
    let mut world = crowd();
    let lines: [&[(&str, &str)]; 4] = [
        &[("gpu", "a100"), ("zone", "b")],
        &[],
        &[("zone", "b")],
        &[("gpu", "a100")],
    ];
    let busy = world.attach(taking(1, lines[0]));
    world.ask_and_see(ask("echo").timeout(600 * SECOND));
    let mut expected: Vec<RunId> = lines
        .iter()
        .cycle()
        .take(12)
        .map(|it| world.waiting(it))
        .collect();
    let urgent = ask("echo")
        .priority(7)
        .select(lines[3])
        .timeout(600 * SECOND);
    let (urgent, _) = world.start_as(urgent, start_of());
    world.settled(urgent);
    expected.insert(0, urgent);
    world.reply(busy);
    let mut order = Vec::new();
    while let Some(run) = world.core.slots[&busy].kept_for {
        order.push(run);
        world.load(run);
        world.settled(run);
        world.reply(busy);
        world.settled(run);
    }
    assert_eq!(order, expected);
}

#[test]
fn a_slot_that_came_free_while_as_much_was_read_as_may_be_is_filled_when_it_has_left() {
    const READ_AHEAD: u128 = 64;
    let mut world = crowd();
    let mut busy = Vec::new();
    for at in 0..=READ_AHEAD {
        let kind = if at == READ_AHEAD { "b" } else { "a" };
        let slot = world.attach(taking(at + 1, &[("kind", kind)]));
        world.ask_and_see(ask("echo").timeout(600 * SECOND));
        busy.push(slot);
    }
    let last = busy.pop().expect("the one of kind b");
    let runs: Vec<RunId> = busy
        .iter()
        .map(|_| world.waiting(&[("kind", "a")]))
        .collect();
    let theirs = world.waiting(&[("kind", "b")]);
    for slot in &busy {
        world.reply(*slot);
    }
    for run in &runs {
        world.load(*run);
    }
    world.reply(last);
    for run in &runs {
        world.settled(*run);
    }
    assert_eq!(world.core.slots[&last].kept_for, Some(theirs));
    world.over();
}

#[test]
fn a_durable_run_gets_the_worker_it_avoids_when_the_other_is_lost() {
    let mut world = crowd();
    let avoided = world.attach(taking(1, &[]));
    let other = world.attach(taking(2, &[]));
    let (run, _) = world.start_as(ask("echo").timeout(600 * SECOND), start_of());
    world.settled(run);
    let declining = if world.run_in(avoided) == Some(run) {
        avoided
    } else {
        other
    };
    let busy = if declining == avoided { other } else { avoided };
    world.ask_and_see(ask("echo").timeout(600 * SECOND));
    assert!(world.held(busy).is_some());
    world.reply_with(declining, Reply::Declined);
    world.settled(run);
    assert_eq!(world.core.slots[&declining].kept_for, None, "it avoids it");
    assert!(world.core.slots[&declining].ready.is_some(), "it is free");
    world.lose(busy);
    assert_eq!(world.core.slots[&declining].kept_for, Some(run));
    world.over();
}
