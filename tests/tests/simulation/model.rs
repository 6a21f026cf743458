//! What must be: a second, plain account of every slot and run, kept from the events that went
//! into Core and the actions that came out, by the words of the protocol and not by Core's code.
//!
//! Owns the account and the order of a check: `before` an event it says what must follow, then it
//! takes the `action`s one by one, and `after` the last it holds Core's own numbers against its
//! own. It draws nothing and sends nothing.

mod account;
mod actions;
mod answers;
mod away;
mod checks;
mod frames;
mod placing;

use std::sync::Arc;
use std::time::{Duration, Instant};

use harness_server::dispatch::{Limits, Offer};
use harness_server::envelope::Code;
use harness_server::ids::{Delivery, RunId, SlotId, WorkerId};
use harness_server::retry::Policy;
use harness_server::slot::{End, Level};

use account::{Agent, Expected, Fault, Held, Judged, Run, Slot, Totals, Unreleased};
use away::{Back, Hand};

pub(crate) use account::{Asked, State};
pub(crate) use away::Resume;

/// The longest a due tick may be late without a leap of the clock.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// Deliveries in a row that may end uncounted.
pub(crate) const UNCOUNTED_MAX: u32 = 2;

/// Workers that a run may kill.
pub(crate) const POISON_MAX: u32 = 3;

/// What set off an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    Opened(usize),
    Frame(usize),
    Lost(usize),
    Died(usize),
    /// A process comes to a rung, or has stopped.
    Stopping,
    Pooled,
    Released,
    Perished,
    Ask(usize),
    Judged(usize),
    Read,
    Watched,
    Drained,
    Cancelled(usize),
    Leaving,
    Tick,
}

pub(crate) struct Model {
    pub(crate) limits: Limits,
    pub(crate) now: Instant,
    /// Where the last leap of the clock ended.
    pub(crate) leapt_to: Instant,
    pub(crate) slots: Vec<Slot>,
    pub(crate) runs: Vec<Run>,
    pub(crate) agents: Vec<Agent>,
    /// Slots and unreleased work of each worker.
    workers: Vec<(usize, usize)>,
    unreleased: Vec<Unreleased>,
    drained: Vec<bool>,
    /// Who watches runs, now and at most at once.
    watching: usize,
    watched_most: usize,
    answered: Vec<usize>,
    backing_off: Vec<usize>,
    /// Runs whose worker is waited for.
    away: Vec<usize>,
    /// Runs that have ended so far.
    ends: usize,
    /// What the tally is to count.
    pub(crate) met: Vec<&'static str>,
    /// A paced append that this event takes: its run and number.
    taken: Option<(usize, u64)>,
    pub(crate) leaving: bool,
    left: bool,
    event: u64,
    trigger: Trigger,
    order: u64,
    last_lease: u128,
    /// How the call that the event is about must end.
    expected_end: Option<(usize, Expected)>,
    /// What the log must say to be away.
    expected_away: Option<Delivery>,
    /// What the resume in the hello must come to.
    expected_back: Option<Back>,
    expected_ack: Option<(usize, u64)>,
    expected_stale: bool,
    expected_released: Option<bool>,
    /// Runs that look for a slot, and whether each must be judged first.
    settled: Vec<(usize, bool)>,
    owed: usize,
    agents_before: usize,
    totals: Totals,
}

impl Model {
    pub(crate) fn new(limits: Limits, now: Instant, agents: usize, workers: usize) -> Self {
        Self {
            limits,
            now,
            leapt_to: now,
            slots: Vec::new(),
            runs: Vec::new(),
            agents: (0..agents).map(|_| Agent::default()).collect(),
            workers: vec![(0, 0); workers],
            unreleased: Vec::new(),
            drained: vec![false; workers],
            backing_off: Vec::new(),
            away: Vec::new(),
            ends: 0,
            met: Vec::new(),
            watching: 0,
            watched_most: 0,
            answered: Vec::new(),
            taken: None,
            leaving: false,
            left: false,
            event: 0,
            trigger: Trigger::Tick,
            order: 0,
            last_lease: 0,
            expected_end: None,
            expected_away: None,
            expected_back: None,
            expected_ack: None,
            expected_stale: false,
            expected_released: None,
            settled: Vec::new(),
            owed: 0,
            agents_before: 0,
            totals: Totals::default(),
        }
    }

    /// An event comes; what it is about is told by the calls that follow.
    pub(crate) fn before(&mut self, now: Instant, trigger: Trigger, agents_before: usize) {
        self.now = now;
        self.trigger = trigger;
        self.agents_before = agents_before;
        self.event += 1;
        self.expected_end = None;
        self.expected_back = None;
        self.expected_ack = None;
        self.expected_stale = false;
    }

