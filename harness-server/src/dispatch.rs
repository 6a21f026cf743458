//! Core: every slot, run, queue, agent and worker this harness knows, and which run goes to which
//! slot.
//!
//! Pure: `apply(now, event)` changes the state and says what to do; randomness for leases is
//! handed in. The engine is its only driver and acts the actions out. The rules of a single slot
//! and a single run are in `slot` and `run`.

#![deny(clippy::wildcard_enum_match_arm)]

mod actions;
mod agents;
mod asks;
mod chains;
mod claim;
mod durable;
mod history;
mod lines;
mod load;
mod past;
mod ends;
mod entry;
mod events;
mod placing;
mod pools;
mod resuming;
mod slots;
mod starting;
mod stored;
mod timers;
mod trim;
mod view;
mod workers;
mod writes;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ahash::AHashMap;

use crate::ids::{AgentKey, Delivery, Lease, RunId, SlotId, WorkerId};
use crate::retry::Waits;
use crate::{journal, run, slot};

use agents::Agent;
use entry::RunEntry;
use past::History;
use slots::SlotEntry;
use timers::{Timer, Timers};
use workers::{Drained, Worker};

pub use actions::{Action, Note};
pub use claim::{Back, Comer, LastAttempt, Resumed};
pub use events::{Event, Frame, Placing, Reply};
pub use history::{Reading, RunState, RunView};
pub use load::AgentLoad;
pub use pools::Pooled;
pub use starting::Loaded;
pub use stored::Adopted;
pub(crate) use trim::trim;
pub use view::{AgentView, Census, SlotStateView, SlotView, UnreleasedView, WorkerView};
pub use workers::{Offer, WorkerInfo};
pub use writes::{Change, NewEntry, Replay, Said, Start, Stored, Write};

/// What Core keeps to. `config` has the defaults.
#[derive(Clone, Debug)]
pub struct Limits {
    /// What every slot keeps to.
    pub slot: slot::Rules,
    /// How long a full level worker may take to show that it has a request.
    pub accept_timeout: Duration,
    /// So much longer for each MiB of it.
    pub accept_timeout_per_mib: Duration,
    /// Runs that may wait for a slot of one agent.
    pub queue_runs: usize,
    /// Payload bytes that interactive runs of all agents may hold that wait, for a slot or for their
    /// worker.
    pub queue_bytes: u64,
    /// Slots one worker may have.
    pub worker_slots: usize,
    /// Agents known at once.
    pub agents: usize,
    /// Request schemas and receive limits, taken together, that the slots of one agent may differ
    /// in.
    pub agent_classes: usize,
    /// How long an agent stays known after its last slot.
    pub agent_kept: Duration,
    /// How long after the start an unknown agent may be one that is still connecting.
    pub connecting_timeout: Duration,
    /// When to ask again in that time.
    pub connecting_retry: Duration,
    /// How long cancelled work counts as still running without a released.
    pub release_timeout: Duration,
    /// Cancelled requests remembered until they are released.
    pub unreleased: usize,
    /// What a run's journal may hold of its workers' entries.
    pub journal: journal::Limits,
    /// Durable runs that have not ended.
    pub durable_runs: usize,
    /// What the journal of one may hold.
    pub durable_journal: journal::Limits,
    /// How long the worker of a durable run whose call is lost may take to come back.
    pub reattach_window: Duration,
    /// The same of an interactive run; zero: it fails as soon as its call is lost.
    pub interactive_reattach_window: Duration,
    /// Interactive runs whose workers are waited for at once.
    pub away_runs: usize,
    /// How long an ended run is kept.
    pub ended_kept: Duration,
    /// Ended runs kept at most.
    pub ended_runs: usize,
    /// Bytes of their workers' entries kept at most.
    pub ended_bytes: usize,
}

impl Limits {
    /// How long the worker of a run is waited for after its call is lost.
    fn window(&self, level: slot::Level, is_durable: bool) -> Duration {
        match (level, is_durable) {
            (slot::Level::Minimal, _) => Duration::ZERO,
            (slot::Level::Full, true) => self.reattach_window,
            (slot::Level::Full, false) => self.interactive_reattach_window,
        }
    }
}

