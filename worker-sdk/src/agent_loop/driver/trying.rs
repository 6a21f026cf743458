//! Running one tool: its tries, its timeout, its panics.
//!
//! Owns the work of the step `tool/<name>`. A tool that failed is tried again here and never by
//! calling the model again, and only where running it twice does no harm or nothing had happened.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use serde_json::Value;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::Run;
use crate::agent::AgentError;
use crate::agent_loop::excerpt::head;
use crate::agent_loop::record::{ERROR_BYTES_MAX, ToolRecord, ToolStatus};
use crate::agent_loop::telemetry;
use crate::agent_loop::tool::{Tool, ToolContext, ToolError, ToolFailure};
use crate::agent_loop::toolbox::Entry;
use crate::retry::Backoff;

/// The first wait before a tool is tried again, and what the doubling ends at.
pub(super) const WAITS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// How one try ended.
enum Tried {
    Done(String),
    Failed(ToolError),
    TimedOut,
    Panicked,
}

impl Run<'_> {
    /// Runs a tool until it has a result or will not. The last failure is the result.
    pub(super) async fn tool_work(
        &self,
        entry: &Entry,
        call_id: &str,
        arguments: &Value,
        idempotency_key: String,
    ) -> Result<ToolRecord, AgentError> {
        let tool = &entry.tool;
        let logged = self.parts.redactor.arguments(arguments);
        let mut backoff = Backoff::full_jitter(WAITS.0, WAITS.1);
        let mut tries = 0;
        loop {
            tries += 1;
            telemetry::tool_dispatch(&tool.name, call_id, &logged, tries);
            let begin = Instant::now();
            let ctx = ToolContext::new(self.ctx.clone(), call_id, idempotency_key.clone(), tries);
            let span = telemetry::execute_tool(&self.span, &tool.name, call_id);
            let tried = try_once(tool, ctx, arguments.clone())
                .instrument(span)
                .await;
            telemetry::tool_result(&tool.name, call_id, begin.elapsed(), status(&tried).name());
            let least = retry_after(&tried);
            let wait = backoff.next_wait(least);
            let may_again = may_run_again(tool, &tried) && tries <= tool.max_retries;
            let is_too_long = least.is_some_and(|least| least > ToolError::RETRY_AFTER_MAX);
            if !may_again || is_too_long || wait >= self.ctx.time_left() {
                return Ok(self.record(tool, tried, tries));
            }
            tokio::time::sleep(wait).await;
        }
    }

    fn record(&self, tool: &Tool, tried: Tried, tries: u32) -> ToolRecord {
        match tried {
            Tried::Done(text) => ToolRecord::new(ToolStatus::Ok, text, tries),
            Tried::Failed(error) => self.failed(error, tries),
            Tried::TimedOut => {
                let unknown = if tool.may_run_again() {
                    ""
                } else {
                    " Whether it had its effect is unknown."
                };
                let text = format!("Timed out after {:?}.{unknown}", tool.timeout);
                ToolRecord::new(ToolStatus::Timeout, text, tries)
            }
            Tried::Panicked => {
                let text = "The tool broke down.".to_owned();
                let mut record = ToolRecord::new(ToolStatus::Error, text, tries);
                record.operator = Some(format!("the tool {} panicked", tool.name));
                record
            }
        }
    }

    fn failed(&self, error: ToolError, tries: u32) -> ToolRecord {
        let is_fatal = match error.failure {
            ToolFailure::Fatal => true,
            ToolFailure::Unauthorized => self.parts.unauthorized_is_fatal,
            ToolFailure::MayPass | ToolFailure::BeforeEffect | ToolFailure::Permanent => false,
        };
        let status = if is_fatal {
            ToolStatus::Fatal
        } else {
            ToolStatus::Error
        };
        let text = self.parts.redactor.text(&error.text);
        let mut record = ToolRecord::new(status, head(&text, ERROR_BYTES_MAX).to_owned(), tries);
        record.operator = error
            .operator
            .map(|operator| self.parts.redactor.text(&operator).into_owned());
        record
    }
}

async fn try_once(tool: &Tool, ctx: ToolContext, arguments: Value) -> Tried {
    // A panic on the way to the future counts as one in it.
    let work = AssertUnwindSafe(async { tool.function.run(ctx, arguments).await }).catch_unwind();
    match tokio::time::timeout(tool.timeout, work).await {
        Ok(Ok(Ok(text))) => Tried::Done(text),
        Ok(Ok(Err(error))) => Tried::Failed(error),
        Ok(Err(_)) => Tried::Panicked,
        Err(_) => Tried::TimedOut,
    }
}

fn may_run_again(tool: &Tool, tried: &Tried) -> bool {
    match tried {
        Tried::Done(_) | Tried::Panicked => false,
        Tried::TimedOut => tool.may_run_again(),
        Tried::Failed(error) => match error.failure {
            ToolFailure::BeforeEffect => true,
            ToolFailure::MayPass => tool.may_run_again(),
            ToolFailure::Permanent | ToolFailure::Unauthorized | ToolFailure::Fatal => false,
        },
    }
}

fn retry_after(tried: &Tried) -> Option<Duration> {
    match tried {
        Tried::Failed(error) => error.retry_after,
        Tried::Done(_) | Tried::TimedOut | Tried::Panicked => None,
    }
}

fn status(tried: &Tried) -> ToolStatus {
    match tried {
        Tried::Done(_) => ToolStatus::Ok,
        Tried::Failed(_) | Tried::Panicked => ToolStatus::Error,
        Tried::TimedOut => ToolStatus::Timeout,
    }
}
