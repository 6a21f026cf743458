//! Agents without a harness.

use std::time::Duration;

use worker_sdk::context::{CancelReason, LogLevel};
use worker_sdk::{
    Agent, AgentError, BlockingAgent, BlockingContext, Context, ErrorKind, Payload, agent_fn,
    blocking, testing,
};

use crate::fake::within;

struct Chatty;

impl Agent for Chatty {
    type Request = String;
    type Reply = usize;

    async fn reply(&self, ctx: Context, text: String) -> Result<usize, AgentError> {
        for word in text.split(' ') {
            ctx.output(word).await?;
        }
        ctx.progress(0.5, "half").await?;
        ctx.log(LogLevel::Info, format!("for {}", ctx.metadata()["tenant"]))
            .await?;
        Ok(text.len())
    }
}

#[tokio::test]
async fn what_an_agent_writes_is_recorded_in_order() {
    let (ctx, record) = testing::context()
        .metadata("tenant", "a")
        .attempt(2)
        .build();
    assert_eq!(
        (ctx.attempt(), ctx.caller().subject.as_str()),
        (2, "anonymous")
    );
    assert_eq!(Chatty.reply(ctx, "one two".to_owned()).await.unwrap(), 7);
    let words: Vec<String> = record
        .outputs()
        .iter()
        .map(|piece| piece.to_json().unwrap())
        .collect();
    assert_eq!(words, ["one", "two"]);
    assert_eq!(record.progress(), [(0.5, "half".to_owned())]);
    assert_eq!(record.logs(), [(LogLevel::Info, "for a".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn run_stops_an_agent_at_its_deadline() {
    let agent = agent_fn(|_, (): ()| async {
        std::future::pending::<()>().await;
        Ok(())
    });
    let error = testing::run(&agent, ()).await.unwrap_err();
    assert_eq!(error.error_type(), "DEADLINE_EXCEEDED");
}

struct Patient;

impl BlockingAgent for Patient {
    type Request = Payload;
    type Reply = Payload;

    fn reply(&self, ctx: BlockingContext, request: Payload) -> Result<Payload, AgentError> {
        ctx.output(&request)?;
        match ctx.sleep(Duration::from_secs(600)) {
            Ok(()) => Ok(request),
            Err(error) => Err(error.into()),
        }
    }
}

#[tokio::test]
async fn a_blocking_agent_sees_its_cancellation_and_holds_until_it_returns() {
    let (ctx, record) = testing::context().build();
    let running =
        tokio::spawn(async move { blocking(Patient).reply(ctx, Payload::text("x")).await });
    within("output", async {
        while record.outputs().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    record.cancel(CancelReason::Cancelled);
    within("release", record.released()).await;
    let error = within("end", running).await.unwrap().unwrap_err();
    assert_eq!(error.error_type(), "CANCELLED");
}

#[tokio::test]
async fn asking_without_a_harness_is_unreachable() {
    let (ctx, _record) = testing::context().build();
    let error = ctx.ask::<String>("other", &1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
}

#[tokio::test]
async fn a_failed_ask_keeps_its_code_as_the_agents_error() {
    let (ctx, _record) = testing::context().build();
    let agent = agent_fn(|ctx: Context, (): ()| async move {
        let answer = ctx.ask::<String>("other", &1).await?;
        Ok(answer.value)
    });
    let error = agent.reply(ctx, ()).await.unwrap_err();
    assert_eq!(error.error_type(), "UNREACHABLE");
}

#[test]
fn a_wrapped_error_keeps_its_causes() {
    let inner = std::io::Error::other("disk");
    let error = AgentError::from(std::io::Error::other(inner));
    assert_eq!(error.error_type(), "io::Error");
    assert!(AgentError::invalid_request("no").is_invalid_request());
}
