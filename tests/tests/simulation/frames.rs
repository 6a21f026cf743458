//! Frames on their way between workers and harness: small copies of Core's own, cheap to queue.

use bytes::Bytes;
use harness_server::dispatch::{Frame, Reply, Resumed};
use harness_server::envelope::{Code, Failure, Payload};
use harness_server::ids::{Delivery, Lease};
use harness_server::slot::EntryKind;

const ENTRY: &[u8] = &[b'1'; 1024];

/// What a worker sends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Up {
    /// Opens the call.
    Hello,
    Heartbeat(Option<Delivery>),
    Append {
        delivery: Delivery,
        seq: u64,
        kind: EntryKind,
        bytes: u64,
    },
    Reply {
        delivery: Delivery,
        seq: u64,
        says: Says,
    },
    Leave,
    HalfClose,
    HelloAgain,
    Unknown,
    TooLarge,
    /// The connection is gone.
    Cut,
}

/// What a reply says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Says {
    Value,
    Error {
        retryable: bool,
    },
    /// A retryable error of a type that the policy never retries.
    Forbidden,
    Invalid,
    TooLarge,
    Declined,
}

/// What the harness writes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Down {
    Welcome(Option<Resumed>),
    Request(Delivery, Lease),
    Acknowledged(u64),
    Drain,
    /// Whether it is a lost call to a worker, which may come back to its work.
    End {
        lost: bool,
    },
}

/// The type that policies of the simulation never retry.
pub(crate) const FORBIDDEN: &str = "Forbidden";

impl Up {
    pub(crate) fn into_frame(self, acknowledged: u64) -> Frame {
        match self {
            Self::Heartbeat(named) => Frame::Heartbeat(named),
            Self::Append {
                delivery,
                seq,
                kind,
                bytes,
            } => Frame::Append {
                delivery,
                seq,
                kind,
                entry: Bytes::from_static(&ENTRY[..bytes as usize]),
                acknowledged,
            },
            Self::Reply {
                delivery,
                seq,
                says,
            } => Frame::Reply {
                delivery,
                seq,
                reply: says.into_reply(),
            },
            Self::Leave => Frame::Leave,
            Self::HalfClose => Frame::HalfClosed,
            Self::HelloAgain => Frame::HelloAgain,
            Self::Unknown => Frame::Unknown,
            Self::TooLarge => Frame::TooLarge { bytes: 9, limit: 8 },
            Self::Hello | Self::Cut => unreachable!("these are no frames of a slot"),
        }
    }
}

impl Says {
    fn into_reply(self) -> Reply {
        let error = |kind: &str, retryable| {
            let mut failure = Failure::new(Code::AgentError, "no");
            failure.kind = kind.to_owned();
            failure.retryable = retryable;
            Reply::Error(failure)
        };
        match self {
            Self::Value => Reply::Value(Payload::default()),
            Self::Error { retryable } => error("", retryable),
            Self::Forbidden => error(FORBIDDEN, true),
            Self::Invalid => Reply::Invalid(Failure::new(Code::InvalidReply, "no")),
            Self::TooLarge => Reply::TooLarge(Failure::new(Code::PayloadTooLarge, "no")),
            Self::Declined => Reply::Declined,
        }
    }
}
