//! Steps of blocking code.
//!
//! Owns the same order as the async form; the work runs on the agent's own thread.

use std::fmt;

use super::{Asking, WITHIN, read};
use crate::agent::AgentError;
use crate::context::BlockingContext;
use crate::journal::{Effect, StepError, Usage};
use crate::payload::{FromPayload, IntoPayload};

type Work<'a, T> = Box<dyn FnOnce(&str) -> Result<T, AgentError> + 'a>;

/// A step that has not run; [`BlockingStep::run`] runs it. See [`BlockingContext::step`].
#[must_use = "a step runs when its run is called"]
pub struct BlockingStep<'a, T> {
    ctx: &'a BlockingContext,
    name: String,
    key: Option<String>,
    effect: Effect,
    check: Option<Work<'a, Option<T>>>,
    work: Work<'a, T>,
}

impl BlockingContext {
    /// Does a piece of work once; see [`crate::Context::step`]. The work runs on this thread.
    ///
    /// ```
    /// use worker_sdk::{AgentError, BlockingContext};
    ///
    /// # fn charge(cents: u64, key: &str) -> Result<u64, std::io::Error> { Ok(cents) }
    /// fn reply(ctx: BlockingContext, cents: u64) -> Result<u64, AgentError> {
    ///     let paid = ctx.step("charge", |key| Ok(charge(cents, key)?)).side_effect().run()?;
    ///     Ok(paid)
    /// }
    /// ```
    pub fn step<'a, T>(
        &'a self,
        name: impl Into<String>,
        work: impl FnOnce(&str) -> Result<T, AgentError> + 'a,
    ) -> BlockingStep<'a, T>
    where
        T: IntoPayload + FromPayload,
    {
        BlockingStep {
            ctx: self,
            name: name.into(),
            key: None,
            effect: Effect::Idempotent,
            check: None,
            work: Box::new(work),
        }
    }

    /// Records what a model call used; see [`crate::Context::usage`].
    ///
    /// # Errors
    /// As [`crate::Context::output`].
    pub fn usage(&self, usage: Usage) -> Result<(), crate::Error> {
        self.wait(self.ctx.usage(usage))?
    }
}

impl<'a, T> BlockingStep<'a, T>
where
    T: IntoPayload + FromPayload,
{
    /// See [`super::Step::key`].
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// See [`super::Step::read_only`].
    pub fn read_only(mut self) -> Self {
        self.effect = Effect::ReadOnly;
        self
    }

    /// See [`super::Step::side_effect`].
    pub fn side_effect(mut self) -> Self {
        self.effect = Effect::Once;
        self
    }

    /// See [`super::Step::verifiable`].
    pub fn verifiable(
        mut self,
        check: impl FnOnce(&str) -> Result<Option<T>, AgentError> + 'a,
    ) -> Self {
        self.effect = Effect::Verifiable;
        self.check = Some(Box::new(check));
        self
    }

    /// Runs it.
    ///
    /// # Errors
    /// As [`crate::Context::step`].
    pub fn run(self) -> Result<T, StepError> {
        let ctx = self.ctx;
        let asked = Asking::new(&ctx.ctx, &self.name, self.key.as_deref(), self.effect)?;
        let mut running = match asked {
            Asking::Recorded { id, outcome } => return read(&id, outcome),
            Asking::Run(running) => running,
        };
        let key = running.idempotency_key();
        if let Some(check) = self.check.filter(|_| running.check)
            && let Some(value) = WITHIN
                .sync_scope((), || check(&key))
                .map_err(StepError::Failed)?
        {
            return ctx.record(running.finish(Ok(value)));
        }
        ctx.record(running.begin())?;
        let result = WITHIN.sync_scope((), || (self.work)(&key));
        ctx.record(running.finish(result))
    }
}

impl BlockingContext {
    /// Waits for what a step writes.
    fn record<T>(
        &self,
        writing: impl Future<Output = Result<T, StepError>>,
    ) -> Result<T, StepError> {
        self.wait(writing).map_err(StepError::Journal)?
    }
}

impl<T> fmt::Debug for BlockingStep<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingStep")
            .field("name", &self.name)
            .field("key", &self.key)
            .field("effect", &self.effect)
            .finish_non_exhaustive()
    }
}
