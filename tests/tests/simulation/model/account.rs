//! What the account holds of each slot, run and agent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use harness_server::dispatch::Offer;
use harness_server::envelope::{Code, Request};
use harness_server::ids::{Delivery, Lease, SchemaId};
use harness_server::retry::Policy;
use harness_server::slot::End;

use super::Hand;

/// One slot, as its call shows it.
pub(crate) struct Slot {
    pub(crate) offer: Arc<Offer>,
    pub(crate) agent: usize,
    pub(crate) worker: usize,
    pub(crate) open: bool,
    pub(crate) stopping: Option<Instant>,
    pub(crate) held: Option<Held>,
    pub(crate) answered: Option<Delivery>,
    /// Whether its worker was told to drain on it.
    pub(crate) told: bool,
    pub(crate) heard: Instant,
    /// Its place among the free slots, while it is one.
    pub(crate) free: Option<u64>,
}

/// The request in a slot.
pub(crate) struct Held {
    pub(crate) delivery: Delivery,
    pub(crate) lease: Lease,
    pub(crate) accept_by: Instant,
    pub(crate) accepted: bool,
    pub(crate) last_seq: u64,
    /// Sequence and size of what is not acknowledged.
    pub(crate) unacked: Vec<(u64, u64)>,
    /// Whether its worker has said that it works on it no more.
    pub(crate) has_stopped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Queued,
    Running(usize),
    BackingOff(Instant),
    /// Its call is lost, and its worker has until then to come back.
    Away(Instant),
    /// Its outcome is clear; this very event must bring it. None is a value.
    Owed(Option<Code>),
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    Awaited,
    Takes,
    Refuses,
}

/// One run, as its caller and its workers see it.
pub(crate) struct Run {
    pub(crate) agent: usize,
    pub(crate) deadline: Instant,
    pub(crate) policy: Arc<Policy>,
    pub(crate) selector: BTreeMap<String, String>,
    /// Its place in the queue: the negative of its priority, then the order of asking.
    pub(crate) key: (i32, usize),
    pub(crate) wait_for_agent: bool,
    pub(crate) bytes: u64,
    pub(crate) frame_bytes: u64,
    pub(crate) is_json: bool,
    pub(crate) parent: Option<Delivery>,
    pub(crate) depth: u32,
    pub(crate) state: State,
    pub(crate) attempt: u32,
    /// Whose each attempt was, the first first.
    pub(crate) hands: Vec<Hand>,
    /// The last number taken of the newest attempt's worker.
    pub(crate) taken: u64,
    /// That of the reply it has ended with; 0 where none was taken.
    pub(crate) replied: u64,
    /// How it has ended, if it has, and without a value.
    pub(crate) outcome: Option<Code>,
    pub(crate) ended_at: Instant,
    /// How many runs had ended before it.
    pub(crate) ends_before: usize,
    pub(crate) counted: u32,
    pub(crate) uncounted_in_row: u32,
    /// Workers that died with it in hand.
    pub(crate) killed: u32,
    pub(crate) output_seen: bool,
    pub(crate) attempt_ends: Option<Instant>,
    pub(crate) avoid: Option<usize>,
    pub(crate) judged: Vec<(SchemaId, Judged)>,
    pub(crate) waiting: bool,
    /// Whether a slow caller slows the worker.
    pub(crate) paced: bool,
    pub(crate) watchers: u32,
    /// Entries the caller of a paced run has not read: their place in the journal, their number.
    pub(crate) unread: Vec<(u64, u64)>,
    /// The event in which it last changed its state.
    pub(crate) changed: u64,
    /// The event in which it last looked for a slot.
    pub(crate) settled: u64,
}

#[derive(Default)]
pub(crate) struct Agent {
    pub(crate) open: Vec<usize>,
    pub(crate) queued: Vec<usize>,
    /// Of the runs that wait, how many count.
    pub(crate) waiting: usize,
    /// Runs whose worker is waited for.
    pub(crate) away: usize,
    pub(crate) classes: Vec<(Option<SchemaId>, u64, usize)>,
    pub(crate) offered: bool,
    /// Whether its pool crash-loops; none when it has none.
    pub(crate) pool: Option<bool>,
    pub(crate) had_pool: bool,
}

impl Agent {
    pub(crate) fn is_known(&self) -> bool {
        self.offered || self.pool.is_some()
    }

    /// Whether nobody will take what waits for it.
    pub(crate) fn is_given_up(&self) -> bool {
        self.pool == Some(true) && self.open.is_empty()
    }
}

pub(crate) struct Unreleased {
    pub(crate) worker: usize,
    pub(crate) delivery: Delivery,
    pub(crate) lease: Lease,
    pub(crate) since: Instant,
}

/// An ask, as far as the model needs it.
pub(crate) struct Asked {
    pub(crate) agent: usize,
    pub(crate) request: Request,
    pub(crate) deadline: Instant,
    pub(crate) policy: Arc<Policy>,
    pub(crate) selector: BTreeMap<String, String>,
    pub(crate) priority: i32,
    pub(crate) wait_for_agent: bool,
    pub(crate) paced: bool,
}

/// How a delivery failed.
#[derive(Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) code: Code,
    pub(crate) counts: bool,
    pub(crate) retried: bool,
}

impl Fault {
    pub(crate) fn counted(code: Code) -> Self {
        Self {
            code,
            counts: true,
            retried: true,
        }
    }

    pub(crate) fn uncounted() -> Self {
        Self {
            code: Code::WorkerLost,
            counts: false,
            retried: true,
        }
    }

    pub(crate) fn never_retried(code: Code) -> Self {
        Self {
            code,
            counts: true,
            retried: false,
        }
    }
}

/// What the census must say, as far as the model counts it exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) slots: usize,
    pub(crate) ready: usize,
    pub(crate) runs: usize,
    pub(crate) queued: usize,
    pub(crate) waiting: usize,
    pub(crate) queued_bytes: u64,
    pub(crate) workers: usize,
    pub(crate) unreleased: usize,
}

/// The end a call must, or may, come to.
#[derive(Clone, Debug)]
pub(crate) enum Expected {
    Exactly(End),
    /// The hello breaks a limit.
    Refused {
        certainly: bool,
    },
}
