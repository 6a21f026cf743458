//! What goes into a call's rules and what comes out.
//!
//! Owns the two enums; their meaning is in [`super::Session`].

use super::{Delivery, End, Inbound, Next, Outbound, Reply};
use crate::context::CancelReason;
use crate::journal::Entry;

/// What happens to a call.
#[derive(Debug)]
pub(crate) enum Event {
    Frame(Inbound),
    /// The call is over, as the transport tells it.
    Ended(End),
    /// The agent wants to write an entry. Only while [`Session::takes_appends`].
    Append {
        entry: Entry,
        entry_bytes: u64,
    },
    /// The agent is done with the request in hand. Only while [`Session::takes_reply`].
    Replied(Reply),
    /// The worker wants to leave.
    Leave,
    /// [`Session::next_wake`] has come.
    Tick,
}

/// What is to be done.
#[derive(Debug, PartialEq)]
pub(crate) enum Action {
    Send(Outbound),
    /// The harness took this worker.
    Welcomed,
    /// Hand the request to the agent.
    Start(Box<Delivery>),
    /// Stop the agent's work now; its reply is no longer wanted.
    Stop(CancelReason),
    /// The agent's append was sent.
    Admit,
    /// The agent's append, a step, was sent under this number; the agent waits until that is
    /// acknowledged.
    Await {
        worker_seq: u64,
    },
    /// All up to this number is acknowledged.
    Acknowledged {
        worker_seq: u64,
    },
    /// The agent's append is larger than an entry may be.
    Refuse {
        entry_bytes: u64,
        limit: u64,
    },
    /// The reply about to be sent is larger than the harness takes: it will fail the run.
    Oversize {
        bytes: u64,
        limit: u64,
    },
    /// The harness wants this worker gone, on every slot.
    Drained {
        reason: String,
    },
    /// Nothing more will be sent.
    HalfClose,
    /// The call is over; drop both its halves.
    Over(Next),
}
