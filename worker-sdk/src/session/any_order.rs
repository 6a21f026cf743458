//! What holds of a call whatever happens in whatever order.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::tests::{INTERVAL, LIMITS, append, end, replied, request, welcome};
use super::{
    Action, Delivery, EndCode, Event, Inbound, Next, Outbound, Session, Suspended, Welcome,
};

/// Something that happens, small enough to print.
#[derive(Debug, Clone, Copy)]
enum Step {
    Welcome,
    Request {
        durable: bool,
        window: bool,
    },
    /// A welcome that resumes, by how much less than was sent.
    Resumed(u64),
    Appended(u64),
    Heartbeat,
    Drain,
    Append(u64),
    Replied,
    Leave,
    Wait(u64),
    End(EndCode, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let code = prop::sample::select(vec![
        EndCode::Ok,
        EndCode::Cancelled,
        EndCode::DeadlineExceeded,
        EndCode::Unavailable,
        EndCode::InvalidArgument,
        EndCode::FailedPrecondition,
    ]);
    prop_oneof![
        1 => Just(Step::Welcome),
        4 => (any::<bool>(), any::<bool>())
            .prop_map(|(durable, window)| Step::Request { durable, window }),
        4 => (0..3u64).prop_map(Step::Resumed),
        8 => (0..6u64).prop_map(Step::Appended),
        4 => Just(Step::Heartbeat),
        1 => Just(Step::Drain),
        12 => (1..600u64).prop_map(Step::Append),
        4 => Just(Step::Replied),
        1 => Just(Step::Leave),
        4 => (0..6_000u64).prop_map(Step::Wait),
        2 => (code, any::<bool>()).prop_map(|(code, ours)| Step::End(code, ours)),
    ]
}

/// What the world outside a session knows of it.
#[derive(Default)]
struct Seen {
    working: bool,
    next_seq: u64,
    /// What the harness has taken: what it has acknowledged, at least.
    taken: u64,
    unacked: Vec<(u64, u64)>,
    /// What is sent again, oldest first.
    again: VecDeque<u64>,
    resumed: Option<Box<Suspended>>,
    offered: Option<u64>,
    half_closed: bool,
    over: bool,
}

impl Seen {
    fn acknowledged(&mut self, worker_seq: u64) {
        self.taken = self.taken.max(worker_seq);
        self.unacked.retain(|(seq, _)| *seq > worker_seq);
    }

