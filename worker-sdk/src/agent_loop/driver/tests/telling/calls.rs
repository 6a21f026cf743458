//! What an operator is told of a tool call before it runs.

use super::super::setting::World;
use super::*;
use crate::agent_loop::{PendingCall, Verdict};
use crate::journal::Memory;

#[tokio::test(flavor = "current_thread")]
async fn who_allowed_a_call_is_an_event_of_the_attempt_that_asked() {
    let (world, journal) = (World::default(), Memory::new());
    let agent = |may: bool| {
        let model = ScriptedModel::new([
            Line::call_as("c1", "write", r#"{"n": 1}"#)
                .and(Line::call_as("c2", "look", r#"{"n": 2}"#))
                .and(Line::call_as("c3", "write", r#"{"n": 3}"#)),
            Line::text("done"),
        ]);
        let policy = move |call: PendingCall| async move {
            assert!(may, "{call:?} is decided");
            Ok(Verdict::allowed_by("policy hunter22"))
        };
        let person = |call: PendingCall| async move {
            Ok(match &*call.call_id {
                "c1" => Verdict::allowed_by("ann"),
                "c2" => Verdict::Allow,
                _ => Verdict::deny("no"),
            })
        };
        let agent = world.builder(model).secret("hunter22");
        let agent = agent.before_tool(policy).before_tool(person);
        agent.build().expect("an agent")
    };
    let run = |number| testing::context().attempt(number).journal(journal.clone());
    let (heard, first) = heard_of(&agent(true), run(1)).await;
    let [write, look] = heard.of("tool_allowed")[..] else {
        panic!("{:?}", heard.events);
    };
    for part in [
        "tool=\"write\"",
        "call_id=\"c1\"",
        "by=\"policy [redacted], ann\"",
    ] {
        assert!(write.contains(part), "{part}: {write}");
    }
    for part in [
        "tool=\"look\"",
        "call_id=\"c2\"",
        "by=\"policy [redacted]\"",
    ] {
        assert!(look.contains(part), "{part}: {look}");
    }
    let results = heard.of("tool_result");
    let denied = results.iter().filter(|event| event.contains("denied"));
    assert_eq!(denied.count(), 1, "{results:?}");
    // What the journal holds was told by the attempt that decided it.
    let (heard, again) = heard_of(&agent(false), run(2)).await;
    assert_eq!(again, first);
    assert!(heard.of("tool_allowed").is_empty() && heard.of("tool_result").is_empty());
}

#[tokio::test(flavor = "current_thread")]
async fn a_hook_that_names_nobody_is_an_event_without_a_name() {
    let world = World::default();
    let model = ScriptedModel::new([Line::call("look", json!({"n": 1})), Line::text("done")]);
    let agent = world
        .builder(model)
        .before_tool(|_| async { Ok(Verdict::Allow) });
    let (heard, _) = heard("r", agent.build().expect("an agent")).await;
    let [allowed] = heard.of("tool_allowed")[..] else {
        panic!("{:?}", heard.events);
    };
    assert!(!allowed.contains("by="), "{allowed}");
}