/// Where chance comes from.
pub trait Chance: Waits {
    /// A lease nobody can guess.
    fn lease(&mut self) -> Lease;
}

/// The state of a harness. Its maps are asked some twenty times an ask, hence their hash.
pub struct Core {
    limits: Limits,
    started: Instant,
    chance: Box<dyn Chance>,
    leaving: bool,
    order: u64,
    /// Payload bytes of interactive runs that wait for a slot or for their worker.
    queued_bytes: u64,
    /// Interactive runs whose worker is waited for.
    away: usize,
    unreleased: usize,
    slots: AHashMap<SlotId, Box<SlotEntry>>,
    runs: AHashMap<RunId, Box<RunEntry>>,
    agents: AHashMap<AgentKey, Agent>,
    workers: AHashMap<WorkerId, Worker>,
    timers: Timers,
    history: History,
    drained: Drained,
    /// Durable runs that have not ended.
    durable_runs: usize,
    /// Those whose request was read and has not left.
    read_ahead: usize,
    /// Whether they have become fewer than may be read, so that free slots are offered more.
    reads_again: bool,
    /// Those of which a step could not be written: they are as they are on disk.
    adrift: BTreeSet<RunId>,
    /// How many notes are on their way to the journals of those that have ended.
    noting: BTreeMap<RunId, usize>,
    /// Those whose worker was awaited after a restart.
    restarted: u32,
    /// When the store is tried again.
    store_wake: Option<Instant>,
    /// Until when nothing is read, because a read has failed.
    reads_pause_until: Option<Instant>,
    /// How often a waiting run was held against a slot that became free.
    #[cfg(test)]
    held_against: std::cell::Cell<usize>,
}

impl Core {
    /// An empty harness.
    #[must_use]
    pub fn new(limits: Limits, chance: Box<dyn Chance>, now: Instant) -> Self {
        Self {
            limits,
            started: now,
            chance,
            leaving: false,
            order: 0,
            queued_bytes: 0,
            away: 0,
            unreleased: 0,
            slots: AHashMap::new(),
            runs: AHashMap::new(),
            agents: AHashMap::new(),
            workers: AHashMap::new(),
            timers: Timers::default(),
            history: History::default(),
            drained: Drained::default(),
            durable_runs: 0,
            read_ahead: 0,
            reads_again: false,
            adrift: BTreeSet::new(),
            noting: BTreeMap::new(),
            restarted: 0,
            store_wake: None,
            reads_pause_until: None,
            #[cfg(test)]
            held_against: std::cell::Cell::default(),
        }
    }

    /// When `Tick` is due next.
    #[must_use]
    pub fn next_wake(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Whether a slot holds a request.
    #[must_use]
    pub fn is_busy(&self, slot: SlotId) -> bool {
        self.held(slot).is_some()
    }

    /// The request that a slot holds.
    #[must_use]
    pub fn held(&self, slot: SlotId) -> Option<Delivery> {
        self.slots.get(&slot)?.slot.delivery()
    }

    /// Whether the worker of a slot has shown that it has the request in it.
    #[must_use]
    pub fn has_taken(&self, slot: SlotId) -> bool {
        let entry = self.slots.get(&slot);
        entry.is_some_and(|entry| entry.slot.has_taken())
    }

    /// Whether nothing is attached and nothing runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.slots.is_empty() && self.runs.is_empty()
    }

