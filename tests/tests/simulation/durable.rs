//! Durable runs in the simulation: Core over a disk that is slow, refuses and fails, in a harness
//! that is killed at any event and started again from exactly what its disk had committed.
//!
//! Owns the clock, what is on its way, and Core between them. What must be so is in `account`.

mod account;
mod actions;
mod callers;
mod checks;
mod disk;
mod entries;
mod frames;
mod life;
mod setting;
mod workers;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::{Duration, Instant};

use harness_server::dispatch::{Action, Adopted, Core, Event};
use harness_server::envelope::{Code, Failure};
use harness_server::ids::{Delivery, Lease, RunId, SchemaId};
use harness_server::slot::End;

use crate::model::slot_index;
use crate::random::{Random, mix};
use crate::tally::Tally;

use account::{Account, Trigger};
use disk::{Disk, Line, Step};
use frames::{Down, Up};
use life::{Health, Phase};
use setting::Setting;
use workers::{Call, Seat};

/// What is to happen.
#[derive(Debug)]
enum What {
    /// A frame reaches the harness.
    Up(usize, Up),
    /// A hello that wants to go on has been looked up.
    Resumes(usize, Delivery, Lease),
    /// A frame reaches the worker.
    Down(usize, Down),
    /// A worker goes on; the number tells an old step from the newest.
    Step(usize, u32),
    Beat(usize),
    Dial(usize),
    Start,
    /// Somebody whose StartRun was not answered asks again.
    StartAgain(RunId),
    Cancel(RunId),
    Ask,
    HangUp(RunId),
    /// The disk writes what is in line.
    Commit,
    /// Core is told what came of a step.
    Tell,
    Loaded(RunId),
    /// A run is taken in as it was read, with the head it then had; whether Core asked for that.
    Adopt(RunId, Option<Box<Adopted>>, u64, bool),
    /// The harness reads the runs that have not ended.
    Restore,
    Judged(RunId, SchemaId),
    Health(Health),
    Leave(bool),
    /// A harness that has left is gone once all is written.
    Closes,
    Restart,
    Tick,
}

impl What {
    /// Whether it is gone with the harness that it is in.
    fn is_of_harness(&self) -> bool {
        match self {
            Self::Resumes(..)
            | Self::Commit
            | Self::Tell
            | Self::Loaded(_)
            | Self::Adopt(..)
            | Self::Restore
            | Self::Judged(..)
            | Self::Leave(_)
            | Self::Closes
            | Self::Tick => true,
            Self::Up(..)
            | Self::Down(..)
            | Self::Step(..)
            | Self::Beat(_)
            | Self::Dial(_)
            | Self::Start
            | Self::StartAgain(_)
            | Self::Cancel(_)
            | Self::Ask
            | Self::HangUp(_)
            | Self::Health(_)
            | Self::Restart => false,
        }
    }
}

pub(crate) struct World {
    seed: u64,
    trace: bool,
    base: Instant,
    micros: u64,
    /// When each is due, in order.
    heap: BinaryHeap<Reverse<(u64, u64)>>,
    due: BTreeMap<u64, (u32, What)>,
    number: u64,
    tick_at: Option<u64>,
    core: Core,
    /// Which harness it is, since the first.
    generation: u32,
    phase: Phase,
    health: Health,
    /// Nothing new comes any more.
    is_over: bool,
    events: u64,
    commits: bool,
    tells: bool,
    random: Random,
    setting: Setting,
    disk: Disk,
    account: Account,
    seats: Vec<Seat>,
    calls: Vec<Call>,
    /// The call of each slot.
    by_slot: Vec<usize>,
    processes: u64,
    started: u64,
    asked: u64,
}

impl World {
    pub(crate) fn new(seed: u64, trace: bool) -> Self {
        let mut random = Random::new(seed);
        let setting = Setting::new(&mut random);
        let base = Instant::now();
        let limits = setting.limits.clone();
        Self {
            seed,
            trace,
            base,
            micros: 0,
            heap: BinaryHeap::new(),
            due: BTreeMap::new(),
            number: 0,
            tick_at: None,
            core: life::core(&limits, 0, base),
            generation: 0,
            phase: Phase::Serves,
            health: Health::Works,
            is_over: false,
            events: 0,
            commits: false,
            tells: false,
            random,
            disk: Disk::default(),
            account: Account::new(base),
            seats: Vec::new(),
            calls: Vec::new(),
            by_slot: Vec::new(),
            processes: 0,
            started: 0,
            asked: 0,
            setting,
        }
    }

    pub(crate) fn run(mut self, tally: &mut Tally) {
        self.plan();
        while let Some(Reverse((at, number))) = self.heap.pop() {
            if !self.is_over && at > self.setting.ends_at {
                self.winds_down(tally);
            }
            let (generation, what) = self.due.remove(&number).expect("it was put there");
            self.micros = self.micros.max(at);
            let crash = self.setting.crashes.first().copied();
            if crash.is_some_and(|after| self.events >= after) && !self.is_over {
                self.setting.crashes.remove(0);
                self.crashes(tally);
            }
            if !what.is_of_harness() || generation == self.generation {
                self.happens(what, tally);
            }
            if self.heap.is_empty() && !self.is_over {
                self.winds_down(tally);
            }
            self.set_tick();
        }
        self.account.check_nothing_is_left(&self.core, &self.disk);
        tally.events += self.events;
    }

