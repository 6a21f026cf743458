//! What happens to Core.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::envelope::{Failure, Payload, Request};
use crate::ids::{AgentKey, Delivery, Lease, RunId, SchemaId, SlotId, WorkerId};
use crate::journal::Proof;
use crate::pool::Rung;
use crate::{run, slot};

use super::claim::Back;
use super::pools::Pooled;
use super::starting::Loaded;
use super::stored::Adopted;
use super::workers::Offer;
use super::writes::{Start, Stored};

/// What happens.
#[derive(Debug)]
pub enum Event {
    /// A hello was accepted.
    Opened {
        /// The new slot.
        slot: SlotId,
        /// What it offers.
        offer: Offer,
        /// The work of a lost call that it goes on with.
        back: Option<Back>,
    },
    /// A frame came from a worker.
    Frame {
        /// From which slot.
        slot: SlotId,
        /// What it says.
        frame: Frame,
    },
    /// A call is gone without an end of ours.
    Lost {
        /// Which.
        slot: SlotId,
        /// What is known of it, for the error.
        why: String,
    },
    /// The process behind a call is known to have died by itself.
    Died {
        /// Which call.
        slot: SlotId,
        /// What to tell whoever waits for the request in it.
        failure: Failure,
    },
    /// The process of a request whose call is lost has died, and so will not come back to it.
    Perished {
        /// The process, and what it had in hand.
        work: (WorkerId, Delivery),
        /// What to tell of it where it died by itself; none where the harness has ended it.
        failure: Option<Failure>,
    },
    /// A process with cancelled work has come to a rung of the kill ladder.
    Stopping {
        /// The process.
        worker: WorkerId,
        /// The rung.
        rung: Rung,
    },
    /// Nothing is left of a process: its cancelled work has stopped.
    Stopped {
        /// The process.
        worker: WorkerId,
        /// How that came about.
        proof: Proof,
    },
    /// An agent was known to the harness before this one.
    Remembered {
        /// The agent.
        agent: AgentKey,
    },
    /// A pool names an agent, or does so no more.
    Pooled {
        /// The agent.
        agent: AgentKey,
        /// Where the pool stands; none when there is none any more.
        pool: Option<Pooled>,
    },
    /// A worker says that work whose call has ended, or broke, has stopped; or it has never seen it.
    Released {
        /// The worker.
        worker: WorkerId,
        /// The work.
        delivery: Delivery,
        /// What came with its request.
        lease: Lease,
    },
    /// Somebody asks.
    Ask {
        /// The new run.
        run: RunId,
        /// What is asked, and of whom.
        request: Request,
        /// Its deadline and attempts.
        terms: run::Terms,
        /// Which slots it may go to, and when.
        placing: Placing,
    },
    /// Somebody starts a durable run.
    Start {
        /// The new run.
        run: RunId,
        /// What is asked, and of whom.
        request: Request,
        /// Its deadline and attempts.
        terms: run::Terms,
        /// Which slots it may go to.
        placing: Placing,
        /// What a durable run has beside.
        start: Box<Start>,
    },
    /// A step of a durable run is on disk, or is not. Steps of a run come in their order.
    Stored {
        /// The run.
        run: RunId,
        /// What came of it.
        stored: Stored,
    },
    /// The request of a durable run was read; none when it could not be.
    Loaded {
        /// The run.
        run: RunId,
        /// What was read.
        loaded: Option<Box<Loaded>>,
    },
    /// A durable run is taken in as it is on disk; none when it is not there, or has ended.
    Adopt {
        /// The run.
        run: RunId,
        /// How it is.
        adopted: Option<Box<Adopted>>,
        /// Whether `Reload` asked for it, so that it was read behind all that was decided of it.
        again: bool,
    },
    /// The caller of a streamed ask has taken entries of its run's journal.
    Read {
        /// The run.
        run: RunId,
        /// Up to which number.
        seq: u64,
        /// Whether output was among them, which cannot be taken back.
        output: bool,
    },
    /// Somebody begins or ceases to read a run's journal as it grows.
    Watched {
        /// The run.
        run: RunId,
        /// Whether they begin.
        more: bool,
    },
    /// Somebody asks for a run to be stopped.
    CancelRequested {
        /// The run.
        run: RunId,
        /// The principal.
        who: Arc<str>,
        /// The reason given, may be empty.
        why: String,
    },
    /// An operator wants a worker to finish, leave and not come back.
    Drain {
        /// The worker.
        worker: WorkerId,
        /// Why.
        reason: String,
    },
    /// A request was held against a schema.
    Judged {
        /// The run.
        run: RunId,
        /// The schema.
        schema: SchemaId,
        /// Why the schema does not take it.
        refusal: Option<Failure>,
    },
    /// A schema is not taken any more: every slot that has it ends.
    Condemned {
        /// Its text.
        text: Bytes,
        /// Why, for the worker and whoever waits for what is in the slot.
        why: String,
    },
    /// Somebody cancels a run or hangs up.
    Cancelled {
        /// The run.
        run: RunId,
        /// Who and why.
        why: String,
    },
    /// The harness is leaving: nothing new starts.
    ServerLeaving,
    /// The harness is leaving and waits no longer.
    ServerLeft,
    /// Time passed.
    Tick,
}

/// A frame of a worker, after its hello.
#[derive(Debug)]
pub enum Frame {
    /// It is there, and works on this.
    Heartbeat(Option<Delivery>),
    /// A journal entry.
    Append {
        /// Whose.
        delivery: Delivery,
        /// Its worker_seq.
        seq: u64,
        /// What it holds.
        kind: slot::EntryKind,
        /// It, encoded.
        entry: Bytes,
        /// Up to which seq an acknowledgement has been written to the worker.
        acknowledged: u64,
    },
    /// The end of a request.
    Reply {
        /// Whose.
        delivery: Delivery,
        /// Its worker_seq.
        seq: u64,
        /// What it says.
        reply: Reply,
    },
    /// It takes no new request.
    Leave,
    /// It sends nothing more.
    HalfClosed,
    /// A second hello.
    HelloAgain,
    /// No known case.
    Unknown,
    /// Nothing that its dialect knows; what it was and what to do.
    Broken(String),
    /// Over our limit; sizes in bytes.
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
}

/// What a reply says, after it was held against the slot's schema.
#[derive(Debug)]
pub enum Reply {
    /// A value.
    Value(Payload),
    /// The agent's error.
    Error(Failure),
    /// A value the slot's own schema refuses.
    Invalid(Failure),
    /// A value over the limit.
    TooLarge(Failure),
    /// The request is given back unworked.
    Declined,
}

/// Which slots a run may go to, and when.
#[derive(Clone, Debug, Default)]
pub struct Placing {
    /// Labels its slot must have.
    pub selector: BTreeMap<String, String>,
    /// -100 to 100; higher goes first.
    pub priority: i32,
    /// Whether an unknown agent counts as known and empty.
    pub wait_for_agent: bool,
    /// Whether the caller reads the run's journal, so that a slow caller slows the worker.
    pub paced: bool,
}
