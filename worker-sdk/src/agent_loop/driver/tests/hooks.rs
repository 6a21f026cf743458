//! Hooks that decide on a call before it runs: what they are asked, and what their answer does.

mod recorded;

use std::sync::Mutex;

use super::*;
use crate::agent_loop::{PendingCall, Verdict};
use crate::context::CancelReason;
use crate::journal::Memory;
use setting::pass;

/// What a hook was asked about: the attempt and the call.
#[derive(Clone, Default)]
pub(super) struct Asked(Arc<Mutex<Vec<(u32, String)>>>);

impl Asked {
    fn note(&self, call: &PendingCall) {
        let asked = (call.run.attempt(), call.call_id.clone());
        self.0.lock().expect("a lock").push(asked);
    }

    pub(super) fn all(&self) -> Vec<(u32, String)> {
        self.0.lock().expect("a lock").clone()
    }

    fn calls(&self) -> Vec<String> {
        self.all().into_iter().map(|(_, call)| call).collect()
    }
}

/// The world's agent with a hook that takes a while and answers as it is told.
pub(super) fn hooked(
    world: &World,
    asked: &Asked,
    model: ScriptedModel,
    answer: impl Fn(&PendingCall) -> Result<Verdict, AgentError> + Clone + Send + Sync + 'static,
) -> AgentLoop {
    let asked = asked.clone();
    let hook = move |call: PendingCall| {
        let (asked, answer) = (asked.clone(), answer.clone());
        async move {
            asked.note(&call);
            pass().await;
            answer(&call)
        }
    };
    world
        .builder(model)
        .before_tool(hook)
        .build()
        .expect("an agent")
}

fn states(ended: &Ended) -> Vec<CallState> {
    ended.tools.iter().map(|tool| tool.state).collect()
}

