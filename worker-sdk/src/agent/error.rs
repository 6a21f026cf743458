//! The error an agent answers with.
//!
//! Owns [`AgentError`] and its flattening into plain parts that fit the wire's limit. What the
//! application sees of it is [`crate::Error`].

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::error::{Error, ErrorKind, Remote};
use crate::journal::StepError;
use crate::payload::Payload;

/// Limits of an encoded error, so that the whole stays under the wire's 64 KiB.
const TYPE_BYTES: usize = 256;
const MESSAGE_BYTES: usize = 8 << 10;
const DETAILS_BYTES: usize = 32 << 10;
const CAUSE_BYTES: usize = 1 << 10;
const CAUSES: usize = 8;

/// What an agent answers when it has no reply.
///
/// `?` turns every standard error into one, with its chain of causes. It does not implement
/// `std::error::Error` itself, which is what makes that possible; `?` turns it into a
/// `Box<dyn Error>`, with its causes.
///
/// ```
/// use std::time::Duration;
/// use worker_sdk::AgentError;
///
/// fn parse(text: &str) -> Result<u32, AgentError> {
///     Ok(text.parse::<u32>()?)
/// }
/// let error = parse("x").unwrap_err();
/// assert_eq!(error.error_type(), "ParseIntError");
///
/// let busy = AgentError::new("RateLimited", "the model allows 10 calls a minute")
///     .retryable()
///     .retry_after(Duration::from_secs(6));
/// assert!(busy.is_retryable());
/// ```
#[derive(Debug)]
pub struct AgentError(Box<Inner>);

#[derive(Debug)]
struct Inner {
    code: ErrorCode,
    error_type: String,
    message: String,
    retryable: bool,
    retry_after: Option<Duration>,
    details: Option<Payload>,
    cause: Option<Box<dyn StdError + Send + Sync>>,
}

/// The codes a worker may set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorCode {
    Agent,
    InvalidRequest,
    JournalMismatch,
}

/// An agent's error as plain data, cut to the wire's limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ErrorParts {
    pub(crate) code: ErrorCode,
    pub(crate) error_type: String,
    pub(crate) message: String,
    pub(crate) retryable: bool,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) details: Option<Payload>,
    /// Outermost first.
    pub(crate) causes: Vec<String>,
    pub(crate) truncated: bool,
}

