//! The rules of one run: QUEUED, RUNNING, ended once; which end of a delivery counts as an
//! attempt, and what its caller is told.
//!
//! Pure: time is an argument. A run decides its own outcome and nobody else does; which slot gets
//! it is `dispatch`'s decision.

#![deny(clippy::wildcard_enum_match_arm)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::envelope::{Code, Failure, Outcome, Payload, Retried};
use crate::ids::{Attempt, Delivery, RunId, SlotId};
use crate::retry::Policy;

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;

/// Where a run stands.
#[derive(Debug)]
pub enum State {
    /// Waiting for a slot.
    Queued,
    /// In a slot.
    Running(SlotId),
    /// Its call is lost, and its worker may come back to it.
    Away,
    /// It has its outcome; nothing changes it any more.
    Ended,
}

/// What a run is made with.
#[derive(Clone, Debug)]
pub struct Terms {
    /// When it ends at the latest.
    pub deadline: Instant,
    /// How often a failed attempt is followed by another.
    pub retry: Arc<Policy>,
    /// Deliveries in a row that may end uncounted; the next one counts.
    pub uncounted_max: u32,
    /// Workers a run may kill; the last of them ends it.
    pub poison_max: u32,
}

/// What counts so far of a run that is tried again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Deliveries that count for the policy's attempts.
    pub counted: u32,
    /// Deliveries in a row that ended uncounted.
    pub uncounted_in_row: u32,
    /// Workers it has killed.
    pub killed: u32,
}

/// How a delivery ended without an answer that stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The agent answered with an error.
    AgentError,
    /// The reply fails the slot's schema.
    InvalidReply,
    /// A frame broke a rule, or named another attempt.
    ProtocolViolation,
    /// A frame of the worker was over the limit.
    FrameTooLarge,
    /// One attempt took longer than it may.
    AttemptTimeout,
    /// The call is gone and the worker is not back in its window.
    Lost,
    /// The worker's process died by itself, which is known.
    Died,
    /// No acceptance came in time.
    NotAccepted,
    /// The worker gave the request back, or half-closed before it took it.
    Declined,
    /// The harness was started anew and the worker did not come back in its window.
    Restarted,
}

/// What happens to a run.
#[derive(Debug)]
pub enum Event {
    /// Its request is on the way to a slot.
    Delivered(SlotId),
    /// The slot answered with a value.
    Replied(Payload),
    /// Its call is lost, and its worker may come back.
    Lost,
    /// Its worker came back with another call.
    Resumed(SlotId),
    /// The delivery ended without a value.
    Failed(Cause, Failure),
    /// A piece of its output has reached its caller.
    OutputSeen,
    /// It cannot be delivered at all.
    Refused(Failure),
    /// Its deadline passed. The text says where it is: why it waits, or on which worker it runs.
    DeadlinePassed(String),
    /// Somebody cancelled it or hung up; the text says who and why.
    Cancelled(String),
}

/// What follows an event.
#[derive(Debug)]
pub enum Next {
    /// Nothing; the event came after the end, or changes nothing for others.
    Nothing,
    /// It waits for a slot again.
    Requeue,
    /// It waits for a slot again after the wait of this retry, the first being number 1. The
    /// failure is what to answer if there is no time for it.
    BackOff(u32, Failure),
    /// It has ended, now.
    Ended(Outcome),
}

/// One run.
#[derive(Debug)]
pub struct Run {
    id: RunId,
    terms: Terms,
    state: State,
    since: Instant,
    attempt: Attempt,
    counts: Counts,
    output_seen: bool,
    queued_for: Duration,
    ran_for: Duration,
}

impl Run {
    /// A run that waits.
    #[must_use]
    pub fn new(id: RunId, terms: Terms, now: Instant) -> Self {
        Self {
            id,
            terms,
            state: State::Queued,
            since: now,
            attempt: Attempt::default(),
            counts: Counts::default(),
            output_seen: false,
            queued_for: Duration::ZERO,
            ran_for: Duration::ZERO,
        }
    }

    /// A run that was made before, as it was left: `away` when an attempt was under way.
    #[must_use]
    pub fn restored(
        id: RunId,
        terms: Terms,
        (attempt, counts, away): (Attempt, Counts, bool),
        now: Instant,
    ) -> Self {
        Self {
            state: if away { State::Away } else { State::Queued },
            attempt,
            counts,
            ..Self::new(id, terms, now)
        }
    }

    /// What counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Where it stands.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Whether a worker has it: in a slot, or while its call is lost.
    #[must_use]
    pub fn is_worked(&self) -> bool {
        match self.state {
            State::Running(_) | State::Away => true,
            State::Queued | State::Ended => false,
        }
    }

