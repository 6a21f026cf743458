//! What an application or a worker process gets when something fails.
//!
//! Owns [`Error`] and [`ErrorKind`]. How an error is read from the wire is `wire`'s affair; what
//! an agent answers is [`crate::AgentError`].

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use crate::payload::Payload;

/// Why an ask, a call or a worker failed.
///
/// Display gives the message alone; the causes are behind `source()`. Debug is for people too: the
/// message and every cause on a line of its own, so that a `main` that returns this error prints
/// what a person can read. `{:#?}` shows the fields.
///
/// As JSON it is one object with
/// `code`, `message`, `retryable` and, where there are any, `type`, `run_id`, `attempt`,
/// `retry_after_seconds`, `details` and `causes`.
///
/// ```no_run
/// # async fn example(harness: worker_sdk::Harness) {
/// use worker_sdk::{Answer, ErrorKind};
///
/// let asked: Result<Answer<String>, _> = harness.ask("summarize", &"a text").await;
/// match asked {
///     Ok(answer) => println!("{}", answer.value),
///     Err(error) if error.kind() == ErrorKind::DeadlineExceeded => println!("too slow: {error}"),
///     Err(error) => println!("{}: {error}", error.code_name()),
/// }
/// # }
/// ```
#[derive(Clone)]
pub struct Error(Box<Parts>);

/// What an error is made of.
#[derive(Debug, Clone)]
pub(crate) struct Parts {
    pub(crate) kind: ErrorKind,
    /// A code this SDK does not know keeps its number; None means the kind's own name.
    pub(crate) unknown_code: Option<i32>,
    pub(crate) message: String,
    pub(crate) agent_type: String,
    pub(crate) retryable: bool,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) details: Option<Payload>,
    pub(crate) run_id: String,
    pub(crate) attempt: u32,
    pub(crate) truncated: bool,
    pub(crate) source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::from_parts(Parts {
            kind,
            unknown_code: None,
            message: message.into(),
            agent_type: String::new(),
            retryable: false,
            retry_after: None,
            details: None,
            run_id: String::new(),
            attempt: 0,
            truncated: false,
            source: None,
        })
    }

    pub(crate) fn from_parts(parts: Parts) -> Self {
        Self(Box::new(parts))
    }

    pub(crate) fn with_source(
        mut self,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        self.0.source = Some(Arc::from(source.into()));
        self
    }

    pub(crate) fn with_retry(mut self, retryable: bool, retry_after: Option<Duration>) -> Self {
        self.0.retryable = retryable;
        self.0.retry_after = retry_after;
        self
    }

    pub(crate) fn with_run(mut self, run_id: &str, attempt: u32) -> Self {
        run_id.clone_into(&mut self.0.run_id);
        self.0.attempt = attempt;
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The code as the protocol spells it, such as `UNKNOWN_AGENT`.
    pub fn code_name(&self) -> &'static str {
        self.0.kind.name()
    }

    /// The number of an error code this SDK is too old to know; `kind` then follows from the gRPC
    /// status.
    pub fn unknown_code(&self) -> Option<i32> {
        self.0.unknown_code
    }

    /// One line for a person: what happened and what to do.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The agent's own error type, such as `RateLimited`; empty for every other kind.
    pub fn agent_type(&self) -> &str {
        &self.0.agent_type
    }

    /// Whether asking the same again can help.
    pub fn retryable(&self) -> bool {
        self.0.retryable
    }

    /// The least time to wait before asking again, when the error says one.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Details of the agent's own.
    pub fn details(&self) -> Option<&Payload> {
        self.0.details.as_ref()
    }

    /// The run that failed, empty when the request never became one.
    pub fn run_id(&self) -> &str {
        &self.0.run_id
    }

    /// The attempt that failed, 0 when none was made.
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// Whether something was cut to keep to the wire's size limit.
    pub fn truncated(&self) -> bool {
        self.0.truncated
    }
}

impl Serialize for Error {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("code", self.code_name())?;
        map.serialize_entry("message", self.message())?;
        for (key, text) in [("type", self.agent_type()), ("run_id", self.run_id())] {
            if !text.is_empty() {
                map.serialize_entry(key, text)?;
            }
        }
        if self.attempt() > 0 {
            map.serialize_entry("attempt", &self.attempt())?;
        }
        map.serialize_entry("retryable", &self.retryable())?;
        if let Some(wait) = self.retry_after() {
            map.serialize_entry("retry_after_seconds", &wait.as_secs_f64())?;
        }
        let details = self.details().map(Payload::to_json::<serde_json::Value>);
        if let Some(Ok(details)) = details {
            map.serialize_entry("details", &details)?;
        }
        let causes: Vec<String> = std::iter::successors(self.source(), |&cause| cause.source())
            .map(ToString::to_string)
            .collect();
        if !causes.is_empty() {
            map.serialize_entry("causes", &causes)?;
        }
        map.end()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return fmt::Debug::fmt(&self.0, f);
        }
        f.write_str(&self.0.message)?;
        let mut next = self.source();
        if next.is_some() {
            f.write_str("\n\nCaused by:")?;
        }
        while let Some(cause) = next {
            write!(f, "\n    {cause}")?;
            next = cause.source();
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0
            .source
            .as_deref()
            .map(|source| source as &(dyn StdError + 'static))
    }
}

/// A cause known only by its text: the peer told it, or it is a type this API does not show.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) message: String,
    pub(crate) cause: Option<Box<Remote>>,
}

