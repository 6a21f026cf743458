//! The rules of one slot: what its worker may send in which state, and what the harness then does.
//!
//! Pure: time is an argument, nothing is sent or received here. A slot knows its own call only;
//! which run it gets is `dispatch`'s decision, what becomes of the run is `run`'s.

#![deny(clippy::wildcard_enum_match_arm)]

use std::time::{Duration, Instant};

use crate::ids::Delivery;

mod end;
mod work;

#[cfg(test)]
#[path = "slot_tests.rs"]
mod tests;

use work::{Acceptance, Place};

pub use end::{End, Refusal, Violation};
pub use work::Work;

/// How much of the protocol the worker follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A plain loop: owes no heartbeat and no acceptance, gets nothing between request and end.
    Minimal,
    /// Heartbeats both ways, acceptance, acknowledged appends.
    Full,
}

/// What every slot of a server keeps to.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How often a full level worker is heard at least. Three missed ones end its call.
    pub heartbeat_interval: Duration,
    /// Appends that may be unacknowledged at once.
    pub unacked_entries: usize,
    /// Their bytes; a larger entry may be alone.
    pub unacked_bytes: u64,
    /// How long a slot may be STOPPING without a request before its call is ended.
    pub idle_stopping_timeout: Duration,
}

/// Where a slot stands.
#[derive(Debug)]
pub enum State {
    /// No welcome was sent yet.
    Starting,
    /// Welcome, and without a request.
    Ready,
    /// With a request.
    Busy(Work),
    /// Leaving, but still with a request.
    StoppingBusy(Work),
    /// Leaving, and without a request since the instant.
    StoppingIdle(Instant),
}

/// What an append holds, as far as the level decides whether it may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// Output, progress or log.
    Plain,
    /// Usage, which any worker may report.
    Usage,
    /// A step, which needs the full level.
    Step,
    /// An entry only the harness writes, or of no kind we know.
    Foreign,
}

/// What happens to a slot.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// The welcome is on its way.
    Welcomed,
    /// A request is on its way.
    Assigned {
        /// Which.
        delivery: Delivery,
        /// How long the worker may take to show that it has it.
        accept_timeout: Duration,
    },
    /// A second hello came.
    HelloAgain,
    /// A frame of no known case came.
    UnknownFrame,
    /// A heartbeat came, naming the request in work.
    Heartbeat(Option<Delivery>),
    /// An entry came.
    Append {
        /// Whose.
        delivery: Delivery,
        /// Its worker_seq.
        seq: u64,
        /// What it holds.
        kind: EntryKind,
        /// Its encoded size.
        bytes: u64,
        /// Up to which seq an acknowledgement has been written to the worker.
        acknowledged: u64,
    },
    /// A reply came.
    Reply {
        /// Whose.
        delivery: Delivery,
        /// Its worker_seq.
        seq: u64,
        /// Whether it gives the request back unworked.
        declined: bool,
    },
    /// The worker takes no new request.
    Leave,
    /// The harness has asked the worker to leave.
    Drained,
    /// The worker will send nothing more.
    HalfClosed,
    /// An inbound frame was over our limit.
    FrameTooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The run in the slot was decided elsewhere.
    Over(Over),
    /// What the worker wrote could not be written on.
    StoreFailed,
    /// The harness is leaving; a request in hand may finish.
    ServerLeaving,
    /// The harness is leaving and waits no longer.
    ServerLeft,
    /// Time passed.
    Tick,
}

/// Why the run in a slot ended while the slot still worked on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The run's deadline passed, or the attempt's timeout.
    DeadlineExceeded,
    /// Somebody cancelled the run or hung up.
    Cancelled,
}

/// What the harness does about an event.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing to do.
    Fine,
    /// The slot can take a request.
    Free,
    /// Take the entry and acknowledge it.
    Take,
    /// Acknowledge again, drop the frame.
    AcknowledgeAgain(u64),
    /// About a request this same call has just answered: drop and count it.
    Stale,
    /// The reply ends this delivery.
    Answered(Delivery),
    /// The request goes elsewhere, uncounted.
    Declined(Delivery),
    /// The call ends; what was in it is lost to the slot.
    End(End, Option<Delivery>),
}

/// One slot.
#[derive(Debug)]
pub struct Slot {
    level: Level,
    state: State,
    since: Instant,
    heard: Instant,
    answered: Option<Delivery>,
}

impl Slot {
    /// A call whose hello was accepted.
    #[must_use]
    pub fn new(level: Level, now: Instant) -> Self {
        Self {
            level,
            state: State::Starting,
            since: now,
            heard: now,
            answered: None,
        }
    }

