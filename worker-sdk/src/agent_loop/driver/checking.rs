//! Asking a verifiable tool whether a call of it ran, when the attempt that began it has died.
//!
//! Owns the tries of its check, and what is told of one that fails. Asking changes nothing, so it is
//! asked again; when it cannot be asked at all, nobody knows, and the tool is not run.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use serde_json::Value;
use tokio::time::Instant;

use super::Run;
use super::known::UNKNOWN;
use super::trying::WAITS;
use crate::agent::AgentError;
use crate::agent_loop::excerpt::head;
use crate::agent_loop::record::{ERROR_BYTES_MAX, ToolRecord, ToolStatus};
use crate::agent_loop::telemetry;
use crate::agent_loop::tool::{Tool, ToolContext, ToolError};
use crate::agent_loop::toolbox::Entry;
use crate::retry::Backoff;

impl Run<'_> {
    /// The result of a call that ran, one that says that nobody knows, or None: it did not run.
    pub(super) async fn check_work(
        &self,
        entry: &Entry,
        call_id: &str,
        arguments: &Value,
        idempotency_key: String,
    ) -> Result<Option<ToolRecord>, AgentError> {
        let tool = &entry.tool;
        let begin = Instant::now();
        let mut backoff = Backoff::full_jitter(WAITS.0, WAITS.1);
        let mut tries = 0;
        let record = loop {
            tries += 1;
            let ctx = ToolContext::new(self.ctx.clone(), call_id, idempotency_key.clone(), tries);
            let why = match ask_once(tool, ctx, arguments.clone()).await {
                Ok(Some(text)) => break ToolRecord::new(ToolStatus::Ok, text, 0),
                Ok(None) => return Ok(None),
                Err(error) => self.reason(&error),
            };
            let wait = backoff.next_wait(None);
            let again = tries <= tool.max_retries && wait < self.ctx.time_left();
            telemetry::check_failed(&tool.name, call_id, tries, &why, again.then_some(wait));
            if !again {
                let mut record = ToolRecord::new(ToolStatus::Unknown, UNKNOWN.to_owned(), 0);
                record.operator = Some(format!("the check of {} failed: {why}", tool.name));
                break record;
            }
            tokio::time::sleep(wait).await;
        };
        telemetry::tool_result(&tool.name, call_id, begin.elapsed(), record.status.name());
        Ok(Some(record))
    }

    /// Why a check failed, for an operator: both texts, as the model reads neither.
    fn reason(&self, error: &ToolError) -> String {
        let told = match &error.operator {
            Some(operator) => format!("{}: {operator}", error.text),
            None => error.text.clone(),
        };
        let told = self.parts.redactor.text(&told);
        head(&told, ERROR_BYTES_MAX).to_owned()
    }
}

async fn ask_once(
    tool: &Tool,
    ctx: ToolContext,
    arguments: Value,
) -> Result<Option<String>, ToolError> {
    let check = tool
        .check
        .as_ref()
        .expect("a verifiable tool must have its check since it was registered");
    // A panic on the way to the future counts as one in it.
    let asking = AssertUnwindSafe(async { check.ask(ctx, arguments).await }).catch_unwind();
    match tokio::time::timeout(tool.timeout, asking).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(ToolError::new("it panicked")),
        Err(_) => Err(ToolError::new(format!(
            "it timed out after {:?}",
            tool.timeout
        ))),
    }
}
