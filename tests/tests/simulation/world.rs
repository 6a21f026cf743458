//! The world of one seed: the virtual clock, what is on its way, and Core between them.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use harness_server::dispatch::{Action, Chance, Core, Event};
use harness_server::envelope::{Code, Failure};
use harness_server::ids::{Delivery, Lease, SchemaId};
use harness_server::pool::Rung;
use harness_server::retry::{Policy, Waits};
use harness_server::slot::End;

use crate::asks::Templates;
use crate::calls::{Call, Previous, Work};
use crate::frames::{Down, Up};
use crate::model::{
    Model, Trigger, back_off, run_id, run_index, run_of, slot_id, slot_index, worker_id,
};
use crate::random::{Random, mix};
use crate::setting::{AGENTS, Setting};
use crate::tally::Tally;

/// What is to happen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    /// A frame reaches the harness.
    Up(usize, Up),
    /// A frame reaches the worker.
    Down(usize, Down),
    /// A worker goes on with what it does; the number tells an old step from the newest.
    Step(usize, u32),
    /// A worker owes a heartbeat.
    Beat(usize),
    /// An idle worker does something nobody asked for.
    Idle(usize),
    /// A worker opens a call, and says what became of the one before.
    Dial(usize, Previous),
    /// The harness writes an acknowledgement.
    Acknowledge(usize, u64),
    /// Somebody asks, or waits for this agent, whether it is known or not.
    Ask(Option<usize>),
    HangUp(usize),
    /// The caller of a run reads its journal.
    Read(usize),
    CeaseToWatch(usize),
    /// An operator drains a worker.
    Drain(usize),
    Judged(usize, SchemaId),
    /// A process with cancelled work comes to a rung of the kill ladder.
    Stopping(usize, Rung),
    /// Nothing is left of a process.
    Stopped(usize),
    /// The process of a lost call is dead, by itself or not.
    Perished(usize, Delivery, bool),
    /// A pool names an agent and crash-loops or not, or does so no more.
    Pooled(usize, Option<bool>),
    Tick,
    /// The clock leaps forward by so many microseconds.
    Leap(u64),
    /// The harness leaves, or waits no longer.
    Leave(bool),
}

struct Entry(u64, u64, What);

/// By then an agent is forgotten that was used last when all was over, in microseconds.
const AT_REST: u64 = 3 * 3600 * 1_000_000;

/// Leases in a row; the chance of a back-off is in its policy.
pub(crate) struct InARow(pub(crate) u128);

impl Chance for InARow {
    fn lease(&mut self) -> Lease {
        self.0 += 1;
        Lease(self.0.to_be_bytes())
    }
}

impl Waits for InARow {
    fn wait(&mut self, policy: &Policy, retry: u32) -> Duration {
        back_off(policy, retry)
    }
}

pub(crate) struct World {
    seed: u64,
    trace: bool,
    base: Instant,
    micros: u64,
    heap: BinaryHeap<Reverse<Entry>>,
    number: u64,
    tick_at: Option<u64>,
    pub(crate) core: Core,
    actions: Vec<Action>,
    events: u64,
    agents: usize,
    /// Of a hundred asks, so many come from a run.
    pub(crate) chains: u64,
    pub(crate) random: Random,
    pub(crate) model: Model,
    pub(crate) setting: Setting,
    pub(crate) calls: Vec<Call>,
    /// The call of each slot.
    pub(crate) by_slot: Vec<usize>,
    /// What workers had in hand when their calls broke.
    pub(crate) lost_works: Vec<Work>,
    pub(crate) templates: Templates,
}

impl World {
    pub(crate) fn new(seed: u64, trace: bool) -> Self {
        let mut random = Random::new(seed);
        let setting = Setting::new(seed, &mut random);
        let base = Instant::now();
        let limits = setting.limits.clone();
        let chains = random.pick(&[0, 0, 10, 60]);
        Self {
            seed,
            trace,
            base,
            micros: 0,
            heap: BinaryHeap::new(),
            number: 0,
            tick_at: None,
            core: Core::new(limits.clone(), Box::new(InARow(0)), base),
            actions: Vec::new(),
            events: 0,
            agents: 0,
            chains,
            random,
            model: Model::new(limits, base, AGENTS.len(), setting.workers.len()),
            setting,
            calls: Vec::new(),
            by_slot: Vec::new(),
            lost_works: Vec::new(),
            templates: Templates::new(),
        }
    }

    pub(crate) fn run(mut self, tally: &mut Tally) {
        self.plan();
        while let Some(Reverse(Entry(at, _, what))) = self.heap.pop() {
            if at > self.setting.ends_at {
                break;
            }
            self.micros = self.micros.max(at);
            self.happens(what, tally);
            self.set_tick();
        }
        self.wind_down(tally);
        tally.events += self.events;
    }

