//! A worker that dies between any two writes to the journal, and the one that takes the run up.

use serde_json::json;

use super::super::{AgentLoop, CallState, Ended};
use super::setting::{World, results};
use crate::agent_loop::machine::End;
use crate::agent_loop::pairs;
use crate::agent_loop::prompt::Prompt;
use crate::agent_loop::scripted::{Line, ScriptedModel};
use crate::journal::Memory;
use crate::testing;

/// Every class, beside each other and alone.
pub(super) fn script() -> ScriptedModel {
    ScriptedModel::new([
        Line::text("First.")
            .and(Line::call_as("a1", "look", r#"{"n": 1}"#))
            .and(Line::call_as("a2", "fetch", r#"{"n": 2}"#))
            .and(Line::call_as("a3", "write", r#"{"n": 3}"#))
            .and(Line::call_as("a4", "order", r#"{"n": 4}"#)),
        Line::call("write", json!({"n": 5})).and(Line::call("nothing", json!({}))),
        Line::call_as("77", "order", r#"{"n": 6}"#),
        Line::text("All done."),
    ])
}

/// The calls of the script that run something.
const CALLS: usize = 6;

/// Runs an attempt that crashes before its n-th write; None when it did.
pub(super) async fn attempt(
    agent: &AgentLoop,
    journal: &Memory,
    number: u32,
    crash_at: usize,
) -> Option<Ended> {
    let (ctx, record) = testing::context()
        .attempt(number)
        .journal(journal.clone())
        .crash_at(crash_at)
        .build();
    let prompt = Prompt::from("go");
    tokio::select! {
        ended = agent.run(&ctx, &prompt) => Some(ended.expect("a run")),
        () = record.crashed() => None,
    }
}

pub(super) fn check(world: &World, ended: &Ended, at: &str) {
    let answered = matches!(&ended.end, End::Answered { text, .. } if text == "All done.");
    assert!(answered, "{at}: {:?}", ended.end);
    assert!(pairs::are_whole(&ended.messages), "{at}");
    assert_eq!(results(ended).len(), CALLS + 1, "{at}: one result a call");
    for (key, times) in world.by_key() {
        if key.contains("/write/") || key.contains("/order/") {
            assert_eq!(times, 1, "{at}: {key}");
        }
    }
    assert!(
        world.by_key().len() >= CALLS - 2,
        "{at}: {:?}",
        world.by_key()
    );
}

#[tokio::test]
async fn a_side_effect_happens_once_at_most_wherever_a_worker_dies() {
    let whole = Memory::new();
    let world = World::default();
    let ended = attempt(&world.agent(script()), &whole, 1, usize::MAX)
        .await
        .expect("no crash");
    check(&world, &ended, "without a crash");
    let writes = whole.entries().len();
    assert!(writes > 20, "{writes}");
    let mut unknown = 0;
    for crash_at in 1..=writes {
        let (world, journal) = (World::default(), Memory::new());
        let first = attempt(&world.agent(script()), &journal, 1, crash_at).await;
        assert!(first.is_none(), "it crashes at {crash_at}");
        let second = attempt(&world.agent(script()), &journal, 2, usize::MAX).await;
        let second = second.expect("no crash");
        check(&world, &second, &format!("crash at {crash_at}"));
        let told = results(&second);
        let told = told.iter().filter(|result| result.text.contains("unknown"));
        let told = told.count();
        let reports = second.tools.iter();
        let reported = reports.filter(|report| report.state == CallState::Unknown);
        assert_eq!(
            reported.count(),
            told,
            "the caller is told what the model is"
        );
        unknown += told;
        // A third worker that finds the run done does nothing and says the same.
        let effects = world.by_key();
        let third = attempt(&world.agent(script()), &journal, 3, usize::MAX).await;
        let third = third.expect("no crash");
        assert_eq!(
            (third.end, third.messages),
            (second.end, second.messages),
            "{crash_at}"
        );
        assert_eq!(world.by_key(), effects, "{crash_at}");
    }
    assert_eq!(
        unknown, 2,
        "each of the two side effects is unknown at one of the crashes"
    );
}

#[tokio::test]
async fn two_crashes_do_no_more_harm_than_one() {
    for first in 1..40 {
        for second in [1, 2, 3, 5] {
            let (world, journal) = (World::default(), Memory::new());
            if attempt(&world.agent(script()), &journal, 1, first)
                .await
                .is_some()
            {
                return;
            }
            attempt(&world.agent(script()), &journal, 2, second).await;
            let third = attempt(&world.agent(script()), &journal, 3, usize::MAX).await;
            check(
                &world,
                &third.expect("no crash"),
                &format!("{first} and {second}"),
            );
        }
    }
}