    /// A call that goes on with the work of a lost one, of which all was taken up to one number and
    /// acknowledged up to another.
    #[must_use]
    pub fn resumed(
        level: Level,
        delivery: Delivery,
        (last_seq, acknowledged): (u64, u64),
        now: Instant,
    ) -> Self {
        Self {
            state: State::Busy(Work::resumed(delivery, last_seq, acknowledged)),
            ..Self::new(level, now)
        }
    }

    /// Where it stands.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Since when it stands there.
    #[must_use]
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Its level.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// The request in it.
    #[must_use]
    pub fn delivery(&self) -> Option<Delivery> {
        match &self.state {
            State::Busy(work) | State::StoppingBusy(work) => Some(work.delivery),
            State::Starting | State::Ready | State::StoppingIdle(_) => None,
        }
    }

    /// The last worker_seq taken of the request in it.
    #[must_use]
    pub fn last_seq(&self) -> Option<u64> {
        match &self.state {
            State::Busy(work) | State::StoppingBusy(work) => Some(work.last_seq),
            State::Starting | State::Ready | State::StoppingIdle(_) => None,
        }
    }

    /// Whether the worker has shown that it has the request in it.
    #[must_use]
    pub fn has_taken(&self) -> bool {
        match &self.state {
            State::Busy(work) | State::StoppingBusy(work) => match work.acceptance {
                Acceptance::Given => true,
                Acceptance::Owed { .. } | Acceptance::NotOwed => false,
            },
            State::Starting | State::Ready | State::StoppingIdle(_) => false,
        }
    }

