//! Core driven by hand on a virtual clock. Every event is followed by a check of the invariants,
//! and at the end of every test the world is wound down until nothing may be left.

mod invariants;
mod samples;

mod chains;
mod deadlines;
mod drains;
mod durable;
mod durable_ends;
mod durable_lost;
mod durable_replied;
mod frames;
mod hang_ups;
mod histories;
mod interactive_lost;
mod leaving;
mod lines;
mod order;
mod paced;
mod older_calls;
mod placing;
mod pools;
mod queues;
mod released;
mod retries;
mod schemas;
mod selecting;
mod unknown;
mod views;
mod walk;
mod workers;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::{Action, Chance, Core, Event, Frame, Limits, Note, Offer, Reply, Resumed};
use crate::envelope::{Answer, Code, Failure, Payload};
use crate::ids::{AgentKey, Attempt, Delivery, Lease, RunId, SchemaId, SlotId, WorkerId};
use crate::retry::{Policy, Waits};
use crate::run;
use crate::slot::{End, EntryKind, Level};

use samples::{Ask, ask, limits, minimal, offer};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// How long an ask of these tests may take.
const TIMEOUT: Duration = MINUTE;

/// How long the first back-off takes, without chance.
const BACK_OFF: Duration = Duration::from_millis(200);

/// Leases in a row, and every back-off the longest it may be.
struct NoChance {
    leases: u128,
}

impl Chance for NoChance {
    fn lease(&mut self) -> Lease {
        self.leases += 1;
        Lease(self.leases.to_be_bytes())
    }
}

impl Waits for NoChance {
    fn wait(&mut self, policy: &Policy, retry: u32) -> Duration {
        policy.initial_backoff * 2_u32.pow(retry - 1)
    }
}

/// A harness, its clock, and what its callers were answered.
struct World {
    core: Core,
    now: Instant,
    next_slot: u64,
    next_run: u128,
    next_durable: u128,
    answers: HashMap<RunId, Answer>,
    /// Agents that a pool has named, which may be one too many each.
    pooled: HashSet<AgentKey>,
}

