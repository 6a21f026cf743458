//! Frames on their way between the workers of durable runs and the harness.

use std::sync::Arc;

use bytes::Bytes;
use harness_server::dispatch::{Replay, Reply, Resumed};
use harness_server::envelope::{Code, Failure, Payload};
use harness_server::ids::{Delivery, Lease};
use harness_server::slot::EntryKind;

/// What a worker sends; `Hello` is the first.
#[derive(Clone, Debug)]
pub(super) enum Up {
    Hello(Previous),
    Heartbeat(Option<Delivery>),
    Append {
        delivery: Delivery,
        seq: u64,
        kind: EntryKind,
        entry: Bytes,
    },
    Reply {
        delivery: Delivery,
        seq: u64,
        says: Says,
    },
    Leave,
    HalfClose,
    /// The connection is gone; whether its process is known to have died.
    Cut(bool),
}

/// What a hello says of the call before.
#[derive(Clone, Copy, Debug)]
pub(super) enum Previous {
    None,
    Released(Delivery, Lease),
    Resume(Delivery, Lease),
}

/// What a reply says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Says {
    Value,
    Error { retryable: bool },
    Declined,
}

/// What the harness writes, and what a worker sees of a connection that breaks.
#[derive(Clone, Debug)]
pub(super) enum Down {
    Welcome(Option<Resumed>),
    Request {
        delivery: Delivery,
        lease: Lease,
        steps: u8,
        replay: Option<Arc<Replay>>,
    },
    Acknowledged(Delivery, u64),
    /// The call is ended; whether that means that the work is over.
    End {
        stop: bool,
    },
    Broken,
}

impl Says {
    pub(super) fn into_reply(self) -> Reply {
        match self {
            Self::Value => Reply::Value(Payload::default()),
            Self::Error { retryable } => {
                let mut failure = Failure::new(Code::AgentError, "no");
                failure.retryable = retryable;
                Reply::Error(failure)
            }
            Self::Declined => Reply::Declined,
        }
    }
}
