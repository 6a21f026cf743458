//! Running an agent with no harness: in a test, or on a journal in a file.
//!
//! Owns what a harness would otherwise say of the run, and the deadline it would keep. Where the
//! agent writes to is the caller's affair.

use std::collections::HashMap;
use std::time::Duration;

use super::{Caller, CancelReason, Context, Facts, Trace, deadline_in};
use crate::agent::{Agent, AgentError};
use crate::wire::entries::ENTRY_BYTES_MAX;

/// What there is to say of a run that nobody else knows.
pub(crate) fn facts(run_id: String, attempt: u32, timeout: Duration) -> Facts {
    Facts {
        run_id,
        attempt,
        deadline: deadline_in(tokio::time::Instant::now().into_std(), timeout),
        durable: false,
        entry_bytes_max: ENTRY_BYTES_MAX,
        metadata: HashMap::new(),
        caller: Caller {
            subject: "anonymous".to_owned(),
            namespace: "default".to_owned(),
        },
        depth: 0,
        trace: Trace::default(),
        idempotency_key: String::new(),
    }
}

/// Runs one request and stops it at its deadline as a harness would.
pub(crate) async fn run<A: Agent>(
    agent: &A,
    ctx: Context,
    request: A::Request,
) -> Result<A::Reply, AgentError> {
    match tokio::time::timeout(ctx.time_left(), agent.reply(ctx.clone(), request)).await {
        Ok(result) => result,
        Err(_) => {
            ctx.stop(CancelReason::DeadlineExceeded);
            Err(AgentError::new(
                "DEADLINE_EXCEEDED",
                "the agent did not reply before its deadline",
            ))
        }
    }
}
