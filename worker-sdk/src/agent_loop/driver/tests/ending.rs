//! What is begun, told and written when a run ends in the middle of its calls.

use super::*;
use crate::agent_loop::{PendingCall, ToolContext, Verdict};
use crate::journal::Memory;
use setting::{Arguments, pass};

#[tokio::test]
async fn nothing_that_waits_for_a_hook_begins_behind_a_fatal_result() {
    let effects = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&effects);
    let charge = tool("charge", move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok("charged".to_owned()))
    });
    let fatal = tool("fatal", |_, _| {
        std::future::ready(Err::<String, _>(ToolError::fatal("no more")))
    });
    let model = ScriptedModel::new([
        Line::call("fatal", json!({"n": 1})).and(Line::call("charge", json!({"n": 2}))),
        Line::text("done"),
    ]);
    let agent = AgentLoop::builder(model)
        .tool(fatal.parallel_safe())
        .tool(charge.parallel_safe())
        .before_tool(|call: PendingCall| async move {
            if call.tool == "charge" {
                for _ in 0..50 {
                    pass().await;
                }
            }
            Ok(Verdict::Allow)
        })
        .build()
        .expect("an agent");
    let ended = run(&agent).await;
    assert!(matches!(ended.end, End::ToolFailed { .. }), "{ended:?}");
    let states: Vec<CallState> = ended.tools.iter().map(|tool| tool.state).collect();
    assert_eq!(states, [CallState::Finished, CallState::NeverStarted]);
    assert_eq!(effects.load(Ordering::SeqCst), 0);
    assert!(crate::agent_loop::pairs::are_whole(&ended.messages));
}

#[tokio::test(start_paused = true)]
async fn a_check_that_panics_leaves_the_outcome_unknown() {
    let journal = Memory::new();
    let agent = || {
        let order = tool("order", |_, _| std::future::pending())
            .max_retries(0)
            .verified_by(|_: ToolContext, _: Arguments| async move {
                let broken: Option<Option<String>> = std::hint::black_box(None);
                Ok::<Option<String>, ToolError>(broken.expect("a broken check"))
            });
        let model = ScriptedModel::new([Line::call("order", json!({"n": 1})), Line::text("done")]);
        AgentLoop::builder(model)
            .tool(order.timeout(Duration::from_secs(9)))
            .build()
            .expect("an agent")
    };
    let prompt = Prompt::from("go");
    let (ctx, _) = testing::context().journal(journal.clone()).build();
    let died = tokio::time::timeout(Duration::from_secs(1), agent().run(&ctx, &prompt)).await;
    assert!(died.is_err(), "it dies in the middle of the call");
    drop(ctx);
    let (ctx, _) = testing::context().journal(journal).attempt(2).build();
    let ended = agent().run(&ctx, &prompt).await.expect("a run");
    assert_eq!(ended.tools[0].state, CallState::Unknown);
    assert!(matches!(ended.end, End::Answered { .. }), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn a_side_effect_that_was_given_up_in_the_middle_is_told_as_unknown() {
    let hangs = |name| {
        tool(name, |_, _| {
            std::future::pending::<Result<String, ToolError>>()
        })
    };
    let model = ScriptedModel::new([
        Line::call("write", json!({"n": 1})).and(Line::call("read", json!({"n": 1}))),
        Line::text("done"),
    ]);
    let agent = AgentLoop::builder(model)
        .tool(hangs("write"))
        .tool(hangs("read").class(Class::ReadOnly))
        .build()
        .expect("an agent");
    let ended = run(&agent).await;
    let states: Vec<CallState> = ended.tools.iter().map(|tool| tool.state).collect();
    assert_eq!(states, [CallState::Unknown, CallState::Finished]);
}

#[tokio::test]
async fn a_secret_is_in_no_end_and_in_no_entry_of_it() {
    let world = World::default();
    let journal = Memory::new();
    let model = ScriptedModel::new([Line::call("write", json!({"n": 1}))]);
    let forbidding = world
        .builder(model)
        .secret("hunter22")
        .before_tool(|_| async { Ok(Verdict::end("Forbidden", "no hunter22")) })
        .build();
    let model = ScriptedModel::new([]).failing([ModelError::new(Failure::Rejected, "no hunter22")]);
    let failing = world.builder(model).secret("hunter22").build();
    for agent in [forbidding, failing] {
        let (ctx, _) = testing::context().journal(journal.clone()).build();
        let ended = agent
            .expect("an agent")
            .run(&ctx, &Prompt::from("go"))
            .await;
        let written = format!("{ended:?} {:?}", journal.entries());
        assert!(written.contains("no [redacted]"), "{written}");
        assert!(!written.contains("hunter22"), "{written}");
    }
}

#[test]
fn what_a_hook_is_told_is_shown_without_its_arguments() {
    let (ctx, _) = testing::context().build();
    let call = PendingCall {
        run: ctx,
        tool: "write".to_owned(),
        class: Class::SideEffect,
        call_id: "a".to_owned(),
        idempotency_key: "r/tool/write/a".to_owned(),
        arguments: json!({"password": "hunter22"}),
    };
    let shown = format!("{call:?}");
    assert!(
        shown.contains("write") && !shown.contains("hunter22"),
        "{shown}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_model_call_failed_stands_at_its_end_unless_that_may_pass() {
    for (failure, is_ended) in [(Failure::Billing, true), (Failure::Transient, false)] {
        let journal = Memory::new();
        let failures = (0..10).map(|_| ModelError::new(failure, "no"));
        let agent = AgentLoop::builder(ScriptedModel::new([]).failing(failures)).build();
        let agent = agent.expect("an agent");
        let (ctx, _) = testing::context().journal(journal.clone()).build();
        let ended = agent.run(&ctx, &"go".into()).await.expect("a run");
        assert!(matches!(ended.end, End::ModelFailed(_)), "{ended:?}");
        let standing = agent.standing(&"go".into(), &journal.entries());
        assert_eq!(standing.is_ended, is_ended, "{failure:?}");
    }
}
