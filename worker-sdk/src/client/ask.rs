//! One ask: its options, and the call.
//!
//! Owns the timeout rule of a caller: `options.timeout` is always sent, and the call's own gRPC
//! deadline comes a second later, so that the typed answer wins over the transport's.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::time::{Duration, Instant};

use harness_proto::v1;
use serde::Serialize;
use tonic::Request;

use super::{Harness, Many, RetryPolicy};
use crate::context::Trace;
use crate::error::{Error, ErrorKind};
use crate::payload::{FromPayload, Payload};
use crate::wire;

/// How long an ask may take unless it says otherwise.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// How much later than the run's the call's own deadline is.
const CALL_GRACE: Duration = Duration::from_secs(1);

/// An ask that has not been sent; `.await` sends it. Dropping the future hangs up, which cancels
/// the run.
///
/// `W` is the way it goes: [`Unary`] by a call of its own, [`Streamed`] by one that tells what
/// happens meanwhile, [`OfMany`] with others on one call. The options are the same for all.
///
/// ```no_run
/// use std::time::Duration;
/// use worker_sdk::client::RetryPolicy;
/// # async fn run(harness: worker_sdk::Harness) -> Result<(), worker_sdk::Error> {
/// let answer = harness
///     .ask::<String>("summarize", "a long text")
///     .timeout(Duration::from_secs(20))
///     .selector("gpu", "a100")
///     .priority(10)
///     .retry(RetryPolicy::attempts(3).attempt_timeout(Duration::from_secs(5)))
///     .await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "an ask is sent when it is awaited"]
pub struct Ask<R, W = Unary> {
    pub(super) way: W,
    pub(super) agent: String,
    request: Result<Payload, String>,
    timeout: Option<Duration>,
    deadline: Option<Instant>,
    options: v1::RunOptions,
    answer: PhantomData<fn() -> R>,
}

/// An ask goes by a call of its own.
#[derive(Debug)]
pub struct Unary(Option<Harness>);

/// An ask goes by a call of its own that tells what happens meanwhile; see [`Harness::ask_stream`].
#[derive(Debug)]
pub struct Streamed(pub(super) Harness);

/// An ask goes with others on one call; see [`Harness::ask_many`].
#[derive(Debug)]
pub struct OfMany(pub(super) Many);

/// What goes out.
pub(super) struct Prepared {
    pub(super) agent: String,
    pub(super) payload: v1::Payload,
    pub(super) options: v1::RunOptions,
    pub(super) timeout: Duration,
}

impl Prepared {
    /// How long the caller waits for the typed answer.
    pub(super) fn patience(&self) -> Duration {
        self.timeout.saturating_add(CALL_GRACE)
    }
}

/// What an agent answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Answer<T> {
    /// The run, a UUIDv7 in its 36 character form.
    pub run_id: String,
    /// The attempt that answered, numbered from 1.
    pub attempt: u32,
    /// The reply.
    pub value: T,
}

impl<R> Ask<R> {
    pub(crate) fn unary(
        harness: Option<Harness>,
        agent: String,
        request: Result<Payload, String>,
    ) -> Self {
        Self::new(Unary(harness), agent, request)
    }
}

impl<R, W> Ask<R, W> {
    pub(super) fn new(way: W, agent: String, request: Result<Payload, String>) -> Self {
        Self {
            way,
            agent,
            request,
            timeout: None,
            deadline: None,
            options: v1::RunOptions::default(),
            answer: PhantomData,
        }
    }

