//! The worker's side of one Attach call, as rules without I/O.
//!
//! Owns the state of one call: greeting, ready, busy, closing. Frames and events go in, frames and
//! actions come out, and time is an argument. Knows no tokio, no tonic and no clock; `worker`
//! drives it. A call's session is never reused: what follows the call is in [`Next`].
#![deny(clippy::wildcard_enum_match_arm)]

#[cfg(test)]
mod any_order;
mod end;
mod event;
mod frame;
mod keeping;
mod resume;
#[cfg(test)]
mod tests;
mod window;
mod work;

use std::time::{Duration, Instant};

pub(crate) use end::{End, EndCode, Fault, Next};
pub(crate) use event::{Action, Event};
pub(crate) use frame::{
    Delivery, Held, Inbound, Lease, Limits, Outbound, Previous, Reply, Welcome,
};
pub(crate) use resume::Suspended;
use work::Work;

use crate::journal::{Entry, Recorded};

/// How long a harness may take to welcome a worker.
pub(crate) const WELCOME_TIMEOUT: Duration = Duration::from_secs(10);
/// A request is accepted by the first frame that names it, owed within 1 s. The reply or an entry is
/// one; without either in this time a heartbeat is.
pub(crate) const ACCEPT_WITHIN: Duration = Duration::from_millis(250);
/// How long a harness may take to end a call that was half-closed.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest reply that is put into a frame. The transport's length has 32 bits; a harness that
/// takes this much is not known.
const FRAMED_BYTES_MAX: u64 = 1 << 30;
/// A call on which nothing came for this many intervals is dead.
const MISSED_HEARTBEATS: u32 = 3;

/// One call.
#[derive(Debug)]
pub(crate) struct Session {
    state: State,
    leaving: bool,
}

#[derive(Debug)]
enum State {
    /// Hello was sent.
    Greeting {
        until: Instant,
        resuming: Option<Box<Suspended>>,
    },
    Ready(Attached),
    Busy(Attached, Box<Work>),
    /// Half-closed; waiting for the harness to end the call.
    Closing {
        until: Instant,
        /// What was answered so shortly before that a stop of it may cross the half-close.
        answered: Option<Lease>,
    },
    Over,
}

/// What a welcomed call has.
#[derive(Debug)]
struct Attached {
    interval: Duration,
    limits: Limits,
    next_beat: Instant,
    last_heard: Instant,
    answered: Option<Answered>,
}

/// The request answered last and when: its reply may have crossed an end.
#[derive(Debug)]
struct Answered {
    lease: Lease,
    at: Instant,
    /// With its reply, as long as that may have to be sent again.
    kept: Option<Box<Work>>,
}

impl Answered {
    /// Whether the harness is to say that it has taken the reply.
    fn awaits_acknowledgement(&self) -> bool {
        let kept = self.kept.as_ref().and_then(|work| work.keeping.as_ref());
        kept.is_some_and(|keeping| keeping.awaits_acknowledgement())
    }
}

