//! Between Core and the store: steps go over in the order they were decided, and what came of each
//! comes back as an event.
//!
//! The engine's task does both. It comes after everything else that is ready, so what came with one
//! read of a connection shares a commit. What an entry is on disk, `Records` knows.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use tokio::sync::{Notify, Semaphore, watch};
use tracing::{error, info, warn};
use uuid::Uuid;

use crate::dispatch::{Change, Event, NewEntry, Placing, Said, Stored, Write};
use crate::envelope::{Code, Failure, Request};
use crate::ids::{AgentKey, RunId};
use crate::retry::Policy;
use crate::store::{Entry, Fence, Holder, NewRun, Record, Stamp, Step, Store, StoreError, Written};

use super::Engine;
use super::ends::End;

/// StartRun calls whose run is on its way to the disk at once; more wait for their turn.
const STARTING: usize = 1024;

/// Reads that are made at once; more wait for their turn. Each has a thread and a connection.
const READING: usize = 4;

/// When whoever was told that the store failed should ask again.
const STORE_RETRY: Duration = Duration::from_secs(1);

/// What the content of entries and of options is on disk.
pub trait Records: Send + Sync + 'static {
    /// An entry, encoded.
    fn entry(&self, server_id: Uuid, said: &Said) -> Bytes;

    /// What a run was made with, without its payload.
    fn options(&self, record: &Record) -> Recorded;

    /// The request of a run whose first entry is `run_started`; none when that is none.
    fn request(&self, record: &Record, run_started: &[u8]) -> Option<Request>;

    /// A `run_ended` without the bytes of its value.
    fn without_value(&self, run_ended: Bytes) -> Bytes;

    /// Whether an entry of a worker goes with the next request of its run.
    fn is_replayed(&self, entry: &[u8]) -> bool;
}

/// What a run was made with.
#[derive(Debug)]
pub struct Recorded {
    /// The request, without its payload.
    pub request: Request,
    /// An upper bound of what the payload adds to the frame that carries it is not in here.
    pub frame_bytes: u64,
    /// How often a failed attempt is followed by another.
    pub retry: Arc<Policy>,
    /// Which slots it may go to.
    pub placing: Placing,
}

/// The store, as the engine uses it.
pub(super) struct Storage {
    store: Arc<dyn Store>,
    records: Box<dyn Records>,
    /// Held while steps are handed over, so that they go in their order.
    order: Mutex<()>,
    told: Mutex<Vec<Told>>,
    /// There is something to tell of, or to hand over.
    work: Notify,
    pub(super) starting: Semaphore,
    pub(super) reading: Arc<Semaphore>,
    pub(super) reads: super::reading::Reads,
    failing: Mutex<Option<StoreError>>,
    /// The agents that were remembered since the start.
    kept: Mutex<std::collections::BTreeSet<AgentKey>>,
}

/// What the store told.
enum Told {
    Step(RunId, Wrote, Result<Written, StoreError>),
    Flushed(RunId, Result<Written, StoreError>),
    Other(Result<Written, StoreError>),
}

/// What a step writes, for those who are told of it from memory.
enum Wrote {
    /// The run, with so many entries.
    Run(Arc<NewRun>, Option<Holder>, u64),
    /// These entries of it.
    Entries(Vec<Entry>),
    /// The last entries of it, and how it ended with them.
    End(Vec<Entry>, End),
    /// What only the store knows, as the number of a note.
    Unknown,
}

impl Storage {
    pub(super) fn new(store: Arc<dyn Store>, records: Box<dyn Records>) -> Self {
        Self {
            store,
            records,
            order: Mutex::default(),
            told: Mutex::default(),
            work: Notify::new(),
            starting: Semaphore::new(STARTING),
            reading: Arc::new(Semaphore::new(READING)),
            reads: super::reading::Reads::default(),
            failing: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    pub(super) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub(super) fn records(&self) -> &dyn Records {
        &*self.records
    }

    /// Waits for something to tell of, or to hand over.
    pub(super) async fn work(&self) {
        self.work.notified().await;
    }

    /// Has the engine's task hand over what is decided.
    pub(super) fn hand_over_soon(&self) {
        self.work.notify_one();
    }

    /// What is wrong with the store, if something is.
    pub(super) fn failing(&self) -> Option<StoreError> {
        let failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        failing.clone()
    }

    fn tell(&self, told: Told) {
        let mut all = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(told);
        drop(all);
        self.work.notify_one();
    }

    /// Says once that the store fails, and once that it does so no more; gives whether that is new.
    pub(super) fn note<T>(&self, outcome: &Result<T, StoreError>) -> bool {
        let now = match outcome {
            Ok(_) | Err(StoreError::Fenced) => None,
            // What a run floods it with says nothing of the store.
            Err(StoreError::Overloaded { by_run: true }) => return false,
            Err(error) => Some(error.clone()),
        };
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*failing, &now) {
            (None, Some(why)) => error!(%why, "the store fails: durable runs wait, asks go on"),
            (Some(_), None) => info!("the store works again"),
            (None, None) | (Some(_), Some(_)) => {}
        }
        let is_new = failing.is_some() != now.is_some();
        *failing = now;
        is_new
    }

    fn put(
        self: &Arc<Self>,
        step: Step,
        told: impl FnOnce(Result<Written, StoreError>) -> Told + Send + 'static,
    ) {
        let storage = self.clone();
        let done = Box::new(move |outcome| storage.tell(told(outcome)));
        self.store.write(step, done);
    }
}

impl Engine {
    /// What is wrong with the store, if something is.
    #[must_use]
    pub fn store_fails(&self) -> Option<StoreError> {
        self.0.storage.as_ref()?.failing()
    }