    fn check(&mut self, action: &Action) {
        assert!(!self.over, "{action:?} after the end");
        if let Action::Send(
            Outbound::Append { worker_seq, .. } | Outbound::Reply { worker_seq, .. },
        ) = action
            && let Some(again) = self.again.pop_front()
        {
            return assert_eq!(*worker_seq, again, "sent again in order");
        }
        if let Action::Send(_) = action {
            assert!(!self.half_closed, "{action:?} after the half-close");
        }
        match action {
            Action::Start(_) => {
                assert!(!self.working, "two requests in hand");
                *self = Self {
                    working: true,
                    next_seq: 1,
                    ..Self::default()
                };
            }
            Action::Send(Outbound::Append { worker_seq, .. }) => {
                assert_eq!(*worker_seq, self.next_seq, "numbers grow by one");
                self.next_seq += 1;
                let bytes = self.offered.expect("an append that was offered");
                self.unacked.push((*worker_seq, bytes));
                let sum: u64 = self.unacked.iter().map(|(_, bytes)| bytes).sum();
                let fits = self.unacked.len() <= LIMITS.unacked_entries as usize
                    && sum <= LIMITS.unacked_bytes;
                assert!(
                    fits || self.unacked.len() == 1,
                    "past the window: {:?}",
                    self.unacked
                );
            }
            Action::Send(Outbound::Reply { worker_seq, .. }) => {
                assert!(self.working, "a reply to nothing");
                assert_eq!(*worker_seq, self.next_seq);
                self.next_seq += 1;
                self.working = false;
                self.offered = None;
            }
            Action::Admit | Action::Refuse { .. } => {
                assert!(self.offered.take().is_some(), "an answer to no append");
            }
            Action::Stop(_) => {
                assert!(self.working, "nothing to stop");
                self.working = false;
            }
            Action::HalfClose => {
                assert!(!self.working, "half-closed with a request in hand");
                self.half_closed = true;
            }
            Action::Over(Next::Resume { suspended, .. }) => {
                self.resumed = Some(suspended.clone());
                self.over = true;
            }
            Action::Over(_) => {
                assert!(!self.working, "the call ended and its work goes on");
                self.over = true;
            }
            Action::Await { .. } | Action::Acknowledged { .. } => panic!("there are no steps"),
            Action::Send(Outbound::Heartbeat { held }) => {
                // The acceptance comes just before its start.
                assert!(
                    held.is_some() || !self.working,
                    "a busy slot says it is idle"
                );
            }
            Action::Oversize { .. } => assert!(self.working, "a reply to nothing"),
            Action::Send(Outbound::Leave) | Action::Welcomed | Action::Drained { .. } => {}
        }
    }
}

fn event(
    step: Step,
    session: &Session,
    resuming: bool,
    seen: &mut Seen,
    now: &mut Instant,
) -> Option<Event> {
    Some(match step {
        Step::Welcome => Event::Frame(welcome()),
        Step::Request { durable, window } => {
            let seconds = if window { 20 } else { 0 };
            Event::Frame(Inbound::Request(Box::new(Delivery {
                durable,
                reattach_window: Duration::from_secs(seconds),
                ..request()
            })))
        }
        Step::Resumed(missing) => {
            // A harness knows what it has acknowledged and not more than was sent.
            let sent = seen.next_seq.saturating_sub(1);
            let taken = sent.saturating_sub(missing).max(seen.taken);
            if resuming {
                seen.again = (taken + 1..=sent).collect();
                seen.acknowledged(taken);
            }
            Event::Frame(Inbound::Welcome(Welcome {
                heartbeat_interval: INTERVAL,
                limits: LIMITS,
                resumed: Some(taken),
            }))
        }
        Step::Appended(worker_seq) => {
            let worker_seq = worker_seq.min(seen.next_seq.saturating_sub(1));
            seen.acknowledged(worker_seq);
            Event::Frame(Inbound::Appended { worker_seq })
        }
        Step::Heartbeat => Event::Frame(Inbound::Heartbeat),
        Step::Drain => Event::Frame(Inbound::Drain {
            reason: String::new(),
        }),
        Step::Append(bytes) => {
            // Its driver asks first.
            if !session.takes_appends() {
                return None;
            }
            seen.offered = Some(bytes);
            append(bytes)
        }
        Step::Replied => replied(),
        Step::Leave => Event::Leave,
        Step::Wait(millis) => {
            *now += Duration::from_millis(millis);
            Event::Tick
        }
        Step::End(code, ours) => Event::Ended(end(code, ours.then_some("REASON"))),
    })
}

proptest! {
    #[test]
    fn no_order_of_events_breaks_a_call(steps in prop::collection::vec(step(), 1..200)) {
        let mut now = Instant::now();
        let mut session = Session::new(now);
        let mut resuming = false;
        let mut seen = Seen::default();
        for step in std::iter::once(Step::Welcome).chain(steps) {
            let Some(event) = event(step, &session, resuming, &mut seen, &mut now) else {
                continue;
            };
            let actions = session.apply(now, event);
            resuming &= !actions.contains(&Action::Welcomed);
            for action in actions {
                seen.check(&action);
            }
            prop_assert_eq!(session.next_wake().is_none(), seen.over);
            if let Some(wake) = session.next_wake() {
                prop_assert!(wake <= now + INTERVAL * 2, "it sleeps past its heartbeat");
            }
            if seen.over && let Some(suspended) = seen.resumed.take() {
                session = Session::resuming(now, suspended);
                (seen.over, seen.half_closed, resuming) = (false, false, true);
            }
        }
    }
}
