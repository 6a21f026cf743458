//! Why a tool has no result, and what the loop may do about it.
//!
//! Owns the difference between the text the model reads and the text an operator reads.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::journal::StepError;

/// What the loop may do about a failed tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolFailure {
    /// It may pass, and the effect may have happened.
    MayPass,
    /// It may pass, and nothing has happened.
    BeforeEffect,
    /// It will not pass.
    Permanent,
    /// The tool has no right to what it does.
    Unauthorized,
    /// The run is over.
    Fatal,
}

/// Why a tool has no result.
///
/// `?` turns every standard error into one that may pass, but for a
/// [`StepError`](crate::journal::StepError) that trying again cannot mend. It does not implement
/// `std::error::Error` itself, which is what makes that possible.
///
/// ```
/// use worker_sdk::agent_loop::ToolError;
///
/// fn read(path: &str) -> Result<String, ToolError> {
///     Ok(std::fs::read_to_string(path)?)
/// }
///
/// let refused = ToolError::http(403, "no access to this repository");
/// let elsewhere = ToolError::permanent("there is no such city: ask for another")
///     .operator("geocoder: ZERO_RESULTS for q=Atlantis");
/// ```
#[derive(Debug)]
pub struct ToolError {
    pub(crate) failure: ToolFailure,
    /// For the model.
    pub(crate) text: String,
    /// For an operator.
    pub(crate) operator: Option<String>,
    pub(crate) retry_after: Option<Duration>,
}

impl ToolError {
    /// The longest wait a tool may ask for. Beyond it the tool is not tried again.
    pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

    fn of(failure: ToolFailure, text: impl Into<String>) -> Self {
        Self {
            failure,
            text: text.into(),
            operator: None,
            retry_after: None,
        }
    }

    /// It may pass; whether the tool had its effect is not known. Tried again only where the class
    /// allows running it twice.
    pub fn new(text: impl Into<String>) -> Self {
        Self::of(ToolFailure::MayPass, text)
    }

    /// It may pass, and the tool certainly had no effect: no connection was made, the request was
    /// refused before it was taken. Tried again whatever the class.
    pub fn before_effect(text: impl Into<String>) -> Self {
        Self::of(ToolFailure::BeforeEffect, text)
    }

    /// Trying the same again cannot help; the model may try something else.
    pub fn permanent(text: impl Into<String>) -> Self {
        Self::of(ToolFailure::Permanent, text)
    }

    /// The run cannot go on: no other call is begun, and what runs beside it comes to its end.
    pub fn fatal(text: impl Into<String>) -> Self {
        Self::of(ToolFailure::Fatal, text)
    }

    /// An HTTP service answered with an error status. 401 and 403 end the run unless the agent was
    /// built otherwise; 408, 425, 429 and 5xx may pass; no other does.
    pub fn http(status: u16, text: impl Into<String>) -> Self {
        let failure = match status {
            401 | 403 => ToolFailure::Unauthorized,
            408 | 425 | 429 | 500..=599 => ToolFailure::MayPass,
            _ => ToolFailure::Permanent,
        };
        let text = text.into();
        Self::of(failure, format!("HTTP {status}: {text}"))
    }

    /// The least time to wait before it is tried again. Over [`ToolError::RETRY_AFTER_MAX`] it is not
    /// tried again, and the model is told at once.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// What an operator should know and the model need not.
    #[must_use]
    pub fn operator(mut self, text: impl Into<String>) -> Self {
        self.operator = Some(text.into());
        self
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for ToolError {
    fn from(error: E) -> Self {
        let causes = std::iter::successors(error.source(), |&cause| cause.source());
        let chain: Vec<String> = causes.map(ToString::to_string).collect();
        let failure = match (&error as &dyn Any).downcast_ref::<StepError>() {
            Some(StepError::Failed(_) | StepError::Journal(_)) | None => ToolFailure::MayPass,
            Some(
                StepError::OutcomeUnknown { .. }
                | StepError::Mismatch { .. }
                | StepError::Unreadable { .. }
                | StepError::Misused(_),
            ) => ToolFailure::Permanent,
        };
        let error = Self::of(failure, error.to_string());
        if chain.is_empty() {
            return error;
        }
        let operator = chain.join(": ");
        error.operator(operator)
    }
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
