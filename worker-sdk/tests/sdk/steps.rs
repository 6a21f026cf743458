//! Steps on a journal in memory: what runs, what is recorded, and what a crash leaves.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use worker_sdk::context::CancelReason;
use worker_sdk::journal::{Entry, Memory, Usage};
use worker_sdk::testing::{self, Record};
use worker_sdk::{
    Agent, AgentError, BlockingContext, Context, ErrorKind, Payload, StepError, agent_fn,
    blocking_fn,
};

use crate::fake::within;

/// What the world outside has seen: the idempotency key of each effect.
#[derive(Debug, Clone, Default)]
struct World(Arc<Mutex<Vec<String>>>);

impl World {
    fn effect(&self, key: &str) {
        self.0.lock().unwrap().push(key.to_owned());
    }

    fn seen(&self, name: &str) -> Vec<String> {
        let effects = self.0.lock().unwrap();
        let of_name = |key: &&String| key.split('/').nth(1) == Some(name);
        effects.iter().filter(of_name).cloned().collect()
    }
}

fn attempt(journal: &Memory, number: u32) -> (Context, Record) {
    testing::context()
        .run_id("run")
        .attempt(number)
        .journal(journal.clone())
        .build()
}

/// An agent with a step of each class.
async fn book(ctx: &Context, world: &World) -> Result<Vec<u64>, AgentError> {
    let looked = ctx
        .step("look", |key| async move {
            world.effect(&key);
            Ok(1)
        })
        .read_only()
        .await?;
    let reserved = ctx
        .step("reserve", |key| async move {
            world.effect(&key);
            ctx.usage(Usage {
                input_tokens: 10,
                ..Usage::default()
            })
            .await?;
            Ok(2)
        })
        .await?;
    let sent = ctx
        .step("send", |key| async move {
            world.effect(&key);
            Ok(3)
        })
        .verifiable(|key| async move {
            Ok((!world.seen("send").is_empty() && !key.is_empty()).then_some(30))
        })
        .await?;
    let charged = ctx
        .step("charge", |key| async move {
            world.effect(&key);
            Ok(4)
        })
        .side_effect()
        .await;
    let charged = match charged {
        Err(StepError::OutcomeUnknown {
            idempotency_key, ..
        }) => {
            assert_eq!(idempotency_key, "run/charge/1");
            40
        }
        other => other?,
    };
    ctx.output("booked").await?;
    Ok(vec![looked, reserved, sent, charged])
}

#[tokio::test]
async fn a_recorded_step_gives_its_result_and_does_not_run() {
    let (journal, world) = (Memory::new(), World::default());
    let (ctx, first) = attempt(&journal, 1);
    assert_eq!(book(&ctx, &world).await.unwrap(), [1, 2, 3, 4]);
    let effects = world.0.lock().unwrap().clone();
    assert_eq!(
        effects,
        ["run/look/1", "run/reserve/1", "run/send/1", "run/charge/1"]
    );
    let recorded: Vec<_> = first
        .steps()
        .iter()
        .map(|step| format!("{} {}", step.idempotency_key(), step.is_done()))
        .collect();
    assert_eq!(
        recorded,
        [
            "run/look/1 true",
            "run/reserve/1 false",
            "run/reserve/1 true",
            "run/send/1 false",
            "run/send/1 true",
            "run/charge/1 false",
            "run/charge/1 true",
        ]
    );
    let (ctx, second) = attempt(&journal, 2);
    assert_eq!(book(&ctx, &world).await.unwrap(), [1, 2, 3, 4]);
    assert_eq!(world.0.lock().unwrap().len(), 4, "nothing ran twice");
    assert!(second.steps().is_empty() && second.outputs().len() == 1);
    assert_eq!(ctx.used().len(), 1, "what is replayed uses nothing");
}