impl Remote {
    /// A chain of causes as text, outermost first: what another library said, without its types.
    pub(crate) fn chain(outermost: Option<&(dyn StdError + 'static)>) -> Option<Box<Self>> {
        let mut texts: Vec<String> = Vec::new();
        let mut next = outermost;
        while let Some(cause) = next {
            let text = cause.to_string();
            if texts.last() != Some(&text) {
                texts.push(text);
            }
            next = cause.source();
        }
        let inward = texts.into_iter().rev();
        inward.fold(None, |cause, message| {
            Some(Box::new(Self { message, cause }))
        })
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Remote {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause
            .as_deref()
            .map(|cause| cause as &(dyn StdError + 'static))
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)*) => {
        /// What went wrong, by the protocol's codes, and below them what only this side can see.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $($(#[$doc])* $kind,)*
        }

        impl ErrorKind {
            /// The kind as the protocol spells its codes, such as `UNKNOWN_AGENT`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }
    };
}

kinds! {
    /// The request is malformed or fails the agent's schema.
    InvalidRequest = "INVALID_REQUEST",
    /// No worker has offered this agent and no pool names it.
    UnknownAgent = "UNKNOWN_AGENT",
    /// No run of this id is kept in this namespace.
    RunNotFound = "RUN_NOT_FOUND",
    /// The agent's queue is full.
    Busy = "BUSY",
    /// The caller asks faster than it may.
    RateLimited = "RATE_LIMITED",
    /// A payload or frame is over its limit; both sizes are in the message.
    PayloadTooLarge = "PAYLOAD_TOO_LARGE",
    /// The run's journal is at its limit.
    JournalFull = "JOURNAL_FULL",
    /// The run's deadline passed; the message says where the time went.
    DeadlineExceeded = "DEADLINE_EXCEEDED",
    /// One attempt took longer than its own timeout.
    AttemptTimeout = "ATTEMPT_TIMEOUT",
    /// The run was cancelled.
    Cancelled = "CANCELLED",
    /// The agent answered with an error of its own.
    AgentError = "AGENT_ERROR",
    /// The agent's reply fails the schema its own worker offered.
    InvalidReply = "INVALID_REPLY",
    /// A worker broke a rule of the protocol.
    ProtocolViolation = "PROTOCOL_VIOLATION",
    /// The worker's call or process ended with the request in it.
    WorkerLost = "WORKER_LOST",
    /// The run killed as many workers as a run may.
    Poisoned = "POISONED",
    /// A token or cost budget of the run is used up.
    BudgetExceeded = "BUDGET_EXCEEDED",
    /// The agent's code no longer matches the steps its journal holds.
    JournalMismatch = "JOURNAL_MISMATCH",
    /// The peer speaks a protocol version this side does not.
    UnsupportedProtocol = "UNSUPPORTED_PROTOCOL",
    /// The agent's pool crashes as fast as it is started.
    CrashLoop = "CRASH_LOOP",
    /// The harness's store cannot write.
    StoreUnavailable = "STORE_UNAVAILABLE",
    /// The harness is leaving.
    ShuttingDown = "SHUTTING_DOWN",
    /// The idempotency key was used with another payload.
    IdempotencyConflict = "IDEMPOTENCY_CONFLICT",
    /// No credential, or one that is not valid.
    Unauthenticated = "UNAUTHENTICATED",
    /// The credential does not allow this.
    PermissionDenied = "PERMISSION_DENIED",
    /// The server does not serve this.
    Unimplemented = "UNIMPLEMENTED",
    /// A fault of the harness; the message carries an id found in its log.
    Internal = "INTERNAL",
    /// Nothing answers at the address.
    Unreachable = "UNREACHABLE",
    /// The address is not one of the forms this SDK takes.
    InvalidAddress = "INVALID_ADDRESS",
    /// The connection broke, or a proxy answered instead of the harness.
    Transport = "TRANSPORT",
    /// The answer came but is not of the type asked for.
    Decode = "DECODE",
    /// The worker as configured cannot be offered: its name, labels, schemas or slots.
    InvalidWorker = "INVALID_WORKER",
    /// The worker was told twice to stop and left without finishing its work.
    Interrupted = "INTERRUPTED",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_main_prints_is_the_message_and_its_causes_on_lines() {
        let error = Error::new(ErrorKind::Unreachable, "no harness answers at http://a:1");
        assert_eq!(format!("{error:?}"), "no harness answers at http://a:1");
        let refused = Remote {
            message: "connection refused".to_owned(),
            cause: None,
        };
        let error = error.with_source(Remote {
            message: "tcp connect error".to_owned(),
            cause: Some(Box::new(refused)),
        });
        assert_eq!(
            format!("{error:?}"),
            "no harness answers at http://a:1\n\nCaused by:\n    tcp connect error\n    \
             connection refused"
        );
        assert!(format!("{error:#?}").contains("kind: Unreachable"));
    }
}