    /// What comes whatever happens.
    fn plan(&mut self) {
        let ends_at = self.setting.ends_at;
        for worker in 0..self.setting.workers.len() {
            for _ in 0..self.setting.workers[worker].slots {
                let early = self.random.percent(70);
                let at = self
                    .random
                    .below(if early { ends_at / 20 } else { ends_at });
                self.later(at, What::Dial(worker, Previous::Nothing));
            }
        }
        for _ in 0..self.setting.asks {
            let at = self.random.below(ends_at * 3 / 4);
            self.later(at, What::Ask(None));
        }
        if self.random.percent(30) {
            for _ in 0..=self.random.below(2) {
                let at = self.random.below(ends_at);
                let by = self.random.micros(100_000, 30_000_000);
                self.later(at, What::Leap(by));
            }
        }
        if self.random.percent(15) && !self.setting.workers.is_empty() {
            let at = self.random.below(ends_at);
            let worker = self.random.index(self.setting.workers.len());
            self.later(at, What::Drain(worker));
        }
        if self.random.percent(25) {
            let agent = self.random.index(AGENTS.len());
            for _ in 0..=self.random.below(4) {
                let at = self.random.below(ends_at);
                let pool = self
                    .random
                    .pick(&[None, Some(false), Some(true), Some(true)]);
                self.later(at, What::Pooled(agent, pool));
            }
        }
        if self.random.percent(20) {
            let at = ends_at / 3 + self.random.below(ends_at * 2 / 3);
            if self.random.percent(70) {
                self.later(at, What::Leave(false));
            }
            let grace = self.random.below(ends_at / 2);
            self.later(at + grace, What::Leave(true));
        }
    }

    pub(crate) fn later(&mut self, after: u64, what: What) {
        self.at(self.micros + after, what);
    }

    pub(crate) fn at(&mut self, at: u64, what: What) {
        self.number += 1;
        self.heap.push(Reverse(Entry(at, self.number, what)));
    }

    pub(crate) fn micros(&self) -> u64 {
        self.micros
    }

    pub(crate) fn now(&self) -> Instant {
        self.base + Duration::from_micros(self.micros)
    }

    fn happens(&mut self, what: What, tally: &mut Tally) {
        match what {
            What::Up(call, up) => self.arrives(call, up),
            What::Down(call, down) => self.reads(call, down),
            What::Step(call, number) => self.steps(call, number),
            What::Beat(call) => self.beats(call),
            What::Idle(call) => self.idles(call),
            What::Dial(worker, previous) => self.dials(worker, previous),
            What::Acknowledge(call, seq) => self.acknowledges(call, seq),
            What::Ask(waits_for) => self.ask(waits_for),
            What::HangUp(run) => self.hang_up(run),
            What::Read(run) => self.caller_reads(run),
            What::CeaseToWatch(run) => self.watches(run, false),
            What::Drain(worker) => {
                self.before(Trigger::Drained);
                self.model.drains(worker);
                self.apply(Event::Drain {
                    worker: worker_id(worker),
                    reason: String::new(),
                });
            }
            What::Judged(run, schema) => self.judged(run, schema),
            What::Stopping(worker, rung) => self.stopping(worker, rung),
            What::Stopped(worker) => self.stopped(worker),
            What::Perished(worker, delivery, by_itself) => {
                self.perished(worker, delivery, by_itself);
            }
            What::Pooled(agent, pool) => self.pooled(agent, pool),
            What::Tick => {
                self.tick_at = None;
                self.tick();
            }
            What::Leap(by) => {
                self.micros += by;
                self.model.leapt_to = self.now();
            }
            What::Leave(left) => {
                self.before(Trigger::Leaving);
                self.model.leaves(left);
                self.apply(if left {
                    Event::ServerLeft
                } else {
                    Event::ServerLeaving
                });
            }
        }
        self.counts(tally);
    }

    fn counts(&mut self, tally: &mut Tally) {
        for action in self.actions.drain(..) {
            tally.count(&action);
        }
        for what in self.model.met.drain(..) {
            tally.meet(what);
        }
    }

    fn tick(&mut self) {
        self.before(Trigger::Tick);
        self.apply(Event::Tick);
    }

    /// Whether a schema takes a run is chance, but always the same.
    fn judged(&mut self, run: usize, schema: SchemaId) {
        let takes = !mix(self.seed ^ (run as u64) << 8 ^ schema.0).is_multiple_of(5);
        self.before(Trigger::Judged(run));
        self.model.judged(run, schema, takes);
        self.apply(Event::Judged {
            run: run_id(run),
            schema,
            refusal: (!takes).then(|| Failure::new(Code::InvalidRequest, "no")),
        });
    }

    /// Opens an event; `apply` closes it.
    pub(crate) fn before(&mut self, trigger: Trigger) {
        self.model.before(self.now(), trigger, self.agents);
    }

    /// Has Core take an event, checks what it does, and sends what it sends.
    #[expect(clippy::print_stderr, reason = "a replayed seed is for a person")]
    pub(crate) fn apply(&mut self, event: Event) {
        self.events += 1;
        let now = self.now();
        if self.trace {
            eprintln!("{:>12} {event:?}", self.micros);
        }
        let mut actions = std::mem::take(&mut self.actions);
        let first = actions.len();
        self.core.apply(now, event, &mut actions);
        for action in &actions[first..] {
            if self.trace {
                eprintln!("             -> {action:?}");
            }
            self.model.action(action);
            self.act_out(action);
        }
        self.actions = actions;
        self.agents = self.model.after(&self.core).agents;
    }

