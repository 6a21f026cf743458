//! The loop, driven on a scripted model and a journal in memory.

mod cancelling;
mod changing;
mod compacting;
mod crashing;
mod ending;
mod hooks;
mod lost;
mod setting;
mod sizes;
mod streaming;
mod telling;
mod tools;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::agent_loop::failure::{Failure, ModelError};
use crate::agent_loop::machine::ModelFailed;
use crate::agent_loop::message::{CallResult, Message};
use crate::agent_loop::response::Finish;
use crate::agent_loop::scripted::{Line, ScriptedModel};
use crate::agent_loop::tool::{Class, ToolError};
use crate::agent_loop::{Budget, Limits, Piece, Tool};
use crate::testing;

use setting::{World, results, tool};

async fn run(agent: &AgentLoop) -> Ended {
    let (ctx, _) = testing::context().build();
    agent.run(&ctx, &Prompt::from("go")).await.expect("a run")
}

#[tokio::test]
async fn a_run_calls_tools_until_the_model_answers() {
    let world = World::default();
    let model = ScriptedModel::new([
        Line::text("Let me look.").and(Line::call("look", json!({"n": "1"}))),
        Line::text("Found it."),
    ]);
    let agent = world.agent(model);
    let (ctx, record) = testing::context().build();
    let answer = agent.reply(ctx, "go".into()).await.expect("an answer");
    assert_eq!(
        (answer.text.as_str(), answer.turns, answer.tool_calls),
        ("Found it.", 2, 1)
    );
    assert!(answer.input_tokens > 0 && answer.output_tokens > 0);
    assert_eq!(world.effects("look"), 1);
    let pieces: Vec<Piece> = record
        .outputs()
        .iter()
        .map(|piece| piece.to_json().expect("a piece"))
        .collect();
    let text = |turn, text: &str| Piece::Text {
        turn,
        text: text.to_owned(),
    };
    assert_eq!(pieces, [text(1, "Let me look."), text(2, "Found it.")]);
}

#[tokio::test]
async fn a_prompt_of_nothing_is_an_invalid_request() {
    let agent = World::default().agent(ScriptedModel::new([Line::text("hello")]));
    let (ctx, _) = testing::context().build();
    let prompt = Prompt::Conversation { messages: vec![] };
    let error = agent.reply(ctx, prompt).await.expect_err("nothing asked");
    assert!(error.is_invalid_request());
}

#[tokio::test]
async fn what_cannot_be_run_is_told_to_the_model_and_no_tool_is_run() {
    let world = World::default();
    let model = ScriptedModel::new([
        Line::call("look", json!({"n": "many"})),
        Line::call("fly", json!({})),
        Line::call_as("", "write", "{\"n\": 1"),
        Line::text("I give up."),
    ]);
    let ended = run(&world.agent(model)).await;
    let told = results(&ended);
    assert!(told[0].text.contains("/n") && told[0].is_error, "{told:?}");
    assert!(
        told[1].text.contains("look, fetch, write, order"),
        "{told:?}"
    );
    assert!(told[2].text.contains("JSON"), "{told:?}");
    assert_eq!(world.all_effects(), 0);
    assert!(
        ended
            .tools
            .iter()
            .all(|tool| tool.state == CallState::NeverStarted)
    );
}

#[tokio::test]
async fn no_tool_of_a_truncated_answer_is_run() {
    let world = World::default();
    let model =
        ScriptedModel::by(|_| Some(Line::call("write", json!({"n": 1})).finish(Finish::Length)));
    let ended = run(&world.agent(model)).await;
    assert!(matches!(ended.end, End::Truncated { .. }));
    assert_eq!((world.all_effects(), ended.turns), (0, 2));
}

