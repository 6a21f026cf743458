//! How a call ends and what the worker does next (rules 7 and 8 of the protocol).
//!
//! Owns the reading of an end: *stop* (the harness says so), *lost* (the connection broke or the
//! harness is leaving), and the ends after which this worker does not come back. What becomes of
//! work that goes on after its call was lost is `resume`'s affair.
#![deny(clippy::wildcard_enum_match_arm)]

use std::time::{Duration, Instant};

use super::resume::Suspended;
use super::work::Work;
use super::{Action, Lease, Session, State};
use crate::context::CancelReason;

/// The end of a call as the transport told it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) code: EndCode,
    /// The stable reason of the harness's ErrorInfo. None: the end is not the harness's own.
    pub(crate) reason: Option<String>,
    pub(crate) message: String,
    /// RetryInfo.
    pub(crate) retry_after: Option<Duration>,
    /// Whether the connection under the call broke with it.
    pub(crate) broken: bool,
}

/// The gRPC status of an end, as far as the rules tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndCode {
    Ok,
    Cancelled,
    DeadlineExceeded,
    Aborted,
    Unavailable,
    Unauthenticated,
    PermissionDenied,
    FailedPrecondition,
    InvalidArgument,
    Unimplemented,
    ResourceExhausted,
    Other,
}

/// What a slot does after a call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Next {
    /// Open the next call as soon as the work has stopped.
    AtOnce { released: Option<Lease> },
    /// Open the next call after a jittered wait of at least `least`.
    BackOff {
        released: Option<Lease>,
        least: Option<Duration>,
        why: String,
        fault: Fault,
    },
    /// The work goes on. Open the next call as after back-off, and resume it.
    Resume {
        suspended: Box<Suspended>,
        least: Option<Duration>,
        why: String,
        fault: Fault,
    },
    /// The worker left in good order.
    Left,
    /// This process was drained and is not wanted back.
    Drained,
    /// The harness will not have this worker.
    GiveUp(End),
}

/// What an end that leads to back-off says of more than its own call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection all slots share broke, or carries nothing one way.
    Connection,
    /// The connection stands, but the harness is leaving or welcomes nobody.
    Harness,
    /// This call alone was lost.
    Call,
    /// The harness refused something on this call.
    Refusal,
}

impl Next {
    /// The same where the work in hand has not stopped: `released` would be a false proof, so the
    /// slot says nothing more.
    pub(crate) fn without_proof(self) -> Self {
        match self {
            Self::AtOnce { .. } | Self::BackOff { .. } | Self::Resume { .. } | Self::Left => {
                Self::Left
            }
            Self::Drained => Self::Drained,
            Self::GiveUp(end) => Self::GiveUp(end),
        }
    }
}

impl Session {
    pub(super) fn ended(&mut self, now: Instant, end: End, actions: &mut Vec<Action>) {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Greeting { resuming, .. } => match resuming {
                Some(suspended) => Self::not_resumed(end, suspended, actions),
                None => actions.push(Action::Over(refused(end, None))),
            },
            State::Ready(attached) => {
                let kept = attached.kept().filter(|kept| end.may_go_on(kept));
                if let Some(suspended) = kept.and_then(|kept| Suspended::of(now, kept, true)) {
                    actions.push(Action::Over(end.resume(suspended, true)));
                    return;
                }
                let released = attached.crossed(now);
                actions.push(Action::Over(follow(end, released)));
            }
            State::Busy(_, work) => {
                let going_on = Some(&work).filter(|work| end.may_go_on(work));
                if let Some(suspended) = going_on.and_then(|work| Suspended::of(now, work, false)) {
                    actions.push(Action::Over(end.resume(suspended, true)));
                    return;
                }
                if work.has_started() {
                    actions.push(Action::Stop(end.cancel_reason()));
                }
                actions.push(Action::Over(follow(end, Some(work.lease))));
            }
            State::Closing { answered, .. } => {
                actions.push(Action::Over(closed(follow(end, answered))));
            }
            State::Over => {}
        }
    }

    /// Nothing was heard for too long: the call is lost, and its connection not to be trusted.
    pub(super) fn silent(&mut self, now: Instant, why: &str, actions: &mut Vec<Action>) {
        let suspended = match &self.state {
            State::Busy(_, work) => Suspended::of(now, work, false),
            State::Ready(attached) => attached
                .kept()
                .and_then(|kept| Suspended::of(now, kept, true)),
            State::Greeting { .. } | State::Closing { .. } | State::Over => None,
        };
        let Some(suspended) = suspended else {
            return self.lost(why, Fault::Connection, actions);
        };
        self.state = State::Over;
        actions.push(Action::Over(Next::Resume {
            suspended,
            least: None,
            why: why.to_owned(),
            fault: Fault::Connection,
        }));
    }

    /// This side declares the call lost, and the work with it.
    pub(super) fn lost(&mut self, why: &str, fault: Fault, actions: &mut Vec<Action>) {
        let released = match std::mem::replace(&mut self.state, State::Over) {
            State::Busy(_, work) => {
                if work.has_started() {
                    actions.push(Action::Stop(CancelReason::HarnessLost));
                }
                Some(work.lease)
            }
            State::Ready(attached) => attached.answered.map(|answered| answered.lease),
            State::Greeting {
                resuming: Some(suspended),
                ..
            } => return Self::abandoned(suspended, why, fault, actions),
            State::Greeting { resuming: None, .. } | State::Closing { .. } | State::Over => None,
        };
        let why = why.to_owned();
        actions.push(Action::Over(Next::BackOff {
            released,
            least: None,
            why,
            fault,
        }));
    }
}

