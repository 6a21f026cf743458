//! What a session does more where the process behind its call is that of a pool: it tells the
//! supervisor what becomes of the call, and knows from it that the process is to go, or has died.
//!
//! Decides nothing about the process, which is `pool`'s affair.

use std::time::Duration;

use crate::auth::{Attendance, Death, Process, Told};
use crate::dispatch::Frame;
use crate::engine::SlotHandle;
use crate::ids::{Delivery, WorkerId};
use crate::pool::{Detached, Exit};
use crate::slot::End;

/// How long after the loss of its call a process may take to be known as dead.
const DEATH_TIMEOUT: Duration = Duration::from_secs(2);

/// How long after the death of its process what that has sent is still read.
const READ_TIMEOUT: Duration = Duration::from_millis(500);

/// Why a process of a pool is told to leave.
const DISMISSED: &str = "its pool wants this process to finish";

/// The process behind a call.
pub(super) struct Attended {
    attendance: Attendance,
    worker: WorkerId,
    /// What it goes on with.
    resumed: Option<Delivery>,
    attached: bool,
    /// Whether the worker was told to leave.
    leaving: bool,
    /// Whether the supervisor knows that the call is, or is about to be, over.
    detached: bool,
}

/// What a session must know.
pub(super) enum News {
    /// The process is to finish and leave.
    Dismissed,
    /// It has died, and what it has sent was read.
    Died,
}

impl Attended {
    pub(super) fn new(attendance: Attendance, worker: WorkerId) -> Self {
        Self {
            attendance,
            worker,
            resumed: None,
            attached: false,
            leaving: false,
            detached: false,
        }
    }

    fn process(&self) -> &Process {
        self.attendance.process()
    }

    /// Its call goes on with what the one before held.
    pub(super) fn resumes(&mut self, delivery: Delivery) {
        self.resumed = Some(delivery);
    }

    pub(super) async fn attached(&mut self) {
        self.attached = true;
        // What else it worked on before has stopped.
        self.process().in_hand().set(self.resumed);
        self.process().tell(Told::Attached).await;
    }

    /// Waits for news; losing this future loses none.
    pub(super) async fn news(&self) -> News {
        let process = self.process();
        let died = async {
            process.death().await;
            tokio::time::sleep(READ_TIMEOUT).await;
        };
        tokio::select! {
            () = process.until_dismissed(), if !self.leaving => News::Dismissed,
            () = died => News::Died,
        }
    }

    /// Has the worker leave.
    pub(super) fn dismiss(&mut self, slot: &SlotHandle) {
        self.leaving = true;
        slot.drain(self.worker, DISMISSED);
    }

    /// A reply is about to be taken. Whether it is one that counts.
    pub(super) fn replies(&self, slot: &SlotHandle, delivery: Delivery, declined: bool) -> bool {
        let process = self.process();
        if process.in_hand().get() != Some(delivery) {
            return false;
        }
        // Before the slot is free, whose next request would be in hand.
        process.in_hand().set(None);
        if process.is_per_request() && !declined {
            slot.frame(Frame::Leave);
            process.dismiss();
        }
        !declined
    }

    pub(super) async fn answered(&self) {
        self.process().tell(Told::Answered).await;
    }

    /// Tells when a process that leaves has nothing in hand any more.
    pub(super) async fn look(&mut self, slot: &SlotHandle) {
        if self.leaving && !self.detached && !slot.is_busy() {
            self.detached(Detached::Left).await;
        }
    }

    /// The call has ended, by the harness.
    pub(super) async fn ended(&mut self, end: &End) {
        self.detached(match end {
            End::DeadlineExceeded(_)
            | End::Cancelled(_)
            | End::NotAccepted(_)
            | End::Superseded(_) => Detached::Cancelled,
            // It may be stuck or stopped, and come back, or come back with its work.
            End::HeartbeatsMissed | End::StoreFailed => Detached::Lost,
            End::WrongAttempt { .. }
            | End::Violation(_)
            | End::Broken(_)
            | End::FrameTooLarge { .. }
            | End::Refused(_) => match self.process().was_asked() {
                true => Detached::Broke,
                false => Detached::Useless,
            },
            End::Closed | End::Idle if !self.process().had_orders() => Detached::Useless,
            End::Closed | End::Idle | End::Leaving => Detached::Left,
        })
        .await;
    }

    /// The call is gone: the request in it has failed as the process tells.
    pub(super) async fn lost(&mut self, mut slot: SlotHandle, why: String) {
        if slot.is_busy() {
            let death = tokio::time::timeout(DEATH_TIMEOUT, self.process().death());
            let death = tokio::select! {
                biased;
                end = slot.outbox().ended() => return self.ended(&end).await,
                death = death => death.ok(),
            };
            match death {
                Some(death) if self.was_not_taken(&slot, &death) => slot.frame(Frame::HalfClosed),
                Some(Death {
                    failure: Some(failure),
                    ..
                }) => slot.died(failure),
                Some(Death { failure: None, .. }) => {
                    slot.lost("the harness ended its process".to_owned());
                }
                None => slot.lost(why),
            }
        } else {
            slot.lost(why);
        }
        self.detached(Detached::Lost).await;
    }

    /// Whether a request came to a process that was ending in good order.
    fn was_not_taken(&self, slot: &SlotHandle, death: &Death) -> bool {
        death.exit == Exit::Code(0) && self.process().answered() > 0 && !slot.has_taken()
    }

    async fn detached(&mut self, why: Detached) {
        if self.attached && !std::mem::replace(&mut self.detached, true) {
            self.process().tell(Told::Detached(why)).await;
        }
    }
}
