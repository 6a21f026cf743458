//! Random walks: workers that do right and wrong, callers that hang up, time that jumps. What the
//! rules promise must hold after every step, and nothing may be left at the end.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::{
    Action, Ask, Code, Delivery, EntryKind, Event, Failure, Frame, Lease, Level, Offer, Payload,
    Reply, RunId, SchemaId, SlotId, World, ask, ends, offer, resumed,
};
use crate::run;
use crate::slot::{End, Refusal};

mod steps;

use steps::{Named, Number, Step, name, pick, place, steps};

const AGENTS: [&str; 3] = ["echo", "upper", "lower"];

/// What an observer of the wire and of the callers knows.
struct Walk {
    world: World,
    window: Duration,
    deadlines: HashMap<RunId, Instant>,
    attempts: HashMap<RunId, u32>,
    judging: Vec<(RunId, SchemaId)>,
    leases: Vec<(Offer, Delivery, Lease)>,
    /// Open calls, and the request each holds.
    calls: HashMap<SlotId, (Offer, Option<Delivery>)>,
    /// Calls that take no request any more.
    left: HashSet<SlotId>,
}

impl Walk {
    fn new(window: Duration) -> Self {
        Self {
            window,
            world: World::with(|limits| {
                limits.interactive_reattach_window = window;
                limits.queue_runs = 4;
                limits.worker_slots = 3;
                limits.agents = 2;
                limits.agent_classes = 3;
                limits.unreleased = 5;
            }),
            deadlines: HashMap::new(),
            attempts: HashMap::new(),
            judging: Vec::new(),
            leases: Vec::new(),
            calls: HashMap::new(),
            left: HashSet::new(),
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Attach {
                worker,
                full,
                schema,
                small,
            } => self.attach(worker, full, schema, small),
            Step::Ask {
                agent,
                bytes,
                timeout,
                max_attempts,
                wait,
            } => {
                let mut ask = ask(AGENTS[usize::from(agent)])
                    .bytes(bytes.into())
                    .timeout(Duration::from_secs(timeout.into()))
                    .max_attempts(max_attempts.into());
                ask.placing.wait_for_agent = wait;
                self.ask(ask);
            }
            Step::Judge(n, takes) => self.judge(n, takes),
            Step::Heartbeat(n, named) => self.on_slot(n, |slot, held, _| {
                let named = held.map(|held| name(held, named));
                Some((slot, Frame::Heartbeat(named)))
            }),
            Step::Append(n, named, seq, bytes, acked) => {
                self.append(n, (named, seq), bytes, acked);
            }
            Step::Reply(n, named, seq, what) => self.reply(n, named, seq, what),
            Step::Odd(n, what) => self.odd(n, what),
            Step::Lose(n) => {
                if let Some(slot) = self.slot(n) {
                    self.calls.remove(&slot);
                    let actions = self.world.lose(slot);
                    self.observe(actions);
                }
            }
            Step::Cancel(n) => {
                let runs = self.world.next_run as usize;
                if let Some(at) = pick(n, runs) {
                    let run = RunId(uuid::Uuid::from_u128(at as u128 + 1));
                    let actions = self.world.cancel(run);
                    self.observe(actions);
                    assert!(self.world.is_answered(run));
                }
            }
            Step::Release(n, right) => self.release(n, right),
            Step::Resume(n, right) => self.resume(n, right),
            Step::Pass(millis) => self.pass(Duration::from_millis(millis.into())),
            Step::Leave(at_once) => self.apply(if at_once {
                Event::ServerLeft
            } else {
                Event::ServerLeaving
            }),
        }
    }

    fn ask(&mut self, ask: Ask) {
        let run = RunId(uuid::Uuid::from_u128(self.world.next_run + 1));
        self.deadlines.insert(run, self.world.now + ask.timeout);
        let (_, actions) = self.world.ask_and_see(ask);
        self.observe(actions);
    }

