//! The only driver of Core: it locks, applies, unlocks, and acts the actions out.
//!
//! Callers' and sessions' own tasks run it; its one task of its own is the timer. No lock is held
//! over an await, and no action is performed under Core's lock.

mod notes;
mod outbox;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::warn;
use uuid::Uuid;

use crate::config::Limits;
use crate::dispatch::{Action, AgentView, Core, Event, Frame, Note, Offer, WorkerView};
use crate::envelope::{Answer, Code, Failure, Request};
use crate::ids::{Delivery, Lease, RunId, SlotId, WorkerId};
use crate::run::Terms;
use crate::schema::{Schema, SchemaError, Schemas, Subject};
use crate::slot::End;

pub use outbox::{Outbox, Outgoing, Undelivered};

/// A harness's engine; cheap to clone.
#[derive(Clone)]
pub struct Engine(Arc<Shared>);

struct Shared {
    server_id: Uuid,
    started: Instant,
    limits: Limits,
    schemas: Schemas,
    next_slot: AtomicU64,
    state: Mutex<State>,
    timer_moved: Notify,
    idle: Notify,
}

struct State {
    core: Core,
    outboxes: HashMap<SlotId, Arc<Outbox>>,
    callers: HashMap<RunId, oneshot::Sender<Answer>>,
    /// When the timer task wakes next, while it sleeps.
    timer_at: Option<Instant>,
    leaving: bool,
}

/// An action with what it needs, ready to be performed without the lock.
enum Effect {
    To(Arc<Outbox>, Action),
    Answer(oneshot::Sender<Answer>, Answer),
    Judge(Action),
    Note(Note),
}

