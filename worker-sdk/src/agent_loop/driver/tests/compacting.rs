//! Runs that come near the end of the window, and their compactions in the journal.

use super::*;
use crate::agent_loop::TokenCounter;
use crate::journal::{Entry, Memory};

#[tokio::test]
async fn a_long_run_is_compacted_and_resumes_compacted() {
    let look = tool("look", |_, n| {
        std::future::ready(Ok(format!("{n} ").repeat(1_500)))
    });
    let sent = Arc::new(AtomicU32::new(0));
    let most = Arc::clone(&sent);
    let model = ScriptedModel::by(move |request| {
        let bytes: usize = request
            .messages
            .iter()
            .map(|message| format!("{message:?}").len())
            .sum();
        most.fetch_max(u32::try_from(bytes).expect("small"), Ordering::SeqCst);
        Some(match request.turn {
            turn @ 1..=30 => Line::call("look", json!({"n": turn})),
            _ => Line::text("done"),
        })
    });
    let budget = Budget {
        context_window: 12_000,
        max_output_tokens: 1_000,
        ..Budget::default()
    };
    let agent = AgentLoop::builder(model)
        .tool(look.class(Class::ReadOnly))
        .budget(budget);
    let agent = agent.build().expect("an agent");
    let journal = crate::journal::Memory::new();
    let (ctx, _) = testing::context().journal(journal.clone()).build();
    let ended = agent.run(&ctx, &"go".into()).await.expect("a run");
    assert!(matches!(ended.end, End::Answered { .. }), "{:?}", ended.end);
    assert!(
        sent.load(Ordering::SeqCst) < 60_000,
        "what was sent stayed in the window"
    );
    let entries = journal.entries();
    let compactions = entries.iter().filter(|recorded| {
        matches!(&recorded.entry, crate::journal::Entry::Step(step) if step.name() == "compact")
    });
    assert!(compactions.count() >= 3);
    let (ctx, record) = testing::context().journal(journal.clone()).build();
    let again = agent.run(&ctx, &"go".into()).await.expect("a run");
    assert_eq!(again, ended, "the same from the journal alone");
    assert!(record.outputs().is_empty(), "and nothing was done again");
    let standing = agent.standing(&"go".into(), &journal.entries());
    assert!(standing.is_ended);
    assert_eq!(standing.messages, ended.messages);
}

#[tokio::test]
async fn each_of_several_compactions_before_one_call_is_recorded_and_read_back() {
    /// Counts as the provider does, which is not as the loop expects.
    struct AtLeast150;
    impl TokenCounter for AtLeast150 {
        fn text(&self, text: &str) -> u64 {
            (text.len() as u64).max(150)
        }
    }
    let look = tool("look", |_, n| std::future::ready(Ok(format!("{n}"))));
    let model = ScriptedModel::by(|request| match request.turn {
        turn @ 1..=40 => Some(Line::call("look", json!({"n": turn}))),
        _ => Some(Line::text("done")),
    });
    let budget = Budget {
        context_window: 10_000,
        max_output_tokens: 1_000,
        max_output_tokens_retry: 1_000,
        ..Budget::default()
    };
    let agent = AgentLoop::builder(model)
        .tool(look.class(Class::ReadOnly).parallel_safe())
        .token_counter(AtLeast150)
        .budget(budget);
    let agent = agent.build().expect("an agent");
    let journal = Memory::new();
    let (ctx, _) = testing::context().journal(journal.clone()).build();
    let ended = agent.run(&ctx, &"go".into()).await.expect("a run");
    assert!(matches!(ended.end, End::Answered { .. }), "{:?}", ended.end);
    let mut keys: Vec<String> = Vec::new();
    for recorded in journal.entries() {
        if let Entry::Step(step) = recorded.entry
            && step.name() == "compact"
        {
            keys.push(step.key().to_owned());
        }
    }
    assert!(keys.iter().any(|key| key.ends_with("-2")), "{keys:?}");
    let written = journal.entries().len();
    let (ctx, _) = testing::context().journal(journal.clone()).build();
    let again = agent.run(&ctx, &"go".into()).await.expect("a run");
    assert_eq!(again, ended, "the same from the journal alone");
    assert_eq!(journal.entries().len(), written);
    let standing = agent.standing(&"go".into(), &journal.entries());
    assert_eq!(
        (standing.is_ended, standing.messages),
        (true, ended.messages)
    );
}