    /// A hello is about to be taken.
    pub(crate) fn opened(
        &mut self,
        (id, offer): (usize, Arc<Offer>),
        agent: usize,
        worker: usize,
        resume: Option<Resume>,
    ) {
        assert_eq!(id, self.slots.len());
        let older = resume.and_then(|it| self.older_call(worker, it.delivery, it.lease));
        if self.drained[worker] && !self.leaving {
            // It says that its work stops.
            self.works_no_more(older);
        }
        let of = &self.agents[agent];
        let class = (offer.request_schema, offer.max_receive_bytes);
        let known_class = of.classes.iter().any(|known| (known.0, known.1) == class);
        // A resume takes the place of the call that it goes on with.
        let slots = self.workers[worker].0 - usize::from(older.is_some());
        let certainly = self.drained[worker]
            || slots >= self.limits.worker_slots
            || (!known_class && of.classes.len() >= self.limits.agent_classes);
        let is_in_use = !of.open.is_empty() || of.away > 0;
        let no_room = !is_in_use && self.agents_before >= self.limits.agents;
        if self.leaving {
            self.expected_end = Some((id, Expected::Exactly(End::Leaving)));
        } else if certainly || no_room {
            self.expected_end = Some((id, Expected::Refused { certainly }));
        }
        if self.expected_end.as_ref().is_none_or(is_uncertain) {
            self.expected_back =
                resume.map(|resume| self.comes_back(&offer, agent, worker, resume));
        }
        self.slots.push(Slot {
            offer,
            agent,
            worker,
            open: false,
            stopping: None,
            held: None,
            answered: None,
            told: false,
            heard: self.now,
            free: None,
        });
    }

    /// A pool is about to stand elsewhere.
    pub(crate) fn pooled(&mut self, agent: usize, pool: Option<bool>) {
        self.agents[agent].pool = pool;
        self.agents[agent].had_pool |= pool.is_some();
    }

    /// Takes a slot out of the account and returns what it held.
    fn close(&mut self, id: usize) -> Option<Held> {
        let slot = &mut self.slots[id];
        if !slot.open {
            return None;
        }
        slot.open = false;
        self.totals.slots -= 1;
        if slot.free.take().is_some() {
            self.totals.ready -= 1;
        }
        let held = slot.held.take();
        let (agent, worker) = (slot.agent, slot.worker);
        let class = (slot.offer.request_schema, slot.offer.max_receive_bytes);
        let agent = &mut self.agents[agent];
        agent.open.retain(|open| *open != id);
        for known in &mut agent.classes {
            known.2 -= usize::from((known.0, known.1) == class);
        }
        agent.classes.retain(|known| known.2 > 0);
        self.count_worker(worker, |counts| counts.0 -= 1);
        held
    }

    fn count_worker(&mut self, worker: usize, change: impl FnOnce(&mut (usize, usize))) {
        let counts = &mut self.workers[worker];
        let before = *counts != (0, 0);
        change(counts);
        let after = *counts != (0, 0);
        self.totals.workers += usize::from(after);
        self.totals.workers -= usize::from(before);
    }

    fn become_free(&mut self, id: usize) {
        let slot = &mut self.slots[id];
        if slot.open && slot.stopping.is_none() && slot.held.is_none() && slot.free.is_none() {
            self.order += 1;
            slot.free = Some(self.order);
            self.totals.ready += 1;
        }
    }

    fn no_longer_free(&mut self, id: usize) {
        if self.slots[id].free.take().is_some() {
            self.totals.ready -= 1;
        }
    }

    /// Somebody is about to ask.
    pub(crate) fn ask(&mut self, asked: Asked) {
        let depth = match asked.request.parent {
            None => Some(0),
            Some(parent) => self.runs.get(run_of(parent)).and_then(|above| {
                // The work goes on while its call is lost.
                let runs = matches!(above.state, State::Running(_) | State::Away(_));
                let depth = above.depth + 1;
                (runs && above.attempt == parent.attempt.0 && depth <= 16).then_some(depth)
            }),
        };
        let id = self.runs.len();
        let unknown = !self.agents[asked.agent].is_known() && !asked.wait_for_agent;
        self.runs.push(Run {
            agent: asked.agent,
            deadline: asked.deadline,
            policy: asked.policy,
            selector: asked.selector,
            key: (-asked.priority, id),
            wait_for_agent: asked.wait_for_agent,
            bytes: asked.request.payload.data.len() as u64,
            frame_bytes: asked.request.frame_bytes(),
            is_json: asked.request.payload.is_json(),
            parent: asked.request.parent,
            depth: depth.unwrap_or_default(),
            state: State::Ended,
            attempt: 0,
            hands: Vec::new(),
            taken: 0,
            replied: 0,
            outcome: None,
            ended_at: self.now,
            ends_before: 0,
            counted: 0,
            uncounted_in_row: 0,
            killed: 0,
            output_seen: false,
            attempt_ends: None,
            avoid: None,
            judged: Vec::new(),
            waiting: false,
            paced: asked.paced,
            watchers: 0,
            unread: Vec::new(),
            changed: 0,
            settled: 0,
        });
        self.totals.runs += 1;
        if self.leaving {
            self.owe(id, Some(Code::ShuttingDown));
        } else if depth.is_none() {
            self.owe(id, Some(Code::InvalidRequest));
        } else if unknown {
            self.owe(id, Some(Code::UnknownAgent));
        } else {
            self.enter_queue(id);
        }
    }