impl Engine {
    /// An engine with nothing attached.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let now = Instant::now();
        let leases = Box::new(|| Lease(Uuid::new_v4().into_bytes()));
        let core = Core::new(limits.core(), leases, now);
        let schemas =
            Schemas::new(usize::try_from(limits.schema_bytes.as_u64()).unwrap_or(usize::MAX));
        Self(Arc::new(Shared {
            server_id: Uuid::new_v4(),
            started: now,
            limits,
            schemas,
            next_slot: AtomicU64::new(1),
            state: Mutex::new(State {
                core,
                outboxes: HashMap::new(),
                callers: HashMap::new(),
                timer_at: None,
                leaving: false,
            }),
            timer_moved: Notify::new(),
            idle: Notify::new(),
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

    /// Keeps the deadlines until `stop`. Exactly one task runs this.
    pub async fn run(&self, stop: CancellationToken) {
        loop {
            let moved = self.0.timer_moved.notified();
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
                () = stop.cancelled() => return,
            }
        }
    }

    /// Starts a run. Dropping what comes back before it is answered cancels the run.
    #[must_use]
    pub fn ask(&self, request: Request, terms: Terms, wait_for_agent: bool) -> Asked {
        let run = RunId(Uuid::now_v7());
        let (sender, answer) = oneshot::channel();
        let event = Event::Ask {
            run,
            request: Arc::new(request),
            terms,
            wait_for_agent,
        };
        self.apply_with(event, |state| {
            state.callers.insert(run, sender);
        });
        Asked {
            engine: self.clone(),
            run,
            answer,
            answered: false,
        }
    }

    /// Opens a slot for an accepted hello; what comes is put into `outbox`.
    #[must_use]
    pub fn open(&self, offer: Offer, outbox: Arc<Outbox>, schemas: OfferSchemas) -> SlotHandle {
        let slot = SlotId(self.0.next_slot.fetch_add(1, Ordering::Relaxed));
        let kept = outbox.clone();
        self.apply_with(Event::Opened { slot, offer }, |state| {
            state.outboxes.insert(slot, kept);
        });
        SlotHandle {
            engine: self.clone(),
            slot,
            outbox,
            schemas,
            closed: false,
        }
    }

    /// The compiled form of a schema; none for an empty text. Compiles off the runtime's threads.
    ///
    /// # Errors
    /// What is wrong with the schema.
    pub async fn intern(&self, text: &Bytes) -> Result<Option<Arc<Schema>>, SchemaError> {
        if text.is_empty() {
            return Ok(None);
        }
        if let Some(known) = self.0.schemas.known(text) {
            return Ok(Some(known));
        }
        let (shared, text) = (self.0.clone(), text.clone());
        let compiled = tokio::task::spawn_blocking(move || shared.schemas.intern(&text)).await;
        compiled.unwrap_or_else(|_| Err(SchemaError::Invalid("it cannot be compiled".to_owned())))
    }

    /// A worker says that cancelled work has stopped.
    pub fn released(&self, worker: WorkerId, delivery: Delivery, lease: Lease) {
        self.apply(Event::Released {
            worker,
            delivery,
            lease,
        });
    }

    /// The call of a request ended before the worker could see it: what a worker has never seen it
    /// does not work on, nor says released for.
    pub fn undelivered(&self, request: Undelivered) {
        self.released(request.worker, request.delivery, request.lease);
    }

    /// The agents of a namespace.
    #[must_use]
    pub fn agents(&self, namespace: &str) -> Vec<AgentView> {
        self.lock().core.view_agents(namespace)
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
        let mut judgements = Vec::new();
        self.perform(self.decide(event, prepare), &mut judgements);
        while let Some(judgement) = judgements.pop() {
            let Action::Judge {
                run,
                schema,
                request,
            } = judgement
            else {
                continue;
            };
            let refusal = match self.0.schemas.get(schema) {
                Some(schema) => schema
                    .check(Subject::Request, &request.payload)
                    .err()
                    .map(|refusal| *refusal),
                // The last slot of that schema is gone, and its verdict with it.
                None => Some(Failure::new(
                    Code::InvalidRequest,
                    "the agent's schema is gone",
                )),
            };
            let event = Event::Judged {
                run,
                schema,
                refusal,
            };
            self.perform(self.decide(event, |_| {}), &mut judgements);
        }
    }

    fn decide(&self, event: Event, prepare: impl FnOnce(&mut State)) -> Vec<Effect> {
        let mut actions = Vec::new();
        let mut state = self.lock();
        prepare(&mut state);
        state.core.apply(Instant::now(), event, &mut actions);
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
        drop(state);
        if timer_is_late {
            self.0.timer_moved.notify_one();
        }
        if idle {
            self.0.idle.notify_waiters();
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
                // A caller that has gone meanwhile needs no answer.
                Effect::Answer(caller, answer) => drop(caller.send(answer)),
                Effect::Judge(action) => judgements.push(action),
                Effect::Note(note) => notes::log(&note),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Finds whom an action is for; none when that one is gone.
    fn address(&mut self, action: Action) -> Option<Effect> {
        match action {
            Action::Welcome { slot }
            | Action::Deliver { slot, .. }
            | Action::Acknowledge { slot, .. } => self
                .outboxes
                .get(&slot)
                .map(|outbox| Effect::To(outbox.clone(), action)),
            Action::End { slot, .. } => self
                .outboxes
                .remove(&slot)
                .map(|outbox| Effect::To(outbox, action)),
            Action::Answer { run, answer } => self
                .callers
                .remove(&run)
                .map(|caller| Effect::Answer(caller, answer)),
            Action::Judge { .. } => Some(Effect::Judge(action)),
            Action::Note(note) => Some(Effect::Note(note)),
        }
    }
}

/// Gives a request back that came after the end of its call.
fn tell(outbox: &Outbox, action: Action) -> Option<Undelivered> {
    match action {
        Action::Welcome { slot } => outbox.welcome(slot),
        Action::Deliver {
            worker,
            delivery,
            lease,
            request,
            deadline,
            ..
        } => {
            let to = Undelivered {
                worker,
                delivery,
                lease,
            };
            return outbox.request(to, request, deadline);
        }
        Action::Acknowledge { seq, .. } => outbox.acknowledge(seq),
        Action::End { end, .. } => outbox.end(end),
        Action::Answer { .. } | Action::Judge { .. } | Action::Note(_) => {}
    }
    None
}

/// A run that was started, until its answer.
pub struct Asked {
    engine: Engine,
    run: RunId,
    answer: oneshot::Receiver<Answer>,
    answered: bool,
}

impl Asked {
    /// Its run.
    #[must_use]
    pub fn run(&self) -> RunId {
        self.run
    }

    /// Waits for the answer. Every run gets one, at its deadline at the latest.
    pub async fn answer(mut self) -> Answer {
        let answer = (&mut self.answer).await;
        self.answered = true;
        answer.expect("a run must be answered before its caller is forgotten")
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if !self.answered {
            let why = "the caller hung up".to_owned();
            self.engine.apply(Event::Cancelled { run: self.run, why });
        }
    }
}

/// The schemas of a slot's offer; keeps them compiled as long as the slot is there.
#[derive(Clone, Debug, Default)]
pub struct OfferSchemas {
    /// Of requests.
    pub request: Option<Arc<Schema>>,
    /// Of replies.
    pub reply: Option<Arc<Schema>>,
}

/// A session's hold on its slot. Dropping it without an end loses the slot.
pub struct SlotHandle {
    engine: Engine,
    slot: SlotId,
    outbox: Arc<Outbox>,
    schemas: OfferSchemas,
    closed: bool,
}

impl SlotHandle {
    /// The slot.
    #[must_use]
    pub fn slot(&self) -> SlotId {
        self.slot
    }

    /// Whether a request is in it.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.engine.lock().core.is_busy(self.slot)
    }

    /// What the replies are held against.
    #[must_use]
    pub fn reply_schema(&self) -> Option<&Schema> {
        self.schemas.reply.as_deref()
    }

    /// What goes to the worker.
    #[must_use]
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// A frame came from the worker.
    pub fn frame(&self, frame: Frame) {
        self.engine.apply(Event::Frame {
            slot: self.slot,
            frame,
        });
    }

    /// The call is gone without an end of ours.
    pub fn lost(mut self, why: String) {
        self.close(why);
    }

    fn close(&mut self, why: String) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        self.engine.apply_with(
            Event::Lost {
                slot: self.slot,
                why,
            },
            |state| {
                state.outboxes.remove(&self.slot);
            },
        );
        self.outbox.end(End::Closed);
    }
}

impl Drop for SlotHandle {
    fn drop(&mut self) {
        self.close("its call was dropped".to_owned());
    }
}
