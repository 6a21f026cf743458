//! When a failed attempt is followed by another.

use std::time::Duration;

use harness_proto::v1;

use crate::wire;

/// When a failed attempt is followed by another. The harness does it, not the caller: the attempts
/// are of one run, within its one timeout.
///
/// What counts as failed is the error's to say: an agent's error only if the agent calls it
/// retryable, a lost worker, an invalid reply and an attempt's timeout always. Once output has
/// reached the caller the run is not tried again.
///
/// ```
/// use std::time::Duration;
/// use worker_sdk::client::RetryPolicy;
///
/// let policy = RetryPolicy::attempts(4)
///     .attempt_timeout(Duration::from_secs(10))
///     .backoff(Duration::from_millis(100), Duration::from_secs(5))
///     .multiplier(3.0)
///     .never_after("InvalidCredentials");
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a policy is given to Ask::retry"]
pub struct RetryPolicy(v1::RetryPolicy);

impl RetryPolicy {
    /// So many attempts in all, 1 to 16, with waits of 200 ms, doubled each time up to 30 s.
    pub fn attempts(max: u32) -> Self {
        Self(v1::RetryPolicy {
            max_attempts: max,
            ..Default::default()
        })
    }

    /// The longest one attempt may take. Default: as long as the run has.
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.0.attempt_timeout = Some(wire::duration_out(timeout));
        self
    }

    /// The wait before the second attempt, and the longest wait. Each wait is
    /// drawn at random between nothing and itself.
    pub fn backoff(mut self, initial: Duration, max: Duration) -> Self {
        self.0.initial_backoff = Some(wire::duration_out(initial));
        self.0.max_backoff = Some(wire::duration_out(max));
        self
    }

    /// What the wait is multiplied by each time, 1 to 100. Default 2.
    pub fn multiplier(mut self, multiplier: f64) -> Self {
        self.0.multiplier = multiplier;
        self
    }

    /// Not after an agent's error of this type; may be given more than once.
    pub fn never_after(mut self, error_type: impl Into<String>) -> Self {
        self.0.non_retryable_types.push(error_type.into());
        self
    }

    pub(super) fn into_wire(self) -> v1::RetryPolicy {
        self.0
    }
}