    fn owe(&mut self, run: usize, outcome: Option<Code>) {
        self.leave_state(run);
        self.runs[run].state = State::Owed(outcome);
        self.owed += 1;
    }

    fn enter_queue(&mut self, run: usize) {
        self.runs[run].state = State::Queued;
        self.settle(run);
        self.agents[self.runs[run].agent].queued.push(run);
        self.totals.queued += 1;
    }

    /// Takes a run out of whatever it is in.
    fn leave_state(&mut self, run: usize) {
        let entry = &mut self.runs[run];
        entry.changed = self.event;
        match entry.state {
            State::Queued => {
                self.agents[entry.agent]
                    .queued
                    .retain(|queued| *queued != run);
                self.totals.queued -= 1;
            }
            State::BackingOff(_) => self.backing_off.retain(|other| *other != run),
            State::Owed(_) => self.owed -= 1,
            State::Running(_) => entry.attempt_ends = None,
            State::Away(_) => {
                entry.attempt_ends = None;
                self.waits_no_more(run);
            }
            State::Ended => {}
        }
    }

    fn count_waiting(&mut self, run: usize, waits: bool) {
        let entry = &mut self.runs[run];
        if entry.waiting == waits {
            return;
        }
        entry.waiting = waits;
        if waits {
            self.totals.waiting += 1;
            self.agents[entry.agent].waiting += 1;
            self.totals.queued_bytes += entry.bytes;
        } else {
            self.totals.waiting -= 1;
            self.agents[entry.agent].waiting -= 1;
            self.totals.queued_bytes -= entry.bytes;
        }
    }

    /// A delivery failed: the run waits again, backs off, or must be answered now.
    fn fail(&mut self, run: usize, fault: Fault, worker: Option<usize>) {
        self.leave_state(run);
        self.runs[run].state = State::Ended;
        self.runs[run].unread.clear();
        let leaving = self.leaving;
        let now = self.now;
        let entry = &mut self.runs[run];
        entry.avoid = worker;
        if !fault.counts {
            entry.uncounted_in_row += 1;
        }
        let counts = fault.counts || entry.uncounted_in_row > UNCOUNTED_MAX || entry.output_seen;
        if !counts {
            if leaving {
                self.owe(run, Some(Code::ShuttingDown));
            } else {
                self.enter_queue(run);
            }
            return;
        }
        entry.uncounted_in_row = 0;
        entry.counted += 1;
        if entry.killed >= POISON_MAX {
            return self.owe(run, Some(Code::Poisoned));
        }
        if entry.counted >= entry.policy.max_attempts || entry.output_seen || !fault.retried {
            return self.owe(run, Some(fault.code));
        }
        if leaving {
            return self.owe(run, Some(Code::ShuttingDown));
        }
        let until = now + back_off(&entry.policy, entry.counted);
        if until >= entry.deadline {
            return self.owe(run, Some(fault.code));
        }
        entry.state = State::BackingOff(until);
        self.backing_off.push(run);
        self.count_waiting(run, true);
    }
}

/// The wait before a retry; the simulation's chance is in the policies.
pub(crate) fn back_off(policy: &Policy, retry: u32) -> Duration {
    (policy.initial_backoff * retry).min(policy.max_backoff)
}

pub(crate) fn run_id(run: usize) -> RunId {
    RunId(uuid::Uuid::from_u128(run as u128 + 1))
}

pub(crate) fn run_of(delivery: Delivery) -> usize {
    run_index(delivery.run)
}

pub(crate) fn run_index(run: RunId) -> usize {
    (run.0.as_u128() as usize).wrapping_sub(1)
}

pub(crate) fn slot_id(slot: usize) -> SlotId {
    SlotId(slot as u64 + 1)
}

pub(crate) fn slot_index(slot: SlotId) -> usize {
    slot.0 as usize - 1
}

pub(crate) fn worker_id(worker: usize) -> WorkerId {
    WorkerId(uuid::Uuid::from_u128(worker as u128 + 1))
}

fn worker_index(worker: WorkerId) -> usize {
    worker.0.as_u128() as usize - 1
}

fn is_full(offer: &Offer) -> bool {
    offer.level == Level::Full
}

/// Whether a hello may be refused and need not.
fn is_uncertain((_, expected): &(usize, Expected)) -> bool {
    matches!(expected, Expected::Refused { certainly: false })
}
