//! A run that is taken up by another version of its agent, with other tools, or with another prompt.

use serde_json::Value;

use super::crashing::attempt;
use super::*;
use crate::agent_loop::{ToolContext, pairs};
use crate::journal::Memory;

/// A tool that takes what this schema takes, and counts how often it ran.
fn charge(name: &str, required: &[&str], ran: &Arc<AtomicU32>) -> Tool {
    let schema = json!({
        "type": "object",
        "properties": {"cents": {"type": "integer"}, "currency": {"type": "string"}},
        "required": required
    });
    let ran = Arc::clone(ran);
    Tool::with_schema(name, "Charges.", schema, move |_: ToolContext, _: Value| {
        ran.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok("charged"))
    })
}

fn agent(tools: impl IntoIterator<Item = Tool>, lines: &[Line]) -> AgentLoop {
    let builder = AgentLoop::builder(ScriptedModel::new(lines.to_vec())).tools(tools);
    builder.build().expect("an agent")
}

fn charges() -> [Line; 2] {
    [
        Line::call("charge", json!({"cents": 5})),
        Line::text("done"),
    ]
}

/// What the next version may have made of the tool `charge`.
fn versions(ran: &Arc<AtomicU32>) -> [Vec<Tool>; 4] {
    let read_only = charge("charge", &["cents"], ran).class(Class::ReadOnly);
    [
        vec![charge("charge", &["cents", "currency"], ran)],
        vec![charge("charge_card", &["cents"], ran)],
        vec![],
        vec![read_only.max_result_bytes(300)],
    ]
}

#[tokio::test]
async fn what_ran_is_told_as_run_whatever_the_next_version_makes_of_its_tool() {
    let ran = Arc::new(AtomicU32::new(0));
    for tools in versions(&ran) {
        ran.store(0, Ordering::SeqCst);
        let journal = Memory::new();
        let first = agent([charge("charge", &["cents"], &ran)], &charges());
        // The model's answer, the begin and the result are written; the next answer is not.
        let died = attempt(&first, &journal, 1, 5).await;
        assert!(died.is_none() && ran.load(Ordering::SeqCst) == 1);

        let next = agent(tools, &charges());
        let standing = next.standing(&"go".into(), &journal.entries());
        assert_eq!(standing.tools[0].state, CallState::Finished);
        let ended = attempt(&next, &journal, 2, usize::MAX).await;
        let ended = ended.expect("no crash");
        assert_eq!(results(&ended)[0].text, "charged");
        assert!(!results(&ended)[0].is_error);
        assert_eq!(ended.tools, standing.tools);
        assert_eq!(ran.load(Ordering::SeqCst), 1, "and not again");
    }
}