    fn later(&mut self, after: u64, what: What) {
        self.at(self.micros + after, what);
    }

    fn at(&mut self, at: u64, what: What) {
        self.number += 1;
        self.heap.push(Reverse((at, self.number)));
        self.due.insert(self.number, (self.generation, what));
    }

    fn now(&self) -> Instant {
        self.base + Duration::from_micros(self.micros)
    }

    fn happens(&mut self, what: What, tally: &mut Tally) {
        match what {
            What::Up(call, up) => self.arrives(call, up, tally),
            What::Resumes(call, delivery, lease) => self.resumes(call, delivery, lease, tally),
            What::Down(call, down) => self.reads(call, down),
            What::Step(seat, number) => self.steps(seat, number),
            What::Beat(call) => self.beats(call),
            What::Dial(seat) => self.dials(seat),
            What::Start => self.starts(None, tally),
            What::StartAgain(run) => self.starts(Some(run), tally),
            What::Cancel(run) => self.cancels(run, tally),
            What::Ask => self.asks(tally),
            What::HangUp(run) => self.hangs_up(run, tally),
            What::Commit => self.commits(),
            What::Tell => self.tells(tally),
            What::Loaded(run) => self.loaded(run, tally),
            What::Adopt(run, adopted, head, again) => {
                self.adopts(run, adopted, (head, again), tally);
            }
            What::Restore => self.restores(),
            What::Judged(run, schema) => self.judged(run, schema, tally),
            What::Health(health) => self.health = health,
            What::Leave(left) => self.leaves(left, tally),
            What::Closes => self.closes(tally),
            What::Restart => self.restarts(tally),
            What::Tick => {
                self.tick_at = None;
                self.apply(Trigger::Tick, Event::Tick, tally);
            }
        }
    }

    /// Whether a schema takes a run is chance, but always the same.
    fn judged(&mut self, run: RunId, schema: SchemaId, tally: &mut Tally) {
        let takes = !mix(self.seed ^ run.0.as_u128() as u64 ^ schema.0 << 40).is_multiple_of(5);
        let refusal = (!takes).then(|| Failure::new(Code::InvalidRequest, "no"));
        let event = Event::Judged {
            run,
            schema,
            refusal,
        };
        self.apply(Trigger::Other, event, tally);
    }

    /// Has Core take an event, checks what it does, and sends what it sends.
    #[expect(clippy::print_stderr, reason = "a replayed seed is for a person")]
    fn apply(&mut self, trigger: Trigger, event: Event, tally: &mut Tally) {
        self.events += 1;
        let now = self.now();
        if self.trace {
            eprintln!("{:>12} {event:?}", self.micros);
        }
        self.account.before(now, trigger);
        let mut actions = Vec::new();
        self.core.apply(now, event, &mut actions);
        for action in actions {
            if self.trace {
                eprintln!("             -> {action:?}");
            }
            tally.count_durable(&action);
            let reply = self.account.action(&self.disk, &action);
            self.acts_out(action, reply);
        }
        self.account.after(&self.core, &self.disk);
    }

    fn acts_out(&mut self, action: Action, reply: Option<u64>) {
        match action {
            Action::Welcome { slot, resumed } => {
                self.writes(slot_index(slot), Down::Welcome(resumed));
            }
            Action::Deliver {
                slot,
                delivery,
                lease,
                request,
                replay,
                ..
            } => {
                let steps = request.payload.data.first().map_or(0, |steps| steps % 5);
                let request = Down::Request {
                    delivery,
                    lease,
                    steps,
                    replay,
                };
                self.writes(slot_index(slot), request);
            }
            Action::Acknowledge {
                slot,
                delivery,
                seq,
            } => self.writes(slot_index(slot), Down::Acknowledged(delivery, seq)),
            Action::End { slot, end } => {
                let stop = !matches!(end, End::StoreFailed | End::HeartbeatsMissed | End::Leaving);
                self.writes(slot_index(slot), Down::End { stop });
            }
            Action::Judge { run, schema, .. } => {
                let after = self.random.micros(10, 500_000);
                self.later(after, What::Judged(run, schema));
            }
            Action::Write(write) => {
                let step = Step { write, reply };
                self.puts(Line::Step(Box::new(step)));
            }
            Action::Reload { run } => self.puts(Line::Flush(run)),
            Action::Load { run, .. } => {
                let after = self.random.micros(10, 50_000);
                self.later(after, What::Loaded(run));
            }
            Action::Started { .. }
            | Action::Decided { .. }
            | Action::Answer { .. }
            | Action::Grew { .. }
            | Action::Drain { .. }
            | Action::Note(_) => {}
        }
    }

    /// Has the timer come due when Core wants it, or a little later.
    fn set_tick(&mut self) {
        let Some(wake) = self.core.next_wake().filter(|_| self.phase != Phase::Down) else {
            return;
        };
        let at = wake.saturating_duration_since(self.base).as_micros() as u64 + 1;
        if self.tick_at.is_none_or(|set| set > at + 19_000) {
            let late = match self.random.percent(50) {
                true => 0,
                false => self.random.below(19_000),
            };
            self.tick_at = Some(at + late);
            self.at(at + late, What::Tick);
        }
    }
}
