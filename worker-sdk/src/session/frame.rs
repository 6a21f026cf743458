//! The frames of an Attach call as the session's rules see them.
//!
//! Owns plain data without any of the wire's types. `wire` converts.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;

use crate::agent::{AgentError, ErrorParts};
use crate::journal::{Entry, Recorded};
use crate::payload::Payload;

/// From the harness.
#[derive(Debug, Clone)]
pub(crate) enum Inbound {
    Welcome(Welcome),
    Request(Box<Delivery>),
    /// An entry that an earlier attempt recorded; None when it is of a kind no worker writes.
    Entry(Option<Box<Recorded>>),
    Appended {
        worker_seq: u64,
    },
    Heartbeat,
    Drain {
        reason: String,
    },
    /// A frame of a newer protocol.
    Unknown,
}

/// To the harness.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outbound {
    Heartbeat {
        held: Option<Held>,
    },
    Append {
        held: Held,
        worker_seq: u64,
        entry: Entry,
    },
    Reply {
        held: Held,
        worker_seq: u64,
        reply: Reply,
    },
    Leave,
}

/// The attempt a frame is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) run_id: String,
    pub(crate) attempt: u32,
}

/// An attempt with the proof that this worker was given it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) held: Held,
    pub(crate) token: Bytes,
}

/// What a hello says of the call before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Previous {
    /// Its work has stopped.
    Released(Lease),
    /// It was lost, and its work goes on.
    Resume(Lease),
}

#[derive(Debug, Clone)]
pub(crate) struct Welcome {
    pub(crate) heartbeat_interval: Duration,
    pub(crate) limits: Limits,
    /// The attempt the hello resumes is this slot's, and this the last number taken of it.
    pub(crate) resumed: Option<u64>,
}

/// What the worker keeps to on a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) unacked_entries: u32,
    pub(crate) unacked_bytes: u64,
    pub(crate) payload_bytes: u64,
    pub(crate) entry_bytes: u64,
}

/// One request, with what comes with it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Delivery {
    pub(crate) lease: Lease,
    pub(crate) payload: Payload,
    pub(crate) time_left: Duration,
    /// 0 means the slot's own limit.
    pub(crate) max_reply_bytes: u64,
    pub(crate) durable: bool,
    pub(crate) metadata: HashMap<String, String>,
    pub(crate) caller_subject: String,
    pub(crate) namespace: String,
    pub(crate) depth: u32,
    pub(crate) traceparent: String,
    pub(crate) tracestate: String,
    pub(crate) idempotency_key: String,
    /// How long the work may go on after its call was lost.
    pub(crate) reattach_window: Duration,
    /// How many recorded entries follow.
    pub(crate) replay_entries: u32,
    /// Those that have come.
    pub(crate) recorded: Vec<Recorded>,
}

/// How the agent answered.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Reply {
    Value(Payload),
    Error(Box<ErrorParts>),
}

impl Reply {
    /// A value larger than a frame of the transport can be becomes an error that says so. One that
    /// is only over the harness's limit is left to the harness, whose answer is PAYLOAD_TOO_LARGE:
    /// a worker may not set that code.
    pub(super) fn within(self, bytes_max: u64) -> Self {
        match self {
            Self::Value(payload) if payload.data().len() as u64 > bytes_max => {
                let error = AgentError::new(
                    "PAYLOAD_TOO_LARGE",
                    format!(
                        "the reply has {} bytes and may have {bytes_max}",
                        payload.data().len()
                    ),
                );
                Self::from(error)
            }
            Self::Value(payload) => Self::Value(payload),
            Self::Error(error) => Self::Error(error),
        }
    }
}

impl From<AgentError> for Reply {
    fn from(error: AgentError) -> Self {
        Self::Error(Box::new(error.into_parts()))
    }
}