    /// When it ends at the latest.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.terms.deadline
    }

    /// How often a failed attempt of it is followed by another.
    #[must_use]
    pub fn retry(&self) -> &Policy {
        &self.terms.retry
    }

    /// The newest attempt.
    #[must_use]
    pub fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// The newest delivery.
    #[must_use]
    pub fn delivery(&self) -> Delivery {
        Delivery {
            run: self.id,
            attempt: self.attempt,
        }
    }

    /// The delivery the next slot gets.
    #[must_use]
    pub fn next_delivery(&self) -> Delivery {
        Delivery {
            run: self.id,
            attempt: self.attempt.next(),
        }
    }

    /// Applies one event.
    pub fn apply(&mut self, now: Instant, event: Event) -> Next {
        self.count_time(now);
        match (&self.state, event) {
            (State::Ended, _) => Next::Nothing,
            (State::Queued, Event::Delivered(slot)) => {
                self.attempt = self.attempt.next();
                self.state = State::Running(slot);
                Next::Nothing
            }
            (State::Running(_), Event::Replied(value)) => self.end(Ok(value)),
            (State::Running(_), Event::Lost) => {
                self.state = State::Away;
                Next::Nothing
            }
            (State::Running(_) | State::Away, Event::Resumed(slot)) => {
                self.state = State::Running(slot);
                Next::Nothing
            }
            (State::Running(_) | State::Away, Event::Failed(cause, failure)) => {
                self.failed(cause, failure)
            }
            // It is in one slot at a time, and nothing ends a delivery that is not under way.
            (State::Running(_), Event::Delivered(_))
            | (State::Away, Event::Delivered(_) | Event::Replied(_) | Event::Lost)
            | (
                State::Queued,
                Event::Replied(_) | Event::Failed(..) | Event::Lost | Event::Resumed(_),
            ) => Next::Nothing,
            (State::Queued | State::Running(_) | State::Away, Event::OutputSeen) => {
                self.output_seen = true;
                Next::Nothing
            }
            (State::Queued | State::Running(_) | State::Away, Event::Refused(failure)) => {
                self.end_with(failure)
            }
            (State::Queued | State::Running(_) | State::Away, Event::DeadlinePassed(place)) => {
                let failure = Failure::new(Code::DeadlineExceeded, self.where_time_went(&place));
                self.end_with(failure)
            }
            (State::Queued | State::Running(_) | State::Away, Event::Cancelled(why)) => {
                self.end_with(Failure::new(Code::Cancelled, why))
            }
        }
    }

    fn count_time(&mut self, now: Instant) {
        let spent = now.saturating_duration_since(self.since);
        match self.state {
            State::Queued => self.queued_for += spent,
            State::Running(_) | State::Away => self.ran_for += spent,
            State::Ended => {}
        }
        self.since = now;
    }

    fn failed(&mut self, cause: Cause, mut failure: Failure) -> Next {
        let counts = match cause {
            Cause::AgentError
            | Cause::InvalidReply
            | Cause::ProtocolViolation
            | Cause::FrameTooLarge
            | Cause::AttemptTimeout
            | Cause::Lost => true,
            Cause::Died => {
                self.counts.killed += 1;
                true
            }
            // A request whose output was seen was taken, whatever its worker says.
            Cause::NotAccepted | Cause::Declined => {
                self.counts.uncounted_in_row += 1;
                self.counts.uncounted_in_row > self.terms.uncounted_max || self.output_seen
            }
            // Not even in a row: it says nothing of the run.
            Cause::Restarted => self.output_seen,
        };
        if !counts {
            self.state = State::Queued;
            return Next::Requeue;
        }
        if self.counts.uncounted_in_row > self.terms.uncounted_max {
            failure.message = format!(
                "{} deliveries in a row were not taken, the last: {}",
                self.counts.uncounted_in_row, failure.message
            );
        }
        self.counts.uncounted_in_row = 0;
        self.counts.counted += 1;
        if self.counts.killed >= self.terms.poison_max {
            return self.poisoned(failure);
        }
        if self.counts.counted < self.terms.retry.max_attempts && self.may_retry(&failure) {
            self.state = State::Queued;
            return Next::BackOff(self.counts.counted, failure);
        }
        if self.counts.counted > 1 {
            failure.message = format!(
                "{} (attempt {} of {})",
                failure.message, self.counts.counted, self.terms.retry.max_attempts
            );
        }
        self.end_with(failure)
    }

    fn may_retry(&self, failure: &Failure) -> bool {
        // What the caller has seen cannot be taken back.
        if self.output_seen {
            return false;
        }
        match failure.code.retried() {
            Retried::Yes => true,
            Retried::IfAgentSays => {
                failure.retryable && !self.terms.retry.non_retryable_types.contains(&failure.kind)
            }
            Retried::CallersBusiness | Retried::Never => false,
        }
    }

    fn poisoned(&mut self, last: Failure) -> Next {
        let message = format!(
            "the run has killed {} workers, which is the limit; the last: {}",
            self.counts.killed, last.message
        );
        let mut poisoned = Failure::new(Code::Poisoned, message);
        poisoned.cause = Some(Box::new(last));
        self.end_with(poisoned)
    }

    fn end_with(&mut self, mut failure: Failure) -> Next {
        failure.run = Some(self.id);
        failure.attempt = self.attempt;
        self.end(Err(Box::new(failure)))
    }

    fn end(&mut self, outcome: Outcome) -> Next {
        self.state = State::Ended;
        Next::Ended(outcome)
    }

    fn where_time_went(&self, place: &str) -> String {
        let total = seconds(self.queued_for + self.ran_for);
        let queued = seconds(self.queued_for);
        match self.state {
            State::Running(_) | State::Away => format!(
                "deadline passed after {total}: {queued} queued, {} running: attempt {} {place}",
                seconds(self.ran_for),
                self.attempt
            ),
            State::Queued if self.attempt > Attempt::default() => format!(
                "deadline passed after {total}: {queued} queued, {} running: {place}",
                seconds(self.ran_for)
            ),
            State::Queued | State::Ended => {
                format!("deadline passed after {total}: {queued} queued: {place}")
            }
        }
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.3} s", duration.as_secs_f64())
}