impl World {
    /// With the limits above.
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Limits)) -> Self {
        let mut limits = limits();
        change(&mut limits);
        let now = Instant::now();
        Self {
            core: Core::new(limits, Box::new(NoChance { leases: 0 }), now),
            now,
            next_slot: 0,
            next_run: 0,
            next_durable: 0,
            answers: HashMap::new(),
            pooled: HashSet::new(),
        }
    }

    fn apply(&mut self, event: Event) -> Vec<Action> {
        if let Event::Pooled { agent, .. } = &event {
            self.pooled.insert(agent.clone());
        }
        let mut actions = Vec::new();
        self.core.apply(self.now, event, &mut actions);
        for action in &actions {
            if let Action::Answer { run, answer } = action {
                let before = self.answers.insert(*run, answer.clone());
                assert!(before.is_none(), "run {run} was answered twice");
            }
        }
        let agents_max = self.core.limits.agents + self.pooled.len();
        assert!(self.core.agents.len() <= agents_max);
        invariants::check(&self.core, self.now);
        actions
    }

    /// Opens a slot that must be welcomed.
    fn attach(&mut self, offer: Offer) -> SlotId {
        let (slot, actions) = self.attach_and_see(offer);
        assert!(
            matches!(actions[..], [Action::Welcome { slot: welcomed, .. }, ..] if welcomed == slot),
            "{actions:?}"
        );
        slot
    }

    fn attach_and_see(&mut self, offer: Offer) -> (SlotId, Vec<Action>) {
        self.next_slot += 1;
        let slot = SlotId(self.next_slot);
        let back = None;
        (slot, self.apply(Event::Opened { slot, offer, back }))
    }

    fn ask(&mut self, agent: &str) -> RunId {
        self.ask_and_see(ask(agent)).0
    }

    fn ask_and_see(&mut self, ask: Ask) -> (RunId, Vec<Action>) {
        self.next_run += 1;
        let run = RunId(Uuid::from_u128(self.next_run));
        let event = Event::Ask {
            run,
            request: ask.request,
            terms: run::Terms {
                deadline: self.now + ask.timeout,
                retry: Arc::new(ask.retry),
                uncounted_max: 2,
                poison_max: 3,
            },
            placing: ask.placing,
        };
        (run, self.apply(event))
    }

    fn frame(&mut self, slot: SlotId, frame: Frame) -> Vec<Action> {
        self.apply(Event::Frame { slot, frame })
    }

    /// What a slot holds.
    fn held(&self, slot: SlotId) -> Option<Delivery> {
        self.core.slots.get(&slot)?.slot.delivery()
    }

    /// The run a slot holds.
    fn run_in(&self, slot: SlotId) -> Option<RunId> {
        self.held(slot).map(|held| held.run)
    }

    /// Has a slot answer what it holds.
    fn reply_with(&mut self, slot: SlotId, reply: Reply) -> Vec<Action> {
        let delivery = self.held(slot).expect("the slot must hold a request");
        let seq = self.core.slots[&slot].slot.last_seq().unwrap_or_default() + 1;
        self.frame(
            slot,
            Frame::Reply {
                delivery,
                seq,
                reply,
            },
        )
    }

    fn reply(&mut self, slot: SlotId) -> Vec<Action> {
        self.reply_with(slot, Reply::Value(Payload::json(&"done".into())))
    }

    /// Has a slot show that it has what it holds.
    fn accept(&mut self, slot: SlotId) {
        let held = self.held(slot);
        self.frame(slot, Frame::Heartbeat(held));
    }

    fn lose(&mut self, slot: SlotId) -> Vec<Action> {
        let why = "the connection broke".to_owned();
        self.apply(Event::Lost { slot, why })
    }

    fn cancel(&mut self, run: RunId) -> Vec<Action> {
        let why = "the caller hung up".to_owned();
        self.apply(Event::Cancelled { run, why })
    }

    /// Lets time pass and ticks.
    fn pass(&mut self, time: Duration) -> Vec<Action> {
        self.now += time;
        let actions = self.apply(Event::Tick);
        let next = self.core.next_wake();
        assert!(next.is_none_or(|at| at > self.now), "something due is left");
        actions
    }

    fn is_answered(&self, run: RunId) -> bool {
        self.answers.contains_key(&run)
    }

    fn answer(&self, run: RunId) -> &Answer {
        self.answers.get(&run).expect("the run must be answered")
    }

    fn failure(&self, run: RunId) -> &Failure {
        let outcome = self.answer(run).outcome.as_ref();
        outcome.expect_err("the run must have failed")
    }

    /// That a run failed with this code and a message that has all these parts.
    fn assert_failed(&self, run: RunId, code: Code, parts: &[&str]) {
        let failure = self.failure(run);
        assert_eq!(failure.code, code, "{failure:?}");
        for part in parts {
            let message = &failure.message;
            assert!(message.contains(part), "\"{part}\" is not in \"{message}\"");
        }
    }

    /// Loses every slot and lets time pass until nothing is due; then nothing may be left.
    fn wind_down(&mut self) {
        let slots: Vec<SlotId> = self.core.slots.keys().copied().collect();
        for slot in slots {
            self.lose(slot);
        }
        while let Some(wake) = self.core.next_wake() {
            let wait = wake.saturating_duration_since(self.now);
            self.pass(wait);
        }
        assert!(self.core.is_idle());
        assert_eq!(self.answers.len() as u128, self.next_run, "one answer each");
        assert!(self.core.agents.is_empty(), "an agent is left");
        assert!(self.core.workers.is_empty(), "a worker is left");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.wind_down();
        }
    }
}

/// The slots and attempts that requests are sent to.
fn deliveries(actions: &[Action]) -> Vec<(SlotId, Delivery)> {
    let delivery = |action: &Action| {
        if let Action::Deliver { slot, delivery, .. } = action {
            Some((*slot, *delivery))
        } else {
            None
        }
    };
    actions.iter().filter_map(delivery).collect()
}

/// The calls that are ended.
fn ends(actions: &[Action]) -> Vec<(SlotId, End)> {
    let end = |action: &Action| {
        if let Action::End { slot, end } = action {
            Some((*slot, end.clone()))
        } else {
            None
        }
    };
    actions.iter().filter_map(end).collect()
}

/// The lease a delivery came with.
fn lease_in(actions: &[Action]) -> Lease {
    let lease = |action: &Action| {
        if let Action::Deliver { lease, .. } = action {
            Some(*lease)
        } else {
            None
        }
    };
    let found = actions.iter().find_map(lease);
    found.expect("a request must have been sent")
}

/// What the worker is told that resumes.
fn resumed(actions: &[Action]) -> Option<Resumed> {
    actions.iter().find_map(|action| {
        if let Action::Welcome { resumed, .. } = action {
            *resumed
        } else {
            None
        }
    })
}

/// What the worker is told whose reply, of this number, was taken.
fn replied(delivery: Delivery, last_seq: u64) -> Resumed {
    Resumed {
        delivery,
        last_seq,
        deadline: None,
    }
}
