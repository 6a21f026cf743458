//! What pools change for runs: agents known without a slot, crash loops, processes that die and
//! processes that are killed.

use uuid::Uuid;

use super::{
    Action, Code, End, Event, Failure, Frame, MINUTE, RunId, SECOND, SlotId, TIMEOUT, WorkerId,
    World, ask, deliveries, ends, minimal,
};
use crate::dispatch::{Note, Pooled};
use crate::ids::AgentKey;
use crate::journal::{Content, Proof};
use crate::pool::Rung;
use crate::retry::Policy;

const WORKER: WorkerId = WorkerId(Uuid::from_u128(1));

fn pooled(world: &mut World, pool: Option<Pooled>) -> Vec<Action> {
    let agent = AgentKey::new("", "echo");
    world.apply(Event::Pooled { agent, pool })
}

fn crash_looping() -> Option<Pooled> {
    let failure = Failure::new(Code::CrashLoop, "5 starts in a row failed");
    Some(Pooled::CrashLooping(Box::new(failure)))
}

fn dies(world: &mut World, slot: SlotId) -> Vec<Action> {
    let failure = Failure::new(Code::WorkerLost, "worker \"w\" died: exit code 3");
    world.apply(Event::Died { slot, failure })
}

fn asks_with_attempts(world: &mut World, attempts: u32) -> RunId {
    let mut asked = ask("echo");
    asked.retry = Policy::attempts(attempts);
    world.ask_and_see(asked).0
}

fn journal(world: &World, run: RunId) -> Vec<Content> {
    let reading = world.core.read_journal(run, 1, usize::MAX);
    let page = reading.expect("a known run").page;
    page.entries
        .into_iter()
        .map(|entry| entry.content)
        .collect()
}

#[test]
fn an_agent_that_a_pool_names_is_known_before_its_first_slot_and_not_after_its_pool() {
    let mut world = World::new();
    pooled(&mut world, Some(Pooled::Open));
    let waits = world.ask("echo");
    assert!(!world.is_answered(waits));
    assert_eq!(world.core.view_agents("default").len(), 1);
    world.pass(TIMEOUT);
    world.assert_failed(
        waits,
        Code::DeadlineExceeded,
        &["no process of its pool is ready"],
    );
    world.pass(120 * MINUTE);
    assert!(world.core.serves(&AgentKey::new("", "echo")).is_some());
    pooled(&mut world, None);
    let unknown = world.ask("echo");
    world.assert_failed(unknown, Code::UnknownAgent, &[]);
}

#[test]
fn an_agent_stays_known_for_a_while_after_its_pool_if_it_had_a_slot() {
    let mut world = World::new();
    pooled(&mut world, Some(Pooled::Open));
    let slot = world.attach(minimal("echo", 1));
    world.lose(slot);
    world.pass(61 * MINUTE);
    pooled(&mut world, None);
    world.pass(58 * MINUTE);
    let waits = world.ask("echo");
    assert!(!world.is_answered(waits));
    world.pass(TIMEOUT + 60 * MINUTE);
}

#[test]
fn a_crash_loop_fails_who_waits_and_who_asks_only_while_no_slot_is_attached() {
    let mut world = World::new();
    pooled(&mut world, Some(Pooled::Open));
    let waiting = world.ask("echo");
    pooled(&mut world, crash_looping());
    let late = world.ask("echo");
    for run in [waiting, late] {
        world.assert_failed(run, Code::CrashLoop, &["5 starts in a row failed"]);
    }
    assert_eq!(world.core.serves(&AgentKey::new("", "echo")), Some(false));

    // A worker from elsewhere serves the agent all the same.
    let slot = world.attach(minimal("echo", 1));
    let (runs, queued) = (world.ask("echo"), world.ask("echo"));
    assert_eq!(world.run_in(slot), Some(runs));
    assert!(!world.is_answered(queued));
    world.lose(slot);
    world.assert_failed(runs, Code::WorkerLost, &[]);
    world.assert_failed(queued, Code::CrashLoop, &[]);

    pooled(&mut world, Some(Pooled::Open));
    let waits = world.ask("echo");
    assert!(!world.is_answered(waits), "it has been cleared");
    pooled(&mut world, None);
}

