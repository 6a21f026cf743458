//! A harness that takes small entries, and what does not fit into them.

use super::*;
use crate::agent_loop::Verdict;
use crate::journal::{Entry, Memory};

/// Small, and more than a harness must take.
const ENTRY_BYTES_MAX: u64 = 2_000;

/// Runs on a journal of small entries, all of which are.
async fn run_small(agent: &AgentLoop) -> (Ended, Vec<Entry>) {
    let journal = Memory::new();
    let (ctx, _) = testing::context()
        .journal(journal.clone())
        .entry_bytes_max(ENTRY_BYTES_MAX)
        .build();
    let ended = agent.run(&ctx, &"go".into()).await.expect("a run");
    let entries = journal.entries().into_iter();
    let entries: Vec<Entry> = entries.map(|recorded| recorded.entry).collect();
    for entry in &entries {
        assert!(entry.to_bytes().len() as u64 <= ENTRY_BYTES_MAX);
    }
    (ended, entries)
}

#[tokio::test]
async fn a_result_is_cut_to_what_the_harness_takes_in_an_entry() {
    let long = || async { Ok("\n".repeat(100_000)) };
    let fails = |_, _| async {
        let failed = ToolError::permanent("e".repeat(100_000));
        Err::<String, _>(failed.operator("o".repeat(100_000)))
    };
    let model = ScriptedModel::new([
        Line::call("look", json!({"n": 1})).and(Line::call("fail", json!({"n": 2}))),
        Line::call("write", json!({"n": 3})),
        Line::text("done"),
    ]);
    let agent = AgentLoop::builder(model)
        .tool(tool("look", move |_, _| long()).class(Class::ReadOnly))
        .tool(tool("fail", fails))
        .tool(tool("write", move |_, _| long()))
        .before_tool(|call| async move {
            Ok(match &*call.tool {
                "write" => Verdict::deny("d".repeat(100_000)),
                _ => Verdict::Allow,
            })
        });
    let (ended, _) = run_small(&agent.build().expect("an agent")).await;
    assert!(matches!(ended.end, End::Answered { .. }), "{:?}", ended.end);
    let told = results(&ended);
    assert!(told[0].text.contains("100000 bytes"), "{told:?}");
    assert!(told[1].text.starts_with("eeee"), "{told:?}");
    assert!(told[2].text.contains("denied"), "{told:?}");
    for result in told {
        assert!(result.text.len() > 300, "as much as there is room for");
    }
}

#[tokio::test]
async fn what_a_check_found_is_cut_to_what_the_harness_takes_in_an_entry() {
    let order = || {
        tool("order", |_, _| {
            std::future::pending::<Result<String, ToolError>>()
        })
        .verified_by(|_, _: serde_json::Value| async { Ok(Some("x".repeat(100_000))) })
    };
    let script = || ScriptedModel::new([Line::call("order", json!({"n": 1})), Line::text("done")]);
    let agent = || {
        let agent = AgentLoop::builder(script()).tool(order());
        agent.build().expect("an agent")
    };
    let journal = Memory::new();
    let small = || {
        let ctx = testing::context().journal(journal.clone());
        ctx.entry_bytes_max(ENTRY_BYTES_MAX)
    };
    // It dies in the tool, behind the begin.
    let (ctx, record) = small().build();
    let (dying, prompt) = (agent(), Prompt::from("go"));
    tokio::select! {
        biased;
        _ = dying.run(&ctx, &prompt) => unreachable!("the tool never ends"),
        () = async {
            while !record.steps().iter().any(|step| step.name() == "tool/order") {
                tokio::task::yield_now().await;
            }
        } => {}
    }
    let (ctx, _) = small().attempt(2).build();
    let ended = agent().run(&ctx, &prompt).await.expect("a run");
    assert!(results(&ended)[0].text.contains("100000 bytes"));
    assert!(matches!(ended.end, End::Answered { .. }));
}

#[tokio::test]
async fn an_answer_that_no_entry_holds_ends_the_run_and_says_what_to_do() {
    let world = World::default();
    let text = "ä\u{1}".repeat(5_000);
    let model = ScriptedModel::new([
        Line::call("look", json!({"n": 1})),
        Line::text(&*text).and(Line::call("write", json!({"n": 2}))),
    ]);
    let (ended, entries) = run_small(&world.agent(model)).await;
    assert_eq!((world.effects("look"), world.effects("write")), (1, 0));
    assert_eq!(ended.tools.len(), 1, "it is told what ran");
    // It was said, and paid for.
    let said = entries.iter().filter_map(|entry| match entry {
        Entry::Output(piece) => Some(piece.to_json::<Piece>().expect("a piece")),
        _ => None,
    });
    let said: String = said.map(|Piece::Text { text, .. }| text).collect();
    assert_eq!(said, text);
    let usage = entries
        .iter()
        .filter(|entry| matches!(entry, Entry::Usage(_)));
    assert_eq!(usage.count(), 2);

    let error = ended.into_answer().expect_err("no answer");
    assert_eq!(error.error_type(), "AnswerTooLarge");
    assert!(!error.is_retryable());
    for part in ["max_output_tokens", "entry_bytes", "may have 2000"] {
        assert!(error.message().contains(part), "{error}");
    }
}
