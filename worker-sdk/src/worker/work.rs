//! One request in an agent's hands.
//!
//! Owns the task the agent's future runs on, apart from the call's, so that the call is read
//! whatever the agent does; its stopping; and the wait for everything that holds the slot.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinError;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tracing::{Instrument as _, info_span};

use crate::agent::{Agent, AgentError};
use crate::client::Harness;
use crate::context::{Append, Call, Cancel, CancelReason, Context, Facts, Sink};
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
    cancel: Cancel,
    holds: TaskTracker,
    appends: mpsc::Receiver<Box<Append>>,
}

/// The agent's future.
enum Running {
    Task(AbortOnDropHandle<Reply>),
    /// It has answered; something may still hold the slot.
    Answered(Reply),
    Done,
}

/// What an agent does.
pub(super) enum Step {
    Append(Box<Append>),
    Done(Reply),
}

impl Work {
    pub(super) fn start(
        agent: Arc<dyn Serve>,
        facts: Facts,
        payload: Payload,
        recorded: Vec<Recorded>,
        harness: Harness,
    ) -> Self {
        let (sender, appends) = mpsc::channel(1);
        let (cancel, holds) = (Cancel::default(), TaskTracker::new());
        let span = info_span!("run", run_id = facts.run_id, attempt = facts.attempt);
        let sink = Sink::Call(Call {
            appends: sender,
            recorded,
        });
        let ctx = Context::new(facts, cancel.clone(), sink, holds.clone(), Some(harness));
        let task = tokio::spawn(agent.serve(ctx, payload).instrument(span));
        Self {
            agent: Running::Task(AbortOnDropHandle::new(task)),
            cancel,
            holds,
            appends,
        }
    }

    /// What the agent does next: its entries first, as long as there is room for them, then its
    /// answer. Can be dropped and called again.
    pub(super) async fn next_step(&mut self, takes_appends: bool) -> Step {
        let finished = finished(&mut self.agent, &self.holds);
        tokio::select! {
            biased;
            Some(append) = self.appends.recv(), if takes_appends => Step::Append(append),
            reply = finished => Step::Done(reply),
        }
    }

    /// Drops the agent's future and waits until nothing holds the slot.
    pub(super) async fn stop(mut self, reason: CancelReason) {
        self.cancel.set(reason);
        // An agent that waits for room gets its error now.
        self.appends.close();
        drop(self.appends);
        if let Running::Task(task) = self.agent {
            task.abort();
            // How it ended matters to nobody any more, only that it has.
            drop(task.await);
        }
        self.holds.close();
        self.holds.wait().await;
    }
}

/// Waits until the agent has answered and nothing holds the slot.
async fn finished(agent: &mut Running, holds: &TaskTracker) -> Reply {
    if let Running::Task(task) = agent {
        *agent = Running::Answered(match task.await {
            Ok(reply) => reply,
            Err(error) => fallen(error).into(),
        });
    }
    holds.close();
    holds.wait().await;
    match std::mem::replace(agent, Running::Done) {
        Running::Answered(reply) => reply,
        Running::Task(_) | Running::Done => std::future::pending().await,
    }
}

fn fallen(error: JoinError) -> AgentError {
    match error.try_into_panic() {
        Ok(panic) => AgentError::new("panic", panic_text(panic.as_ref())),
        Err(_) => AgentError::new("panic", "the agent's task was aborted"),
    }
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
