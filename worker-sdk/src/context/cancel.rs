//! The stopping of a request's work.
//!
//! Owns the flag and its reason, and the holds that keep a slot away. Who sets the flag is the
//! call's affair.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::Context;

/// Why a request's work is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelReason {
    /// The run's deadline passed, or the attempt's timeout.
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
            Self::DeadlineExceeded => "its deadline passed",
            Self::Cancelled => "the run was cancelled",
            Self::Reassigned => "the run went to another worker",
            Self::Refused => "the harness ended the call",
            Self::HarnessLost => "the harness was lost",
            Self::Stopping => "the worker is being stopped",
        })
    }
}

/// The flag of one request's cancellation.
#[derive(Debug, Default)]
pub(super) struct Cancel {
    reason: OnceLock<CancelReason>,
    told: Notify,
}

impl Cancel {
    /// The first reason stays.
    pub(super) fn set(&self, reason: CancelReason) {
        // A second reason comes too late to matter.
        let _ = self.reason.set(reason);
        self.told.notify_waiters();
    }

    pub(super) fn reason(&self) -> Option<CancelReason> {
        self.reason.get().copied()
    }

    pub(super) async fn wait(&self) {
        // Made before the look, so that it hears of what is set after it.
        let told = self.told.notified();
        if self.reason.get().is_none() {
            told.await;
        }
    }
}

/// What keeps one slot away from the harness.
#[derive(Debug, Default)]
pub(super) struct Holds {
    live: AtomicUsize,
    gone: Notify,
}

impl Holds {
    /// Waits until there is none.
    pub(super) async fn wait(&self) {
        while self.live.load(Ordering::Acquire) > 0 {
            let gone = self.gone.notified();
            if self.live.load(Ordering::Acquire) > 0 {
                gone.await;
            }
        }
    }
}

/// Keeps the slot away from the harness while it lives; see [`crate::Context::hold`].
#[derive(Debug)]
pub struct Hold(Context);

impl Hold {
    pub(super) fn new(ctx: Context) -> Self {
        ctx.holds().live.fetch_add(1, Ordering::Relaxed);
        Self(ctx)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let holds = self.0.holds();
        if holds.live.fetch_sub(1, Ordering::Release) == 1 {
            holds.gone.notify_waiters();
        }
    }
}
