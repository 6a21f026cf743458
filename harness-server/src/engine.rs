//! The only driver of Core: it locks, applies, unlocks, and acts the actions out.
//!
//! Callers' and sessions' own tasks run it; its one task of its own is the timer. No lock is held
//! over an await, and no action is performed under Core's lock.

mod addressing;
mod adopting;
mod asking;
mod durable;
mod ends;
mod following;
mod forgetting;
mod judging;
mod listing;
mod notes;
mod outbox;
mod reading;
mod replaying;
mod slot_handle;
mod storing;
mod tails;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use ahash::AHashMap;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::warn;
use uuid::Uuid;

use crate::config::Limits;
use crate::dispatch::{
    Action, AgentLoad, AgentView, Back, Chance, Core, Event, Note, Offer, Pooled, WorkerView, Write,
};
use crate::envelope::{Answer, Failure};
use crate::ids::{AgentKey, Delivery, Lease, RunId, SlotId, WorkerId};
use crate::journal::Proof;
use crate::pool::Rung;
use crate::retry::{Policy, Waits};
use crate::schema::Schemas;
use crate::store::Store;

use addressing::tell;
use adopting::Adopting;
use asking::Caller;
use durable::Starter;
use ends::AwaitedEnd;
use judging::Judges;
use storing::Storage;
use tails::Tails;

pub use asking::{Asked, ManyAnswer, Tagged, Watch};
pub use durable::{Begun, Resumes};
pub use ends::End;
pub use following::Followed;
pub use judging::Checked;
pub use listing::Listed;
#[cfg(test)]
pub(crate) use outbox::tests::put_request;
pub use outbox::{Outbox, Outgoing, Undelivered};
pub use slot_handle::{OfferSchemas, SlotHandle};
pub use storing::{Recorded, Records};

/// A harness's engine; cheap to clone.
#[derive(Clone)]
pub struct Engine(Arc<Shared>);

struct Shared {
    server_id: Uuid,
    started: Instant,
    started_at: SystemTime,
    limits: Limits,
    storage: Option<Arc<Storage>>,
    schemas: Schemas,
    judges: Judges,
    next_slot: AtomicU64,
    state: Mutex<State>,
    timer_moved: Notify,
    idle: Notify,
    /// Cancelled when the harness has left: nothing ends any more.
    left: CancellationToken,
    /// Grows when a slot comes or goes, or a pool stands elsewhere.
    attached: watch::Sender<u64>,
}

struct State {
    core: Core,
    outboxes: AHashMap<SlotId, Arc<Outbox>>,
    callers: AHashMap<RunId, Caller>,
    /// The bells of those who read journals.
    watches: AHashMap<RunId, watch::Sender<()>>,
    /// What those get who follow journals of durable runs.
    tails: Tails,
    /// Whoever started a durable run and is to be told.
    starters: AHashMap<RunId, Starter>,
    adopting: Adopting,
    /// The ends of durable runs that somebody waits for, until they are on disk.
    awaited: AHashMap<RunId, AwaitedEnd>,
    /// Steps that are decided and not handed over yet, in their order.
    staged: Vec<Write>,
    /// When the timer task wakes next, while it sleeps.
    timer_at: Option<Instant>,
    leaving: bool,
}

/// An action with what it needs, ready to be performed without the lock.
enum Effect {
    To(Arc<Outbox>, Action),
    Answer(Caller, RunId, Answer),
    Grew(watch::Sender<()>),
    Judge(Action),
    Load(RunId, bool),
    Reload(RunId),
    Started(Starter, Result<RunId, Box<Failure>>),
    Decided(AwaitedEnd, Option<Box<Failure>>),
    Note(Note),
}