    /// Hands what is decided over to the store.
    pub(super) fn hand_over(&self) {
        let Some(storage) = &self.0.storage else {
            return;
        };
        let _order = storage.order.lock().unwrap_or_else(PoisonError::into_inner);
        let staged = std::mem::take(&mut self.lock().staged);
        for write in staged {
            let run = write.run;
            let step = self.step(storage, write);
            let wrote = Wrote::of(&step);
            storage.put(step, move |outcome| Told::Step(run, wrote, outcome));
        }
    }

    /// Once nothing of a run is on its way to the disk, reads it again.
    pub(super) fn read_again(&self, run: RunId) {
        // What is decided of it goes first.
        self.hand_over();
        if let Some(storage) = &self.0.storage {
            let _order = storage.order.lock().unwrap_or_else(PoisonError::into_inner);
            storage.put(Step::Flush, move |outcome| Told::Flushed(run, outcome));
        }
    }

    /// Remembers an agent once, and then only as long as it is there.
    pub(super) fn keep_agent(&self, agent: &AgentKey) {
        let Some(storage) = &self.0.storage else {
            return;
        };
        let mut kept = storage.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if !kept.contains(agent) {
            kept.insert(agent.clone());
            drop(kept);
            self.keep_agents([agent.clone()]);
        }
    }

    pub(super) fn keep_agents(&self, agents: impl IntoIterator<Item = AgentKey>) {
        if let Some(storage) = &self.0.storage {
            let seen = self.stamp(Instant::now());
            for agent in agents {
                storage.put(Step::KeepAgent { agent, seen }, Told::Other);
            }
        }
    }

    /// Tells Core, and whoever follows a journal, what is on disk, and hands over what is decided.
    pub(super) fn tell_and_hand_over(&self) {
        let Some(storage) = &self.0.storage else {
            return;
        };
        let told = {
            let mut told = storage.told.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *told)
        };
        for told in told {
            match told {
                Told::Step(run, wrote, outcome) => {
                    self.note_store(storage, &outcome);
                    self.tell_step(run, wrote, outcome);
                }
                Told::Flushed(run, outcome) => {
                    self.note_store(storage, &outcome);
                    if outcome.is_ok() {
                        storage.reads.again(run);
                    }
                }
                Told::Other(outcome) => self.note_store(storage, &outcome),
            }
        }
        self.hand_over();
    }

    /// Tells of a step: Core, and whoever follows its run.
    fn tell_step(&self, run: RunId, wrote: Wrote, outcome: Result<Written, StoreError>) {
        let stored = match outcome {
            Ok(Written::Done | Written::Forgotten(_)) => Stored::Done,
            Ok(Written::Existing(run)) => Stored::Existing(run),
            Ok(Written::Conflict(run)) => Stored::Conflict(run),
            Err(error) => {
                if let StoreError::Overloaded { by_run: true } = error {
                    warn!(%run, "a worker writes more of its run than can be stored: refused");
                }
                Stored::Failed(unavailable(&error))
            }
        };
        // What was not written may be on disk all the same: whoever follows looks there.
        let wrote = match stored {
            Stored::Done => wrote,
            Stored::Existing(_) | Stored::Conflict(_) | Stored::Failed(_) => Wrote::Unknown,
        };
        let mut bell = None;
        // Under one lock: who begins to follow meanwhile finds what Core says of the disk.
        let effects = self.decide(Event::Stored { run, stored }, |state| {
            bell = state.wrote(run, wrote);
        });
        // Before they are performed: whoever started the run may wait for its end.
        if let Some(bell) = bell {
            bell.send_modify(|()| {});
        }
        self.act(effects);
    }

    pub(super) fn note_store<T>(&self, storage: &Storage, outcome: &Result<T, StoreError>) {
        if storage.note(outcome) {
            // Whoever follows the health of something looks again.
            self.0.attached.send_modify(|version| *version += 1);
        }
    }

