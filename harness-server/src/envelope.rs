//! The envelope as domain types: what is asked, and the two ways it is answered.
//!
//! Owns the data and the retry rule of each error code. How an error becomes a gRPC status is
//! `api::status`'s affair.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::ids::{AgentKey, Attempt, Delivery, RunId};

/// What the message of a worker's error may have, in bytes; the rest is cut.
pub const MESSAGE_BYTES: usize = 3 * 1024;

/// The beginning of a text, of at most so many bytes.
#[must_use]
pub fn beginning(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The media type of JSON.
pub const JSON: &str = "application/json";

/// A value with its media type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// Empty means "application/json".
    pub content_type: String,
    /// The bytes that came.
    pub data: Bytes,
}

impl Payload {
    /// A JSON value.
    #[must_use]
    pub fn json(value: &serde_json::Value) -> Self {
        Self {
            content_type: String::new(),
            data: value.to_string().into(),
        }
    }

    /// Whether the schemas of an agent apply to it.
    #[must_use]
    pub fn is_json(&self) -> bool {
        let media_type = self
            .content_type
            .split(';')
            .next()
            .unwrap_or_default()
            .trim();
        media_type.is_empty() || media_type.eq_ignore_ascii_case(JSON)
    }
}

/// Who asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The principal, "anonymous" where the listener asks for none.
    pub subject: Arc<str>,
    /// The namespace of the run.
    pub namespace: Arc<str>,
}

/// A W3C trace context, passed on unread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// `traceparent`.
    pub parent: String,
    /// `tracestate`.
    pub state: String,
}

/// What a slot gets; the same for every delivery of a run.
#[derive(Clone, Debug)]
pub struct Request {
    /// Whom it is for.
    pub agent: AgentKey,
    /// What is asked.
    pub payload: Payload,
    /// The caller's metadata.
    pub metadata: HashMap<String, String>,
    /// Who asks.
    pub caller: Caller,
    /// The caller's trace context.
    pub trace: Option<Trace>,
    /// The delivery that asks, when an agent asks another agent.
    pub parent: Option<Delivery>,
    /// How many runs stand above this one.
    pub depth: u32,
    /// The caller's idempotency key, may be empty; none for interactive runs.
    pub durable: Option<Arc<str>>,
}

impl Request {
    /// What is kept of it while the rest is on disk.
    #[must_use]
    pub fn header(&self) -> Self {
        Self {
            agent: self.agent.clone(),
            payload: Payload {
                content_type: self.payload.content_type.clone(),
                data: Bytes::new(),
            },
            metadata: HashMap::new(),
            caller: self.caller.clone(),
            trace: None,
            parent: self.parent,
            depth: self.depth,
            durable: Some(Arc::default()),
        }
    }

    /// An upper bound of the encoded size of the frame that carries it, in bytes.
    #[must_use]
    pub fn frame_bytes(&self) -> u64 {
        const NUMBERS_AND_IDS: usize = 512;
        let names = self.agent.name.len() + self.caller.subject.len() + self.caller.namespace.len();
        let metadata: usize = self
            .metadata
            .iter()
            .map(|(key, value)| key.len() + value.len() + 16)
            .sum();
        let trace = self
            .trace
            .as_ref()
            .map_or(0, |t| t.parent.len() + t.state.len() + 16);
        let size = NUMBERS_AND_IDS
            + names
            + metadata
            + trace
            + self.payload.content_type.len()
            + self.payload.data.len();
        size as u64
    }
}

/// How a run ended, as its caller is told.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The attempt that gave it; zero when none was made.
    pub attempt: Attempt,
    /// The reply, or why there is none.
    pub outcome: Outcome,
}

/// The two ways a request is answered.
pub type Outcome = Result<Payload, Box<Failure>>;

/// What went wrong; `harness.v1.ErrorCode` without its zero value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is documented on harness.v1.ErrorCode")]
pub enum Code {
    InvalidRequest,
    UnknownAgent,
    RunNotFound,
    Busy,
    RateLimited,
    PayloadTooLarge,
    JournalFull,
    DeadlineExceeded,
    AttemptTimeout,
    Cancelled,
    AgentError,
    InvalidReply,
    ProtocolViolation,
    WorkerLost,
    Poisoned,
    BudgetExceeded,
    JournalMismatch,
    UnsupportedProtocol,
    CrashLoop,
    StoreUnavailable,
    ShuttingDown,
    IdempotencyConflict,
    Unauthenticated,
    PermissionDenied,
    Unimplemented,
    Internal,
}

impl Code {
    /// Every code, in the order of the proto enum.
    pub const ALL: [Self; 26] = [
        Self::InvalidRequest,
        Self::UnknownAgent,
        Self::RunNotFound,
        Self::Busy,
        Self::RateLimited,
        Self::PayloadTooLarge,
        Self::JournalFull,
        Self::DeadlineExceeded,
        Self::AttemptTimeout,
        Self::Cancelled,
        Self::AgentError,
        Self::InvalidReply,
        Self::ProtocolViolation,
        Self::WorkerLost,
        Self::Poisoned,
        Self::BudgetExceeded,
        Self::JournalMismatch,
        Self::UnsupportedProtocol,
        Self::CrashLoop,
        Self::StoreUnavailable,
        Self::ShuttingDown,
        Self::IdempotencyConflict,
        Self::Unauthenticated,
        Self::PermissionDenied,
        Self::Unimplemented,
        Self::Internal,
    ];

