//! Core: every slot, run, queue, agent and worker this harness knows, and which run goes to which
//! slot.
//!
//! Pure: `apply(now, event)` changes the state and says what to do; randomness for leases is
//! handed in. The engine is its only driver and acts the actions out. The rules of a single slot
//! and a single run are in `slot` and `run`.

#![deny(clippy::wildcard_enum_match_arm)]

mod agents;
mod asks;
mod chains;
mod ends;
mod placing;
mod slots;
mod timers;
mod view;
mod workers;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::envelope::{Answer, Failure, Payload, Request};
use crate::ids::{AgentKey, Delivery, Lease, RunId, SchemaId, SlotId, WorkerId};
use crate::retry::Policy;
use crate::{run, slot};

use agents::Agent;
use asks::RunEntry;
use slots::SlotEntry;
use timers::{Timer, Timers};
use workers::Worker;

pub use view::{AgentView, Census, SlotStateView, SlotView, UnreleasedView, WorkerView};
pub use workers::{Offer, WorkerInfo};

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
    /// Payload bytes that the waiting runs of all agents may hold.
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
}

/// What happens.
#[derive(Debug)]
pub enum Event {
    /// A hello was accepted.
    Opened {
        /// The new slot.
        slot: SlotId,
        /// What it offers.
        offer: Offer,
    },
    /// A frame came from a worker.
    Frame {
        /// From which slot.
        slot: SlotId,
        /// What it says.
        frame: Frame,
    },
    /// A call is gone without an end of ours.
    Lost {
        /// Which.
        slot: SlotId,
        /// What is known of it, for the error.
        why: String,
    },
    /// A worker says that cancelled work has stopped.
    Released {
        /// The worker.
        worker: WorkerId,
        /// The work.
        delivery: Delivery,
        /// What came with its request.
        lease: Lease,
    },
    /// Somebody asks.
    Ask {
        /// The new run.
        run: RunId,
        /// What is asked, and of whom.
        request: Request,
        /// Its deadline and attempts.
        terms: run::Terms,
        /// Which slots it may go to, and when.
        placing: Placing,
    },
    /// A piece of a run's output has reached its caller.
    OutputSeen {
        /// The run.
        run: RunId,
    },
    /// A request was held against a schema.
    Judged {
        /// The run.
        run: RunId,
        /// The schema.
        schema: SchemaId,
        /// Why the schema does not take it.
        refusal: Option<Failure>,
    },
    /// Somebody cancels a run or hangs up.
    Cancelled {
        /// The run.
        run: RunId,
        /// Who and why.
        why: String,
    },
    /// The harness is leaving: nothing new starts.
    ServerLeaving,
    /// The harness is leaving and waits no longer.
    ServerLeft,
    /// Time passed.
    Tick,
}

/// A frame of a worker, after its hello.
#[derive(Debug)]
pub enum Frame {
    /// It is there, and works on this.
    Heartbeat(Option<Delivery>),
    /// A journal entry.
    Append {
        /// Whose.
        delivery: Delivery,
        /// Its worker_seq.
        seq: u64,
        /// What it holds.
        kind: slot::EntryKind,
        /// Its encoded size.
        bytes: u64,
        /// Up to which seq an acknowledgement has been written to the worker.
        acknowledged: u64,
    },
    /// The end of a request.
    Reply {
        /// Whose.
        delivery: Delivery,
        /// Its worker_seq.
        seq: u64,
        /// What it says.
        reply: Reply,
    },
    /// It takes no new request.
    Leave,
    /// It sends nothing more.
    HalfClosed,
    /// A second hello.
    HelloAgain,
    /// No known case.
    Unknown,
    /// Over our limit; sizes in bytes.
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
}

/// What a reply says, after it was held against the slot's schema.
#[derive(Debug)]
pub enum Reply {
    /// A value.
    Value(Payload),
    /// The agent's error.
    Error(Failure),
    /// A value the slot's own schema refuses.
    Invalid(Failure),
    /// A value over the limit.
    TooLarge(Failure),
    /// The request is given back unworked.
    Declined,
}

/// What to do about an event. Each names its slot and attempt, so a late one is harmless.
#[derive(Debug)]
pub enum Action {
    /// Welcome a slot.
    Welcome {
        /// Which.
        slot: SlotId,
    },
    /// Send a request.
    Deliver {
        /// To which slot.
        slot: SlotId,
        /// Under which number.
        delivery: Delivery,
        /// The proof that comes with it.
        lease: Lease,
        /// What to send.
        request: Arc<Request>,
        /// When the run ends.
        deadline: Instant,
    },
    /// Acknowledge appends.
    Acknowledge {
        /// To which slot.
        slot: SlotId,
        /// Up to which worker_seq.
        seq: u64,
    },
    /// End a call.
    End {
        /// Which.
        slot: SlotId,
        /// How.
        end: slot::End,
    },
    /// Hold a request against a schema and tell. It is asked once: the run waits for the `Judged`
    /// before it waits for a slot.
    Judge {
        /// The run.
        run: RunId,
        /// The schema.
        schema: SchemaId,
        /// What to hold against it.
        request: Arc<Request>,
    },
    /// Answer a caller.
    Answer {
        /// The run.
        run: RunId,
        /// What to answer.
        answer: Answer,
    },
    /// Something for the log.
    Note(Note),
}