impl Session {
    /// A call whose hello has just been sent.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            state: State::Greeting {
                until: now + WELCOME_TIMEOUT,
                resuming: None,
            },
            leaving: false,
        }
    }

    /// When [`Event::Tick`] is due.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        match &self.state {
            State::Greeting { until, .. } | State::Closing { until, .. } => Some(*until),
            State::Ready(attached) | State::Busy(attached, _) => {
                Some(attached.next_beat.min(attached.dead_at()))
            }
            State::Over => None,
        }
    }

    /// The most bytes that an entry of this call may have; None where none is taken.
    pub(crate) fn entry_bytes_max(&self) -> Option<u64> {
        match &self.state {
            State::Ready(attached) | State::Busy(attached, _) => Some(attached.limits.entry_bytes),
            State::Greeting { .. } | State::Closing { .. } | State::Over => None,
        }
    }

    /// Whether the agent's next append can be given in.
    pub(crate) fn takes_appends(&self) -> bool {
        match &self.state {
            State::Busy(_, work) => work.waiting.is_none(),
            State::Greeting { .. } | State::Ready(_) | State::Closing { .. } | State::Over => false,
        }
    }

    /// Whether the agent's reply can be given in.
    pub(crate) fn takes_reply(&self) -> bool {
        matches!(self.state, State::Busy(..))
    }

    /// Applies one event.
    pub(crate) fn apply(&mut self, now: Instant, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Frame(frame) => self.frame(now, frame, &mut actions),
            Event::Ended(end) => self.ended(now, end, &mut actions),
            Event::Append { entry, entry_bytes } => self.append(entry, entry_bytes, &mut actions),
            Event::Replied(reply) => self.replied(now, reply, &mut actions),
            Event::Leave => self.leave(now, &mut actions),
            Event::Tick => self.tick(now, &mut actions),
        }
        actions
    }

    fn frame(&mut self, now: Instant, frame: Inbound, actions: &mut Vec<Action>) {
        if let State::Ready(attached) | State::Busy(attached, _) = &mut self.state {
            attached.last_heard = now;
        }
        match frame {
            Inbound::Welcome(welcome) => self.welcome(now, welcome, actions),
            Inbound::Request(delivery) => self.request(now, delivery, actions),
            Inbound::Entry(entry) => self.entry(entry, actions),
            Inbound::Appended { worker_seq } => self.appended(now, worker_seq, actions),
            Inbound::Drain { reason } => {
                if !matches!(self.state, State::Over) {
                    actions.push(Action::Drained { reason });
                    self.leave(now, actions);
                }
            }
            // A heartbeat has said all it says by coming. Kinds of a newer protocol are ignored.
            Inbound::Heartbeat | Inbound::Unknown => {}
        }
    }

    fn welcome(&mut self, now: Instant, welcome: Welcome, actions: &mut Vec<Action>) {
        match &mut self.state {
            State::Greeting { resuming, .. } => {
                if let Some(suspended) = resuming.take() {
                    return self.resumed(now, *suspended, &welcome, actions);
                }
            }
            State::Ready(_) | State::Busy(..) => return self.broken("a second welcome", actions),
            State::Closing { .. } => {
                // The welcome crossed our half-close; what matters is that hello was taken.
                actions.push(Action::Welcomed);
                return;
            }
            State::Over => return,
        }
        self.state = State::Ready(Attached::new(now, &welcome));
        actions.push(Action::Welcomed);
    }

    fn request(&mut self, now: Instant, delivery: Box<Delivery>, actions: &mut Vec<Action>) {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Ready(mut attached) => {
                attached.next_beat = now + attached.interval.min(ACCEPT_WITHIN);
                // Whoever sends the next request has taken the reply to the last one.
                attached.answered = None;
                let work = Work::new(now, delivery, attached.limits, actions);
                self.state = State::Busy(attached, Box::new(work));
            }
            state @ (State::Greeting { .. } | State::Busy(..)) => {
                self.state = state;
                self.broken("a request when none was due", actions);
            }
            // It crossed our half-close and was not taken.
            state @ (State::Closing { .. } | State::Over) => self.state = state,
        }
    }

    fn entry(&mut self, entry: Option<Box<Recorded>>, actions: &mut Vec<Action>) {
        let due = match &mut self.state {
            State::Busy(_, work) => work.replay(entry, actions),
            State::Greeting { .. } | State::Ready(_) => false,
            State::Closing { .. } | State::Over => true,
        };
        if !due {
            self.broken("an entry when none was due", actions);
        }
    }

    fn appended(&mut self, now: Instant, worker_seq: u64, actions: &mut Vec<Action>) {
        match &mut self.state {
            State::Busy(_, work) => {
                work.acknowledge(worker_seq, actions);
                work.go_on(actions);
            }
            State::Ready(attached) => {
                if attached.reply_acknowledged(worker_seq) && self.leaving {
                    self.half_close(now, actions);
                }
            }
            State::Greeting { .. } | State::Closing { .. } | State::Over => {}
        }
    }

    fn append(&mut self, entry: Entry, entry_bytes: u64, actions: &mut Vec<Action>) {
        let State::Busy(attached, work) = &mut self.state else {
            return;
        };
        let limit = attached.limits.entry_bytes;
        if entry_bytes > limit {
            actions.push(Action::Refuse { entry_bytes, limit });
            return;
        }
        work.send_or_wait(entry, entry_bytes, actions);
    }

    fn replied(&mut self, now: Instant, reply: Reply, actions: &mut Vec<Action>) {
        let state = std::mem::replace(&mut self.state, State::Over);
        let State::Busy(mut attached, work) = state else {
            self.state = state;
            return;
        };
        if let Reply::Value(payload) = &reply {
            let (bytes, limit) = (payload.data().len() as u64, work.reply_bytes_max);
            if bytes > limit {
                actions.push(Action::Oversize { bytes, limit });
            }
        }
        let reply = Outbound::Reply {
            held: work.lease.held.clone(),
            worker_seq: work.last_seq + 1,
            reply: reply.within(FRAMED_BYTES_MAX),
        };
        let answered = work.answered(now, &reply);
        let is_taken = !answered.awaits_acknowledgement();
        actions.push(Action::Send(reply));
        attached.answered = Some(answered);
        self.state = State::Ready(attached);
        if self.leaving && is_taken {
            self.half_close(now, actions);
        }
    }

    fn leave(&mut self, now: Instant, actions: &mut Vec<Action>) {
        if std::mem::replace(&mut self.leaving, true) {
            return;
        }
        match &self.state {
            State::Ready(attached) if attached.awaits_acknowledgement() => {
                actions.push(Action::Send(Outbound::Leave));
            }
            State::Greeting { resuming: None, .. } | State::Ready(_) => {
                actions.push(Action::Send(Outbound::Leave));
                self.half_close(now, actions);
            }
            State::Greeting {
                resuming: Some(_), ..
            }
            | State::Busy(..) => actions.push(Action::Send(Outbound::Leave)),
            State::Closing { .. } | State::Over => {}
        }
    }

    fn half_close(&mut self, now: Instant, actions: &mut Vec<Action>) {
        actions.push(Action::HalfClose);
        let answered = match std::mem::replace(&mut self.state, State::Over) {
            State::Ready(attached) => attached.crossed(now),
            State::Greeting { .. } | State::Busy(..) | State::Closing { .. } | State::Over => None,
        };
        self.state = State::Closing {
            until: now + CLOSE_TIMEOUT,
            answered,
        };
    }

    fn tick(&mut self, now: Instant, actions: &mut Vec<Action>) {
        match &mut self.state {
            State::Greeting { until, resuming } => {
                if now >= *until {
                    let why = "the harness sent no welcome in time";
                    match resuming.take() {
                        Some(suspended) => {
                            self.state = State::Over;
                            Self::unwelcomed(now, suspended, why, actions);
                        }
                        None => self.silent(now, why, actions),
                    }
                }
            }
            State::Ready(attached) => {
                if now >= attached.dead_at() {
                    self.silent(now, "the harness missed three heartbeats", actions);
                } else if now >= attached.next_beat {
                    attached.next_beat = now + attached.interval;
                    attached.forget_answered(now);
                    actions.push(Action::Send(Outbound::Heartbeat { held: None }));
                }
            }
            State::Busy(attached, work) => {
                if now >= attached.dead_at() {
                    self.silent(now, "the harness missed three heartbeats", actions);
                } else if now >= attached.next_beat {
                    attached.next_beat = now + attached.interval;
                    let held = Some(work.lease.held.clone());
                    actions.push(Action::Send(Outbound::Heartbeat { held }));
                }
            }
            State::Closing { until, .. } => {
                if now >= *until {
                    self.state = State::Over;
                    actions.push(Action::Over(Next::Left));
                }
            }
            State::Over => {}
        }
    }

    /// The harness does what no harness may: this call is worth nothing any more.
    fn broken(&mut self, what: &str, actions: &mut Vec<Action>) {
        let why = format!("the harness broke the protocol: {what}");
        // Before its welcome a harness that speaks wrongly is one to stay away from for a while.
        let fault = match self.state {
            State::Greeting { .. } => Fault::Harness,
            State::Ready(_) | State::Busy(..) | State::Closing { .. } | State::Over => Fault::Call,
        };
        self.lost(&why, fault, actions);
    }
}

