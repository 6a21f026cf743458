//! The stopping of a request's work.
//!
//! Owns the flag and its reason, and the holds that keep a slot away. Who sets the flag is the
//! call's affair.

use std::fmt;
use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Why a request's work is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelReason {
    /// The run's deadline passed.
    DeadlineExceeded,
    /// The caller hung up or somebody cancelled the run.
    Cancelled,
    /// The run went to another worker.
    Reassigned,
    /// The harness ended the call for another reason, such as a broken protocol rule.
    Refused,
    /// The connection to the harness broke, or the harness is leaving.
    HarnessLost,
    /// This worker is being stopped without waiting.
    Stopping,
}

impl fmt::Display for CancelReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DeadlineExceeded => "the run's deadline passed",
            Self::Cancelled => "the run was cancelled",
            Self::Reassigned => "the run went to another worker",
            Self::Refused => "the harness ended the call",
            Self::HarnessLost => "the harness was lost",
            Self::Stopping => "the worker is being stopped",
        })
    }
}

/// The flag of one request's cancellation, shared by its context and whoever sets it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cancel {
    pub(super) token: CancellationToken,
    pub(super) reason: Arc<OnceLock<CancelReason>>,
}

impl Cancel {
    /// The first reason stays.
    pub(crate) fn set(&self, reason: CancelReason) {
        // A second reason comes too late to matter.
        let _ = self.reason.set(reason);
        self.token.cancel();
    }
}

/// Keeps the slot away from the harness while it lives; see [`crate::Context::hold`].
#[derive(Debug)]
pub struct Hold(#[expect(dead_code, reason = "held for its drop")] TaskTrackerToken);

impl Hold {
    pub(super) fn new(token: TaskTrackerToken) -> Self {
        Self(token)
    }
}