impl End {
    /// Whether the harness itself ended the call and meant this work: *stop*, not *lost*.
    pub(super) fn is_stop(&self) -> bool {
        self.reason.is_some() && self.code != EndCode::Unavailable
    }

    /// Whether the work may go on in another call.
    fn may_go_on(&self, work: &Work) -> bool {
        !self.is_stop() && (work.outlives_harness() || !self.is_leaving())
    }

    fn is_leaving(&self) -> bool {
        self.reason.as_deref() == Some("LEAVING")
    }

    fn is_drained(&self) -> bool {
        self.code == EndCode::FailedPrecondition && self.reason.as_deref() == Some("DRAINED")
    }

    pub(super) fn cancel_reason(&self) -> CancelReason {
        if !self.is_stop() {
            return CancelReason::HarnessLost;
        }
        match self.code {
            EndCode::DeadlineExceeded => CancelReason::DeadlineExceeded,
            EndCode::Cancelled => CancelReason::Cancelled,
            EndCode::Aborted => CancelReason::Reassigned,
            EndCode::Ok
            | EndCode::Unavailable
            | EndCode::Unauthenticated
            | EndCode::PermissionDenied
            | EndCode::FailedPrecondition
            | EndCode::InvalidArgument
            | EndCode::Unimplemented
            | EndCode::ResourceExhausted
            | EndCode::Other => CancelReason::Refused,
        }
    }

    fn back_off(self, released: Option<Lease>, welcomed: bool) -> Next {
        let fault = self.fault(welcomed);
        Next::BackOff {
            released,
            least: self.retry_after,
            why: self.message,
            fault,
        }
    }

    pub(super) fn resume(self, suspended: Box<Suspended>, welcomed: bool) -> Next {
        let fault = self.fault(welcomed);
        Next::Resume {
            suspended,
            least: self.retry_after,
            why: self.message,
            fault,
        }
    }

    fn fault(&self, welcomed: bool) -> Fault {
        // A harness that does not hear this side would not hear the next hello either.
        let unheard = self.reason.as_deref() == Some("HEARTBEATS_MISSED");
        if self.is_stop() {
            Fault::Refusal
        } else if self.broken || unheard {
            Fault::Connection
        } else if !welcomed || self.is_leaving() {
            Fault::Harness
        } else {
            Fault::Call
        }
    }

    /// Whether, before a welcome, another try would only repeat it.
    pub(super) fn is_refusal(&self) -> bool {
        match self.code {
            EndCode::Unauthenticated
            | EndCode::PermissionDenied
            | EndCode::FailedPrecondition
            | EndCode::InvalidArgument
            | EndCode::Unimplemented => true,
            EndCode::Ok
            | EndCode::Cancelled
            | EndCode::DeadlineExceeded
            | EndCode::Aborted
            | EndCode::Unavailable
            | EndCode::ResourceExhausted
            | EndCode::Other => false,
        }
    }
}

/// After an end before the welcome.
pub(super) fn refused(end: End, released: Option<Lease>) -> Next {
    if end.is_drained() {
        Next::Drained
    } else if end.is_refusal() {
        Next::GiveUp(end)
    } else {
        end.back_off(released, false)
    }
}

/// After an end of a call that was half-closed: this slot is done, but for the one word that is owed
/// when a stop and our reply have crossed.
fn closed(next: Next) -> Next {
    match next {
        Next::AtOnce {
            released: Some(lease),
        } => Next::AtOnce {
            released: Some(lease),
        },
        Next::AtOnce { released: None }
        | Next::BackOff { .. }
        | Next::Resume { .. }
        | Next::Left
        | Next::Drained
        | Next::GiveUp(_) => Next::Left,
    }
}

/// After an end of a welcomed call. `released` is what the worker held, or may have held in the
/// harness's eyes.
fn follow(end: End, released: Option<Lease>) -> Next {
    if end.is_drained() {
        return Next::Drained;
    }
    let told_to_stop = match end.code {
        EndCode::DeadlineExceeded | EndCode::Cancelled | EndCode::Aborted => end.is_stop(),
        EndCode::Ok
        | EndCode::Unavailable
        | EndCode::Unauthenticated
        | EndCode::PermissionDenied
        | EndCode::FailedPrecondition
        | EndCode::InvalidArgument
        | EndCode::Unimplemented
        | EndCode::ResourceExhausted
        | EndCode::Other => false,
    };
    // Also with nothing in hand: the end may have crossed a request that was never read.
    if told_to_stop {
        return Next::AtOnce { released };
    }
    end.back_off(released, true)
}