#[tokio::test]
async fn a_crash_before_any_write_runs_no_side_effect_twice_and_loses_no_result() {
    let mut crashes = 0;
    for write in 1.. {
        let (journal, world) = (Memory::new(), World::default());
        let (ctx, record) = testing::context()
            .run_id("run")
            .journal(journal.clone())
            .crash_at(write)
            .build();
        let crashed = tokio::select! {
            result = book(&ctx, &world) => {
                assert_eq!(result.unwrap(), [1, 2, 3, 4]);
                false
            }
            () = record.crashed() => true,
        };
        if !crashed {
            break;
        }
        crashes += 1;
        // Crash again at every write of the attempt after it, then let one finish.
        for next in 1..=write {
            let (ctx, record) = testing::context()
                .run_id("run")
                .attempt(2)
                .journal(journal.clone())
                .crash_at(next)
                .build();
            tokio::select! {
                _ = book(&ctx, &world) => {}
                () = record.crashed() => {}
            }
        }
        let (ctx, _) = attempt(&journal, 9);
        let booked = book(&ctx, &world).await.unwrap();
        assert_eq!(booked[..2], [1, 2], "crashed at {write}");
        // It was sent once; whoever crashed before it was recorded asked.
        assert!(booked[2] == 3 || booked[2] == 30);
        assert_eq!(world.seen("send"), ["run/send/1"], "crashed at {write}");
        assert_eq!(booked[3] == 40, !knows_the_charge(&journal));
        assert_eq!(world.seen("charge").len(), 1, "crashed at {write}");
        let reserved = world.seen("reserve");
        assert!(reserved.iter().all(|key| key == "run/reserve/1"));
        assert!(!reserved.is_empty());
    }
    // Seven of steps, one of usage, one of output.
    assert_eq!(crashes, 9);
}

/// Whether the journal holds the result of the charge.
fn knows_the_charge(journal: &Memory) -> bool {
    journal
        .entries()
        .iter()
        .any(|recorded| match &recorded.entry {
            Entry::Step(step) => step.name() == "charge" && step.is_done(),
            _ => false,
        })
}

