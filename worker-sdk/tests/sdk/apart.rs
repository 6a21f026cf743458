//! On several threads, where an agent runs on a task of its own. The other modules have one thread,
//! where it runs on its call's.

use std::time::Duration;

use tokio::sync::mpsc;
use tonic::Code;
use worker_sdk::{AgentError, Context, agent_fn};

use crate::fake::{Fake, ours, released, within};
use crate::subject::{builder, start};

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_writes_answers_and_its_panic_is_an_error() {
    let mut fake = Fake::start().await;
    let agent = agent_fn(|ctx: Context, number: i64| async move {
        assert!(number > 0, "too small");
        ctx.output(number).await?;
        Ok::<_, AgentError>(number * 2)
    });
    let _worker = start(builder(agent, &fake.address));
    let mut call = fake.welcomed().await;
    call.request("run", "21").await;
    assert_eq!(call.append().await.worker_seq, 1);
    assert_eq!(call.value().await, "42");
    call.request("other", "0").await;
    let error = call.error().await;
    assert_eq!(
        (error.r#type.as_str(), error.message.as_str()),
        ("panic", "too small")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_blocks_in_place_does_not_hold_up_the_end_of_its_call() {
    let mut fake = Fake::start().await;
    let agent = agent_fn(|ctx: Context, (): ()| async move {
        // A runtime moves nothing but `block_in_place` off a thread that is blocked: without it the
        // test itself can stop.
        tokio::task::block_in_place(|| {
            while !ctx.is_cancelled() {
                std::thread::yield_now();
            }
        });
        Ok::<_, AgentError>(())
    });
    let _worker = start(builder(agent, &fake.address));
    let mut call = fake.welcomed().await;
    call.request("run", "null").await;
    call.end(ours(Code::DeadlineExceeded, "DEADLINE")).await;
    assert!(released(&fake.call().await).is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_keeps_the_slot_away_after_the_future_was_dropped() {
    let mut fake = Fake::start().await;
    let (held, mut holds) = mpsc::channel(1);
    let agent = agent_fn(move |ctx: Context, (): ()| {
        let held = held.clone();
        async move {
            held.send(ctx.hold()).await?;
            std::future::pending::<()>().await;
            Ok(())
        }
    });
    let _worker = start(builder(agent, &fake.address));
    let mut call = fake.welcomed().await;
    call.request("run", "null").await;
    let hold = within("hold", holds.recv()).await.unwrap();
    call.end(ours(Code::Cancelled, "CANCELLED")).await;
    let early = tokio::time::timeout(Duration::from_millis(50), fake.call()).await;
    assert!(early.is_err(), "the slot came back while it was held");
    drop(hold);
    assert!(released(&fake.call().await).is_some());
}
