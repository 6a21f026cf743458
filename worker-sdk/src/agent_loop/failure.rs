//! Why a model call failed, and what that means for the loop.
//!
//! Owns the one order in which an error is judged, whatever the provider: context length, billing,
//! credentials, the provider's own word on retrying, what passes, everything else. A bare "429" or
//! "quota" in a text decides nothing. Pure; how long to wait is read in `retry_after`.

mod judge;
mod retry_after;

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::excerpt::head;
use super::response::Usage;

pub use judge::{Answered, judge};

/// Bytes of an error with its causes that are told at most.
const TOLD_BYTES_MAX: usize = 2_000;

/// What a failed model call means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Failure {
    /// The run is to stop.
    Aborted,
    /// The input is too long for the model: a shorter one can help, the same one cannot.
    ContextLength,
    /// The account has no money or no contract for this.
    Billing,
    /// The key is wrong or does not allow this.
    Credentials,
    /// It can pass: the same call may be made again.
    Transient,
    /// The answer did not come to its end. It may be asked for again if nothing of it was passed on.
    Cut,
    /// The provider refuses this request, and will again.
    Rejected,
    /// What came is nothing this provider is known to send.
    Unreadable,
}

/// A failed model call.
#[derive(Clone)]
pub struct ModelError {
    failure: Failure,
    status: Option<u16>,
    message: String,
    retry_after: Option<Duration>,
    cause: Option<Arc<dyn StdError + Send + Sync>>,
    usage: Option<Box<Usage>>,
}

impl ModelError {
    /// An error of this meaning, with one line for a person.
    pub fn new(failure: Failure, message: impl Into<String>) -> Self {
        Self {
            failure,
            status: None,
            message: message.into(),
            retry_after: None,
            cause: None,
            usage: None,
        }
    }

    /// The HTTP status it came with.
    #[must_use]
    pub fn with_status(mut self, status: Option<u16>) -> Self {
        self.status = status;
        self
    }

    /// The least time to wait before the call may be made again.
    #[must_use]
    pub fn with_retry_after(mut self, wait: Option<Duration>) -> Self {
        self.retry_after = wait;
        self
    }

    /// What is behind it.
    #[must_use]
    pub fn with_cause(mut self, cause: impl StdError + Send + Sync + 'static) -> Self {
        self.cause = Some(Arc::new(cause));
        self
    }

    /// What the call used all the same, as far as the provider said it: an answer that broke off
    /// was read and written for. It counts for the limits of the run. One that says no tokens is
    /// none.
    #[must_use]
    pub fn with_usage(mut self, usage: Usage) -> Self {
        let is_known = usage.input_tokens.is_some() || usage.output_tokens.is_some();
        self.usage = is_known.then(|| Box::new(usage));
        self
    }

    #[cfg(feature = "http-model")]
    pub(crate) fn with_message(mut self, message: String) -> Self {
        self.message = message;
        self
    }

    /// A journal that takes nothing now may take it from the next try, or the next attempt.
    pub(crate) fn not_taken(error: crate::Error) -> Self {
        let failure = match error.retryable() {
            true => Failure::Transient,
            false => Failure::Aborted,
        };
        Self::new(failure, "a piece of the answer could not be passed on").with_cause(error)
    }

    /// What it means.
    pub fn failure(&self) -> Failure {
        self.failure
    }

    /// The HTTP status it came with, if it came with one.
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// One line for a person. It may hold text of the provider, bounded.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The line with all that is behind it, for where the causes cannot be looked at.
    pub(crate) fn told(&self) -> String {
        let mut told = self.message.clone();
        for cause in std::iter::successors(self.source(), |&cause| cause.source()) {
            let cause = cause.to_string();
            // Some errors say what is behind them too.
            if !told.ends_with(&cause) {
                told.push_str(": ");
                told.push_str(&cause);
            }
        }
        head(&told, TOLD_BYTES_MAX).to_owned()
    }

    /// The least time to wait before the call may be made again, when the provider said one.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// What the call used, when the provider said that.
    pub fn usage(&self) -> Option<&Usage> {
        self.usage.as_deref()
    }

    /// Whether the same call may be made again, if nothing of its answer was passed on.
    pub fn may_pass(&self) -> bool {
        match self.failure {
            Failure::Transient | Failure::Cut => true,
            Failure::Aborted
            | Failure::ContextLength
            | Failure::Billing
            | Failure::Credentials
            | Failure::Rejected
            | Failure::Unreadable => false,
        }
    }
}

impl Failure {
    /// The type of the agent's error that a run ends with.
    pub fn error_type(self) -> &'static str {
        match self {
            Self::Aborted => "Aborted",
            Self::ContextLength => "ContextLength",
            Self::Billing => "Billing",
            Self::Credentials => "Credentials",
            Self::Transient => "ModelUnavailable",
            Self::Cut => "ModelCut",
            Self::Rejected => "ModelRejected",
            Self::Unreadable => "ModelUnreadable",
        }
    }
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelError")
            .field("failure", &self.failure)
            .field("status", &self.status)
            .field("message", &self.message)
            .field("retry_after", &self.retry_after)
            .field("usage", &self.usage)
            .field("cause", &self.cause.as_ref().map(ToString::to_string))
            .finish()
    }
}

impl StdError for ModelError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let cause = self.cause.as_deref()?;
        Some(cause as &(dyn StdError + 'static))
    }
}
