//! How a call ends, and what was wrong where something was.

use std::fmt;

use crate::ids::Delivery;

/// How the harness ends a call. `api::status` makes the gRPC status of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The answer to a half-close.
    Closed,
    /// STOPPING and idle for too long.
    Idle,
    /// The run's deadline passed, or the attempt's timeout.
    DeadlineExceeded(Delivery),
    /// The run was cancelled.
    Cancelled(Delivery),
    /// No acceptance came in time.
    NotAccepted(Delivery),
    /// Three heartbeats were missed.
    HeartbeatsMissed,
    /// The harness is leaving.
    Leaving,
    /// The store could not take what the worker wrote.
    StoreFailed,
    /// A newer call has the work, or a later attempt exists.
    Superseded(Delivery),
    /// A frame named a request this call does not hold.
    WrongAttempt {
        /// What the frame named.
        named: Delivery,
        /// What the slot holds.
        holds: Option<Delivery>,
    },
    /// A frame broke a rule.
    Violation(Violation),
    /// A worker of another dialect than this protocol wrote what is none of it; what it was.
    Broken(String),
    /// An inbound frame was over the limit.
    FrameTooLarge {
        /// Its size in bytes, or more.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The hello was refused.
    Refused(Refusal),
}

/// A rule a frame broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A second hello.
    SecondHello,
    /// A frame of no known case.
    UnknownFrame,
    /// A frame before the welcome.
    BeforeWelcome,
    /// A worker_seq that leaves a gap.
    Gap {
        /// The next number.
        expected: u64,
        /// The number that came.
        got: u64,
    },
    /// More unacknowledged appends than the window allows.
    WindowPassed,
    /// A step from a worker that follows no heartbeats.
    StepFromMinimal,
    /// An entry of a kind workers do not write.
    ForeignEntry,
}

/// Why a hello is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// None came in time.
    NoHello,
    /// The first frame was another one.
    NotFirst,
    /// A protocol version this server does not speak.
    UnsupportedProtocol(u32),
    /// A field is malformed; what and what to do.
    Invalid(String),
    /// It is over the limit; sizes in bytes.
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// Whoever calls may not offer this agent; who, and what they may.
    Denied(String),
    /// The worker was drained and came back with the same process.
    Drained,
    /// A resume of something this server has never handed out.
    NotYours,
    /// A limit on workers or agents is reached.
    TooMany(String),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SecondHello => f.write_str("a call has one hello, its first frame"),
            Self::UnknownFrame => {
                f.write_str("a frame must set one of hello, heartbeat, append, reply, leave")
            }
            Self::BeforeWelcome => f.write_str("nothing may follow hello before welcome has come"),
            Self::Gap { expected, got } => write!(
                f,
                "worker_seq must start at 1 and grow by 1 over the appends and the reply of an \
                 attempt: expected {expected}, got {got}"
            ),
            Self::WindowPassed => f.write_str(
                "more appends are unacknowledged than welcome.limits allows: wait for appended",
            ),
            Self::StepFromMinimal => f.write_str(
                "a step needs the full level: set hello.heartbeats and follow its rules",
            ),
            Self::ForeignEntry => f.write_str(
                "a worker appends output, progress, log, step or usage; other entries are the \
                 harness's own",
            ),
        }
    }
}
