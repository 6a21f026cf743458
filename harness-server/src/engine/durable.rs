//! Durable runs as callers and sessions see them: starting, cancelling, following, coming back.

use std::sync::Arc;

use tokio::sync::{oneshot, watch};
use uuid::Uuid;

use crate::dispatch::{Back, Event, Placing, Start, trim};
use crate::envelope::{Code, Failure, Request};
use crate::ids::{Delivery, Lease, RunId, WorkerId};
use crate::run::Terms;
use crate::slot::{End, Refusal};
use crate::store::{Entry, Holder, Page, Record, State, StoreError};

use super::Engine;
use super::storing::{Storage, unavailable};

/// Entries of a journal that are read at once, and their bytes.
const PAGE: (usize, usize) = (64, 256 * 1024);

/// What a worker that wants to go on with lost work gets.
pub enum Resumes {
    /// A slot.
    With(Option<Back>),
    /// An end.
    Ends(End),
}

impl Engine {
    /// Starts a durable run; answered once it is on disk. Gives its id, or that of the run its
    /// idempotency key has.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn start_run(
        &self,
        request: Request,
        terms: Terms,
        placing: Placing,
        start: Start,
    ) -> Result<RunId, Box<Failure>> {
        let storage = self.storage("StartRun")?;
        let permit = storage.starting.acquire().await;
        let _permit = permit.expect("the places of StartRun must not be closed");
        let run = RunId(Uuid::now_v7());
        let (starter, started) = oneshot::channel();
        let event = Event::Start {
            run,
            request,
            terms,
            placing,
            start: Box::new(start),
        };
        self.apply_with(event, |state| {
            state.starters.insert(run, starter);
        });
        started
            .await
            .expect("whoever starts a run must be told before it is forgotten")
    }

    /// What is known of a durable run; none when there is none, or no store.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn record(&self, run: RunId) -> Result<Option<Record>, Box<Failure>> {
        let Some(storage) = &self.0.storage else {
            return Ok(None);
        };
        let read = self.reading(storage, move |_, storage| storage.store().get(run));
        read.await.map_err(told)
    }

    /// What a durable run that has ended ended with, encoded as its journal has it.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn last_entry(&self, record: &Record) -> Result<Option<Entry>, Box<Failure>> {
        let (Some(storage), Some((_, seq))) = (&self.0.storage, record.ended) else {
            return Ok(None);
        };
        let run = record.run.id;
        let read = self.reading(storage, move |_, storage| {
            storage.store().journal(run, seq, 1, usize::MAX)
        });
        Ok(read.await.map_err(told)?.entries.into_iter().next())
    }

    /// Asks for a durable run to be stopped; answered once how it ended is on disk.
    ///
    /// # Errors
    /// The store does not take it.
    pub async fn cancel_run(
        &self,
        run: RunId,
        who: Arc<str>,
        why: String,
    ) -> Result<(), Box<Failure>> {
        let storage = self.storage("CancelRun")?;
        let (is_here, is_adrift) = self.stands(run);
        if is_adrift {
            return Err(told(StoreError::Failed(
                "the run is being read again".to_owned(),
            )));
        }
        if !is_here {
            // It waits to be taken in after a start; or it has ended, and nothing comes of this.
            self.take_in(storage, run, false).await;
        }
        let (decider, decided) = oneshot::channel();
        let mut decider = Some(decider);
        self.apply_with(Event::CancelRequested { run, who, why }, |state| {
            if state.core.has_durable(run) {
                let deciders = state.deciders.entry(run).or_default();
                deciders.extend(decider.take());
            }
        });
        if decider.is_some() {
            return Ok(());
        }
        match decided.await {
            Ok(None) => Ok(()),
            Ok(Some(failure)) => Err(failure),
            Err(_) => Err(told(StoreError::Failed("it is closing".to_owned()))),
        }
    }

    /// Follows the journal of a durable run from a number on.
    #[must_use]
    pub fn follow(&self, run: RunId, from: u64) -> Option<Followed> {
        let storage = self.0.storage.clone()?;
        let grown = {
            let mut state = self.lock();
            state.watches.entry(run).or_default().subscribe()
        };
        Some(Followed {
            engine: self.clone(),
            storage,
            run,
            from,
            grown,
        })
    }

    /// Whether a worker owes a released for a run.
    #[must_use]
    pub fn is_owed(&self, run: RunId) -> bool {
        self.lock().core.is_owed(run)
    }

    /// Rings for whoever follows a journal.
    pub(super) fn ring(&self, run: RunId) {
        let bell = self.lock().watches.get(&run).cloned();
        if let Some(bell) = bell {
            bell.send_modify(|()| {});
        }
    }

    /// What a worker gets that wants to go on with lost work.
    pub async fn resumes(&self, worker: WorkerId, delivery: Delivery, lease: Lease) -> Resumes {
        let not_yours = Resumes::Ends(End::Refused(Refusal::NotYours));
        let Some(storage) = &self.0.storage else {
            return not_yours;
        };
        let run = delivery.run;
        let (is_here, is_adrift) = self.stands(run);
        if is_adrift {
            return Resumes::Ends(End::StoreFailed);
        }
        if is_here {
            return Resumes::With(Some(Back::Resume(delivery, lease)));
        }
        let read = self.reading(storage, move |_, storage| storage.store().get(run));
        let record = match read.await {
            Ok(Some(record)) => record,
            Ok(None) => return not_yours,
            Err(_) => return Resumes::Ends(End::StoreFailed),
        };
        if !record.state.is_ended() {
            // Not taken in yet after a start.
            self.take_in(storage, run, false).await;
            return Resumes::With(Some(Back::Resume(delivery, lease)));
        }
        if delivery.attempt < record.attempt {
            return Resumes::Ends(End::Superseded(delivery));
        }
        let holds = record.holder == Some(Holder { worker, lease });
        if delivery.attempt > record.attempt || !holds {
            return not_yours;
        }
        match record.state {
            _ if record.reply_seq > 0 => {
                Resumes::With(Some(Back::Replied(delivery, record.reply_seq)))
            }
            State::TimedOut => Resumes::Ends(End::DeadlineExceeded(delivery)),
            State::Cancelled => Resumes::Ends(End::Cancelled(delivery)),
            State::Queued | State::Running | State::Succeeded | State::Failed => {
                Resumes::Ends(End::Superseded(delivery))
            }
        }
    }

    /// Whether Core has a durable run, and whether it has dropped it for a step that was not written.
    fn stands(&self, run: RunId) -> (bool, bool) {
        let state = self.lock();
        (state.core.has_durable(run), state.core.is_adrift(run))
    }

    /// That there is a store, which an rpc needs.
    ///
    /// # Errors
    /// There is none; what to do.
    pub fn needs_store(&self, rpc: &str) -> Result<(), Box<Failure>> {
        self.storage(rpc).map(drop)
    }

    pub(super) fn storage(&self, rpc: &str) -> Result<&Arc<Storage>, Box<Failure>> {
        self.0.storage.as_ref().ok_or_else(|| {
            let message = format!(
                "{rpc} needs a store and this harness has none: start it with --data DIR, where it \
                 may keep durable runs"
            );
            Box::new(Failure::new(Code::Unimplemented, message))
        })
    }
}

