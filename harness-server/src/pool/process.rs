//! One process of a pool: where it stands, and the rungs that end it.

use std::fmt;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::ids::ProcessId;

/// How a process is spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// It dials back over the ordinary worker protocol.
    #[default]
    Grpc,
    /// JSON Lines on its standard input and output.
    Jsonl,
}

/// How long each rung of the kill ladder waits for the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Stop {
    /// From the end of the call to SIGTERM. Default 500 ms.
    #[serde(with = "humantime_serde")]
    pub cancel_grace: Duration,
    /// From SIGTERM to SIGKILL. Default 2 s.
    #[serde(with = "humantime_serde")]
    pub term_grace: Duration,
}

impl Default for Stop {
    fn default() -> Self {
        Self {
            cancel_grace: Duration::from_millis(500),
            term_grace: Duration::from_secs(2),
        }
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// Its guardian was killed, which kills it too; nobody saw how it ended.
    Unknown,
}

/// A step of the kill ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rung {
    /// Its call has ended, or it was told to leave.
    CallEnded,
    /// SIGTERM went to its group.
    Sigterm,
    /// SIGKILL went to its group.
    Sigkill,
}

/// Why the harness ends a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The deadline of its request passed, or somebody cancelled it.
    Cancelled,
    /// It broke a rule.
    Broke,
    /// It broke a rule, or left untold, before it was given a request.
    Useless,
    /// It was not ready, or not back, within `ready_timeout`.
    NotReady,
    /// It has answered all that it is to answer.
    Spent,
    /// It is replaced: `max_requests`, `max_age`, a restart or a new configuration.
    Replaced,
    /// The pool has become smaller.
    Resized,
    /// The pool is leaving.
    Leaving,
}

/// The way down.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ladder {
    pub(super) reason: Reason,
    pub(super) began: Instant,
    pub(super) rung: Rung,
    pub(super) rung_since: Instant,
    /// When each rung was stood on.
    pub(super) climbed: [Option<Instant>; 3],
}

impl Ladder {
    pub(super) fn begin(now: Instant, reason: Reason) -> Self {
        Self {
            reason,
            began: now,
            rung: Rung::CallEnded,
            rung_since: now,
            climbed: [Some(now), None, None],
        }
    }

    pub(super) fn climb(&mut self, now: Instant, rung: Rung) {
        self.rung = rung;
        self.rung_since = now;
        self.climbed[rung as usize] = Some(now);
    }

    /// When the next rung is due; none on the last.
    pub(super) fn next(&self, stop: &Stop) -> Option<(Instant, Rung)> {
        match self.rung {
            Rung::CallEnded => Some((self.rung_since + stop.cancel_grace, Rung::Sigterm)),
            Rung::Sigterm => Some((self.rung_since + stop.term_grace, Rung::Sigkill)),
            Rung::Sigkill => None,
        }
    }
}

/// Where a process stands.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    /// Not ready yet.
    Starting { by: Instant },
    /// It has a call, and may hold a request.
    Attached,
    /// It should have a call and has none.
    Detached { by: Instant },
    /// It takes no new request; one in hand is finished first.
    Leaving(Reason),
    /// On the ladder.
    Stopping(Ladder),
    /// Its main process has ended; others of its group may not have.
    Exited(Option<Ladder>),
}

/// A process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) id: ProcessId,
    pub(super) pid: Option<u32>,
    pub(super) phase: Phase,
    pub(super) phase_since: Instant,
    /// When it was ready first.
    pub(super) ready_at: Option<Instant>,
    /// Whether it has lived for `min_uptime`.
    pub(super) proved: bool,
    pub(super) answered: u64,
    /// Whether it is to be replaced as soon as that can be ready.
    pub(super) worn: bool,
    /// Whom it is started to replace, until it is ready.
    pub(super) replaces: Option<ProcessId>,
    /// Whether another one has taken its seat.
    pub(super) replaced: bool,
}

impl Process {
    pub(super) fn new(id: ProcessId, now: Instant, by: Instant) -> Self {
        Self {
            id,
            pid: None,
            phase: Phase::Starting { by },
            phase_since: now,
            ready_at: None,
            proved: false,
            answered: 0,
            worn: false,
            replaces: None,
            replaced: false,
        }
    }

    pub(super) fn enter(&mut self, now: Instant, phase: Phase) {
        self.phase = phase;
        self.phase_since = now;
    }

    /// Whether its seat is taken by it, and by it alone.
    pub(super) fn occupies(&self) -> bool {
        !self.replaced && self.replaces.is_none()
    }

    /// Whether it works or is about to, and is not to go.
    pub(super) fn serves(&self) -> bool {
        match self.phase {
            Phase::Starting { .. } | Phase::Attached | Phase::Detached { .. } => true,
            Phase::Leaving(_) | Phase::Stopping(_) | Phase::Exited(_) => false,
        }
    }

    pub(super) fn is_attached(&self) -> bool {
        match self.phase {
            Phase::Attached => true,
            Phase::Starting { .. }
            | Phase::Detached { .. }
            | Phase::Leaving(_)
            | Phase::Stopping(_)
            | Phase::Exited(_) => false,
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(number) => match signal_name(*number) {
                Some(name) => write!(f, "signal {number} ({name})"),
                None => write!(f, "signal {number}"),
            },
            Self::Unknown => f.write_str("an end that its guardian did not live to see"),
        }
    }
}

/// The signals that end processes, by their numbers on Linux and macOS alike.
fn signal_name(number: i32) -> Option<&'static str> {
    Some(match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        _ => return None,
    })
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cancelled => "its request was cancelled",
            Self::Broke => "it broke a rule",
            Self::Useless => "it broke a rule or left before it was given a request",
            Self::NotReady => "it was not ready in time",
            Self::Spent => "it has answered",
            Self::Replaced => "it is replaced",
            Self::Resized => "the pool has become smaller",
            Self::Leaving => "the pool is leaving",
        })
    }
}