    fn judge(&mut self, n: u8, takes: bool) {
        let Some(at) = pick(n, self.judging.len()) else {
            return;
        };
        let (run, schema) = self.judging.swap_remove(at);
        let refusal = (!takes).then(|| Failure::new(Code::InvalidRequest, "no"));
        self.apply(Event::Judged {
            run,
            schema,
            refusal,
        });
    }

    fn release(&mut self, n: u8, right: bool) {
        let Some(at) = pick(n, self.leases.len()) else {
            return;
        };
        let (offer, delivery, lease) = &self.leases[at];
        let (worker, delivery, lease) = (offer.worker, *delivery, *lease);
        let lease = if right { lease } else { Lease([0; 16]) };
        self.apply(Event::Released {
            worker,
            delivery,
            lease,
        });
    }

    fn resume(&mut self, n: u8, right: bool) {
        let Some(at) = pick(n, self.leases.len()) else {
            return;
        };
        let (offer, delivery, lease) = self.leases[at].clone();
        let lease = if right { lease } else { Lease([0; 16]) };
        let run = self.world.core.runs.get(&delivery.run);
        let works = run.is_some_and(|run| {
            let state = matches!(run.run.state(), run::State::Running(_) | run::State::Away);
            state && run.run.delivery() == delivery
        });
        let goes_on = right && works && offer.level == Level::Full && !self.window.is_zero();
        let slot = SlotId(self.world.next_slot + 1);
        let held = goes_on.then_some(delivery);
        self.calls.insert(slot, (offer.clone(), held));
        let (_, actions) = self.world.resume(offer, delivery, lease);
        // Only what refuses any hello refuses this one.
        let is_refused = ends(&actions).iter().any(|(ended, end)| {
            let is_of_any = *end == End::Leaving
                || matches!(end, End::Refused(why) if *why != Refusal::NotYours);
            *ended == slot && is_of_any
        });
        let goes = resumed(&actions).is_some_and(|it| it.deadline.is_some());
        assert_eq!(goes, goes_on && !is_refused, "what was said of {delivery}");
        self.observe(actions);
    }

    fn attach(&mut self, worker: u8, full: bool, schema: u8, small: bool) {
        let agent = AGENTS[usize::from(worker) % AGENTS.len()];
        let offer = Offer {
            level: if full { Level::Full } else { Level::Minimal },
            request_schema: (schema > 0).then(|| SchemaId(schema.into())),
            max_receive_bytes: if small { 1500 } else { 1 << 20 },
            ..offer(agent, worker.into())
        };
        let slot = SlotId(self.world.next_slot + 1);
        self.calls.insert(slot, (offer.clone(), None));
        let (_, actions) = self.world.attach_and_see(offer);
        self.observe(actions);
    }

    fn append(&mut self, n: u8, (named, seq): (Named, Number), bytes: u16, acked: u8) {
        self.on_slot(n, |slot, held, last| {
            let frame = Frame::Append {
                delivery: name(held?, named),
                seq: place(seq, last),
                kind: [EntryKind::Plain, EntryKind::Usage, EntryKind::Step][usize::from(n % 3)],
                entry: vec![0; usize::from(bytes)].into(),
                acknowledged: last.saturating_sub(acked.into()),
            };
            Some((slot, frame))
        });
    }

    fn reply(&mut self, n: u8, named: Named, seq: Number, what: u8) {
        let Some(slot) = self.slot(n) else { return };
        let Some(held) = self.calls[&slot].1 else {
            return;
        };
        let last = self.world.core.slots[&slot].slot.last_seq();
        let reply = match what {
            0 => Reply::Declined,
            1 => Reply::Invalid(Failure::new(Code::InvalidReply, "no reply")),
            2 => Reply::Error(Failure::new(Code::AgentError, "no")),
            3 => Reply::TooLarge(Failure::new(Code::PayloadTooLarge, "large")),
            _ => Reply::Value(Payload::default()),
        };
        if matches!((named, seq), (Named::Held, Number::Next)) {
            self.calls.get_mut(&slot).expect("it was picked").1 = None;
        }
        let frame = Frame::Reply {
            delivery: name(held, named),
            seq: place(seq, last.expect("it holds a request")),
            reply,
        };
        self.apply(Event::Frame { slot, frame });
    }