pub(super) fn told(error: StoreError) -> Box<Failure> {
    Box::new(unavailable(&error))
}

/// A reader of a durable run's journal; what is not on disk it does not see.
pub struct Followed {
    engine: Engine,
    storage: Arc<Storage>,
    run: RunId,
    from: u64,
    grown: watch::Receiver<()>,
}

impl Followed {
    /// Its run.
    #[must_use]
    pub fn run(&self) -> RunId {
        self.run
    }

    /// The next entries, none when there are no more yet.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn next(&mut self) -> Result<Page, Box<Failure>> {
        self.grown.mark_unchanged();
        let (run, from) = (self.run, self.from);
        let read = self.engine.reading(&self.storage, move |_, storage| {
            storage.store().journal(run, from.max(1), PAGE.0, PAGE.1)
        });
        let page = read.await.map_err(told)?;
        if let Some(last) = page.entries.last() {
            self.from = last.seq + 1;
        }
        Ok(page)
    }

    /// Waits until the journal has grown since it was last read.
    pub async fn grown(&mut self) {
        if self.grown.changed().await.is_err() {
            // Its bell is gone with the engine: nothing grows any more.
            std::future::pending().await
        }
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        let mut state = self.engine.lock();
        let last = |bell: &watch::Sender<()>| bell.receiver_count() == 1;
        if state.watches.get(&self.run).is_some_and(last) {
            state.watches.remove(&self.run);
            trim(&mut state.watches);
        }
    }
}