#[test]
fn a_run_that_backs_off_into_a_crash_loop_is_told_of_it() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    let run = asks_with_attempts(&mut world, 3);
    pooled(&mut world, crash_looping());
    dies(&mut world, slot);
    assert!(!world.is_answered(run), "it backs off");
    world.pass(SECOND);
    world.assert_failed(run, Code::CrashLoop, &[]);
    pooled(&mut world, None);
}

#[test]
fn a_run_whose_process_dies_is_lost_at_once_and_tried_again_by_its_policy() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    let (once, twice) = (world.ask("echo"), asks_with_attempts(&mut world, 2));
    dies(&mut world, slot);
    world.assert_failed(once, Code::WorkerLost, &["exit code 3"]);
    let slot = world.attach(minimal("echo", 2));
    assert_eq!(world.run_in(slot), Some(twice));
    let noted = dies(&mut world, slot);
    assert!(matches!(noted[..], [Action::Note(Note::Failed { .. })]));
    world.pass(SECOND);
    let slot = world.attach(minimal("echo", 3));
    assert_eq!(world.run_in(slot), Some(twice));
    world.reply(slot);
    assert!(world.answer(twice).outcome.is_ok());
}

#[test]
fn a_run_that_kills_every_process_it_gets_is_poisoned_after_the_third() {
    let mut world = World::new();
    let run = {
        world.attach(minimal("echo", 1));
        asks_with_attempts(&mut world, 16)
    };
    for worker in 1..=3 {
        assert!(!world.is_answered(run), "killed {} only", worker - 1);
        let slot = match worker {
            1 => SlotId(1),
            _ => world.attach(minimal("echo", worker)),
        };
        world.pass(10 * SECOND);
        assert_eq!(world.run_in(slot), Some(run));
        dies(&mut world, slot);
    }
    let parts = ["killed 3 workers", "exit code 3"];
    world.assert_failed(run, Code::Poisoned, &parts);
}

#[test]
fn the_journal_has_every_rung_and_how_the_work_stopped() {
    for proof in [Proof::Exited, Proof::Killed] {
        let mut world = World::new();
        world.attach(minimal("echo", 1));
        let run = world.ask("echo");
        world.pass(TIMEOUT);
        world.now += SECOND;
        let (worker, rung) = (WORKER, Rung::Sigterm);
        world.apply(Event::Stopping { worker, rung });
        let workers = world.core.view_workers(world.now, "default", "");
        let work = &workers[0].unreleased[0];
        assert_eq!((work.rung, work.ended_ago), (Rung::Sigterm, SECOND));
        world.now += SECOND;
        let rung = Rung::Sigkill;
        world.apply(Event::Stopping { worker, rung });
        world.apply(Event::Stopped { worker, proof });
        let entries = journal(&world, run);
        let [
            ..,
            Content::RunEnded(_),
            Content::AttemptStopping(Rung::CallEnded),
            Content::AttemptStopping(Rung::Sigterm),
            Content::AttemptStopping(Rung::Sigkill),
            Content::AttemptStopped { proof: how, took },
        ] = &entries[..]
        else {
            panic!("{entries:?}");
        };
        assert_eq!((*how, *took), (proof, 2 * SECOND));
        assert!(world.core.view_workers(world.now, "default", "").is_empty());
        // Nothing is left to be told of it.
        world.apply(Event::Stopped { worker, proof });
        assert_eq!(journal(&world, run).len(), entries.len());
    }
}

#[test]
fn what_is_none_of_its_dialect_ends_a_slot_and_fails_what_is_in_it() {
    let mut world = World::new();
    let slot = world.attach(minimal("echo", 1));
    let run = asks_with_attempts(&mut world, 2);
    let what = "wrote a line that is no JSON: hello".to_owned();
    let actions = world.frame(slot, Frame::Broken(what.clone()));
    assert_eq!(ends(&actions), [(slot, End::Broken(what))]);
    assert!(!world.is_answered(run), "it is tried again");
    world.pass(SECOND);
    let (other, actions) = world.attach_and_see(minimal("echo", 2));
    assert_eq!(deliveries(&actions).len(), 1);
    world.frame(other, Frame::Broken("a wrong id".to_owned()));
    world.assert_failed(run, Code::ProtocolViolation, &["a wrong id", "attempt 2"]);
}