#[tokio::test]
async fn a_hook_sees_what_the_tool_would_get_and_is_asked_of_no_call_that_cannot_run() {
    let (world, seen) = (World::default(), Arc::new(Mutex::new(Vec::new())));
    let model = ScriptedModel::new([
        Line::call_as("c1", "write", r#"{"n": "7"}"#)
            .and(Line::call_as("c2", "write", r#"{"n": "many"}"#))
            .and(Line::call_as("c3", "fly", "{}")),
        Line::text("done"),
    ]);
    let sees = Arc::clone(&seen);
    let agent = world.builder(model).before_tool(move |call| {
        sees.lock().expect("a lock").push(call);
        std::future::ready(Ok(Verdict::Allow))
    });
    let ended = run(&agent.build().expect("an agent")).await;
    let seen = seen.lock().expect("a lock");
    let [call] = &seen[..] else {
        panic!("{seen:?}");
    };
    assert_eq!((&*call.tool, call.class), ("write", Class::SideEffect));
    assert_eq!((&*call.call_id, &call.arguments), ("c1", &json!({"n": 7})));
    assert_eq!(
        world.by_key().into_keys().next().as_ref(),
        Some(&call.idempotency_key),
        "the tool's own key"
    );
    use CallState::{Finished, NeverStarted};
    assert_eq!(states(&ended), [Finished, NeverStarted, NeverStarted]);
}

#[tokio::test]
async fn a_denied_call_does_not_run_and_the_model_reads_why() {
    let (world, asked) = (World::default(), Asked::default());
    let model = ScriptedModel::new([
        Line::call("write", json!({"n": 1})).and(Line::call("look", json!({"n": 2}))),
        Line::text("so be it"),
    ]);
    let agent = hooked(&world, &asked, model, |call| {
        Ok(match call.class {
            Class::ReadOnly => Verdict::Allow,
            _ => Verdict::deny("the owner said no"),
        })
    });
    let ended = run(&agent).await;
    let told = results(&ended);
    assert_eq!(
        told[0].text,
        "This call was denied and did not run: the owner said no"
    );
    assert!(told[0].is_error && !told[1].is_error, "{told:?}");
    assert_eq!(
        states(&ended),
        [CallState::NeverStarted, CallState::Finished]
    );
    assert_eq!((world.effects("write"), world.effects("look")), (0, 1));
    assert!(matches!(ended.end, End::Answered { .. }));
}

#[tokio::test]
async fn a_model_that_insists_on_what_is_denied_is_stopped_as_one_that_only_fails() {
    let (world, asked) = (World::default(), Asked::default());
    let model = ScriptedModel::by(|request| Some(Line::call("write", json!({"n": request.turn}))));
    let agent = hooked(&world, &asked, model, |_| Ok(Verdict::deny("")));
    let ended = run(&agent).await;
    let End::Aborted(Abort::FailingTool { turns: 3, .. }) = ended.end else {
        panic!("{:?}", ended.end);
    };
    assert_eq!(
        results(&ended)[0].text,
        "This call was denied and did not run."
    );
    assert_eq!((world.all_effects(), asked.all().len()), (0, 3));
}

#[tokio::test]
async fn a_hook_hides_secrets_and_does_not_flood_the_model() {
    let world = World::default();
    let model = ScriptedModel::new([Line::call("write", json!({"n": 1})), Line::text("done")]);
    let agent = world
        .builder(model)
        .secret("hunter22")
        .before_tool(|_| async { Ok(Verdict::deny(format!("hunter22 {}", "x".repeat(10_000)))) });
    let ended = run(&agent.build().expect("an agent")).await;
    let text = &results(&ended)[0].text;
    assert!(text.len() < 3_000, "{}", text.len());
    assert!(text.contains("[redacted] x") && !text.contains("hunter22"));
}

#[tokio::test]
async fn hooks_are_asked_in_order_until_one_does_not_allow() {
    let world = World::default();
    let order = Arc::new(Mutex::new(Vec::new()));
    let hook = |name: &'static str, verdict: Verdict| {
        let order = Arc::clone(&order);
        move |_: PendingCall| {
            order.lock().expect("a lock").push(name);
            std::future::ready(Ok(verdict.clone()))
        }
    };
    let model = ScriptedModel::new([Line::call("write", json!({"n": 1})), Line::text("done")]);
    let agent = world
        .builder(model)
        .before_tool(hook("policy", Verdict::Allow))
        .before_tool(hook("person", Verdict::deny("no")))
        .before_tool(hook("never", Verdict::Allow));
    run(&agent.build().expect("an agent")).await;
    assert_eq!(*order.lock().expect("a lock"), ["policy", "person"]);
    assert_eq!(world.all_effects(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_hook_may_take_until_the_deadline_and_no_longer() {
    let world = World::default();
    let script = || ScriptedModel::new([Line::call("write", json!({"n": 1})), Line::text("done")]);
    let waiting = |seconds| {
        let agent = world.builder(script()).before_tool(move |_| async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Ok(Verdict::Allow)
        });
        agent.build().expect("an agent")
    };
    assert!(matches!(run(&waiting(59)).await.end, End::Answered { .. }));
    assert_eq!(world.all_effects(), 1);
    let ended = run(&waiting(61)).await;
    assert_eq!(states(&ended), [CallState::NeverStarted]);
    assert_eq!(world.all_effects(), 1);
    let error = ended.into_answer().expect_err("nobody decided");
    assert_eq!(error.error_type(), "DEADLINE_EXCEEDED");
    assert!(error.message().contains("write"), "{error}");
}

#[tokio::test]
async fn a_run_that_is_cancelled_while_a_hook_waits_has_not_started_the_call() {
    for hook_says_so in [false, true] {
        let world = World::default();
        let (asking, mut asked) = tokio::sync::mpsc::channel(1);
        let model = ScriptedModel::new([Line::call("write", json!({"n": 1}))]);
        let agent = world.builder(model).before_tool(move |call| {
            let asking = asking.clone();
            async move {
                asking.send(()).await?;
                if hook_says_so {
                    call.run.cancelled().await;
                    call.run.progress(1.0, "asked").await?;
                }
                std::future::pending().await
            }
        });
        let agent = agent.build().expect("an agent");
        let (ctx, record) = testing::context().build();
        let prompt = Prompt::from("go");
        let (ended, ()) = tokio::join!(agent.run(&ctx, &prompt), async {
            asked.recv().await.expect("it is asked");
            record.cancel(CancelReason::Cancelled);
        });
        let ended = ended.expect("a run");
        assert_eq!(ended.end, End::Aborted(Abort::Cancelled));
        assert_eq!(states(&ended), [CallState::NeverStarted]);
        assert_eq!(results(&ended)[0].text, "[aborted by caller]");
        assert_eq!(world.all_effects(), 0);
        let steps = record.steps();
        assert!(!steps.iter().any(|step| step.name() == "tool/write"));
    }
}

#[tokio::test]
async fn hooks_of_calls_that_share_are_asked_beside_each_other_and_no_more_than_may_run() {
    let world = World::default();
    let (at_once, peak) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (now, most) = (Arc::clone(&at_once), Arc::clone(&peak));
    let line = (0..6).fold(Line::text(""), |line, n| {
        line.and(Line::call("look", json!({"n": n})))
    });
    let model = ScriptedModel::new([line, Line::text("done")]);
    let agent = world
        .builder(model)
        .parallel_tools(3)
        .before_tool(move |_| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                for _ in 0..5 {
                    tokio::task::yield_now().await;
                }
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(Verdict::Allow)
            }
        });
    run(&agent.build().expect("an agent")).await;
    assert_eq!(peak.load(Ordering::SeqCst), 3);
    assert_eq!(world.effects("look"), 6);
}