#[tokio::test]
async fn what_was_begun_is_unknown_where_the_next_version_cannot_run_it() {
    let ran = Arc::new(AtomicU32::new(0));
    let [stricter, renamed, none, _] = versions(&ran);
    for tools in [stricter, renamed, none] {
        ran.store(0, Ordering::SeqCst);
        let journal = Memory::new();
        let idempotent = charge("charge", &["cents"], &ran).class(Class::Idempotent);
        let first = agent([idempotent], &charges());
        let died = attempt(&first, &journal, 1, 4).await;
        assert!(died.is_none() && ran.load(Ordering::SeqCst) == 1);

        let next = agent(tools, &charges());
        let standing = next.standing(&"go".into(), &journal.entries());
        let ended = attempt(&next, &journal, 2, usize::MAX).await;
        let ended = ended.expect("no crash");
        assert!(results(&ended)[0].text.contains("outcome is unknown"));
        assert_eq!(ended.tools[0].state, CallState::Unknown);
        assert_eq!(ended.tools, standing.tools);
        assert_eq!(ran.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn a_call_the_model_went_on_without_is_not_run_late() {
    let ran = Arc::new(AtomicU32::new(0));
    let lines = [
        Line::call("charge", json!({"cents": 5})),
        Line::call("look", json!({})),
        Line::text("done"),
    ];
    let look = || charge("look", &[], &Arc::default()).class(Class::ReadOnly);
    let journal = Memory::new();
    let strict = charge("charge", &["cents", "currency"], &ran);
    let first = agent([strict, look()], &lines);
    // The first two answers are written.
    assert!(attempt(&first, &journal, 1, 5).await.is_none());

    let next = agent([charge("charge", &["cents"], &ran), look()], &lines);
    let standing = next.standing(&"go".into(), &journal.entries());
    let ended = attempt(&next, &journal, 2, usize::MAX).await;
    let ended = ended.expect("no crash");
    assert_eq!(ran.load(Ordering::SeqCst), 0);
    assert_eq!(
        (ended.tools[0].state, standing.tools[0].state),
        (CallState::NeverStarted, CallState::NeverStarted)
    );
    assert!(results(&ended)[0].text.contains("did not run"));
    assert!(results(&ended)[0].is_error);
}

#[tokio::test]
async fn what_was_left_unknown_is_not_run_by_a_version_that_may() {
    let (ran, journal) = (Arc::new(AtomicU32::new(0)), Memory::new());
    let make = |class| {
        agent(
            [charge("charge", &["cents"], &ran).class(class)],
            &charges(),
        )
    };
    assert!(
        attempt(&make(Class::SideEffect), &journal, 1, 4)
            .await
            .is_none()
    );
    // The second attempt tells the model, whose answer is written.
    attempt(&make(Class::SideEffect), &journal, 2, usize::MAX).await;
    let ended = attempt(&make(Class::Idempotent), &journal, 3, usize::MAX).await;
    let ended = ended.expect("no crash");
    assert!(results(&ended)[0].text.contains("outcome is unknown"));
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn no_tool_is_begun_once_one_has_ended_the_run() {
    let ran = Arc::new(AtomicU32::new(0));
    let fatal = |name: &str| {
        tool(name, |_, _| {
            std::future::ready(Err::<String, _>(ToolError::fatal("no more")))
        })
    };
    let calls = ["share", "fatal_share", "share", "share", "alone"];
    let line = calls.iter().fold(Line::text(""), |line, name| {
        line.and(Line::call(*name, json!({"n": 1})))
    });
    let lines = [line, Line::text("never said")];
    let counting = |name: &str| {
        let ran = Arc::clone(&ran);
        tool(name, move |_, _| {
            ran.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Ok(String::new()))
        })
    };
    for parallel in [1, 8] {
        ran.store(0, Ordering::SeqCst);
        let build = || {
            AgentLoop::builder(ScriptedModel::new(lines.clone()))
                .tool(fatal("fatal_share").parallel_safe())
                .tool(counting("share").parallel_safe())
                .tool(counting("alone"))
                .parallel_tools(parallel)
                .build()
                .expect("an agent")
        };
        let journal = Memory::new();
        let ended = attempt(&build(), &journal, 1, usize::MAX).await;
        let ended = ended.expect("no crash");
        assert!(
            matches!(&ended.end, End::ToolFailed { tool, .. } if tool == "fatal_share"),
            "{:?}",
            ended.end
        );
        // What had begun beside it comes to its end.
        let shared = if parallel == 1 { 1 } else { 3 };
        assert_eq!(ran.load(Ordering::SeqCst), shared, "never alone");
        assert_eq!(ended.tools[4].state, CallState::NeverStarted);
        assert!(pairs::are_whole(&ended.messages));
        let standing = build().standing(&"go".into(), &journal.entries());
        assert!(standing.is_ended);
        assert_eq!(
            (standing.tools, standing.messages),
            (ended.tools.clone(), ended.messages.clone())
        );
        let again = attempt(&build(), &journal, 2, usize::MAX).await;
        assert_eq!(again, Some(ended));
        assert_eq!(ran.load(Ordering::SeqCst), shared);
    }
}

/// A run of this prompt on a journal, by an agent with this system text.
async fn run_of(journal: &Memory, system: &str, prompt: &Prompt) -> Result<Ended, AgentError> {
    let model = ScriptedModel::by(|request| match &*request.messages[0] {
        Message::User { text } => Some(Line::text(format!("did: {text}"))),
        Message::Assistant(_) | Message::Tools { .. } => None,
    });
    let agent = AgentLoop::builder(model).system(system).build();
    let (ctx, _) = testing::context().journal(journal.clone()).build();
    agent.expect("an agent").run(&ctx, prompt).await
}

#[tokio::test]
async fn a_journal_of_another_prompt_is_a_mismatch_and_one_of_another_system_text_is_not() {
    let said = |from, text: &str| crate::agent_loop::Said {
        from,
        text: text.to_owned(),
    };
    use crate::agent_loop::Speaker::{Assistant, User};
    let talk = |messages| Prompt::Conversation { messages };
    let teas = Prompt::from("Buy two teas.");
    let journal = Memory::new();
    let first = run_of(&journal, "You buy.", &teas).await.expect("a run");
    for other in [
        Prompt::from("Buy ten coffees."),
        talk(vec![said(User, "Buy two teas."), said(User, "Now.")]),
        talk(vec![said(Assistant, "Buy two teas."), said(User, "Do.")]),
        talk(vec![said(User, "Buy two"), said(User, " teas.")]),
    ] {
        let error = run_of(&journal, "You buy.", &other).await;
        let error = error.expect_err("another prompt");
        let (message, parts) = (error.message().to_owned(), error.into_parts());
        assert_eq!(parts.code, crate::agent::ErrorCode::JournalMismatch);
        assert!(
            !parts.retryable && message.contains("another run id"),
            "{message}"
        );
    }
    // What is the same, and what a deployment may change.
    let same = talk(vec![said(User, "Buy two teas.")]);
    for (system, prompt) in [("You buy.", &teas), ("You buy.", &same), ("Buy!", &teas)] {
        let again = run_of(&journal, system, prompt).await.expect("a run");
        assert_eq!(again, first);
    }
}