/// What the log should say.
#[derive(Debug)]
pub enum Note {
    /// Cancelled work has stopped.
    Released {
        /// The worker.
        worker: WorkerId,
        /// The work.
        delivery: Delivery,
        /// From the end of its call to the proof.
        took: Duration,
    },
    /// A released that proves nothing.
    ReleasedUnknown {
        /// The worker that said so.
        worker: WorkerId,
        /// What it named.
        delivery: Delivery,
    },
    /// No released came in time.
    GaveUp {
        /// The worker.
        worker: WorkerId,
        /// The work.
        delivery: Delivery,
    },
    /// A frame about a request that was answered just before, or whose slot is gone.
    Stale {
        /// The slot.
        slot: SlotId,
    },
}

/// Which slots a run may go to, and when.
#[derive(Clone, Debug, Default)]
pub struct Placing {
    /// Labels its slot must have.
    pub selector: BTreeMap<String, String>,
    /// -100 to 100; higher goes first.
    pub priority: i32,
    /// Whether an unknown agent counts as known and empty.
    pub wait_for_agent: bool,
}

/// Where chance comes from.
pub trait Chance: Send {
    /// A lease nobody can guess.
    fn lease(&mut self) -> Lease;

    /// The wait before a retry, the first being number 1.
    fn wait(&mut self, policy: &Policy, retry: u32) -> Duration;
}

/// The state of a harness.
pub struct Core {
    limits: Limits,
    started: Instant,
    chance: Box<dyn Chance>,
    leaving: bool,
    order: u64,
    queued_bytes: u64,
    unreleased: usize,
    slots: HashMap<SlotId, SlotEntry>,
    runs: HashMap<RunId, RunEntry>,
    agents: HashMap<AgentKey, Agent>,
    workers: HashMap<WorkerId, Worker>,
    timers: Timers,
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
            unreleased: 0,
            slots: HashMap::new(),
            runs: HashMap::new(),
            agents: HashMap::new(),
            workers: HashMap::new(),
            timers: Timers::default(),
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
        self.slots
            .get(&slot)
            .is_some_and(|entry| entry.slot.delivery().is_some())
    }

    /// Whether nothing is attached and nothing runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.slots.is_empty() && self.runs.is_empty()
    }

    /// Applies one event; what to do is added to `actions`, in order.
    pub fn apply(&mut self, now: Instant, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Opened { slot, offer } => self.opened(now, slot, offer, actions),
            Event::Frame { slot, frame } => self.frame(now, slot, frame, actions),
            Event::Lost { slot, why } => self.lost(now, slot, &why, actions),
            Event::Released {
                worker,
                delivery,
                lease,
            } => {
                actions.push(Action::Note(self.released(now, worker, delivery, lease)));
            }
            Event::Ask {
                run,
                request,
                terms,
                placing,
            } => {
                self.ask(now, run, request, (terms, placing), actions);
            }
            Event::OutputSeen { run } => {
                self.run_apply(now, run, run::Event::OutputSeen, actions);
            }
            Event::Judged {
                run,
                schema,
                refusal,
            } => {
                self.judged(now, run, schema, refusal, actions);
            }
            Event::Cancelled { run, why } => self.cancelled(now, run, why, actions),
            Event::ServerLeaving => self.server_leaving(now, actions),
            Event::ServerLeft => self.server_left(now, actions),
            Event::Tick => self.tick(now, actions),
        }
    }

    fn tick(&mut self, now: Instant, actions: &mut Vec<Action>) {
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::Run(run) => self.deadline_passed(now, run, actions),
                Timer::Attempt(run) => self.attempt_timed_out(now, run, actions),
                Timer::Retry(run) => self.backed_off(now, run, actions),
                Timer::Slot(slot) => self.slot_tick(now, slot, actions),
                Timer::Release(worker, delivery) => {
                    self.forget_unreleased(worker, delivery);
                    actions.push(Action::Note(Note::GaveUp { worker, delivery }));
                }
                Timer::Agent(agent) => self.forget_agent(now, &agent),
            }
        }
    }

    fn server_leaving(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.leaving = true;
        let mut queued: Vec<(asks::QueueKey, RunId)> = self
            .runs
            .iter()
            .filter(|(_, entry)| matches!(entry.run.state(), run::State::Queued))
            .map(|(id, entry)| (entry.order, *id))
            .collect();
        queued.sort_unstable();
        for (_, run) in queued {
            self.refuse(now, run, asks::shutting_down(), actions);
        }
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
