//! Agents that block their thread.
//!
//! Owns the adapter that runs each request of such an agent on a thread of its own and keeps the
//! slot away, through [`Context::hold`], until that thread has returned. A thread cannot be
//! stopped from outside: blocking code looks at [`BlockingContext::is_cancelled`] itself.

use std::any::Any;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::{Agent, AgentError};
use crate::context::{BlockingContext, Context};
use crate::payload::{Describe, FromPayload, IntoPayload};

/// An agent whose `reply` is ordinary, blocking code.
///
/// Each request gets a thread of its own. When a run is cancelled the thread is told and the slot
/// stays away from the harness until the thread has returned, so that capacity is never counted
/// twice.
///
/// ```
/// use worker_sdk::{AgentError, BlockingAgent, BlockingContext, Worker, blocking};
///
/// struct Sum;
///
/// impl BlockingAgent for Sum {
///     type Request = Vec<u64>;
///     type Reply = u64;
///
///     fn reply(&self, ctx: BlockingContext, numbers: Vec<u64>) -> Result<u64, AgentError> {
///         let mut sum = 0;
///         for number in numbers {
///             if ctx.is_cancelled() {
///                 return Err(AgentError::new("stopped", "the run was cancelled"));
///             }
///             sum += number;
///         }
///         Ok(sum)
///     }
/// }
///
/// let worker = Worker::builder(blocking(Sum)).name("sum");
/// ```
pub trait BlockingAgent: Send + Sync + 'static {
    /// What is asked; see [`Agent::Request`].
    type Request: FromPayload + Describe + Send + 'static;

    /// What is answered; see [`Agent::Reply`].
    type Reply: IntoPayload + Describe + Send + 'static;

    /// Answers one request, on a thread of its own.
    ///
    /// # Errors
    /// Whatever the caller should get as the agent's error.
    fn reply(
        &self,
        ctx: BlockingContext,
        request: Self::Request,
    ) -> Result<Self::Reply, AgentError>;
}

/// A [`BlockingAgent`] as an [`Agent`]; see [`blocking`].
pub struct Blocking<B> {
    agent: Arc<B>,
}

/// Makes a blocking agent an [`Agent`], for [`crate::Worker::builder`].
pub fn blocking<B: BlockingAgent>(agent: B) -> Blocking<B> {
    Blocking {
        agent: Arc::new(agent),
    }
}

impl<B: BlockingAgent> Agent for Blocking<B> {
    type Request = B::Request;
    type Reply = B::Reply;

    fn reply(
        &self,
        ctx: Context,
        request: B::Request,
    ) -> impl Future<Output = Result<B::Reply, AgentError>> + Send {
        let agent = Arc::clone(&self.agent);
        on_own_thread(ctx, move |ctx| agent.reply(ctx, request))
    }
}

/// A blocking agent made of a closure or function; see [`blocking_fn`].
pub struct BlockingFn<F, Q, P> {
    function: Arc<F>,
    types: PhantomData<fn(Q) -> P>,
}

/// Makes an agent of a blocking closure or function.
///
/// ```
/// use worker_sdk::blocking_fn;
///
/// let agent = blocking_fn(|_ctx, text: String| Ok(text.to_uppercase()));
/// ```
pub fn blocking_fn<F, Q, P>(function: F) -> BlockingFn<F, Q, P>
where
    F: Fn(BlockingContext, Q) -> Result<P, AgentError> + Send + Sync + 'static,
    Q: FromPayload + Describe + Send + 'static,
    P: IntoPayload + Describe + Send + 'static,
{
    BlockingFn {
        function: Arc::new(function),
        types: PhantomData,
    }
}

impl<F, Q, P> Agent for BlockingFn<F, Q, P>
where
    F: Fn(BlockingContext, Q) -> Result<P, AgentError> + Send + Sync + 'static,
    Q: FromPayload + Describe + Send + 'static,
    P: IntoPayload + Describe + Send + 'static,
{
    type Request = Q;
    type Reply = P;

    fn reply(
        &self,
        ctx: Context,
        request: Q,
    ) -> impl Future<Output = Result<P, AgentError>> + Send {
        let function = Arc::clone(&self.function);
        on_own_thread(ctx, move |ctx| function(ctx, request))
    }
}

type Outcome<P> = Result<Result<P, AgentError>, Box<dyn Any + Send>>;

/// Runs `work` on a new thread that holds the slot, and gives what it returned. A panic of the
/// thread goes on in the future that waits for it.
async fn on_own_thread<P: Send + 'static>(
    ctx: Context,
    work: impl FnOnce(BlockingContext) -> Result<P, AgentError> + Send + 'static,
) -> Result<P, AgentError> {
    let (done, outcome) = oneshot::channel::<Outcome<P>>();
    let hold = ctx.hold();
    let runtime = Handle::current();
    thread::Builder::new()
        .name(format!("agent {}", ctx.run_id()))
        .spawn(move || {
            let ctx = BlockingContext::new(ctx, runtime);
            let result = catch_unwind(AssertUnwindSafe(|| work(ctx)));
            drop(hold);
            // Nobody waits when the run was cancelled meanwhile.
            let _ = done.send(result);
        })?;
    match outcome.await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => resume_unwind(panic),
        Err(_) => Err(AgentError::new(
            "thread",
            "the agent's thread ended without a result",
        )),
    }
}