    fn odd(&mut self, n: u8, what: u8) {
        let Some(slot) = self.slot(n) else { return };
        let frame = match what {
            0 => Frame::HalfClosed,
            1 => Frame::HelloAgain,
            2 => Frame::Unknown,
            3 => Frame::TooLarge { bytes: 9, limit: 8 },
            _ => Frame::Leave,
        };
        self.left.insert(slot);
        self.apply(Event::Frame { slot, frame });
    }

    fn pass(&mut self, time: Duration) {
        let actions = self.world.pass(time);
        self.observe(actions);
        let late = self
            .deadlines
            .iter()
            .find(|(run, at)| **at <= self.world.now && !self.world.is_answered(**run));
        assert!(late.is_none(), "{late:?} is past its deadline");
    }

    /// An open call, the request in it, and the last worker_seq of that.
    fn on_slot<F>(&mut self, n: u8, frame: F)
    where
        F: FnOnce(SlotId, Option<Delivery>, u64) -> Option<(SlotId, Frame)>,
    {
        let Some(slot) = self.slot(n) else { return };
        let last = self.world.core.slots[&slot].slot.last_seq();
        let held = self.calls[&slot].1;
        if let Some((slot, frame)) = frame(slot, held, last.unwrap_or_default()) {
            self.apply(Event::Frame { slot, frame });
        }
    }

    fn slot(&self, n: u8) -> Option<SlotId> {
        let mut slots: Vec<SlotId> = self.calls.keys().copied().collect();
        slots.sort_unstable();
        pick(n, slots.len()).map(|at| slots[at])
    }

    fn apply(&mut self, event: Event) {
        let actions = self.world.apply(event);
        self.observe(actions);
    }

    fn observe(&mut self, actions: Vec<Action>) {
        let mut answered = HashSet::new();
        for action in actions {
            match action {
                Action::Deliver {
                    slot,
                    delivery,
                    lease,
                    deadline,
                    ..
                } => {
                    let (offer, held) = self.calls.get_mut(&slot).expect("the call is open");
                    assert_eq!(*held, None, "a slot holds one request");
                    *held = Some(delivery);
                    assert!(!self.left.contains(&slot), "it takes no request any more");
                    assert!(!answered.contains(&delivery.run), "it was answered");
                    assert!(deadline > self.world.now, "it has no time left");
                    assert_eq!(deadline, self.deadlines[&delivery.run]);
                    let attempt = self.attempts.entry(delivery.run).or_default();
                    *attempt += 1;
                    assert_eq!(delivery.attempt.0, *attempt);
                    self.leases.push((offer.clone(), delivery, lease));
                }
                Action::End { slot, .. } => {
                    assert!(self.calls.remove(&slot).is_some(), "a call ends once");
                }
                Action::Acknowledge { slot, .. } => {
                    assert_eq!(self.calls[&slot].0.level, Level::Full);
                }
                Action::Welcome { slot, .. } => assert!(self.calls.contains_key(&slot)),
                Action::Judge { run, schema, .. } => self.judging.push((run, schema)),
                Action::Answer { run, .. } => {
                    answered.insert(run);
                }
                Action::Grew { .. } | Action::Drain { .. } | Action::Note(_) => {}
                Action::Write(_)
                | Action::Load { .. }
                | Action::Reload { .. }
                | Action::Started { .. }
                | Action::Decided { .. } => panic!("no run is durable here: {action:?}"),
            }
        }
        let open: HashSet<SlotId> = self.calls.keys().copied().collect();
        let known: HashSet<SlotId> = self.world.core.slots.keys().copied().collect();
        assert_eq!(open, known, "the calls that are open");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn whatever_happens_every_run_is_answered_once_and_in_time(
        steps in steps(),
        window in prop_oneof![Just(0), 1..20_u64],
    ) {
        let mut walk = Walk::new(Duration::from_secs(window));
        for step in steps {
            walk.take(step);
        }
        walk.world.wind_down();
    }
}