#[tokio::test]
async fn results_stand_in_the_order_of_the_calls_however_the_tools_finish() {
    let model = ScriptedModel::new([
        (0..6).rev().fold(Line::text(""), |line, n| {
            line.and(Line::call("wait", json!({"n": n})))
        }),
        Line::text("done"),
    ]);
    let peak = Arc::new(AtomicU32::new(0));
    let at_once = Arc::new(AtomicU32::new(0));
    let (most, now) = (Arc::clone(&peak), Arc::clone(&at_once));
    let wait = tool("wait", move |_, n| {
        let (most, now) = (Arc::clone(&most), Arc::clone(&now));
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            for _ in 0..n {
                tokio::task::yield_now().await;
            }
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(n.to_string())
        }
    });
    let agent = AgentLoop::builder(model)
        .tool(wait.class(Class::ReadOnly).parallel_safe())
        .parallel_tools(3)
        .build()
        .expect("an agent");
    let ended = run(&agent).await;
    let texts: Vec<String> = results(&ended)
        .iter()
        .map(|result| result.text.clone())
        .collect();
    assert_eq!(texts, ["5", "4", "3", "2", "1", "0"]);
    assert_eq!(
        peak.load(Ordering::SeqCst),
        3,
        "as many at once as are allowed"
    );
    let in_one = ended
        .messages
        .iter()
        .filter(|message| matches!(&***message, Message::Tools { .. }));
    assert_eq!(in_one.count(), 1, "all of one turn stand in one message");
}

#[tokio::test]
async fn a_tool_that_is_not_parallel_safe_runs_alone() {
    let running = Arc::new(AtomicU32::new(0));
    let make = |name: &str| {
        let running = Arc::clone(&running);
        tool(name, move |_, n| {
            let running = Arc::clone(&running);
            async move {
                running.fetch_add(1, Ordering::SeqCst);
                let mut most = 0;
                for _ in 0..5 {
                    tokio::task::yield_now().await;
                    most = most.max(running.load(Ordering::SeqCst));
                }
                running.fetch_sub(1, Ordering::SeqCst);
                Ok(format!("{n}: {most}"))
            }
        })
    };
    let calls = ["share", "share", "alone", "share", "alone"];
    let line = calls
        .iter()
        .enumerate()
        .fold(Line::text(""), |line, (n, name)| {
            line.and(Line::call(*name, json!({"n": n})))
        });
    let agent = AgentLoop::builder(ScriptedModel::new([line, Line::text("done")]))
        .tool(make("share").parallel_safe())
        .tool(make("alone"))
        .build()
        .expect("an agent");
    let ended = run(&agent).await;
    let at_once: Vec<String> = results(&ended)
        .iter()
        .map(|result| result.text.clone())
        .collect();
    assert_eq!(at_once, ["0: 2", "1: 2", "2: 1", "3: 1", "4: 1"]);
}

#[tokio::test(start_paused = true)]
async fn a_model_call_that_may_pass_is_made_again_and_no_other() {
    let world = World::default();
    let script = || ScriptedModel::new([Line::text("hello")]);
    let error = |failure| ModelError::new(failure, "x");
    let passing = script().failing([error(Failure::Transient), error(Failure::Cut)]);
    assert!(matches!(
        run(&world.agent(passing)).await.end,
        End::Answered { .. }
    ));
    for failure in [
        Failure::Billing,
        Failure::Credentials,
        Failure::Rejected,
        Failure::Unreadable,
    ] {
        let model = script().failing([error(failure)]);
        let End::ModelFailed(failed) = run(&world.agent(model)).await.end else {
            panic!("{failure:?}");
        };
        assert_eq!(
            (failed.error_type.as_str(), failed.may_pass),
            (failure.error_type(), false)
        );
    }
    let always = script().failing((0..100).map(|_| error(Failure::Transient)));
    let End::ModelFailed(ModelFailed { may_pass, .. }) = run(&world.agent(always)).await.end else {
        panic!("it never passed");
    };
    assert!(may_pass, "the run may be tried again");
}

