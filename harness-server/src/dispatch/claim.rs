//! What the worker of an attempt may come back to after its call is lost: the attempt itself while
//! it is under way, its acknowledgement, or the end it missed.
//!
//! Pure; what the harness does about it is in `resuming`.

use std::time::Instant;

use crate::envelope::Failure;
use crate::ids::{AgentKey, Attempt, Delivery, Lease};
use crate::run::Cause;
use crate::slot::{End, Level, Refusal};
use crate::store::{Holder, State};

use super::past::Past;
use super::workers::Offer;

/// The newest attempt of a run, as its worker may come back to it.
#[derive(Debug)]
pub(super) struct Claim {
    /// Whose it is.
    pub(super) holder: Holder,
    /// The last worker_seq taken of it.
    pub(super) taken: u64,
    /// The worker_seq of the reply that it has ended with; 0 where none was taken.
    pub(super) reply_seq: u64,
    /// What is waited for while its call is lost.
    pub(super) away: Option<Away>,
}

impl Claim {
    pub(super) fn new(holder: Holder) -> Self {
        Self {
            holder,
            taken: 0,
            reply_seq: 0,
            away: None,
        }
    }
}

/// How a run fails whose worker does not come back.
#[derive(Debug)]
pub(super) struct Away {
    pub(super) until: Instant,
    pub(super) cause: Cause,
    pub(super) failure: Failure,
}

/// What a hello says of the call before, as far as it is more than a hello.
#[derive(Clone, Copy, Debug)]
pub enum Back {
    /// The call broke and its work goes on.
    Resume(Delivery, Lease),
    /// The same, but the reply of it was taken, with this worker_seq.
    Replied(Delivery, u64),
}

/// Where the harness stands with a resumed attempt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resumed {
    /// Which.
    pub delivery: Delivery,
    /// The last worker_seq that is acknowledged.
    pub last_seq: u64,
    /// When the attempt ends at the latest; none when it has ended with its worker's reply.
    pub deadline: Option<Instant>,
}

/// A worker that wants to go on with an attempt.
#[derive(Clone, Copy, Debug)]
pub struct Comer<'a> {
    /// What it offers.
    pub offer: &'a Offer,
    /// Which attempt.
    pub delivery: Delivery,
    /// The proof that came with it.
    pub lease: Lease,
}

impl Comer<'_> {
    /// Whether the attempt is the newest of a run of that agent, and was this worker's.
    ///
    /// # Errors
    /// How its call ends.
    pub(super) fn has_newest(
        &self,
        agent: &AgentKey,
        newest: Attempt,
        holder: Option<Holder>,
    ) -> Result<(), End> {
        let may_resume = self.offer.level == Level::Full && self.offer.agent == *agent;
        // Leases are kept of the newest attempt alone.
        if may_resume && self.delivery.attempt < newest {
            return Err(End::Superseded(self.delivery));
        }
        let (worker, lease) = (self.offer.worker, self.lease);
        let is_newest = self.delivery.attempt == newest;
        match may_resume && is_newest && holder == Some(Holder { worker, lease }) {
            true => Ok(()),
            false => Err(End::Refused(Refusal::NotYours)),
        }
    }
}

/// The last attempt of a run that has ended, as its worker may come back to it.
#[derive(Clone, Copy, Debug)]
pub struct LastAttempt<'a> {
    /// The run's agent.
    pub agent: &'a AgentKey,
    /// Which.
    pub attempt: Attempt,
    /// Whose it was, where that is known.
    pub holder: Option<Holder>,
    /// The worker_seq of the reply that it ended with; 0 where none was taken.
    pub reply_seq: u64,
    /// How its run ended.
    pub state: State,
}

impl<'a> LastAttempt<'a> {
    /// What a worker comes back to that wants to go on with an attempt of the run.
    ///
    /// # Errors
    /// How its call ends.
    pub fn comes_back(&self, comer: Comer<'_>) -> Result<Back, End> {
        comer.has_newest(self.agent, self.attempt, self.holder)?;
        let delivery = comer.delivery;
        match self.state {
            _ if self.reply_seq > 0 => Ok(Back::Replied(delivery, self.reply_seq)),
            State::TimedOut => Err(End::DeadlineExceeded(delivery)),
            State::Cancelled => Err(End::Cancelled(delivery)),
            State::Queued | State::Running | State::Succeeded | State::Failed => {
                Err(End::Superseded(delivery))
            }
        }
    }

    pub(super) fn of(past: &'a Past) -> Self {
        let claim = past.claim.as_ref();
        let ended = past.view.ended.as_ref();
        Self {
            agent: &past.view.agent,
            attempt: past.view.attempt,
            holder: claim.map(|claim| claim.holder),
            reply_seq: claim.map_or(0, |claim| claim.reply_seq),
            state: State::ended(ended.and_then(|(_, ended)| ended.error())),
        }
    }
}
