//! What an operator is told of a tool call beside its tries: who allowed it, and what became of it
//! when the attempt that had begun it died.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::super::setting::{World, tool};
use super::*;
use crate::agent_loop::{Class, PendingCall, Verdict};
use crate::journal::{Entry, Memory};

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
    let denied: Vec<_> = denied.collect();
    assert!(
        denied.len() == 1 && denied[0].contains("call_id=\"c3\""),
        "{results:?}"
    );
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

/// A journal of an attempt that died in the middle of a call of this tool.
async fn died_in(order: Tool) -> (impl Fn() -> AgentLoop, Memory) {
    let journal = Memory::new();
    let agent = move || {
        let call = Line::call_as("c1", "order", r#"{"n": 1}"#);
        let model = ScriptedModel::new([call, Line::text("done")]);
        let agent = AgentLoop::builder(model).tool(order.clone());
        agent.secret("hunter22").build().expect("an agent")
    };
    let (ctx, _) = testing::context().journal(journal.clone()).build();
    let first = agent();
    let prompt = "go".into();
    let dies = tokio::time::timeout(Duration::from_secs(1), first.run(&ctx, &prompt));
    assert!(dies.await.is_err(), "the tool hangs");
    (agent, journal)
}

fn hanging(class: Class) -> Tool {
    tool("order", |_, _| std::future::pending()).class(class)
}

/// What an operator finds in the journal of the failure of a tool's call.
fn operator(journal: &Memory) -> Option<String> {
    let entries = journal.entries();
    let step = entries.iter().rev().find_map(|entry| match &entry.entry {
        Entry::Step(step) if step.name() == "tool/order" => step.value(),
        _ => None,
    });
    let record: serde_json::Value = step?.to_json().expect("JSON");
    record["operator"].as_str().map(str::to_owned)
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn each_failure_of_a_check_is_an_event_with_its_reason_and_the_journal_has_the_last() {
    let asked = Arc::new(AtomicU32::new(0));
    let check = move |_: ToolContext, _: serde_json::Value| {
        let times = asked.fetch_add(1, Ordering::SeqCst);
        async move {
            assert!(times != 1, "the check is broken");
            if times == 0 {
                std::future::pending::<()>().await;
            }
            let failed = ToolError::new("no answer").operator("the shop of hunter22 is shut");
            Err::<Option<String>, _>(failed)
        }
    };
    let order = hanging(Class::Idempotent).max_retries(2).verified_by(check);
    let (agent, journal) = died_in(order).await;
    let run = testing::context().attempt(2).journal(journal.clone());
    let (heard, _) = heard_of(&agent(), run).await;
    let [hung, panicked, failed] = heard.of("check_failed")[..] else {
        panic!("{:?}", heard.events);
    };
    let last = "error=\"no answer: the shop of [redacted] is shut\"";
    for (event, attempt, why) in [
        (hung, "attempt=1", "error=\"it timed out after 30s\""),
        (panicked, "attempt=2", "error=\"it panicked\""),
        (failed, "attempt=3", last),
    ] {
        for part in ["tool=\"order\"", "call_id=\"c1\"", attempt, why] {
            assert!(event.contains(part), "{part}: {event}");
        }
        assert_eq!(event.contains("retry_in_ms"), event != failed, "{event}");
    }
    let [result] = heard.of("tool_result")[..] else {
        panic!("{:?}", heard.events);
    };
    assert!(
        result.contains("status=\"unknown\"") && result.contains("call_id=\"c1\""),
        "{result}"
    );
    assert!(heard.of("tool_dispatch").is_empty(), "it does not run");
    assert_eq!(
        operator(&journal).as_deref(),
        Some("the check of order failed: no answer: the shop of [redacted] is shut")
    );
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn what_a_check_found_is_the_result_of_the_call_and_one_that_found_nothing_is_no_event() {
    for found in [Some("found"), None] {
        let check = move |_: ToolContext, _: serde_json::Value| async move { Ok(found) };
        let order = hanging(Class::Idempotent).verified_by(check);
        let (agent, journal) = died_in(order).await;
        let run = testing::context().attempt(2).journal(journal.clone());
        let (heard, _) = heard_of(&agent(), run).await;
        let [result] = heard.of("tool_result")[..] else {
            panic!("{:?}", heard.events);
        };
        let (status, runs) = match found {
            Some(_) => ("status=\"ok\"", 0),
            None => ("status=\"timeout\"", 1),
        };
        assert!(result.contains(status), "{result}");
        assert_eq!(heard.of("tool_dispatch").len(), runs);
        assert!(heard.of("check_failed").is_empty());
    }
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_side_effect_whose_outcome_is_lost_is_told_as_unknown() {
    let (agent, journal) = died_in(hanging(Class::SideEffect)).await;
    let run = testing::context().attempt(2).journal(journal);
    let (heard, _) = heard_of(&agent(), run).await;
    let [result] = heard.of("tool_result")[..] else {
        panic!("{:?}", heard.events);
    };
    for part in ["tool=\"order\"", "call_id=\"c1\"", "status=\"unknown\""] {
        assert!(result.contains(part), "{part}: {result}");
    }
}
