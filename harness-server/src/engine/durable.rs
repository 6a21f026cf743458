//! Durable runs as callers and sessions see them: starting, being told of, coming back.

use std::sync::Arc;

use tokio::sync::oneshot;
use uuid::Uuid;

use crate::dispatch::{Back, Comer, Event, LastAttempt, Placing, Said, Start};
use crate::envelope::{Code, Failure, Request};
use crate::ids::RunId;
use crate::run::Terms;
use crate::slot::{End, Refusal};
use crate::store::{Entry, Record, StoreError};

use super::Engine;
use super::storing::{Storage, unavailable};

/// A durable run that somebody started.
#[derive(Debug)]
pub enum Begun {
    /// It was made, and stood so once it was on disk.
    Made(Box<Record>),
    /// The idempotency key has this one.
    Before(RunId),
}

/// Whoever started a durable run and is to be told.
pub(super) struct Starter {
    told: oneshot::Sender<Result<Begun, Box<Failure>>>,
    /// What is on disk, once it is.
    pub(super) made: Option<Box<Record>>,
}

impl Starter {
    pub(super) fn tell(self, started: Result<RunId, Box<Failure>>) {
        let begun = started.map(|run| match self.made {
            Some(record) => Begun::Made(record),
            None => Begun::Before(run),
        });
        // Whoever has gone meanwhile need not be told.
        drop(self.told.send(begun));
    }
}

/// What a worker that wants to go on with lost work gets.
pub enum Resumes {
    /// A slot.
    With(Option<Back>),
    /// An end.
    Ends(End),
}

impl Engine {
    /// Starts a durable run, or finds the one its idempotency key has; answered once it is on disk.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn start_run(
        &self,
        request: Request,
        terms: Terms,
        placing: Placing,
        start: Start,
    ) -> Result<Begun, Box<Failure>> {
        let storage = self.storage("StartRun")?;
        let permit = storage.starting.acquire().await;
        let _permit = permit.expect("the places of StartRun must not be closed");
        let run = RunId(Uuid::now_v7());
        let asked = request.durable.as_deref().filter(|key| !key.is_empty());
        let asked = asked.map(|_| Request {
            payload: request.payload.clone(),
            durable: request.durable.clone(),
            ..request.header()
        });
        let (told, started) = oneshot::channel();
        let event = Event::Start {
            run,
            request,
            terms,
            placing,
            start: Box::new(start),
        };
        self.apply_with(event, |state| {
            state.starters.insert(run, Starter { told, made: None });
        });
        let begun = started
            .await
            .expect("whoever starts a run must be told before it is forgotten");
        match (begun, asked) {
            // What failed to be written may be what is found, and is not to be relied on.
            (Err(refusal), Some(asked)) if refusal.code != Code::StoreUnavailable => {
                let before = self.begun_before(storage, asked).await;
                before.map(Begun::Before).ok_or(refusal)
            }
            (begun, _) => begun,
        }
    }

    /// The run that the idempotency key of a request has, if that asks the same. Whoever says again
    /// what was taken once gets it, whatever would be refused by now.
    async fn begun_before(&self, storage: &Arc<Storage>, asked: Request) -> Option<RunId> {
        let read = self.reading(storage, move |engine, storage| {
            let key = asked.durable.as_deref().unwrap_or_default();
            let Some(run) = storage.store().find(&asked.agent, key)? else {
                return Ok(None);
            };
            let first = storage.store().journal(run, 1, 1, usize::MAX)?;
            let asks = Said::Asked(Arc::new(asked));
            let asks = storage.records().entry(engine.server_id(), &asks);
            let same = first.entries.first().is_some_and(|it| it.content == asks);
            Ok(same.then_some(run))
        });
        read.await.ok().flatten()
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

    /// What a worker gets that wants to go on with lost work.
    pub async fn resumes(&self, comer: Comer<'_>) -> Resumes {
        let not_yours = Resumes::Ends(End::Refused(Refusal::NotYours));
        let Comer {
            delivery, lease, ..
        } = comer;
        let run = delivery.run;
        // Core knows what is here, and that a step of it was not written.
        let is_here = {
            let core = &self.lock().core;
            core.is_known(run) || core.is_adrift(run)
        };
        if is_here {
            return Resumes::With(Some(Back::Resume(delivery, lease)));
        }
        let Some(storage) = &self.0.storage else {
            return not_yours;
        };
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
        let last = LastAttempt {
            agent: &record.run.agent,
            attempt: record.attempt,
            holder: record.holder,
            reply_seq: record.reply_seq,
            state: record.state,
        };
        match last.comes_back(comer) {
            Ok(back) => Resumes::With(Some(back)),
            Err(end) => Resumes::Ends(end),
        }
    }

    /// Whether Core has a durable run, and whether it has dropped it for a step that was not written.
    pub(super) fn stands(&self, run: RunId) -> (bool, bool) {
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
