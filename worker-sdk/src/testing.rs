//! Running an agent with no harness.
//!
//! Owns a context whose deadline, metadata and cancellation the test sets, and a record of what
//! the agent wrote. Checks no schema and keeps no window: those are the harness's and the call's.
//!
//! ```
//! use worker_sdk::{Agent, AgentError, Context, agent_fn, testing};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let agent = agent_fn(|ctx: Context, text: String| async move {
//!     ctx.progress(0.5, "half").await?;
//!     Ok(text.to_uppercase())
//! });
//!
//! // The short way.
//! assert_eq!(testing::run(&agent, "hello".to_owned()).await.unwrap(), "HELLO");
//!
//! // With a context to set up and look into.
//! let (ctx, record) = testing::context().metadata("tenant", "a").build();
//! agent.reply(ctx, "hello".to_owned()).await.unwrap();
//! assert_eq!(record.progress(), [(0.5, "half".to_owned())]);
//! # });
//! ```

use std::collections::HashMap;
use std::time::Duration;

use crate::agent::{Agent, AgentError};
use crate::client::Harness;
use crate::context::{
    Caller, CancelReason, Context, Facts, LogLevel, Recording, Sink, Trace, deadline_in,
};
use crate::payload::Payload;
use crate::session::Entry;

/// Runs one request with a context of all defaults, and stops it at the deadline of 60 s as a
/// harness would.
///
/// # Errors
/// What the agent answers, or an error of type `DEADLINE_EXCEEDED`.
pub async fn run<A: Agent>(agent: &A, request: A::Request) -> Result<A::Reply, AgentError> {
    let (ctx, record) = context().build();
    let time_left = ctx.time_left();
    match tokio::time::timeout(time_left, agent.reply(ctx, request)).await {
        Ok(result) => result,
        Err(_) => {
            record.cancel(CancelReason::DeadlineExceeded);
            Err(AgentError::new(
                "DEADLINE_EXCEEDED",
                "the agent did not reply before its deadline",
            ))
        }
    }
}

/// A context to set up; every setting has a default.
pub fn context() -> ContextBuilder {
    ContextBuilder {
        timeout: Duration::from_secs(60),
        facts: Facts {
            run_id: "00000000-0000-7000-8000-000000000000".to_owned(),
            attempt: 1,
            deadline: tokio::time::Instant::now().into_std(),
            durable: false,
            metadata: HashMap::new(),
            caller: Caller {
                subject: "anonymous".to_owned(),
                namespace: "default".to_owned(),
            },
            depth: 0,
            trace: Trace::default(),
            idempotency_key: String::new(),
        },
        harness: None,
    }
}

/// A context being set up; see [`context`].
#[derive(Debug)]
#[must_use = "a context is made by build"]
pub struct ContextBuilder {
    timeout: Duration,
    facts: Facts,
    harness: Option<Harness>,
}

impl ContextBuilder {
    /// What is left until the deadline when the context is built. Default 60 s. Nothing stops the
    /// agent then unless the test does.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// A pair of the caller's metadata.
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.facts.metadata.insert(key.into(), value.into());
        self
    }

    /// The run's id. Default all zeros but for the version.
    pub fn run_id(mut self, run_id: impl Into<String>) -> Self {
        self.facts.run_id = run_id.into();
        self
    }

    /// The attempt. Default 1.
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.facts.attempt = attempt;
        self
    }

    /// Who asked. Default `anonymous`.
    pub fn caller(mut self, subject: impl Into<String>) -> Self {
        self.facts.caller.subject = subject.into();
        self
    }

    /// The harness that [`Context::ask`] asks. Without one, asking fails with `Unreachable`.
    pub fn harness(mut self, harness: Harness) -> Self {
        self.harness = Some(harness);
        self
    }

    /// The context, and the test's view of what the agent does with it.
    pub fn build(self) -> (Context, Record) {
        let mut facts = self.facts;
        facts.deadline = deadline_in(tokio::time::Instant::now().into_std(), self.timeout);
        let recording = Recording::default();
        let ctx = Context::new(facts, Sink::Recording(recording.clone()), self.harness);
        let record = Record {
            recording,
            ctx: ctx.clone(),
        };
        (ctx, record)
    }
}

/// What an agent under test wrote, and the hand on its cancellation.
#[derive(Debug, Clone)]
pub struct Record {
    recording: Recording,
    ctx: Context,
}

impl Record {
    /// The pieces of output, in order.
    pub fn outputs(&self) -> Vec<Payload> {
        let output = |entry| match entry {
            Entry::Output(payload) => Some(payload),
            Entry::Progress { .. } | Entry::Log { .. } => None,
        };
        self.recording
            .entries()
            .into_iter()
            .filter_map(output)
            .collect()
    }

    /// The progress said, in order.
    pub fn progress(&self) -> Vec<(f64, String)> {
        let progress = |entry| match entry {
            Entry::Progress { fraction, message } => Some((fraction, message)),
            Entry::Output(_) | Entry::Log { .. } => None,
        };
        self.recording
            .entries()
            .into_iter()
            .filter_map(progress)
            .collect()
    }

    /// The log lines, in order.
    pub fn logs(&self) -> Vec<(LogLevel, String)> {
        let log = |entry| match entry {
            Entry::Log { level, message } => Some((level, message)),
            Entry::Output(_) | Entry::Progress { .. } => None,
        };
        self.recording
            .entries()
            .into_iter()
            .filter_map(log)
            .collect()
    }

    /// Tells the work to stop. A harness would also drop the agent's future; a test does that
    /// itself, by dropping it.
    pub fn cancel(&self, reason: CancelReason) {
        self.ctx.stop(reason);
    }

    /// Waits until nothing holds the slot any more; see [`Context::hold`].
    pub async fn released(&self) {
        self.ctx.unheld().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_test_may_leave_an_agent_all_the_time_there_is() {
        let (ctx, _) = context().timeout(Duration::MAX).build();
        assert!(ctx.time_left() > Duration::from_secs(86_400 * 365));
    }
}
