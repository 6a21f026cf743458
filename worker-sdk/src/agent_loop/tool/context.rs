//! What a tool is given beside its arguments.

use std::time::Duration;

use crate::context::Context;

/// What a tool is given beside its arguments.
#[derive(Debug, Clone)]
pub struct ToolContext {
    ctx: Context,
    call_id: String,
    idempotency_key: String,
    attempt: u32,
}

impl ToolContext {
    pub(crate) fn new(ctx: Context, call_id: &str, idempotency_key: String, attempt: u32) -> Self {
        Self {
            ctx,
            call_id: call_id.to_owned(),
            idempotency_key,
            attempt,
        }
    }

    /// The run.
    pub fn run_id(&self) -> &str {
        self.ctx.run_id()
    }

    /// The call this is the work of.
    pub fn call_id(&self) -> &str {
        &self.call_id
    }

    /// The same for every try of this call, on whichever worker: give it to the service the tool
    /// calls.
    pub fn idempotency_key(&self) -> &str {
        &self.idempotency_key
    }

    /// Which try of the tool this is, from 1 in each attempt of the run.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// What is left until the run's deadline, or the attempt's timeout if that is sooner.
    pub fn time_left(&self) -> Duration {
        self.ctx.time_left()
    }

    /// Whether the work is to stop. An async tool is dropped at its next `.await` then; what it
    /// started elsewhere looks at this.
    pub fn is_cancelled(&self) -> bool {
        self.ctx.is_cancelled()
    }

    /// Waits until the work is to stop.
    pub async fn cancelled(&self) {
        self.ctx.cancelled().await;
    }

    /// The context of the run: for output, progress, log lines and asking other agents. The tool is
    /// a step itself, so a [`Context::step`] in it needs a key, such as [`ToolContext::call_id`].
    pub fn run(&self) -> &Context {
        &self.ctx
    }
}
