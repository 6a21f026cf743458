//! One request in an agent's hands.
//!
//! Owns where the agent's future runs, apart from the call where there are threads for it, so that
//! the call is read whatever the agent does; its stopping; and the wait for everything that holds
//! the slot.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;
use tracing::instrument::Instrumented;
use tracing::{Instrument as _, info_span};

use crate::agent::{Agent, AgentError};
use crate::client::Harness;
use crate::context::{Append, CancelReason, Context, Facts, Sink};
use crate::journal::Recorded;
use crate::payload::{FromPayload as _, IntoPayload as _, Payload};
use crate::session::Reply;

type ServeFuture = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// An agent whose types are forgotten: payload in, reply out.
pub(super) trait Serve: Send + Sync {
    fn serve(self: Arc<Self>, ctx: Context, payload: Payload) -> ServeFuture;
}

struct Typed<A>(A);

pub(super) fn erase<A: Agent>(agent: A) -> Arc<dyn Serve> {
    Arc::new(Typed(agent))
}

impl<A: Agent> Serve for Typed<A> {
    fn serve(self: Arc<Self>, ctx: Context, payload: Payload) -> ServeFuture {
        Box::pin(async move {
            let request = match A::Request::from_payload(payload) {
                Ok(request) => request,
                Err(why) => return AgentError::invalid_request(why).into(),
            };
            match self.0.reply(ctx, request).await {
                Ok(reply) => match reply.into_payload() {
                    Ok(payload) => Reply::Value(payload),
                    Err(why) => {
                        let message = format!("the reply has no JSON form: {why}");
                        AgentError::new("InvalidReply", message).into()
                    }
                },
                Err(error) => error.into(),
            }
        })
    }
}

/// A request being worked on. Dropping it drops the agent's future.
pub(super) struct Work {
    agent: Running,
    ctx: Context,
}

/// The agent's future.
enum Running {
    /// On a task of its own.
    Apart(AbortOnDropHandle<Reply>),
    /// On the call's.
    Here(Instrumented<ServeFuture>),
    /// It has answered; something may still hold the slot.
    Answered(Reply),
    Done,
}

/// What an agent does.
pub(super) enum Step {
    Append(Append),
    Done(Reply),
}

impl Work {
    /// Starts the agent. On a runtime of one thread a task of its own would keep nothing apart that
    /// is not apart already, and cost a tenth of what a short request takes.
    pub(super) fn start(
        agent: Arc<dyn Serve>,
        facts: Facts,
        payload: Payload,
        recorded: Vec<Recorded>,
        harness: Harness,
    ) -> Self {
        let span = info_span!("run", run_id = facts.run_id, attempt = facts.attempt);
        let ctx = Context::new(facts, Sink::call(recorded), Some(harness));
        let future = agent.serve(ctx.clone(), payload).instrument(span);
        let agent = match Handle::current().runtime_flavor() {
            RuntimeFlavor::CurrentThread => Running::Here(future),
            _ => Running::Apart(AbortOnDropHandle::new(tokio::spawn(future))),
        };
        Self { agent, ctx }
    }

    /// What the agent does next: its entries first, as long as there is room for them, then its
    /// answer. Can be dropped and called again.
    pub(super) async fn next_step(&mut self, takes_appends: bool) -> Step {
        let finished = self.agent.finished(&self.ctx);
        tokio::select! {
            biased;
            append = self.ctx.sink().next(), if takes_appends => Step::Append(append),
            reply = finished => Step::Done(reply),
        }
    }

    /// Drops the agent's future and waits until nothing holds the slot.
    pub(super) async fn stop(&mut self, reason: CancelReason) {
        self.ctx.stop(reason);
        // An agent that waits for room gets its error now.
        self.ctx.sink().close();
        // How it ended matters to nobody any more, only that it has.
        match std::mem::replace(&mut self.agent, Running::Done) {
            Running::Apart(task) => {
                task.abort();
                drop(task.await);
            }
            Running::Here(future) => {
                drop(catch_unwind(AssertUnwindSafe(|| drop(future))));
            }
            Running::Answered(_) | Running::Done => {}
        }
        self.ctx.unheld().await;
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // What still has the context writes to nobody.
        self.ctx.sink().close();
    }
}

impl Running {
    /// Waits until the agent has answered and nothing holds the slot.
    async fn finished(&mut self, ctx: &Context) -> Reply {
        let answered = match self {
            Self::Apart(task) => Some(task.await.unwrap_or_else(|error| fallen(error).into())),
            Self::Here(future) => Some(poll_fn(|cx| poll_caught(future, cx)).await),
            Self::Answered(_) | Self::Done => None,
        };
        if let Some(reply) = answered {
            *self = Self::Answered(reply);
        }
        ctx.unheld().await;
        match std::mem::replace(self, Self::Done) {
            Self::Answered(reply) => reply,
            Self::Apart(_) | Self::Here(_) | Self::Done => std::future::pending().await,
        }
    }
}

/// Polls an agent's future as a task would: its panic is its answer.
fn poll_caught(future: &mut Instrumented<ServeFuture>, cx: &mut task::Context<'_>) -> Poll<Reply> {
    let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(future).poll(cx)));
    polled.unwrap_or_else(|panic| Poll::Ready(panicked(panic.as_ref()).into()))
}

fn fallen(error: JoinError) -> AgentError {
    match error.try_into_panic() {
        Ok(panic) => panicked(panic.as_ref()),
        Err(_) => AgentError::new("panic", "the agent's task was aborted"),
    }
}

fn panicked(panic: &(dyn Any + Send)) -> AgentError {
    AgentError::new("panic", panic_text(panic))
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        return (*text).to_owned();
    }
    match panic.downcast_ref::<String>() {
        Some(text) => text.clone(),
        None => "the agent panicked".to_owned(),
    }
}