impl AgentError {
    /// An error of a type of the agent's own, such as `RateLimited`. Not retryable unless
    /// [`AgentError::retryable`] says so.
    pub fn new(error_type: impl Into<String>, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            code: ErrorCode::Agent,
            error_type: error_type.into(),
            message: message.into(),
            retryable: false,
            retry_after: None,
            details: None,
            cause: None,
        }))
    }

    /// The request is one this agent cannot take; the caller gets INVALID_REQUEST and it is never
    /// retried.
    pub fn invalid_request(message: impl Into<String>) -> Self {
        let mut error = Self::new("", message);
        error.0.code = ErrorCode::InvalidRequest;
        error
    }

    /// The agent's code is not the one that wrote the run's journal.
    pub(crate) fn journal_mismatch(message: impl Into<String>) -> Self {
        let mut error = Self::new("", message);
        error.0.code = ErrorCode::JournalMismatch;
        error
    }

    /// An error as a journal recorded it.
    pub(crate) fn from_parts(parts: ErrorParts) -> Self {
        let inward = parts.causes.into_iter().rev();
        let cause = inward.fold(None, |cause, message| {
            Some(Box::new(Remote { message, cause }))
        });
        Self(Box::new(Inner {
            code: parts.code,
            error_type: parts.error_type,
            message: parts.message,
            retryable: parts.retryable,
            retry_after: parts.retry_after,
            details: parts.details,
            cause: cause.map(|cause| cause as Box<dyn StdError + Send + Sync>),
        }))
    }

    /// Says that asking the same again can help.
    #[must_use]
    pub fn retryable(mut self) -> Self {
        self.0.retryable = true;
        self
    }

    /// The least time to wait before asking again.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.0.retry_after = Some(wait);
        self
    }

    /// Details as JSON, for the caller's code. A value that has no JSON form is left out; details
    /// over 32 KiB are cut off and the error marked as truncated.
    #[must_use]
    pub fn details<T: Serialize + ?Sized>(self, details: &T) -> Self {
        match Payload::json(details) {
            Ok(payload) => self.details_payload(payload),
            Err(_) => self,
        }
    }

    /// Details of any media type.
    #[must_use]
    pub fn details_payload(mut self, details: Payload) -> Self {
        self.0.details = Some(details);
        self
    }

    /// What caused it.
    #[must_use]
    pub fn cause(mut self, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.cause = Some(cause.into());
        self
    }

    /// The agent's own type, empty for [`AgentError::invalid_request`].
    pub fn error_type(&self) -> &str {
        &self.0.error_type
    }

    /// The message, without its causes.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Whether asking the same again can help.
    pub fn is_retryable(&self) -> bool {
        self.0.retryable
    }

    /// The least time to wait before asking again, when something said one.
    #[cfg(feature = "agent-loop")]
    pub(crate) fn least_wait(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// The details, if they are JSON of this type.
    #[cfg(feature = "agent-loop")]
    pub(crate) fn details_as<T: serde::de::DeserializeOwned>(&self) -> Option<T> {
        self.0.details.as_ref()?.to_json().ok()
    }

    /// Whether the caller gets INVALID_REQUEST.
    pub fn is_invalid_request(&self) -> bool {
        self.0.code == ErrorCode::InvalidRequest
    }

    /// What caused it.
    pub fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0
            .cause
            .as_deref()
            .map(|cause| cause as &(dyn StdError + 'static))
    }

    pub(crate) fn into_parts(self) -> ErrorParts {
        let inner = *self.0;
        let mut truncated = false;
        let mut causes = Vec::new();
        let mut next = inner
            .cause
            .as_deref()
            .map(|cause| cause as &(dyn StdError + 'static));
        while let Some(cause) = next {
            if causes.len() == CAUSES {
                truncated = true;
                break;
            }
            causes.push(cut(cause.to_string(), CAUSE_BYTES, &mut truncated));
            next = cause.source();
        }
        let details = inner.details.filter(|details| {
            details.data().len() <= DETAILS_BYTES || {
                truncated = true;
                false
            }
        });
        ErrorParts {
            code: inner.code,
            error_type: cut(inner.error_type, TYPE_BYTES, &mut truncated),
            message: cut(inner.message, MESSAGE_BYTES, &mut truncated),
            retryable: inner.retryable,
            retry_after: inner.retry_after,
            details,
            causes,
            truncated,
        }
    }
}

/// Cuts at a character boundary.
fn cut(mut text: String, bytes_max: usize, truncated: &mut bool) -> String {
    if text.len() > bytes_max {
        let end = (0..=bytes_max)
            .rev()
            .find(|at| text.is_char_boundary(*at))
            .unwrap_or(0);
        text.truncate(end);
        *truncated = true;
    }
    text
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for AgentError {
    /// The type is the error's own type name; its causes become the causes. An [`Error`] of another
    /// agent that was asked keeps its code, its retry rule and its details, a [`StepError`] what the
    /// work of the step answered.
    fn from(error: E) -> Self {
        let mut slot = Some(error);
        let step = (&mut slot as &mut dyn Any).downcast_mut::<Option<StepError>>();
        if let Some(step) = step.and_then(Option::take) {
            return step.into_agent_error();
        }
        let error = slot.expect("an error that is no StepError must still be there");
        if let Some(asked) = (&error as &dyn Any).downcast_ref::<Error>() {
            return from_asked(asked);
        }
        let mut parts = Self::new(type_name::<E>(), error.to_string());
        parts.0.cause = cause_of(error.source());
        parts
    }
}

fn from_asked(asked: &Error) -> AgentError {
    let error_type = match asked.kind() {
        ErrorKind::AgentError if !asked.agent_type().is_empty() => asked.agent_type(),
        _ => asked.code_name(),
    };
    let mut error = AgentError::new(error_type, asked.message());
    error.0.retryable = asked.retryable();
    error.0.retry_after = asked.retry_after();
    error.0.details = asked.details().cloned();
    error.0.cause = cause_of(asked.source());
    error
}

fn cause_of(
    outermost: Option<&(dyn StdError + 'static)>,
) -> Option<Box<dyn StdError + Send + Sync>> {
    Remote::chain(outermost).map(|chain| chain as Box<dyn StdError + Send + Sync>)
}

/// The name of an error's type without path or generics; a bare `Error` keeps what it is of, as
/// in `io::Error`.
fn type_name<E>() -> String {
    let path = std::any::type_name::<E>();
    let path = path.split('<').next().unwrap_or(path);
    let mut segments = path.rsplit("::");
    let name = segments.next().unwrap_or(path);
    match segments.find(|segment| *segment != "error") {
        Some(of) if name == "Error" => format!("{of}::{name}"),
        Some(_) | None => name.to_owned(),
    }
}
