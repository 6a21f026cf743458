//! A run that is stopped at each of its awaits: by its cancellation, and by being dropped.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

use serde_json::json;

use super::super::{AgentLoop, CallState, ToolReport};
use super::crashing::script;
use super::hooks::{Asked, hooked};
use super::setting::{World, pass, tool};
use crate::agent_loop::machine::{Abort, End};
use crate::agent_loop::pairs;
use crate::agent_loop::prompt::Prompt;
use crate::agent_loop::{Class, Line, ScriptedModel, Verdict};
use crate::context::CancelReason;
use crate::journal::{Appending, Entry, Journal, Memory, Recorded};
use crate::testing;

/// A journal that comes back before and behind each write.
struct Slow(Memory);

impl Journal for Slow {
    fn replay(&self) -> Vec<Recorded> {
        self.0.replay()
    }

    fn append(&self, entry: Entry) -> Appending<'_> {
        Box::pin(async move {
            pass().await;
            self.0.append(entry).await?;
            pass().await;
            Ok(())
        })
    }
}

/// Polls so many times; the output if it came.
async fn polled<F: Future>(mut future: Pin<&mut F>, times: usize) -> Option<F::Output> {
    for _ in 0..times {
        let once = std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx)));
        if let Poll::Ready(output) = once.await {
            return Some(output);
        }
    }
    None
}

/// What is said of each call is what happened.
fn check_states(world: &World, tools: &[ToolReport], at: usize) {
    let effects: BTreeMap<String, u32> = world.by_key();
    let happened = |report: &ToolReport| {
        let key = crate::agent_loop::record::call_key(&report.call_id);
        let end = format!("/tool/{}/{key}", report.tool);
        effects.iter().any(|(key, _)| key.ends_with(&end))
    };
    for report in tools {
        match report.state {
            CallState::Finished => assert!(happened(report), "at {at}: {report:?}"),
            CallState::NeverStarted => assert!(!happened(report), "at {at}: {report:?}"),
            CallState::Unknown => {}
        }
    }
}

/// The agent, and the same with a hook that allows all but one call.
fn agents() -> [fn(&World) -> AgentLoop; 2] {
    [
        |world| world.agent(script()),
        |world| {
            hooked(world, &Asked::default(), script(), |call| {
                Ok(match &*call.call_id {
                    "a3" => Verdict::deny("no"),
                    _ => Verdict::Allow,
                })
            })
        },
    ]
}

#[tokio::test]
async fn a_run_that_is_cancelled_at_any_await_answers_every_call_and_says_which_ran() {
    for agent in agents() {
        cancelled_at_any_await(agent).await;
    }
}

async fn cancelled_at_any_await(agent: fn(&World) -> AgentLoop) {
    let mut seen = BTreeMap::new();
    for at in 0.. {
        let world = World::default();
        let agent = agent(&world);
        let (ctx, record) = testing::context().journal(Slow(Memory::new())).build();
        let prompt = Prompt::from("go");
        let mut run = pin!(agent.run(&ctx, &prompt));
        if polled(run.as_mut(), at).await.is_some() {
            assert!(at > 50, "{at}");
            break;
        }
        record.cancel(CancelReason::Cancelled);
        let ended = polled(run, 10)
            .await
            .expect("it ends at once")
            .expect("a run");
        assert!(pairs::are_whole(&ended.messages), "at {at}");
        check_states(&world, &ended.tools, at);
        for report in &ended.tools {
            *seen.entry(format!("{:?}", report.state)).or_insert(0) += 1;
        }
        match ended.end {
            End::Aborted(Abort::Cancelled) | End::Answered { .. } => {}
            other => panic!("at {at}: {other:?}"),
        }
    }
    assert_eq!(seen.len(), 3, "finished, never started, unknown: {seen:?}");
}

#[tokio::test]
async fn a_run_that_is_dropped_at_any_await_can_be_read_and_taken_up() {
    for agent in agents() {
        dropped_at_any_await(agent).await;
    }
}

async fn dropped_at_any_await(agent: fn(&World) -> AgentLoop) {
    for at in 0.. {
        let (world, journal) = (World::default(), Memory::new());
        let agent = agent(&world);
        let prompt = Prompt::from("go");
        {
            let (ctx, _) = testing::context().journal(Slow(journal.clone())).build();
            let run = pin!(agent.run(&ctx, &prompt));
            if polled(run, at).await.is_some() {
                assert!(at > 50, "{at}");
                break;
            }
        }
        let standing = agent.standing(&prompt, &journal.entries());
        assert!(pairs::are_whole(&standing.messages), "at {at}");
        check_states(&world, &standing.tools, at);

        let (ctx, _) = testing::context()
            .attempt(2)
            .journal(journal.clone())
            .build();
        let ended = agent.run(&ctx, &prompt).await.expect("a run");
        assert!(
            matches!(ended.end, End::Answered { .. }),
            "at {at}: {:?}",
            ended.end
        );
        assert!(pairs::are_whole(&ended.messages), "at {at}");
        for (key, times) in world.by_key() {
            assert!(
                times == 1 || key.contains("look") || key.contains("fetch"),
                "at {at}: {key}"
            );
        }
    }
}

/// The begins and the results of steps.
fn steps(journal: &Memory) -> usize {
    let entries = journal.entries().into_iter();
    let steps = entries.filter(|recorded| matches!(recorded.entry, Entry::Step(_)));
    steps.count()
}

#[tokio::test]
async fn nothing_begins_once_a_run_is_cancelled() {
    // Side by side with room for one, and one after the other; each has its effect when it is first
    // looked at, so that the look at the cancellation must come before.
    for parallel_safe in [true, false] {
        for at in 0.. {
            let (effects, journal) = (Arc::new(AtomicU32::new(0)), Memory::new());
            let counted = Arc::clone(&effects);
            let look = tool("look", move |_, n| {
                counted.fetch_add(1, Ordering::SeqCst);
                async move {
                    pass().await;
                    Ok(n.to_string())
                }
            });
            let look = look.class(Class::ReadOnly);
            let look = if parallel_safe {
                look.parallel_safe()
            } else {
                look
            };
            let calls = (0..4).map(|n| Line::call("look", json!({"n": n})));
            let calls = calls.reduce(Line::and).expect("four");
            let asked = Arc::new(AtomicU32::new(0));
            let asks = Arc::clone(&asked);
            let model = ScriptedModel::by(move |request| {
                asks.fetch_add(1, Ordering::SeqCst);
                Some(match request.turn {
                    1 | 2 => calls.clone(),
                    _ => Line::text("done"),
                })
            });
            let agent = AgentLoop::builder(model).tool(look).parallel_tools(1);
            let agent = agent.build().expect("an agent");
            let (ctx, record) = testing::context().journal(Slow(journal.clone())).build();
            let prompt = Prompt::from("go");
            let mut run = pin!(agent.run(&ctx, &prompt));
            if polled(run.as_mut(), at).await.is_some() {
                assert!(at > 20, "{at}");
                break;
            }
            record.cancel(CancelReason::Cancelled);
            let begun = || (effects.load(Ordering::SeqCst), asked.load(Ordering::SeqCst));
            let (before, written) = (begun(), steps(&journal));
            let ended = polled(run, 10).await.expect("it ends at once");
            assert_eq!(begun(), before, "at {at}: a tool or the model was called");
            // What was on its way may come to be written, and nothing behind it.
            assert!(steps(&journal) <= written + 1, "at {at}");
            let ended = ended.expect("a run");
            assert!(pairs::are_whole(&ended.messages), "at {at}");
        }
    }
}
