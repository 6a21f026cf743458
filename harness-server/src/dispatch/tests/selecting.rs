//! Priority and selector: which run goes first, and which slots it may go to.

use super::samples::labelled;
use super::{
    BACK_OFF, Code, Failure, Frame, Reply, RunId, SECOND, SlotId, TIMEOUT, World, ask, minimal,
};

const GPU: &[(&str, &str)] = &[("gpu", "a100")];
const BOTH: &[(&str, &str)] = &[("gpu", "a100"), ("zone", "b")];

fn busy() -> (World, SlotId) {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    world.ask_and_see(ask("echo").timeout(600 * SECOND));
    (world, slot)
}

fn work_off(world: &mut World, slot: SlotId) -> Vec<RunId> {
    let mut order = Vec::new();
    while let Some(run) = world.run_in(slot) {
        order.push(run);
        world.reply(slot);
    }
    order
}

#[test]
fn higher_priority_goes_first_and_equals_in_the_order_of_asking() {
    let (mut world, slot) = busy();
    let asked = [0, 5, -100, 100, 5, 0].map(|at| world.ask_and_see(ask("echo").priority(at)).0);
    let [a, b, c, d, e, f] = asked;
    assert_eq!(work_off(&mut world, slot)[1..], [d, b, e, a, f, c]);
}

#[test]
fn a_run_that_is_tried_again_keeps_its_place_among_its_equals() {
    let (mut world, slot) = busy();
    let (first, _) = world.ask_and_see(ask("echo").priority(1).max_attempts(2));
    let (second, _) = world.ask_and_see(ask("echo").priority(1));
    let (urgent, _) = world.ask_and_see(ask("echo").priority(2));
    world.reply(slot);
    assert_eq!(world.run_in(slot), Some(urgent));
    world.reply(slot);
    let failure = Failure::new(Code::InvalidReply, "it is no reply");
    world.reply_with(slot, Reply::Invalid(failure));
    let (third, _) = world.ask_and_see(ask("echo").priority(1));
    world.pass(BACK_OFF);
    assert_eq!(work_off(&mut world, slot), [second, first, third]);
}

#[test]
fn a_declined_run_keeps_its_place_too() {
    let (mut world, slot) = busy();
    let (first, second) = (world.ask("echo"), world.ask("echo"));
    world.reply(slot);
    world.reply_with(slot, Reply::Declined);
    assert_eq!(
        work_off(&mut world, slot),
        [second, first],
        "after one turn"
    );
}

#[test]
fn only_a_slot_with_the_labels_gets_the_run() {
    let mut world = World::new();
    world.attach(minimal("echo", 1));
    world.attach(labelled("echo", 2, &[("gpu", "t4"), ("zone", "b")]));
    let right = world.attach(labelled("echo", 3, BOTH));
    for selector in [GPU, BOTH, &[("zone", "b"), ("gpu", "a100")]] {
        let (run, _) = world.ask_and_see(ask("echo").select(selector));
        assert_eq!(world.run_in(right), Some(run));
        world.reply(right);
    }
}

#[test]
fn when_no_slot_has_the_labels_the_error_names_them() {
    let mut world = World::new();
    world.attach(labelled("echo", 1, GPU));
    let (run, _) = world.ask_and_see(ask("echo").select(BOTH));
    world.pass(TIMEOUT);
    let said = [
        "no free slot takes this request",
        "; no connected worker had labels gpu=a100,zone=b",
    ];
    world.assert_failed(run, Code::DeadlineExceeded, &said);
}

#[test]
fn labels_of_another_agents_slots_do_not_count() {
    let mut world = World::new();
    world.attach(minimal("echo", 1));
    world.attach(labelled("upper", 2, GPU));
    let (run, _) = world.ask_and_see(ask("echo").select(GPU));
    world.pass(TIMEOUT);
    let said = ["no connected worker had labels gpu=a100"];
    world.assert_failed(run, Code::DeadlineExceeded, &said);
}

#[test]
fn labels_are_not_blamed_where_a_busy_slot_has_them_or_none_is_asked_for() {
    let mut world = World::new();
    world.attach(labelled("echo", 1, GPU));
    world.attach(labelled("upper", 2, BOTH));
    world.ask_and_see(ask("echo").timeout(600 * SECOND));
    let (selects, _) = world.ask_and_see(ask("echo").select(GPU));
    let plain = world.ask("echo");
    let (nobody, _) = world.ask_and_see(ask("lower").select(GPU).wait_for_agent());
    world.pass(TIMEOUT);
    for run in [selects, plain, nobody] {
        let message = &world.failure(run).message;
        assert!(!message.contains("labels"), "{message}");
    }
}

#[test]
fn a_run_waits_for_a_slot_with_the_labels_to_come_and_holds_up_nobody() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    let (run, _) = world.ask_and_see(ask("echo").select(GPU).priority(100));
    let other = world.ask("echo");
    assert_eq!(world.run_in(slot), Some(other));
    world.reply(slot);
    assert_eq!(world.held(slot), None);
    let right = world.attach(labelled("echo", 2, GPU));
    assert_eq!(world.run_in(right), Some(run));
}

#[test]
fn a_worker_without_the_labels_is_no_other_worker() {
    let mut world = World::new();
    let right = world.attach(labelled("echo", 1, GPU));
    world.attach(minimal("echo", 2));
    let (run, _) = world.ask_and_see(ask("echo").select(GPU));
    world.reply_with(right, Reply::Declined);
    assert_eq!(world.run_in(right), Some(run));
}

#[test]
fn a_declined_run_waits_for_another_worker_with_the_labels() {
    let mut world = World::new();
    let first = world.attach(labelled("echo", 1, GPU));
    let (run, _) = world.ask_and_see(ask("echo").select(GPU));
    let second = world.attach(labelled("echo", 2, GPU));
    let (long, _) = world.ask_and_see(ask("echo").timeout(600 * SECOND));
    assert_eq!(world.run_in(second), Some(long));
    world.reply_with(first, Reply::Declined);
    assert_eq!(world.held(first), None);
    world.frame(second, Frame::Leave);
    assert_eq!(world.run_in(first), Some(run));
}
