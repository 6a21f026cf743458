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

mod watched;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::agent::{Agent, AgentError};
use crate::client::Harness;
use crate::context::{CancelReason, Context, Facts, LogLevel, Sink, alone, deadline_in};
use crate::journal::{Entry, Journal, Memory, Step};
use crate::payload::Payload;
use watched::Watched;

/// Runs one request with a context of all defaults, and stops it at the deadline of 60 s as a
/// harness would.
///
/// # Errors
/// What the agent answers, or an error of type `DEADLINE_EXCEEDED`.
pub async fn run<A: Agent>(agent: &A, request: A::Request) -> Result<A::Reply, AgentError> {
    let (ctx, _) = context().build();
    alone::run(agent, ctx, request).await
}

/// A context to set up; every setting has a default.
pub fn context() -> ContextBuilder {
    let timeout = Duration::from_secs(60);
    let run_id = "00000000-0000-7000-8000-000000000000".to_owned();
    ContextBuilder {
        timeout,
        facts: alone::facts(run_id, 1, timeout),
        harness: None,
        journal: Arc::new(Memory::new()),
        crash_at: usize::MAX,
    }
}

/// A context being set up; see [`context`].
#[must_use = "a context is made by build"]
pub struct ContextBuilder {
    timeout: Duration,
    facts: Facts,
    harness: Option<Harness>,
    journal: Arc<dyn Journal>,
    crash_at: usize,
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

    /// The most bytes an entry may have; a larger one is refused with `PayloadTooLarge`. Default
    /// 1 MiB, as a harness unless configured otherwise.
    pub fn entry_bytes_max(mut self, bytes: u64) -> Self {
        self.facts.entry_bytes_max = bytes;
        self
    }

    /// The harness that [`Context::ask`] asks. Without one, asking fails with `Unreachable`.
    pub fn harness(mut self, harness: Harness) -> Self {
        self.harness = Some(harness);
        self
    }

    /// The journal the agent writes to, and from which its steps get what is recorded. Default an
    /// empty [`Memory`].
    pub fn journal(mut self, journal: impl Journal) -> Self {
        self.journal = Arc::new(journal);
        self
    }

    /// Crashes this attempt at its n-th write to the journal, counted from 1: that write and all
    /// later ones are not made and never return. See [`Record::crashed`].
    pub fn crash_at(mut self, write: usize) -> Self {
        self.crash_at = write;
        self
    }

    /// The context, and the test's view of what the agent does with it.
    pub fn build(self) -> (Context, Record) {
        let mut facts = self.facts;
        facts.deadline = deadline_in(tokio::time::Instant::now().into_std(), self.timeout);
        let watched = Watched::new(self.journal, self.crash_at, facts.entry_bytes_max);
        let sink = Sink::Journal(Arc::clone(&watched) as Arc<dyn Journal>);
        let ctx = Context::new(facts, sink, self.harness);
        let record = Record {
            watched,
            ctx: ctx.clone(),
        };
        (ctx, record)
    }
}

impl fmt::Debug for ContextBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextBuilder")
            .field("timeout", &self.timeout)
            .field("facts", &self.facts)
            .field("crash_at", &self.crash_at)
            .finish_non_exhaustive()
    }
}

/// What an agent under test wrote, and the hand on its cancellation.
#[derive(Debug, Clone)]
pub struct Record {
    watched: Arc<Watched>,
    ctx: Context,
}

impl Record {
    /// The pieces of output, in order.
    pub fn outputs(&self) -> Vec<Payload> {
        self.written(|entry| match entry {
            Entry::Output(payload) => Some(payload),
            _ => None,
        })
    }

    /// The progress said, in order.
    pub fn progress(&self) -> Vec<(f64, String)> {
        self.written(|entry| match entry {
            Entry::Progress { fraction, message } => Some((fraction, message)),
            _ => None,
        })
    }

    /// The log lines, in order.
    pub fn logs(&self) -> Vec<(LogLevel, String)> {
        self.written(|entry| match entry {
            Entry::Log { level, message } => Some((level, message)),
            _ => None,
        })
    }

    /// The steps this attempt recorded, in order: begins and results.
    pub fn steps(&self) -> Vec<Step> {
        self.written(|entry| match entry {
            Entry::Step(step) => Some(*step),
            _ => None,
        })
    }

    fn written<T>(&self, of: impl Fn(Entry) -> Option<T>) -> Vec<T> {
        self.watched.written().into_iter().filter_map(of).collect()
    }

    /// Waits until the agent has come to the write it crashes at; see [`ContextBuilder::crash_at`].
    /// Whoever tests a crash drops the agent's future then.
    ///
    /// ```
    /// use worker_sdk::journal::Memory;
    /// use worker_sdk::{Agent, Context, agent_fn, testing};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let agent = agent_fn(|ctx: Context, cents: u64| async move {
    ///     Ok(ctx.step("charge", |_| async move { Ok(cents) }).side_effect().await?)
    /// });
    /// let journal = Memory::new();
    /// // The second write is the result of the step.
    /// let (ctx, record) = testing::context().journal(journal.clone()).crash_at(2).build();
    /// tokio::select! {
    ///     _ = agent.reply(ctx, 7) => unreachable!("it crashes"),
    ///     () = record.crashed() => {}
    /// }
    /// let (ctx, _) = testing::context().attempt(2).journal(journal).build();
    /// let error = agent.reply(ctx, 7).await.unwrap_err();
    /// assert_eq!(error.error_type(), "OutcomeUnknown");
    /// # });
    /// ```
    pub async fn crashed(&self) {
        self.watched.crashed().await;
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