    /// How long the run may take, waiting for a slot included. Default 60 s, at most 24 h.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// A pair the agent can read; keys that start with `harness-` are refused. At most 64 keys
    /// and 8 KiB in all.
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.options.metadata.insert(key.into(), value.into());
        self
    }

    /// Only slots with this label take the run; may be given more than once.
    pub fn selector(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.options.selector.insert(key.into(), value.into());
        self
    }

    /// -100 to 100, default 0; higher goes first.
    pub fn priority(mut self, priority: i32) -> Self {
        self.options.priority = priority;
        self
    }

    /// Waits for a worker when nobody has offered the agent yet, instead of failing at once.
    pub fn wait_for_agent(mut self) -> Self {
        self.options.wait_for_agent = true;
        self
    }

    /// When a failed attempt is followed by another. Default: never.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.options.retry_policy = Some(policy.into_wire());
        self
    }

    /// How many attempts may be made in all, 1 to 16. Default 1. Short for a [`RetryPolicy`] of so
    /// many; what that says of waits stays.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.options
            .retry_policy
            .get_or_insert_default()
            .max_attempts = attempts;
        self
    }

    /// The namespace to ask in. Default `default`.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.options.namespace = namespace.into();
        self
    }

    /// A W3C trace context to hand to the agent, as its two header values.
    pub fn trace_context(
        self,
        traceparent: impl Into<String>,
        tracestate: impl Into<String>,
    ) -> Self {
        self.trace(Trace {
            traceparent: traceparent.into(),
            tracestate: tracestate.into(),
        })
    }

    pub(crate) fn trace(mut self, trace: Trace) -> Self {
        self.options.trace = (!trace.traceparent.is_empty()).then_some(v1::TraceContext {
            traceparent: trace.traceparent,
            tracestate: trace.tracestate,
        });
        self
    }

    /// The answer must come before this whatever the timeout.
    pub(crate) fn deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// The attempt that asks.
    pub(crate) fn parent(mut self, run_id: &str, attempt: u32) -> Self {
        self.options.parent = Some(v1::AttemptRef {
            run_id: run_id.to_owned(),
            attempt,
        });
        self
    }

    /// The way, and what goes out on it with no timeout but one that was asked for.
    pub(super) fn into_parts(self) -> Result<(W, String, v1::Payload, v1::RunOptions), Error> {
        let payload = self.request.map_err(not_encoded)?;
        let mut options = self.options;
        options.timeout = self
            .timeout
            .map(|timeout| wire::duration_out(timeout.min(wire::LONGEST)));
        Ok((self.way, self.agent, wire::payload_out(payload), options))
    }

    /// The way, and what goes out on it.
    pub(super) fn prepare(self) -> Result<(W, Prepared), Error> {
        let payload = self.request.map_err(not_encoded)?;
        // The clock is asked only where a deadline is to be kept.
        let left = self.deadline.map(|deadline| {
            deadline.saturating_duration_since(tokio::time::Instant::now().into_std())
        });
        let timeout = timeout(self.timeout, left);
        if timeout.is_zero() {
            return Err(Error::new(
                ErrorKind::DeadlineExceeded,
                "no time is left to ask",
            ));
        }
        let mut options = self.options;
        options.timeout = Some(wire::duration_out(timeout));
        let prepared = Prepared {
            agent: self.agent,
            payload: wire::payload_out(payload),
            options,
            timeout,
        };
        Ok((self.way, prepared))
    }
}

impl<R: FromPayload> Ask<R> {
    async fn send(self) -> Result<Answer<R>, Error> {
        let (Unary(harness), prepared) = self.prepare()?;
        let Some(harness) = harness else {
            return Err(Error::new(
                ErrorKind::Unreachable,
                "this context has no harness to ask",
            ));
        };
        let patience = prepared.patience();
        let agent = prepared.agent.clone();
        let mut request = Request::new(v1::AskRequest {
            agent: prepared.agent,
            payload: Some(prepared.payload),
            options: Some(prepared.options),
        });
        request.set_timeout(patience);
        let mut runs = harness.runs();
        // Pinned here: each layer of waiting would else make room for all of it once more.
        let mut answer = pin!(runs.ask(request));
        // The transport's own timer stops at the response headers; this one covers all of it.
        let call = tokio::time::timeout(patience, harness.called(answer.as_mut()));
        let answer = call
            .await
            .unwrap_or_else(|_| Err(harness.unanswered(patience)))?;
        read(&agent, answer.run_id, answer.attempt, answer.payload)
    }
}

fn not_encoded(why: String) -> Error {
    let message = format!("the request has no JSON form: {why}");
    Error::new(ErrorKind::Decode, message)
}

/// The answer, as the type asked for.
pub(super) fn read<R: FromPayload>(
    agent: &str,
    run_id: String,
    attempt: u32,
    payload: Option<v1::Payload>,
) -> Result<Answer<R>, Error> {
    match R::from_payload(wire::payload_in(payload.unwrap_or_default())) {
        Ok(value) => Ok(Answer {
            run_id,
            attempt,
            value,
        }),
        Err(why) => {
            let message = format!("the reply of {agent} is not of the type asked for: {why}");
            Err(Error::new(ErrorKind::Decode, message).with_run(&run_id, attempt))
        }
    }
}

/// The run's timeout: what was asked for, or the default, but never past the deadline.
fn timeout(asked: Option<Duration>, left: Option<Duration>) -> Duration {
    match (asked, left) {
        (Some(asked), Some(left)) => asked.min(left),
        (Some(asked), None) => asked.min(wire::LONGEST),
        (None, Some(left)) => left,
        (None, None) => DEFAULT_TIMEOUT,
    }
}

impl<R: FromPayload + 'static> IntoFuture for Ask<R> {
    type Output = Result<Answer<R>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

impl<R, W> fmt::Debug for Ask<R, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ask")
            .field("agent", &self.agent)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_never_goes_past_the_deadline() {
        let second = Duration::from_secs(1);
        for (asked, left, expected) in [
            (None, None, DEFAULT_TIMEOUT),
            (Some(second), None, second),
            (None, Some(second * 90), second * 90),
            (Some(second * 9), Some(second), second),
            (Some(second), Some(second * 9), second),
            (Some(second), Some(Duration::ZERO), Duration::ZERO),
            (Some(Duration::MAX), None, wire::LONGEST),
        ] {
            assert_eq!(timeout(asked, left), expected);
        }
    }
}