#[tokio::test]
async fn code_that_asks_for_another_step_is_told_both_and_fails_for_good() {
    let journal = Memory::new();
    let (ctx, _) = attempt(&journal, 1);
    ctx.step("charge", |_| async { Ok(1) }).await.unwrap();
    let (ctx, _) = attempt(&journal, 2);
    let error = ctx.step("ship", |_| async { Ok(1) }).await.unwrap_err();
    let StepError::Mismatch { asked, recorded } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(
        (asked.as_str(), recorded.as_str()),
        ("ship (1)", "charge (1)")
    );
    let error = AgentError::from(error);
    assert!(error.message().contains("ship (1)") && error.message().contains("charge (1)"));
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn the_error_of_the_work_is_its_result_and_passed_on_as_it_is() {
    let journal = Memory::new();
    let runs = AtomicUsize::new(0);
    for number in 1..=2 {
        let (ctx, _) = attempt(&journal, number);
        let failed: Result<u64, _> = ctx
            .step("parse", |_| async {
                runs.fetch_add(1, Ordering::Relaxed);
                Ok("x".parse::<u64>()?)
            })
            .await;
        let error = AgentError::from(failed.unwrap_err());
        assert_eq!(error.error_type(), "ParseIntError");
        assert!(error.message().contains("invalid digit"));
    }
    assert_eq!(runs.into_inner(), 1);
}

#[tokio::test]
async fn an_error_that_may_pass_and_ended_the_attempt_is_tried_again() {
    let journal = Memory::new();
    let runs = AtomicUsize::new(0);
    let mut results = Vec::new();
    for number in 1..=3 {
        let (ctx, _) = attempt(&journal, number);
        let result: Result<usize, StepError> = ctx
            .step("fetch", |_| async {
                match runs.fetch_add(1, Ordering::Relaxed) {
                    0 => Err(AgentError::new("Down", "later").retryable()),
                    run => Ok(run),
                }
            })
            .await;
        results.push(result.ok());
    }
    assert_eq!(results, [None, Some(1), Some(1)]);
}

#[tokio::test]
async fn steps_with_keys_run_together_and_are_found_again() {
    let journal = Memory::new();
    for number in 1..=2 {
        let (ctx, record) = attempt(&journal, number);
        let square = |number: u64| {
            let step = ctx.step("square", move |_| async move { Ok(number * number) });
            step.key(format!("of-{number}"))
        };
        let (three, two) =
            tokio::try_join!(square(3).into_future(), square(2).into_future()).unwrap();
        assert_eq!((three, two), (9, 4));
        assert_eq!(record.steps().len(), if number == 1 { 4 } else { 0 });
    }
}

#[tokio::test]
async fn a_step_without_a_key_within_another_or_beside_it_is_refused() {
    let (ctx, _) = attempt(&Memory::new(), 1);
    let inner = &ctx;
    let outer = ctx.step("outer", |_| async move {
        Ok(inner.step("inner", |_| async { Ok(1) }).await?)
    });
    let error = outer.key("o").await.unwrap_err();
    assert!(error.to_string().contains("give this one a key"), "{error}");
    let one = || {
        ctx.step("one", |_| async {
            tokio::task::yield_now().await;
            Ok(1)
        })
    };
    let (first, second) = tokio::join!(one().into_future(), one().into_future());
    assert_eq!(first.unwrap(), 1);
    assert!(matches!(second, Err(StepError::Misused(_))));
}

#[tokio::test]
async fn a_payload_is_recorded_raw_and_another_type_cannot_read_it() {
    let journal = Memory::new();
    let (ctx, _) = attempt(&journal, 1);
    let picture = Payload::new("image/png", vec![1, 2]);
    let given = picture.clone();
    let taken: Payload = ctx.step("draw", |_| async { Ok(given) }).await.unwrap();
    assert_eq!(taken, picture);
    let (ctx, _) = attempt(&journal, 2);
    let error = ctx.step("draw", |_| async { Ok(1) }).await.unwrap_err();
    assert!(matches!(error, StepError::Unreadable { .. }), "{error:?}");
}

#[tokio::test]
async fn a_step_of_a_cancelled_run_does_not_begin() {
    let (ctx, record) = attempt(&Memory::new(), 1);
    record.cancel(CancelReason::Cancelled);
    let error = ctx
        .step("charge", |_| async { panic!("it ran") as Result<(), _> })
        .await
        .unwrap_err();
    let StepError::Journal(error) = error else {
        panic!("{error:?}");
    };
    assert_eq!(error.kind(), ErrorKind::Cancelled);
}

#[tokio::test]
async fn blocking_code_has_steps_too() {
    let journal = Memory::new();
    let world = World::default();
    let agent = blocking_fn({
        let world = world.clone();
        move |ctx: BlockingContext, (): ()| {
            let charged = ctx
                .step("charge", |key| {
                    world.effect(key);
                    // Within the work of a step only those with a key.
                    assert!(ctx.step("inner", |_| Ok(1)).run().is_err());
                    Ok(ctx.step("inner", |_| Ok(7)).key("k").read_only().run()?)
                })
                .side_effect()
                .run()?;
            ctx.usage(Usage::default())?;
            let sent = ctx
                .step("send", |_| Ok(1))
                .verifiable(|_| Ok(Some(2)))
                .run()?;
            Ok((charged, sent))
        }
    });
    for number in 1..=2 {
        let (ctx, _) = attempt(&journal, number);
        let reply = within("reply", agent.reply(ctx, ())).await.unwrap();
        assert_eq!(reply, (7, 1));
    }
    assert_eq!(world.seen("charge"), ["run/charge/1"]);
}

#[tokio::test]
async fn a_short_way_to_test_an_agent_has_steps() {
    let agent = agent_fn(|ctx: Context, number: u64| async move {
        Ok(ctx
            .step("double", move |_| async move { Ok(number * 2) })
            .await?)
    });
    assert_eq!(testing::run(&agent, 4).await.unwrap(), 8);
}
