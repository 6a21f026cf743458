//! What Core wants done.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::envelope::{Answer, Failure, Request};
use crate::ids::{Delivery, Lease, RunId, SchemaId, SlotId, WorkerId};
use crate::slot;

use super::claim::Resumed;
use super::writes::{Replay, Write};

/// What to do about an event. Each names its slot and attempt, so a late one is harmless.
#[derive(Debug)]
pub enum Action {
    /// Welcome a slot.
    Welcome {
        /// Which.
        slot: SlotId,
        /// What it goes on with.
        resumed: Option<Resumed>,
    },
    /// Send a request.
    Deliver {
        /// To which slot.
        slot: SlotId,
        /// Whose that is.
        worker: WorkerId,
        /// Under which number.
        delivery: Delivery,
        /// The proof that comes with it.
        lease: Lease,
        /// What to send.
        request: Arc<Request>,
        /// When the attempt ends at the latest.
        deadline: Instant,
        /// How long its worker is waited for after its call is lost.
        window: Duration,
        /// Entries to send again with it.
        replay: Option<Arc<Replay>>,
    },
    /// Write a step of a durable run, and tell.
    Write(Write),
    /// Read the request of a durable run, and tell.
    Load {
        /// The run.
        run: RunId,
        /// Whether its journal holds entries that go with it.
        replayed: bool,
    },
    /// Once nothing of it is on its way to the disk, take a run in as it is there.
    Reload {
        /// The run.
        run: RunId,
    },
    /// Tell whoever started a run: itself, the one that its key has, or why there is none.
    Started {
        /// The run.
        run: RunId,
        /// What to tell.
        started: Result<RunId, Box<Failure>>,
    },
    /// Tell whoever waits for a durable run's end that it is on disk, or why it is not.
    Decided {
        /// The run.
        run: RunId,
        /// Why it is not.
        failure: Option<Box<Failure>>,
    },
    /// Acknowledge appends.
    Acknowledge {
        /// To which slot.
        slot: SlotId,
        /// Of which request.
        delivery: Delivery,
        /// Up to which worker_seq.
        seq: u64,
    },
    /// End a call.
    End {
        /// Which.
        slot: SlotId,
        /// How.
        end: slot::End,
    },
    /// Hold a request against a schema and tell. It is asked once: the run waits for the `Judged`
    /// before it waits for a slot.
    Judge {
        /// The run.
        run: RunId,
        /// The schema.
        schema: SchemaId,
        /// What to hold against it.
        request: Arc<Request>,
    },
    /// A run's journal has grown and somebody reads it.
    Grew {
        /// The run.
        run: RunId,
    },
    /// Tell a worker to finish, leave and not come back.
    Drain {
        /// On which slot.
        slot: SlotId,
        /// Why.
        reason: Arc<str>,
    },
    /// Answer a caller.
    Answer {
        /// The run.
        run: RunId,
        /// What to answer.
        answer: Answer,
    },
    /// Something for the log.
    Note(Note),
}

/// What the log should say.
#[derive(Debug)]
pub enum Note {
    /// Work that was cancelled, or whose call was lost, has stopped.
    Released {
        /// The worker.
        worker: WorkerId,
        /// The work.
        delivery: Delivery,
        /// From the end of its call to the proof.
        took: Duration,
    },
    /// A released that proves nothing.
    ReleasedUnknown {
        /// The worker that said so.
        worker: WorkerId,
        /// What it named.
        delivery: Delivery,
    },
    /// No released came in time.
    GaveUp {
        /// The worker.
        worker: WorkerId,
        /// The work.
        delivery: Delivery,
    },
    /// The call of a worker is lost, and it may come back to its work.
    Away {
        /// The worker.
        worker: WorkerId,
        /// Its work.
        delivery: Delivery,
        /// What happened, with the worker's name.
        what: Arc<str>,
    },
    /// A worker has come back to its work.
    Resumed {
        /// The worker.
        worker: WorkerId,
        /// Its work.
        delivery: Delivery,
    },
    /// A worker was lost or broke a rule.
    Failed {
        /// The worker.
        worker: WorkerId,
        /// What was in its slot.
        delivery: Option<Delivery>,
        /// What happened, with the worker's name.
        what: Arc<str>,
    },
    /// A frame about a request that was answered just before, or whose slot is gone.
    Stale {
        /// The slot.
        slot: SlotId,
    },
}