impl Engine {
    /// An engine with nothing attached.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self::make(limits, None)
    }

    /// An engine with nothing attached, which keeps durable runs in a store.
    #[must_use]
    pub fn with_store(limits: Limits, store: Arc<dyn Store>, records: Box<dyn Records>) -> Self {
        Self::make(limits, Some(Arc::new(Storage::new(store, records))))
    }

    fn make(limits: Limits, storage: Option<Arc<Storage>>) -> Self {
        let now = Instant::now();
        let mut rules = limits.core();
        if storage.is_some() {
            rules.agent_kept = limits.agent_kept_stored;
        }
        let core = Core::new(rules, Box::new(Dice), now);
        let schemas =
            Schemas::new(usize::try_from(limits.schema_bytes.as_u64()).unwrap_or(usize::MAX));
        Self(Arc::new(Shared {
            server_id: Uuid::new_v4(),
            started: now,
            started_at: SystemTime::now(),
            limits,
            storage,
            schemas,
            judges: Judges::new(),
            next_slot: AtomicU64::new(1),
            state: Mutex::new(State {
                core,
                outboxes: AHashMap::new(),
                callers: AHashMap::new(),
                watches: AHashMap::new(),
                tails: Tails::default(),
                starters: AHashMap::new(),
                adopting: Adopting::default(),
                awaited: AHashMap::new(),
                staged: Vec::new(),
                timer_at: None,
                leaving: false,
            }),
            timer_moved: Notify::new(),
            idle: Notify::new(),
            left: CancellationToken::new(),
            attached: watch::Sender::new(0),
        }))
    }

    /// This harness process.
    #[must_use]
    pub fn server_id(&self) -> Uuid {
        self.0.server_id
    }

    /// When it was made.
    #[must_use]
    pub fn started(&self) -> Instant {
        self.0.started
    }

    /// An instant by the wall clock, as it was read once at the start.
    #[must_use]
    pub fn wall_clock(&self, at: Instant) -> SystemTime {
        self.0.started_at + at.saturating_duration_since(self.0.started)
    }

    /// What it keeps to.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// Whether it is leaving.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.lock().leaving
    }

    /// Keeps the deadlines, and hands over to the store and tells what is on disk, until `stop`.
    /// Exactly one task runs this.
    pub async fn run(&self, stop: CancellationToken) {
        loop {
            let moved = self.0.timer_moved.notified();
            let storing = async {
                match &self.0.storage {
                    Some(storage) => storage.work().await,
                    None => std::future::pending().await,
                }
            };
            let wake = {
                let mut state = self.lock();
                state.timer_at = state.core.next_wake();
                state.timer_at
            };
            let due = async {
                match wake {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => self.apply(Event::Tick),
                () = moved => {}
                () = storing => self.tell_and_hand_over(),
                () = stop.cancelled() => return,
            }
        }
    }

    /// Opens a slot for an accepted hello; what comes is put into `outbox`.
    #[must_use]
    pub fn open(&self, offer: Offer, outbox: Arc<Outbox>, schemas: OfferSchemas) -> SlotHandle {
        self.open_again(offer, outbox, schemas, None)
    }

    /// [`Self::open`] for a worker that goes on with the work of a lost call.
    #[must_use]
    pub fn open_again(
        &self,
        offer: Offer,
        outbox: Arc<Outbox>,
        schemas: OfferSchemas,
        back: Option<Back>,
    ) -> SlotHandle {
        let slot = SlotId(self.0.next_slot.fetch_add(1, Ordering::Relaxed));
        let kept = outbox.clone();
        self.keep_agent(&offer.agent);
        self.apply_with(Event::Opened { slot, offer, back }, |state| {
            state.outboxes.insert(slot, kept);
        });
        // Condemned between its interning and now, it was not among those that were ended.
        let condemned = self
            .0
            .condemned([schemas.request.as_ref(), schemas.reply.as_ref()]);
        if let Some(schema) = condemned {
            self.condemn(schema);
        }
        SlotHandle {
            engine: self.clone(),
            slot,
            outbox,
            schemas,
            closed: false,
        }
    }

    /// A worker says that cancelled work has stopped.
    pub fn released(&self, worker: WorkerId, delivery: Delivery, lease: Lease) {
        self.apply(Event::Released {
            worker,
            delivery,
            lease,
        });
    }

    /// Whether a worker owes a released for other work than this.
    #[must_use]
    pub fn owes_more(&self, worker: WorkerId, released: Option<(Delivery, Lease)>) -> bool {
        self.lock().core.owes_more(worker, released)
    }

    /// An operator wants a worker to finish, leave and not come back.
    pub fn drain(&self, worker: WorkerId, reason: String) {
        self.apply(Event::Drain { worker, reason });
    }

    /// The process of a request has died, by itself where there is a failure: if its call is lost,
    /// nobody comes back to it.
    pub fn perished(&self, worker: WorkerId, delivery: Delivery, failure: Option<Failure>) {
        let work = (worker, delivery);
        self.apply(Event::Perished { work, failure });
    }

    /// A process with cancelled work has come to a rung of the kill ladder.
    pub fn stopping(&self, worker: WorkerId, rung: Rung) {
        self.apply(Event::Stopping { worker, rung });
    }

    /// Nothing is left of a process: its cancelled work has stopped.
    pub fn stopped(&self, worker: WorkerId, proof: Proof) {
        self.apply(Event::Stopped { worker, proof });
    }

    /// A pool names an agent and stands so; none when it does so no more.
    pub fn pooled(&self, agent: AgentKey, pool: Option<Pooled>) {
        self.apply(Event::Pooled { agent, pool });
    }

    /// Changes when a slot has come or gone, or a pool stands elsewhere.
    #[must_use]
    pub fn attached(&self) -> watch::Receiver<u64> {
        self.0.attached.subscribe()
    }

    /// The call of a request ended before the worker could see it: what a worker has never seen it
    /// does not work on, nor says released for.
    pub fn undelivered(&self, request: Undelivered) {
        self.released(request.worker, request.delivery, request.lease);
    }

    /// Writes what is decided and takes nothing more.
    pub async fn close_store(&self) {
        self.hand_over();
        if let Some(storage) = self.0.storage.clone() {
            let closed = tokio::task::spawn_blocking(move || storage.store().close());
            closed.await.expect("closing a store must not panic");
        }
    }

    /// The agents of a namespace.
    #[must_use]
    pub fn agents(&self, namespace: &str) -> Vec<AgentView> {
        self.lock().core.view_agents(namespace)
    }

    /// How busy each known agent is.
    #[must_use]
    pub fn loads(&self) -> BTreeMap<AgentKey, AgentLoad> {
        self.lock().core.loads()
    }

    /// Whether an agent has a slot that is not leaving, or a pool that is not crash-looping; none
    /// when it is not known.
    #[must_use]
    pub fn serves(&self, agent: &AgentKey) -> Option<bool> {
        self.lock().core.serves(agent)
    }

    /// The workers of a namespace, or of one of its agents.
    #[must_use]
    pub fn workers(&self, namespace: &str, agent: &str) -> Vec<WorkerView> {
        self.lock()
            .core
            .view_workers(Instant::now(), namespace, agent)
    }

    /// Leaves: nothing new starts, what runs may finish within `shutdown_grace`, then the rest is
    /// ended. Returns when nothing is attached and nothing runs.
    pub async fn leave(&self) {
        self.lock().leaving = true;
        self.apply(Event::ServerLeaving);
        let finished = tokio::time::timeout(self.0.limits.shutdown_grace, self.until_idle()).await;
        if finished.is_err() {
            warn!(grace = ?self.0.limits.shutdown_grace, "ending the requests that did not finish");
            self.apply(Event::ServerLeft);
        }
        self.0.left.cancel();
        self.0.judges.finished().await;
    }

    async fn until_idle(&self) {
        loop {
            let changed = self.0.idle.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.lock().core.is_idle() {
                return;
            }
            changed.await;
        }
    }

    fn apply(&self, event: Event) {
        self.apply_with(event, |_| {});
    }

    /// Applies an event, `prepare` first under the same lock, then performs what follows.
    fn apply_with(&self, event: Event, prepare: impl FnOnce(&mut State)) {
        self.act(self.decide(event, prepare));
    }

    /// Performs what was decided, and what follows from that.
    fn act(&self, effects: Vec<Effect>) {
        let mut judgements = Vec::new();
        self.perform(effects, &mut judgements);
        while let Some(judgement) = judgements.pop() {
            if let Some(event) = self.judge(judgement) {
                self.perform(self.decide(event, |_| {}), &mut judgements);
            }
        }
    }

    fn decide(&self, event: Event, prepare: impl FnOnce(&mut State)) -> Vec<Effect> {
        self.decide_on(|state| {
            prepare(state);
            event
        })
    }

    /// Applies the event that is made of what there is under the same lock.
    fn decide_on(&self, event: impl FnOnce(&mut State) -> Event) -> Vec<Effect> {
        let mut actions = Vec::new();
        let mut state = self.lock();
        let event = event(&mut state);
        let comes_or_goes = matches!(
            event,
            Event::Lost { .. } | Event::Died { .. } | Event::Pooled { .. }
        );
        state.core.apply(Instant::now(), event, &mut actions);
        let attached = actions
            .iter()
            .any(|action| matches!(action, Action::Welcome { .. } | Action::End { .. }))
            || comes_or_goes;
        let effects = actions
            .into_iter()
            .filter_map(|action| state.address(action))
            .collect();
        let next = state.core.next_wake();
        let timer_is_late = match (next, state.timer_at) {
            (Some(next), Some(at)) => next < at,
            (Some(_), None) => true,
            (None, _) => false,
        };
        if timer_is_late {
            state.timer_at = next;
        }
        let idle = state.leaving && state.core.is_idle();
        let staged = !state.staged.is_empty();
        drop(state);
        if timer_is_late {
            self.0.timer_moved.notify_one();
        }
        if attached {
            self.0.attached.send_modify(|version| *version += 1);
        }
        if idle {
            self.0.idle.notify_waiters();
        }
        if staged && let Some(storage) = &self.0.storage {
            storage.hand_over_soon();
        }
        effects
    }

    fn perform(&self, effects: Vec<Effect>, judgements: &mut Vec<Action>) {
        for effect in effects {
            match effect {
                Effect::To(outbox, action) => {
                    if let Some(undelivered) = tell(&outbox, action) {
                        self.undelivered(undelivered);
                    }
                }
                Effect::Answer(caller, run, answer) => caller.answer(run, answer),
                Effect::Grew(bell) => bell.send_modify(|()| {}),
                Effect::Judge(action) => judgements.push(action),
                Effect::Load(run, replayed) => self.read_request(run, replayed),
                Effect::Reload(run) => self.read_again(run),
                Effect::Started(starter, started) => starter.tell(started),
                Effect::Decided(awaited, failure) => awaited.tell(failure),
                Effect::Note(note) => notes::log(&note),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Chance as a running harness has it.
struct Dice;

impl Chance for Dice {
    fn lease(&mut self) -> Lease {
        Lease(Uuid::new_v4().into_bytes())
    }
}

impl Waits for Dice {
    fn wait(&mut self, policy: &Policy, retry: u32) -> Duration {
        policy.wait(retry)
    }
}
