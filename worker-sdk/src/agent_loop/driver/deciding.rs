//! Asking the author's hooks before a call begins.
//!
//! Owns the order of the hooks, the bound on their time and what their verdict is in the journal:
//! a call that is let through begins, one that is denied has its result, one that ends the run has
//! its error. A hook that fails leaves nothing, so the next attempt asks again.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Run;
use crate::agent::AgentError;
use crate::agent_loop::excerpt::head;
use crate::agent_loop::hook::{PendingCall, Verdict};
use crate::agent_loop::record::{ToolRecord, ToolStatus};
use crate::agent_loop::telemetry;

/// Bytes of who allowed a call that an operator is told at most.
const WHO_BYTES_MAX: usize = 256;

/// The result that a call has without running; None when it runs.
pub(super) type Instead = Option<Result<ToolRecord, AgentError>>;

impl Run<'_> {
    /// Asks until a hook says no, at the longest until the run's deadline or until `closing`: then
    /// another call has stopped the run, and its reason is the one that counts.
    pub(super) async fn decide(
        &self,
        call: PendingCall,
        closing: &CancellationToken,
    ) -> Result<Instead, AgentError> {
        let begin = Instant::now();
        let (tool, call_id) = (call.tool.clone(), call.call_id.clone());
        let asking = tokio::time::timeout(self.ctx.time_left(), self.ask_hooks(call));
        let verdict = tokio::select! {
            biased;
            () = closing.cancelled() => {
                return Err(AgentError::new("Stopped", "another call stopped the run").retryable());
            }
            answered = asking => answered.map_err(|_| too_late(&tool))??,
        };
        Ok(match verdict {
            Verdict::Allow => {
                telemetry::tool_allowed(&tool, &call_id, None, begin.elapsed());
                None
            }
            Verdict::AllowedBy(who) => {
                let who = self.parts.redactor.text(&who);
                let who = head(&who, WHO_BYTES_MAX);
                telemetry::tool_allowed(&tool, &call_id, Some(who), begin.elapsed());
                None
            }
            Verdict::Deny(why) => {
                let status = ToolStatus::Denied;
                telemetry::tool_result(&tool, &call_id, begin.elapsed(), status.name());
                let why = self.parts.redactor.text(&why);
                Some(Ok(ToolRecord::denied(&why)))
            }
            Verdict::End {
                error_type,
                message,
            } => {
                let message = self.parts.redactor.text(&message).into_owned();
                Some(Err(AgentError::new(error_type, message)))
            }
        })
    }

    /// What all hooks say of a call. Where several allow it, so does each that is named.
    async fn ask_hooks(&self, call: PendingCall) -> Result<Verdict, AgentError> {
        let mut named: Vec<String> = Vec::new();
        for hook in &self.parts.hooks {
            // A panic on the way to the future counts as one in it.
            let judging = AssertUnwindSafe(async { hook.judge(call.clone()).await });
            match judging.catch_unwind().await {
                Ok(Ok(Verdict::Allow)) => {}
                Ok(Ok(Verdict::AllowedBy(who))) => named.push(who),
                Ok(Ok(verdict @ (Verdict::Deny(_) | Verdict::End { .. }))) => return Ok(verdict),
                // Whoever means to end the run has a verdict for that.
                Ok(Err(error)) => return Err(error.retryable()),
                Err(_) => return Err(broke_down(&call.tool)),
            }
        }
        Ok(match named.is_empty() {
            true => Verdict::Allow,
            false => Verdict::AllowedBy(named.join(", ")),
        })
    }
}

fn broke_down(tool: &str) -> AgentError {
    let message = format!("a hook panicked before a call of {tool}");
    AgentError::new("panic", message).retryable()
}

fn too_late(tool: &str) -> AgentError {
    let message = format!("no hook had decided on a call of {tool} at the run's deadline");
    AgentError::new("DEADLINE_EXCEEDED", message)
}