    /// An instant by the wall clock.
    #[must_use]
    pub fn stamp(&self, at: Instant) -> Stamp {
        let since = self
            .wall_clock(at)
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Stamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }

    /// An instant of the wall clock by this process's clock; one that is older than that clock is the
    /// start of the process.
    #[must_use]
    pub fn instant(&self, stamp: Stamp) -> Instant {
        let started = self.0.started;
        let since = stamp.0 - self.stamp(started).0;
        let away = Duration::from_micros(since.unsigned_abs());
        let at = match since < 0 {
            true => started.checked_sub(away),
            false => started.checked_add(away),
        };
        at.unwrap_or(started)
    }

    /// The entries of a step as they are on disk, numbered.
    fn entries(&self, storage: &Storage, write: &Write) -> Vec<Entry> {
        let entry = |(at, new): (usize, &NewEntry)| Entry {
            seq: write.head + 1 + at as u64,
            attempt: new.attempt,
            worker_seq: new.worker_seq,
            time: self.stamp(new.at),
            content: storage.records.entry(self.0.server_id, &new.content),
        };
        write.entries.iter().enumerate().map(entry).collect()
    }

    fn step(&self, storage: &Storage, write: Write) -> Step {
        let fence = Fence {
            run: write.run,
            attempt: write.attempt,
            head: write.head,
        };
        let mut entries = self.entries(storage, &write);
        match write.change {
            Change::Enqueue {
                start,
                request,
                priority,
                created,
                deadline,
                first,
            } => Step::Enqueue {
                run: Arc::new(NewRun {
                    id: write.run,
                    agent: request.agent.clone(),
                    key: request.durable.as_deref().unwrap_or_default().to_owned(),
                    priority,
                    created: self.stamp(created),
                    start: start.not_before.map(|at| self.stamp(at)),
                    deadline: self.stamp(deadline),
                    caller: request.caller.subject.to_string(),
                    depth: request.depth,
                    options: start.options,
                    labels: start.labels,
                }),
                entries,
                first,
            },
            Change::StartAttempt(holder) => Step::StartAttempt {
                fence,
                holder,
                entries,
            },
            Change::Append(replayed) => Step::Append {
                fence,
                entries,
                replayed: replayed.map(|version| version.to_string()),
            },
            Change::EndAttempt {
                counts,
                not_before,
                reply_seq,
            } => Step::EndAttempt {
                fence,
                counts,
                not_before: not_before.map(|at| self.stamp(at)),
                reply_seq,
                entries,
            },
            Change::Finish { state, reply_seq } => Step::Finish {
                fence,
                state,
                reply_seq,
                entries,
            },
            Change::Note => {
                let note = entries.pop().expect("a note must have its entry");
                Step::Note {
                    run: write.run,
                    attempt: note.attempt,
                    time: note.time,
                    content: note.content,
                }
            }
        }
    }
}

impl Wrote {
    fn of(step: &Step) -> Self {
        match step {
            Step::Enqueue {
                run,
                entries,
                first,
            } => Self::Run(run.clone(), *first, entries.len() as u64),
            Step::StartAttempt { entries, .. }
            | Step::Append { entries, .. }
            | Step::EndAttempt { entries, .. } => Self::Entries(entries.clone()),
            Step::Finish {
                fence,
                state,
                reply_seq,
                entries,
            } => {
                let last = entries.last().expect("an end must have its entry").clone();
                let end = End::of(*state, fence.attempt, *reply_seq, last);
                Self::End(entries.clone(), end)
            }
            Step::Note { .. } | Step::KeepAgent { .. } | Step::Forget { .. } | Step::Flush => {
                Self::Unknown
            }
        }
    }
}

impl super::State {
    /// Something is on disk; gives the bell of those who follow its run.
    fn wrote(&mut self, run: RunId, wrote: Wrote) -> Option<watch::Sender<()>> {
        match wrote {
            Wrote::Run(made, first, head) => {
                let starter = self.starters.get_mut(&run)?;
                let record = Record::made(Arc::unwrap_or_clone(made), first, head);
                starter.made = Some(Box::new(record));
                None
            }
            Wrote::Entries(entries) => self.tails.add(run, entries),
            Wrote::End(entries, end) => {
                self.adopting.ended(run);
                if let Some(awaited) = self.awaited.get_mut(&run) {
                    awaited.ended(&end);
                }
                let known = self.core.durable_on_disk(run);
                let namespace = known.map(|(agent, _)| agent.namespace.clone());
                self.tails.end(run, namespace, entries)
            }
            Wrote::Unknown => self.tails.lose(run),
        }
    }
}

/// What is told to whoever needs the store.
pub(super) fn unavailable(error: &StoreError) -> Failure {
    Failure::new(Code::StoreUnavailable, format!("{error}; nothing was done"))
        .retry_after(STORE_RETRY)
}
