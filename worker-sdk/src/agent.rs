//! What an agent is: a request goes in, a reply or an error comes out.
//!
//! Owns the [`Agent`] trait, its closure form and, in the modules below, agents that block and the
//! error they answer with. Does not know where requests come from: `reply` can be called in a
//! plain unit test (see [`crate::testing`]).

mod blocking;
mod error;
mod standard;

use std::future::Future;
use std::marker::PhantomData;

use crate::context::Context;
use crate::payload::{Describe, FromPayload, IntoPayload};

pub use blocking::{Blocking, BlockingAgent, BlockingFn, blocking, blocking_fn};
pub use error::AgentError;
pub(crate) use error::{ErrorCode, ErrorParts};

/// A named behaviour: one method that answers requests.
///
/// ```
/// use schemars::JsonSchema;
/// use serde::{Deserialize, Serialize};
/// use worker_sdk::{Agent, AgentError, Context};
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Greet {
///     name: String,
/// }
///
/// struct Greeter;
///
/// impl Agent for Greeter {
///     type Request = Greet;
///     type Reply = String;
///
///     async fn reply(&self, _ctx: Context, request: Greet) -> Result<String, AgentError> {
///         Ok(format!("hello, {}", request.name))
///     }
/// }
/// ```
///
/// # Cancellation
/// When the run's deadline passes or its caller hangs up, the future is dropped at its next
/// `.await`. Code that never awaits belongs in a [`BlockingAgent`]. What goes on after the future
/// is dropped, such as a child process, holds the slot with [`Context::hold`].
///
/// # Size
/// A reply larger than the harness takes (4 MiB minus 64 KiB unless configured otherwise) fails its
/// run with PAYLOAD_TOO_LARGE, which names both sizes and is never retried; the slot comes back
/// with the next call. Send much in pieces, with [`Context::output`].
///
/// # Panics
/// A panic in `reply` is caught and answered as an agent error of type `panic`.
pub trait Agent: Send + Sync + 'static {
    /// What is asked: a type with `Deserialize` and `JsonSchema`, or [`crate::Payload`] raw.
    type Request: FromPayload + Describe + Send + 'static;

    /// What is answered: a type with `Serialize` and `JsonSchema`, or [`crate::Payload`] raw.
    type Reply: IntoPayload + Describe + Send + 'static;

    /// Answers one request.
    ///
    /// # Errors
    /// Whatever the caller should get as the agent's error; `?` works on every standard error.
    fn reply(
        &self,
        ctx: Context,
        request: Self::Request,
    ) -> impl Future<Output = Result<Self::Reply, AgentError>> + Send;
}

/// An agent made of an async closure or function; see [`agent_fn`].
pub struct AgentFn<F, Q, P> {
    function: F,
    types: PhantomData<fn(Q) -> P>,
}

/// Makes an agent of an async closure or function.
///
/// ```
/// use worker_sdk::{Payload, agent_fn};
///
/// // Typed: the schemas are derived from the types.
/// let double = agent_fn(|_ctx, number: i64| async move { Ok(number * 2) });
/// // Raw: any bytes of any media type, no schema.
/// let echo = agent_fn(|_ctx, request: Payload| async move { Ok(request) });
/// ```
pub fn agent_fn<F, Fut, Q, P>(function: F) -> AgentFn<F, Q, P>
where
    F: Fn(Context, Q) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<P, AgentError>> + Send,
    Q: FromPayload + Describe + Send + 'static,
    P: IntoPayload + Describe + Send + 'static,
{
    AgentFn {
        function,
        types: PhantomData,
    }
}

impl<F, Fut, Q, P> Agent for AgentFn<F, Q, P>
where
    F: Fn(Context, Q) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<P, AgentError>> + Send,
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
        (self.function)(ctx, request)
    }
}
