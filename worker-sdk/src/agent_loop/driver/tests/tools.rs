//! How a tool is tried, and what the model is told when it fails.

use super::*;

/// Runs one tool that fails as often as it is tried; how often was that?
async fn tries(class: Class, error: fn() -> ToolError) -> u32 {
    let count = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&count);
    let failing = tool("fail", move |ctx, _| {
        counted.fetch_max(ctx.attempt(), Ordering::SeqCst);
        std::future::ready(Err::<String, _>(error()))
    });
    let failing = match class {
        Class::Verifiable => failing
            .verified_by(|_, _: serde_json::Value| async { Ok::<Option<String>, ToolError>(None) }),
        Class::ReadOnly | Class::Idempotent | Class::SideEffect => failing.class(class),
    };
    let model = ScriptedModel::new([Line::call("fail", json!({"n": 1})), Line::text("done")]);
    let agent = AgentLoop::builder(model)
        .tool(failing)
        .build()
        .expect("an agent");
    run(&agent).await;
    count.load(Ordering::SeqCst)
}

#[tokio::test(start_paused = true)]
async fn a_tool_is_tried_again_only_where_that_does_no_harm() {
    let may_pass = || ToolError::new("busy");
    let before = || ToolError::before_effect("no connection");
    for (class, after_effect, before_effect) in [
        (Class::ReadOnly, 4, 4),
        (Class::Idempotent, 4, 4),
        (Class::Verifiable, 1, 4),
        (Class::SideEffect, 1, 4),
    ] {
        assert_eq!(tries(class, may_pass).await, after_effect, "{class:?}");
        assert_eq!(tries(class, before).await, before_effect, "{class:?}");
        assert_eq!(
            tries(class, || ToolError::permanent("no")).await,
            1,
            "{class:?}"
        );
        assert_eq!(
            tries(class, || ToolError::http(404, "no")).await,
            1,
            "{class:?}"
        );
    }
}

#[tokio::test]
async fn a_401_of_a_tool_ends_the_run_unless_told_otherwise() {
    let denied = || {
        tool("look", |_, _| {
            std::future::ready(Err::<String, _>(ToolError::http(401, "who")))
        })
    };
    let script =
        || ScriptedModel::new([Line::call("look", json!({"n": 1})), Line::text("so be it")]);
    let agent = AgentLoop::builder(script())
        .tool(denied())
        .build()
        .expect("an agent");
    let ended = run(&agent).await;
    assert!(
        matches!(ended.end, End::ToolFailed { .. }),
        "{:?}",
        ended.end
    );
    let agent = AgentLoop::builder(script())
        .tool(denied())
        .unauthorized_is_fatal(false);
    let ended = run(&agent.build().expect("an agent")).await;
    assert!(matches!(ended.end, End::Answered { .. }));
    assert!(results(&ended)[0].text.contains("401"));
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_hangs_or_breaks_down_is_an_observation() {
    let hang = tool("hang", |_, _| {
        std::future::pending::<Result<String, ToolError>>()
    });
    let broken = tool("broken", |_, n| async move {
        assert!(n > 100, "it breaks down");
        Ok(String::new())
    });
    let model = ScriptedModel::new([
        Line::call("hang", json!({"n": 1})).and(Line::call("broken", json!({"n": 1}))),
        Line::text("done"),
    ]);
    let agent = AgentLoop::builder(model)
        .tool(hang)
        .tool(broken)
        .build()
        .expect("an agent");
    let ended = run(&agent).await;
    let told = results(&ended);
    assert!(
        told[0].text.contains("30s") && told[0].text.contains("unknown"),
        "{told:?}"
    );
    assert_eq!(told[1].text, "The tool broke down.");
    assert!(matches!(ended.end, End::Answered { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_may_have_had_its_effect_is_not_run_again_when_its_time_is_up() {
    for (class, expected) in [(Class::Idempotent, 4), (Class::SideEffect, 1)] {
        let count = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&count);
        let hang = tool("hang", move |_, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<Result<String, ToolError>>()
        });
        let model = ScriptedModel::new([Line::call("hang", json!({"n": 1})), Line::text("done")]);
        let hang = hang.class(class).timeout(Duration::from_secs(1));
        let agent = AgentLoop::builder(model).tool(hang).build();
        run(&agent.expect("an agent")).await;
        assert_eq!(count.load(Ordering::SeqCst), expected, "{class:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_asks_for_too_long_a_wait_is_not_waited_for() {
    let longest = ToolError::RETRY_AFTER_MAX;
    for (wait, expected) in [(longest, 2), (longest + Duration::from_millis(1), 1)] {
        let count = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&count);
        let busy = tool("busy", move |ctx, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            let failed = ToolError::new("come later").retry_after(wait);
            std::future::ready(match ctx.attempt() {
                1 => Err(failed),
                _ => Ok("here".to_owned()),
            })
        });
        let model = ScriptedModel::new([Line::call("busy", json!({"n": 1})), Line::text("done")]);
        let agent = AgentLoop::builder(model)
            .tool(busy.class(Class::ReadOnly))
            .build();
        let (ctx, _) = testing::context().timeout(Duration::MAX).build();
        let begin = Instant::now();
        let ended = agent.expect("an agent").run(&ctx, &"go".into()).await;
        let told = results(&ended.expect("a run"));
        assert_eq!(count.load(Ordering::SeqCst), expected, "{told:?}");
        assert_eq!(told[0].is_error, expected == 1);
        assert!(begin.elapsed() < 3 * longest);
    }
}

#[tokio::test]
async fn a_step_that_cannot_be_asked_for_in_a_tool_is_told_at_once() {
    let count = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&count);
    let steps = tool("steps", move |ctx, n| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            let step = ctx.run().step("within", |_| async move { Ok(n) });
            Ok(step.await?.to_string())
        }
    });
    let model = ScriptedModel::new([Line::call("steps", json!({"n": 1})), Line::text("done")]);
    let agent = AgentLoop::builder(model)
        .tool(steps.class(Class::ReadOnly))
        .build();
    let ended = run(&agent.expect("an agent")).await;
    assert!(results(&ended)[0].text.contains("give this one a key"));
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

#[test]
fn an_agent_whose_model_must_call_a_tool_there_is_not_is_not_built() {
    use crate::agent_loop::{ToolChoice, ToolboxError};
    let built = AgentLoop::builder(ScriptedModel::new([]))
        .tool(tool("look", |_, n| std::future::ready(Ok(n.to_string()))))
        .tool_choice(ToolChoice::Tool("lock".to_owned()))
        .build();
    let none = ToolboxError::NoSuchTool(Some("lock".to_owned()));
    assert_eq!(built.map(drop), Err(none));
}