impl Attached {
    fn new(now: Instant, welcome: &Welcome) -> Self {
        Self {
            interval: welcome.heartbeat_interval,
            limits: welcome.limits,
            next_beat: now + welcome.heartbeat_interval,
            last_heard: now,
            answered: None,
        }
    }

    /// What was answered last, if the harness may not have read the answer yet: two intervals
    /// after it, it has long.
    fn crossed(self, now: Instant) -> Option<Lease> {
        let answered = self.answered?;
        let since = now.saturating_duration_since(answered.at);
        (since <= self.interval * 2).then_some(answered.lease)
    }

    /// Forgets the reply that nobody acknowledges, once a call that had lost it would be known to.
    fn forget_answered(&mut self, now: Instant) {
        let known = self.interval * (MISSED_HEARTBEATS + 1);
        self.answered.take_if(|answered| {
            let since = now.saturating_duration_since(answered.at);
            !answered.awaits_acknowledgement() && since >= known
        });
    }

    fn awaits_acknowledgement(&self) -> bool {
        let answered = self.answered.as_ref();
        answered.is_some_and(Answered::awaits_acknowledgement)
    }

    /// The attempt whose reply may have to be sent again.
    fn kept(&self) -> Option<&Work> {
        self.answered.as_ref()?.kept.as_deref()
    }

    /// Takes an acknowledgement. True when it was the one a kept reply waits for.
    fn reply_acknowledged(&mut self, worker_seq: u64) -> bool {
        let is_it = |answered: &mut Answered| {
            let kept = answered.kept.as_ref();
            kept.is_some_and(|work| worker_seq >= work.last_seq)
        };
        self.answered.take_if(is_it).is_some()
    }

    fn dead_at(&self) -> Instant {
        self.last_heard + self.interval * MISSED_HEARTBEATS
    }
}