    /// Applies one event; what to do is added to `actions`, in order.
    pub fn apply(&mut self, now: Instant, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Opened { slot, offer, back } => self.opened(now, slot, offer, back, actions),
            Event::Frame { slot, frame } => self.frame(now, slot, frame, actions),
            Event::Lost { slot, why } => self.lost(now, slot, &why, actions),
            Event::Died { slot, failure } => self.died(now, slot, failure, actions),
            Event::Perished { work, failure } => self.perished(now, work, failure, actions),
            Event::Stopping { worker, rung } => self.stopping(now, worker, rung, actions),
            Event::Stopped { worker, proof } => self.stopped(now, worker, proof, actions),
            Event::Remembered { agent } => self.remember_agent(now, agent),
            Event::Pooled { agent, pool } => self.pooled(now, &agent, pool, actions),
            Event::Released {
                worker,
                delivery,
                lease,
            } => {
                let note = self.released(now, (worker, delivery, lease), actions);
                actions.push(Action::Note(note));
            }
            Event::Ask {
                run,
                request,
                terms,
                placing,
            } => {
                self.ask(now, run, request, (terms, placing), actions);
            }
            Event::Start {
                run,
                request,
                terms,
                placing,
                start,
            } => self.start(now, run, request, (terms, placing, start), actions),
            Event::Stored { run, stored } => self.stored(now, run, stored, actions),
            Event::Loaded { run, loaded } => self.loaded(now, run, loaded, actions),
            Event::Adopt {
                run,
                adopted,
                again,
            } => self.adopt(now, run, (adopted, again), actions),
            Event::Read { run, seq, output } => {
                if output {
                    self.run_apply(now, run, run::Event::OutputSeen, actions);
                }
                self.read_up_to(run, seq, actions);
            }
            Event::Watched { run, more } => self.watched(now, run, more),
            Event::CancelRequested { run, who, why } => {
                self.cancel_requested(now, run, who, why, actions);
            }
            Event::Drain { worker, reason } => self.drain(now, worker, &reason, actions),
            Event::Judged {
                run,
                schema,
                refusal,
            } => {
                self.judged(now, run, schema, refusal, actions);
            }
            Event::Condemned { text, why } => self.condemned(now, &text, &why, actions),
            Event::Cancelled { run, why } => self.cancelled(now, run, why, actions),
            Event::ServerLeaving => self.server_leaving(now, actions),
            Event::ServerLeft => self.server_left(now, actions),
            Event::Tick => self.tick(now, actions),
        }
        if std::mem::take(&mut self.reads_again) {
            self.fill_free(now, actions);
        }
    }

    fn tick(&mut self, now: Instant, actions: &mut Vec<Action>) {
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::Run(run) => self.deadline_passed(now, run, actions),
                Timer::Attempt(run) => self.attempt_timed_out(now, run, actions),
                Timer::Retry(run) => self.backed_off(now, run, actions),
                Timer::Reattach(run) => self.window_over(now, run, actions),
                Timer::Store => self.try_store(now, actions),
                Timer::Slot(slot) => self.slot_tick(now, slot, actions),
                Timer::Release(worker, delivery) => {
                    self.gave_up(now, worker, delivery, actions);
                    actions.push(Action::Note(Note::GaveUp { worker, delivery }));
                }
                Timer::Agent(agent) => self.forget_agent(now, &agent),
                Timer::History => self.forget_old_runs(now),
            }
        }
    }

    fn server_leaving(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.leaving = true;
        let mut queued: Vec<(entry::QueueKey, RunId)> = self
            .runs
            .iter()
            .filter(|(_, entry)| matches!(entry.run.state(), run::State::Queued))
            .map(|(id, entry)| (entry.order, *id))
            .collect();
        queued.sort_unstable();
        for (_, run) in queued {
            let waits = |entry: &RunEntry| entry.durable.as_ref().is_some_and(|it| it.is_made());
            if self.runs.get(&run).is_some_and(|entry| waits(entry)) {
                self.leave_on_disk(run);
            } else {
                self.refuse(now, run, asks::shutting_down(), actions);
            }
        }
        self.leave_what_is_away(now, actions);
        self.slots_apply(now, slot::Event::ServerLeaving, actions);
    }

    fn server_left(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.server_leaving(now, actions);
        self.slots_apply(now, slot::Event::ServerLeft, actions);
    }

    fn next_order(&mut self) -> u64 {
        self.order += 1;
        self.order
    }
}
