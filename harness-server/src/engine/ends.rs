//! The ends of durable runs, told to whoever waits for one once it is on disk.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::dispatch::Event;
use crate::envelope::Failure;
use crate::ids::{Attempt, RunId};
use crate::store::{Entry, Record, State, StoreError};

use super::Engine;
use super::durable::told;
use super::storing::Storage;

/// How a durable run ended, as it is on disk.
#[derive(Clone, Debug)]
pub struct End {
    state: State,
    attempt: Attempt,
    reply_seq: u64,
    /// Its `run_ended`.
    pub last: Entry,
}

/// The end of a run that somebody waits for.
#[derive(Default)]
pub(super) struct AwaitedEnd {
    /// Those who wait.
    told: Vec<oneshot::Sender<Told>>,
    /// It, once it is on disk.
    end: Option<End>,
}

/// An end, or why it is not on disk; nothing where the run has been forgotten without one.
type Told = Result<Option<End>, Box<Failure>>;

impl End {
    /// What the step of an end writes.
    pub(super) fn of(state: State, attempt: Attempt, reply_seq: u64, last: Entry) -> Self {
        Self {
            state,
            attempt,
            reply_seq,
            last,
        }
    }

    /// The run of a record as it is with this.
    #[must_use]
    pub fn over(&self, before: Record) -> Record {
        Record {
            state: self.state,
            attempt: self.attempt,
            not_before: None,
            reply_seq: self.reply_seq,
            ended: Some((self.last.time, self.last.seq)),
            head: self.last.seq,
            ..before
        }
    }
}

impl AwaitedEnd {
    /// The end is on disk.
    pub(super) fn ended(&mut self, end: &End) {
        self.end = Some(end.clone());
    }

    /// Tells all of them.
    pub(super) fn tell(self, failure: Option<Box<Failure>>) {
        for waiting in self.told {
            let told = match &failure {
                Some(failure) => Err(failure.clone()),
                None => Ok(self.end.clone()),
            };
            // Whoever has gone meanwhile need not be told.
            drop(waiting.send(told));
        }
    }
}

impl Engine {
    /// Waits until the end of a durable run is on disk. None when nobody can tell any more, and the
    /// store is to be asked: it has ended already, its end could not be written, or the harness has
    /// left.
    pub async fn end_of(&self, run: RunId) -> Option<End> {
        self.come_in(self.0.storage.as_ref()?, run).await;
        let ended = {
            let state = &mut *self.lock();
            let is_here = state.core.has_durable(run);
            is_here.then(|| state.wait_for_end(run))?
        };
        tokio::select! {
            told = ended => told.ok()?.ok()?,
            () = self.0.left.cancelled() => None,
        }
    }

    /// Takes a run in that waits for that after a start; of one that has ended nothing comes. False
    /// when it is being read again because the store failed.
    async fn come_in(&self, storage: &Arc<Storage>, run: RunId) -> bool {
        let (is_here, is_adrift) = self.stands(run);
        if !is_here && !is_adrift {
            self.take_in(storage, run, false).await;
        }
        !is_adrift
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
        if !self.come_in(storage, run).await {
            return Err(told(StoreError::Failed(
                "the run is being read again".to_owned(),
            )));
        }
        let mut ended = None;
        self.apply_with(Event::CancelRequested { run, who, why }, |state| {
            if state.core.has_durable(run) {
                ended = Some(state.wait_for_end(run));
            }
        });
        let Some(ended) = ended else {
            return Ok(());
        };
        match ended.await {
            Ok(end) => end.map(drop),
            Err(_) => Err(told(StoreError::Failed("it is closing".to_owned()))),
        }
    }
}

impl super::State {
    fn wait_for_end(&mut self, run: RunId) -> oneshot::Receiver<Told> {
        let (waiting, ended) = oneshot::channel();
        let told = &mut self.awaited.entry(run).or_default().told;
        // Those who have gone are let go of when there is no room.
        if told.len() == told.capacity() {
            told.retain(|it| !it.is_closed());
            told.reserve(told.len().max(4));
        }
        told.push(waiting);
        ended
    }
}