    /// Whether a failed attempt with this code may be followed by another.
    #[must_use]
    pub fn retried(self) -> Retried {
        match self {
            Self::AttemptTimeout
            | Self::InvalidReply
            | Self::ProtocolViolation
            | Self::WorkerLost => Retried::Yes,
            Self::AgentError => Retried::IfAgentSays,
            Self::Busy | Self::RateLimited | Self::StoreUnavailable | Self::ShuttingDown => {
                Retried::CallersBusiness
            }
            Self::InvalidRequest
            | Self::UnknownAgent
            | Self::RunNotFound
            | Self::PayloadTooLarge
            | Self::JournalFull
            | Self::DeadlineExceeded
            | Self::Cancelled
            | Self::Poisoned
            | Self::BudgetExceeded
            | Self::JournalMismatch
            | Self::UnsupportedProtocol
            | Self::CrashLoop
            | Self::IdempotencyConflict
            | Self::Unauthenticated
            | Self::PermissionDenied
            | Self::Unimplemented
            | Self::Internal => Retried::Never,
        }
    }
}

/// The retry rule of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retried {
    /// By the run's policy.
    Yes,
    /// By the run's policy if the agent's error says retryable.
    IfAgentSays,
    /// Not by the harness.
    CallersBusiness,
    /// Asking the same again cannot help.
    Never,
}

/// Why there is no reply.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What went wrong.
    pub code: Code,
    /// The agent's own error type, empty for the harness's errors.
    pub kind: String,
    /// One line for a person: what happened and what to do.
    pub message: String,
    /// Whether asking the same again can help.
    pub retryable: bool,
    /// The least time to wait before asking again.
    pub retry_after: Option<Duration>,
    /// The agent's details, or for a schema failure where it is.
    pub details: Option<Payload>,
    /// What caused it.
    pub cause: Option<Box<Failure>>,
    /// The run, none when the request never became one.
    pub run: Option<RunId>,
    /// The attempt that failed.
    pub attempt: Attempt,
    /// Whether something was cut.
    pub truncated: bool,
}

impl Failure {
    /// A failure of the harness's own, retryable as its code says.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            kind: String::new(),
            message: message.into(),
            retryable: matches!(code.retried(), Retried::Yes | Retried::CallersBusiness),
            retry_after: None,
            details: None,
            cause: None,
            run: None,
            attempt: Attempt::default(),
            truncated: false,
        }
    }

    /// Says when asking again can help.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retryable = true;
        self.retry_after = Some(wait);
        self
    }

    /// Adds machine-readable details.
    #[must_use]
    pub fn with_details(mut self, details: Payload) -> Self {
        self.details = Some(details);
        self
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::{Caller, Code, Failure, Payload, Request, Retried};
    use crate::ids::AgentKey;

    #[test]
    fn schemas_apply_to_json_only() {
        let is_json = |content_type: &str| {
            let payload = Payload {
                content_type: content_type.to_owned(),
                data: bytes::Bytes::new(),
            };
            payload.is_json()
        };
        let json = ["", "application/json", "Application/JSON; charset=utf-8"];
        for content_type in json {
            assert!(is_json(content_type), "{content_type}");
        }
        for content_type in ["text/plain", "application/jsonl", "application/x+json"] {
            assert!(!is_json(content_type), "{content_type}");
        }
    }

    #[test]
    fn every_code_is_listed_once() {
        let codes: HashSet<Code> = Code::ALL.into_iter().collect();
        assert_eq!(codes.len(), Code::ALL.len());
        let last = Code::ALL[Code::ALL.len() - 1] as usize;
        assert_eq!(last + 1, Code::ALL.len(), "a new code is not listed");
    }

    #[test]
    fn a_failure_is_retryable_if_asking_again_can_help() {
        for code in Code::ALL {
            let helps = match code.retried() {
                Retried::Yes | Retried::CallersBusiness => true,
                Retried::IfAgentSays | Retried::Never => false,
            };
            assert_eq!(Failure::new(code, "it broke").retryable, helps, "{code:?}");
        }
    }

    #[test]
    fn everything_of_variable_length_counts_for_the_frame() {
        let request = |subject: &str, key: &str, data: &'static str| Request {
            agent: AgentKey::new("", "echo"),
            payload: Payload {
                content_type: String::new(),
                data: data.into(),
            },
            metadata: HashMap::from([(key.to_owned(), "v".to_owned())]),
            caller: Caller {
                subject: subject.into(),
                namespace: "default".into(),
            },
            trace: None,
            parent: None,
            depth: 0,
            durable: None,
        };
        let least = request("a", "k", "1").frame_bytes();
        assert_eq!(request("abc", "k", "1").frame_bytes(), least + 2);
        assert_eq!(request("a", "key", "1").frame_bytes(), least + 2);
        assert_eq!(request("a", "k", "111").frame_bytes(), least + 2);
    }
}
