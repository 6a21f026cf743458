//! An attempt whose call was lost and which goes on (rule 8 of the protocol).
//!
//! Owns how long it may, what its next call sends again, and what ends it: the window, the
//! harness's word, or a harness that knows nothing of it.
#![deny(clippy::wildcard_enum_match_arm)]

#[cfg(test)]
mod kept_tests;
#[cfg(test)]
mod tests;

use std::time::Instant;

use super::end::{End, EndCode, Fault, Next, refused};
use super::work::Work;
use super::{Action, Answered, Attached, Lease, Session, State, WELCOME_TIMEOUT, Welcome};
use crate::context::CancelReason;

/// What one call leaves to the next.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Suspended {
    work: Work,
    until: Instant,
    /// The agent is done; its reply is not acknowledged.
    replied: bool,
}

impl Suspended {
    /// None when this attempt does not go on without its call.
    pub(super) fn of(now: Instant, work: &Work, replied: bool) -> Option<Box<Self>> {
        let keeping = work.keeping.as_ref()?;
        let until = work.deadline.min(now + keeping.window);
        // Without the rest of its entries a request cannot be begun.
        (work.has_started() && now < until).then(|| {
            Box::new(Self {
                work: work.clone(),
                until,
                replied,
            })
        })
    }

    pub(crate) fn lease(&self) -> &Lease {
        &self.work.lease
    }

    /// When the work is to stop unless a call has resumed it.
    pub(crate) fn until(&self) -> Instant {
        self.until
    }

    /// Why it stops then.
    pub(crate) fn over(&self) -> CancelReason {
        match self.until == self.work.deadline {
            true => CancelReason::DeadlineExceeded,
            false => CancelReason::HarnessLost,
        }
    }

    /// Stops it, and gives what is to be released.
    fn stop(self, reason: CancelReason, actions: &mut Vec<Action>) -> Lease {
        if !self.replied {
            actions.push(Action::Stop(reason));
        }
        self.work.lease
    }
}

impl Session {
    /// A call whose hello, just sent, says that it resumes this attempt.
    pub(crate) fn resuming(now: Instant, suspended: Box<Suspended>) -> Self {
        Self {
            state: State::Greeting {
                until: suspended.until.min(now + WELCOME_TIMEOUT),
                resuming: Some(suspended),
            },
            leaving: false,
        }
    }

    /// The call is welcomed.
    pub(super) fn resumed(
        &mut self,
        now: Instant,
        suspended: Suspended,
        welcome: &Welcome,
        actions: &mut Vec<Action>,
    ) {
        actions.push(Action::Welcomed);
        let keeping = suspended.work.keeping.as_ref();
        let taken = welcome.resumed.filter(|taken| {
            keeping.is_some_and(|keeping| keeping.follows(suspended.work.last_seq, *taken))
        });
        let Some(taken) = taken else {
            // It does not know the attempt, and takes this slot for a free one.
            let released = Some(suspended.stop(CancelReason::HarnessLost, actions));
            self.state = State::Over;
            actions.push(Action::Over(Next::AtOnce { released }));
            return;
        };
        let (mut work, replied) = (suspended.work, suspended.replied);
        work.acknowledge(taken, actions);
        work.window
            .limit(welcome.limits.unacked_entries, welcome.limits.unacked_bytes);
        let again = work.keeping.iter().flat_map(|keeping| keeping.frames());
        actions.extend(again.cloned().map(Action::Send));
        let mut attached = Attached::new(now, welcome);
        if !replied {
            work.go_on(actions);
            self.state = State::Busy(attached, Box::new(work));
            return;
        }
        let keeping = work.keeping.as_ref();
        let kept = keeping.is_some_and(|keeping| !keeping.is_empty());
        attached.answered = kept.then(|| Answered {
            lease: work.lease.clone(),
            at: now,
            kept: Some(Box::new(work)),
        });
        let is_taken = !attached.awaits_acknowledgement();
        self.state = State::Ready(attached);
        if self.leaving && is_taken {
            self.half_close(now, actions);
        }
    }

    /// The call ended before its welcome.
    pub(super) fn not_resumed(end: End, suspended: Box<Suspended>, actions: &mut Vec<Action>) {
        // A hello that came too late was not read.
        let unread = end.reason.as_deref() == Some("NO_HELLO");
        if unread || !end.is_stop() && !end.is_refusal() {
            actions.push(Action::Over(end.resume(suspended, false)));
            return;
        }
        let lease = suspended.stop(end.cancel_reason(), actions);
        let next = match end.code {
            EndCode::DeadlineExceeded | EndCode::Cancelled | EndCode::Aborted => {
                // What was never this worker's cannot be released by it.
                let theirs = end.reason.as_deref() == Some("NOT_YOURS");
                Next::AtOnce {
                    released: Some(lease).filter(|_| !theirs),
                }
            }
            EndCode::Ok
            | EndCode::Unavailable
            | EndCode::Unauthenticated
            | EndCode::PermissionDenied
            | EndCode::FailedPrecondition
            | EndCode::InvalidArgument
            | EndCode::Unimplemented
            | EndCode::ResourceExhausted
            | EndCode::Other => refused(end, Some(lease)),
        };
        actions.push(Action::Over(next));
    }

    /// No welcome came in time: the window may be over.
    pub(super) fn unwelcomed(
        now: Instant,
        suspended: Box<Suspended>,
        why: &str,
        actions: &mut Vec<Action>,
    ) {
        if now < suspended.until {
            actions.push(Action::Over(Next::Resume {
                suspended,
                least: None,
                why: why.to_owned(),
                fault: Fault::Connection,
            }));
            return;
        }
        let reason = suspended.over();
        let released = Some(suspended.stop(reason, actions));
        actions.push(Action::Over(Next::AtOnce { released }));
    }

    /// This side gives the call up and does not trust the harness with another.
    pub(super) fn abandoned(
        suspended: Box<Suspended>,
        why: &str,
        fault: Fault,
        actions: &mut Vec<Action>,
    ) {
        let released = Some(suspended.stop(CancelReason::HarnessLost, actions));
        actions.push(Action::Over(Next::BackOff {
            released,
            least: None,
            why: why.to_owned(),
            fault,
        }));
    }
}
