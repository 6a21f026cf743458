//! What the worker of an attempt may come back to after its call is lost: the attempt itself while
//! it is under way, its acknowledgement, or the end it missed.
//!
//! Pure; what the harness does about it is in `resuming`.

use std::time::{Duration, Instant};

use crate::envelope::Failure;
use crate::ids::{Attempt, Delivery, Lease};
use crate::run::Cause;
use crate::slot::{End, Level, Refusal};
use crate::store::{Holder, State};

use super::past::Past;

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

    /// That of a worker of this level to a run whose worker is waited for so long.
    pub(super) fn within(window: Duration, level: Level, holder: Holder) -> Option<Box<Self>> {
        let comes_back = level == Level::Full && !window.is_zero();
        comes_back.then(|| Box::new(Self::new(holder)))
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

/// The last attempt of a run that has ended, as its worker may come back to it.
#[derive(Clone, Copy, Debug)]
pub struct LastAttempt {
    /// Which.
    pub attempt: Attempt,
    /// Whose it was, where that is known.
    pub holder: Option<Holder>,
    /// The worker_seq of the reply that it ended with; 0 where none was taken.
    pub reply_seq: u64,
    /// How its run ended.
    pub state: State,
}

impl LastAttempt {
    /// What a worker comes back to that wants to go on with a delivery of the run; at the minimal
    /// level to nothing.
    ///
    /// # Errors
    /// How its call ends.
    pub fn comes_back(
        &self,
        delivery: Delivery,
        holder: Holder,
        level: Level,
    ) -> Result<Back, End> {
        if delivery.attempt < self.attempt {
            return Err(End::Superseded(delivery));
        }
        let holds = self.holder == Some(holder) && level == Level::Full;
        if delivery.attempt > self.attempt || !holds {
            return Err(End::Refused(Refusal::NotYours));
        }
        match self.state {
            _ if self.reply_seq > 0 => Ok(Back::Replied(delivery, self.reply_seq)),
            State::TimedOut => Err(End::DeadlineExceeded(delivery)),
            State::Cancelled => Err(End::Cancelled(delivery)),
            State::Queued | State::Running | State::Succeeded | State::Failed => {
                Err(End::Superseded(delivery))
            }
        }
    }

    pub(super) fn of(past: &Past) -> Self {
        let claim = past.claim.as_ref();
        Self {
            attempt: past.view.attempt,
            holder: claim.map(|claim| claim.holder),
            reply_seq: claim.map_or(0, |claim| claim.reply_seq),
            state: past.state(),
        }
    }
}
