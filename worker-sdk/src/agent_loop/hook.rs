//! Whether a call may run: what an author's hook is told, and what it may answer.
//!
//! Owns the shapes. When a hook is asked, and what becomes of its answer, is the driver's affair.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use serde_json::Value;

use super::tool::Class;
use crate::agent::AgentError;
use crate::context::Context;

/// A call that is about to run, as a hook sees it; see
/// [`AgentLoopBuilder::before_tool`](super::AgentLoopBuilder::before_tool).
#[derive(Clone)]
#[non_exhaustive]
pub struct PendingCall {
    /// The run: its metadata and its caller, output, log lines, asking other agents, the time left.
    pub run: Context,
    /// The tool.
    pub tool: String,
    /// What running the tool twice does.
    pub class: Class,
    /// The call.
    pub call_id: String,
    /// What the tool will be given to tell this call from others. The same in every attempt, so an
    /// approval that was asked for under it is found again by the next worker.
    pub idempotency_key: String,
    /// The arguments as the tool gets them: mended, and of its schema.
    pub arguments: Value,
}

/// Without the arguments: nobody has hidden the secrets in them.
impl fmt::Debug for PendingCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingCall")
            .field("run_id", &self.run.run_id())
            .field("tool", &self.tool)
            .field("class", &self.class)
            .field("call_id", &self.call_id)
            .field("idempotency_key", &self.idempotency_key)
            .finish_non_exhaustive()
    }
}

/// What a hook says of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It may run.
    Allow,
    /// It may run, and this is who said so, or what: a person, a policy. Operators are told, in the
    /// event `tool_allowed`.
    AllowedBy(String),
    /// It does not run, and the model reads why. Counts as a failure of the tool.
    Deny(String),
    /// It does not run, and the run is over.
    End {
        /// The type of the run's error, such as `Forbidden`.
        error_type: String,
        /// One line for a person.
        message: String,
    },
}

impl Verdict {
    /// [`Verdict::AllowedBy`] with who or what allowed it.
    pub fn allowed_by(who: impl Into<String>) -> Self {
        Self::AllowedBy(who.into())
    }

    /// [`Verdict::Deny`] with a text for the model.
    pub fn deny(text: impl Into<String>) -> Self {
        Self::Deny(text.into())
    }

    /// [`Verdict::End`] with the type and the message of the run's error.
    pub fn end(error_type: impl Into<String>, message: impl Into<String>) -> Self {
        Self::End {
            error_type: error_type.into(),
            message: message.into(),
        }
    }
}

pub(crate) type Judging = Pin<Box<dyn Future<Output = Result<Verdict, AgentError>> + Send>>;

/// An author's hook without its types.
pub(crate) trait Hook: Send + Sync {
    fn judge(&self, call: PendingCall) -> Judging;
}

impl<F, Fut> Hook for F
where
    F: Fn(PendingCall) -> Fut + Send + Sync,
    Fut: Future<Output = Result<Verdict, AgentError>> + Send + 'static,
{
    fn judge(&self, call: PendingCall) -> Judging {
        Box::pin(self(call))
    }
}