#[tokio::test(start_paused = true)]
async fn a_wait_over_the_cap_or_the_deadline_fails_at_once() {
    let world = World::default();
    // Over the cap with all the time there is; under it and over the deadline.
    for (wait, timeout) in [(61, 3_600), (59, 58)] {
        let wait = Some(Duration::from_secs(wait));
        let error = ModelError::new(Failure::Transient, "slow down").with_retry_after(wait);
        let agent = world.agent(ScriptedModel::new([Line::text("hello")]).failing([error]));
        let timeout = Duration::from_secs(timeout);
        let (ctx, _) = testing::context().timeout(timeout).build();
        let begin = Instant::now();
        let ended = agent.run(&ctx, &"go".into()).await.expect("a run");
        assert!(matches!(ended.end, End::ModelFailed(_)));
        assert!(begin.elapsed() < Duration::from_secs(1));
        // Whoever tries the run again is told what the provider said.
        let error = ended.into_answer().expect_err("no answer");
        assert_eq!((error.is_retryable(), error.least_wait()), (true, wait));
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_of_which_text_went_out_is_not_made_again() {
    /// Says something and breaks off, the first time.
    #[derive(Default)]
    struct Breaking(AtomicU32);
    impl crate::agent_loop::Model for Breaking {
        fn provider(&self) -> &'static str {
            "breaking"
        }
        fn model(&self) -> &'static str {
            "breaking"
        }
        async fn complete(
            &self,
            request: &crate::agent_loop::Request,
            pieces: &mut crate::agent_loop::Pieces,
        ) -> Result<crate::agent_loop::Response, ModelError> {
            pieces.text("The answer is ").await?;
            if self.0.fetch_add(1, Ordering::SeqCst) == 0 {
                return Err(ModelError::new(Failure::Cut, "cut"));
            }
            crate::agent_loop::Model::complete(
                &ScriptedModel::new([Line::text("42")]),
                request,
                pieces,
            )
            .await
        }
    }
    let agent = AgentLoop::builder(Breaking::default())
        .build()
        .expect("an agent");
    let ended = run(&agent).await;
    assert!(matches!(
        ended.end,
        End::ModelFailed(ModelFailed { may_pass: true, .. })
    ));
    let agent = AgentLoop::builder(Breaking::default())
        .stream(false)
        .build()
        .expect("an agent");
    assert!(
        matches!(run(&agent).await.end, End::Answered { .. }),
        "nothing had gone out"
    );
}

#[tokio::test]
async fn an_input_that_is_too_long_is_made_shorter_once() {
    let world = World::default();
    let big = ScriptedModel::by(|request| match request.turn {
        turn @ 1..=4 => Some(Line::call("look", json!({"n": turn}))),
        _ => Some(Line::text("done")),
    });
    let failures = |count: usize| {
        let mut failures: Vec<_> = Vec::new();
        failures.resize_with(count, || {
            ModelError::new(Failure::ContextLength, "too long")
        });
        failures
    };
    // A conversation with nothing to leave out.
    let ended = run(&world.agent(big.clone().failing(failures(1)))).await;
    assert!(
        matches!(ended.end, End::Aborted(Abort::ContextFull { .. })),
        "{:?}",
        ended.end
    );
}

#[tokio::test]
async fn limits_and_circles_end_a_run_with_every_call_answered() {
    let world = World::default();
    let same = || ScriptedModel::by(|_| Some(Line::call("look", json!({"n": 7}))));
    let ended = run(&world.agent(same())).await;
    assert!(matches!(
        ended.end,
        End::Aborted(Abort::RepeatedCall { times: 7, .. })
    ));
    let other = ScriptedModel::by(|request| Some(Line::call("look", json!({"n": request.turn}))));
    let agent = world.builder(other).limits(Limits {
        turns: 4,
        ..Limits::default()
    });
    let ended = run(&agent.build().expect("an agent")).await;
    assert_eq!(ended.end, End::Aborted(Abort::Turns(4)));
    assert_eq!(ended.tools.len(), 4);
    let failing = ScriptedModel::by(|request| Some(Line::call("look", json!({"x": request.turn}))));
    let ended = run(&world.agent(failing)).await;
    assert!(matches!(
        ended.end,
        End::Aborted(Abort::FailingTool { turns: 3, .. })
    ));
}

#[tokio::test]
async fn a_large_result_is_recorded_whole_and_shown_cut() {
    let big = tool("look", |_, _| std::future::ready(Ok("y".repeat(200_000))));
    let model = ScriptedModel::new([Line::call("look", json!({"n": 1})), Line::text("done")]);
    let agent = AgentLoop::builder(model)
        .tool(big)
        .build()
        .expect("an agent");
    let journal = crate::journal::Memory::new();
    let (ctx, _) = testing::context().journal(journal.clone()).build();
    let ended = agent.run(&ctx, &"go".into()).await.expect("a run");
    let shown: &CallResult = &results(&ended)[0];
    assert!(shown.text.len() <= Tool::MAX_RESULT_BYTES && shown.text.contains("200000 bytes"));
    let stored = journal
        .entries()
        .iter()
        .any(|recorded| recorded.entry.to_bytes().len() > 200_000);
    assert!(stored);
}