    /// Whether it takes no new request.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        match &self.state {
            State::StoppingBusy(_) | State::StoppingIdle(_) => true,
            State::Starting | State::Ready | State::Busy(_) => false,
        }
    }

    /// When `Tick` is due next; never earlier than what it then finds.
    #[must_use]
    pub fn next_wake(&self, rules: &Rules) -> Option<Instant> {
        let silence = match self.level {
            Level::Full => Some(self.heard + 3 * rules.heartbeat_interval),
            Level::Minimal => None,
        };
        let own = match &self.state {
            State::Starting | State::Ready => None,
            State::Busy(work) | State::StoppingBusy(work) => match work.acceptance {
                Acceptance::Owed { by } => Some(by),
                Acceptance::NotOwed | Acceptance::Given => None,
            },
            State::StoppingIdle(since) => Some(*since + rules.idle_stopping_timeout),
        };
        [silence, own].into_iter().flatten().min()
    }

    /// Applies one event.
    pub fn apply(&mut self, now: Instant, rules: &Rules, event: Event) -> Verdict {
        match event {
            Event::Welcomed => self.become_ready(now),
            Event::Assigned {
                delivery,
                accept_timeout,
            } => self.assign(now, delivery, accept_timeout),
            Event::HelloAgain => self.violated(Violation::SecondHello),
            Event::UnknownFrame => self.violated(Violation::UnknownFrame),
            Event::Heartbeat(named) => {
                self.heard = now;
                self.heartbeat(named)
            }
            Event::Append {
                delivery,
                seq,
                kind,
                bytes,
                acknowledged,
            } => {
                self.heard = now;
                self.append(rules, delivery, (seq, kind, bytes), acknowledged)
            }
            Event::Reply {
                delivery,
                seq,
                declined,
            } => {
                self.heard = now;
                self.reply(now, delivery, seq, declined)
            }
            Event::Leave => {
                self.heard = now;
                self.leave(now)
            }
            Event::Drained => self.leave(now),
            Event::HalfClosed => self.end(End::Closed),
            Event::FrameTooLarge { bytes, limit } => self.end(End::FrameTooLarge { bytes, limit }),
            Event::Over(over) => match (over, self.delivery()) {
                (Over::DeadlineExceeded, Some(held)) => self.end(End::DeadlineExceeded(held)),
                (Over::Cancelled, Some(held)) => self.end(End::Cancelled(held)),
                (Over::DeadlineExceeded | Over::Cancelled, None) => Verdict::Fine,
            },
            Event::StoreFailed => self.end(End::StoreFailed),
            Event::ServerLeaving => match &self.state {
                State::Starting | State::Ready | State::StoppingIdle(_) => self.end(End::Leaving),
                State::Busy(_) | State::StoppingBusy(_) => Verdict::Fine,
            },
            Event::ServerLeft => self.end(End::Leaving),
            Event::Tick => self.tick(now, rules),
        }
    }

    fn become_ready(&mut self, now: Instant) -> Verdict {
        match self.state {
            State::Starting => {
                self.enter(State::Ready, now);
                Verdict::Free
            }
            State::Ready | State::Busy(_) | State::StoppingBusy(_) | State::StoppingIdle(_) => {
                Verdict::Fine
            }
        }
    }

    fn assign(&mut self, now: Instant, delivery: Delivery, accept_timeout: Duration) -> Verdict {
        match self.state {
            State::Ready => {
                let acceptance = match self.level {
                    Level::Full => Acceptance::Owed {
                        by: now + accept_timeout,
                    },
                    Level::Minimal => Acceptance::NotOwed,
                };
                self.enter(State::Busy(Work::new(delivery, acceptance)), now);
                Verdict::Fine
            }
            State::Starting | State::Busy(_) | State::StoppingBusy(_) | State::StoppingIdle(_) => {
                Verdict::Declined(delivery)
            }
        }
    }

    fn heartbeat(&mut self, named: Option<Delivery>) -> Verdict {
        match named {
            None => Verdict::Fine,
            Some(delivery) => match self.work_on(delivery) {
                Ok(_) => Verdict::Fine,
                Err(verdict) => verdict,
            },
        }
    }

    fn append(
        &mut self,
        rules: &Rules,
        delivery: Delivery,
        (seq, kind, bytes): (u64, EntryKind, u64),
        acknowledged: u64,
    ) -> Verdict {
        let level = self.level;
        let work = match self.work_on(delivery) {
            Ok(work) => work,
            Err(verdict) => return verdict,
        };
        match work.place(seq) {
            Place::Next => {}
            Place::Before => return Verdict::AcknowledgeAgain(work.last_seq),
            Place::Wrong(gap) => return self.violated(gap),
        }
        if let Err(violation) = work.check(level, rules, kind, bytes, acknowledged) {
            return self.violated(violation);
        }
        work.last_seq = seq;
        Verdict::Take
    }

    fn reply(&mut self, now: Instant, delivery: Delivery, seq: u64, declined: bool) -> Verdict {
        let work = match self.work_on(delivery) {
            Ok(work) => work,
            Err(verdict) => return verdict,
        };
        match work.place(seq) {
            Place::Next => {}
            Place::Before => return Verdict::AcknowledgeAgain(work.last_seq),
            Place::Wrong(gap) => return self.violated(gap),
        }
        self.answered = Some(delivery);
        let next = match self.state {
            State::StoppingBusy(_) => State::StoppingIdle(now),
            State::Busy(_) | State::Starting | State::Ready | State::StoppingIdle(_) => {
                State::Ready
            }
        };
        self.enter(next, now);
        if declined {
            Verdict::Declined(delivery)
        } else {
            Verdict::Answered(delivery)
        }
    }

    fn leave(&mut self, now: Instant) -> Verdict {
        let next = match std::mem::replace(&mut self.state, State::Starting) {
            State::Starting | State::Ready => State::StoppingIdle(now),
            State::Busy(work) => State::StoppingBusy(work),
            already @ (State::StoppingBusy(_) | State::StoppingIdle(_)) => {
                self.state = already;
                return Verdict::Fine;
            }
        };
        self.enter(next, now);
        Verdict::Fine
    }

    fn tick(&mut self, now: Instant, rules: &Rules) -> Verdict {
        if self.level == Level::Full && now >= self.heard + 3 * rules.heartbeat_interval {
            return self.end(End::HeartbeatsMissed);
        }
        match &self.state {
            State::Busy(work) | State::StoppingBusy(work) => match work.acceptance {
                Acceptance::Owed { by } if now >= by => self.end(End::NotAccepted(work.delivery)),
                Acceptance::Owed { .. } | Acceptance::NotOwed | Acceptance::Given => Verdict::Fine,
            },
            State::StoppingIdle(since) if now >= *since + rules.idle_stopping_timeout => {
                self.end(End::Idle)
            }
            State::Starting | State::Ready | State::StoppingIdle(_) => Verdict::Fine,
        }
    }

    /// The work a frame is about; naming it is the acceptance.
    fn work_on(&mut self, delivery: Delivery) -> Result<&mut Work, Verdict> {
        if self.answered == Some(delivery) {
            return Err(Verdict::Stale);
        }
        let holds = self.delivery();
        match &mut self.state {
            State::Busy(work) | State::StoppingBusy(work) if work.delivery == delivery => {
                work.acceptance = Acceptance::Given;
                Ok(work)
            }
            State::Starting => Err(Verdict::End(End::Violation(Violation::BeforeWelcome), None)),
            State::Ready | State::Busy(_) | State::StoppingBusy(_) | State::StoppingIdle(_) => {
                Err(Verdict::End(
                    End::WrongAttempt {
                        named: delivery,
                        holds,
                    },
                    holds,
                ))
            }
        }
    }

    fn violated(&self, violation: Violation) -> Verdict {
        self.end(End::Violation(violation))
    }

    fn end(&self, end: End) -> Verdict {
        Verdict::End(end, self.delivery())
    }

    fn enter(&mut self, state: State, now: Instant) {
        self.state = state;
        self.since = now;
    }
}