    fn act_out(&mut self, action: &Action) {
        match action {
            Action::Welcome { slot, resumed } => {
                self.writes(slot_index(*slot), Down::Welcome(*resumed));
            }
            Action::Deliver {
                slot,
                delivery,
                lease,
                ..
            } => self.writes(slot_index(*slot), Down::Request(*delivery, *lease)),
            Action::Acknowledge { slot, seq, .. } => {
                let held_back = self.random.percent(30);
                let after = if held_back {
                    self.random.micros(1000, 3_000_000)
                } else {
                    0
                };
                if held_back {
                    self.later(after, What::Acknowledge(slot_index(*slot), *seq));
                } else {
                    self.acknowledges(slot_index(*slot), *seq);
                }
            }
            Action::End { slot, end } => {
                let lost = matches!(end, End::HeartbeatsMissed | End::Leaving);
                self.writes(slot_index(*slot), Down::End { lost });
            }
            Action::Judge { run, schema, .. } => {
                let after = self.random.micros(10, 500_000);
                self.later(after, What::Judged(run_index(*run), *schema));
            }
            Action::Drain { slot, .. } => self.writes(slot_index(*slot), Down::Drain),
            Action::Answer { .. }
            | Action::Write(_)
            | Action::Load { .. }
            | Action::Reload { .. }
            | Action::Started { .. }
            | Action::Decided { .. }
            | Action::Grew { .. }
            | Action::Note(_) => {}
        }
    }

    /// A frame of a worker has come.
    fn arrives(&mut self, call: usize, up: Up) {
        if self.calls[call].gone {
            return;
        }
        match up {
            Up::Hello => self.opens(call),
            Up::Cut => self.lose(call),
            up => {
                let id = self.calls[call].slot;
                let acknowledged = self.calls[call].written;
                self.before(Trigger::Frame(id));
                self.model.frame(id, up, acknowledged);
                self.apply(Event::Frame {
                    slot: slot_id(id),
                    frame: up.into_frame(acknowledged),
                });
                if let Up::Append { delivery, .. } = up {
                    let run = run_of(delivery);
                    let reads = if self.model.runs[run].paced { 80 } else { 20 };
                    if self.random.percent(reads) {
                        let after = self.random.micros(10, 3_000_000);
                        self.later(after, What::Read(run));
                    }
                }
            }
        }
    }

    pub(crate) fn lose(&mut self, call: usize) {
        let id = self.calls[call].slot;
        self.calls[call].gone = true;
        let slot = slot_id(id);
        let worker = self.model.slots[id].worker;
        let of = &self.setting.workers[worker];
        // Some deaths are known only after the connection is seen to be gone.
        let is_known_at_once = if of.dies { 50 } else { 70 };
        if of.of_pool && self.random.percent(is_known_at_once) {
            self.before(Trigger::Died(id));
            self.model.died(id);
            let failure = Failure::new(Code::WorkerLost, "the worker died");
            return self.apply(Event::Died { slot, failure });
        }
        let held = self.model.slots[id].held.as_ref().map(|held| held.delivery);
        self.before(Trigger::Lost(id));
        self.model.lost(id);
        let why = String::new();
        self.apply(Event::Lost { slot, why });
        if let Some(delivery) = held {
            self.may_have_died(worker, delivery);
            self.others_want_its_place(worker);
        }
    }

    /// Has the timer come due when Core wants it, or a little later.
    fn set_tick(&mut self) {
        let Some(wake) = self.core.next_wake() else {
            return;
        };
        let at = wake.saturating_duration_since(self.base).as_micros() as u64 + 1;
        if self.tick_at.is_none_or(|set| set > at + 19_000) {
            let late = if self.random.percent(50) {
                0
            } else {
                self.random.below(19_000)
            };
            self.tick_at = Some(at + late);
            self.at(at + late, What::Tick);
        }
    }

    /// Loses every call and lets time pass until nothing is due; then nothing may be left.
    fn wind_down(&mut self, tally: &mut Tally) {
        let mut open: Vec<usize> = (0..self.calls.len())
            .filter(|call| self.calls[*call].is_known() && !self.calls[*call].gone)
            .collect();
        while !open.is_empty() {
            let at = self.random.index(open.len());
            self.lose(open.swap_remove(at));
        }
        for agent in 0..AGENTS.len() {
            self.pooled(agent, None);
        }
        let rests_at = self.micros + AT_REST;
        while let Some(wake) = self.core.next_wake() {
            assert!(self.micros < rests_at, "it never comes to rest");
            let at = wake.saturating_duration_since(self.base).as_micros() as u64 + 1;
            self.micros = self.micros.max(at);
            self.model.leapt_to = self.now();
            self.tick();
        }
        self.counts(tally);
        self.model.check_nothing_is_left(&self.core);
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}
