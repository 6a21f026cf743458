//! What the engine reads of the store by itself: requests that are to be delivered, and what goes with
//! them. Reads block, so they run off the runtime, a batch at a time.
//!
//! Owns what is wanted, and the task that reads it. How a run is taken in is in [`super::adopting`].

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::dispatch::{Event, Loaded, Replay};
use crate::ids::RunId;
use crate::store::{Entry, StoreError};

use super::Engine;
use super::forgetting::FORGET_EVERY;
use super::outbox::Outbox;
use super::replaying::Missing;
use super::storing::Storage;

/// Requests that are read at once, and their bytes.
const LOADED: (usize, u64) = (32, 4 * 1024 * 1024);

/// Entries of a journal that are read at once, and their bytes.
const PAGE: (usize, usize) = (512, 1024 * 1024);

/// The same of those that go with a request, which a call holds until its worker has read them.
const PIECE: (usize, usize) = (64, Replay::KEPT as usize);

/// How long until what a call waits for is tried again.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// What is to be read.
#[derive(Default)]
pub(super) struct Reads {
    wanted: Mutex<VecDeque<Wanted>>,
    changed: Notify,
    /// What could not be read and is tried again.
    failed: Mutex<Vec<Wanted>>,
}

enum Wanted {
    Request {
        run: RunId,
        replayed: bool,
    },
    Again(RunId),
    /// Entries that go with a request, for the call that writes them.
    Replay(Arc<Outbox>, Missing),
}

impl Reads {
    fn put(&self, wanted: Wanted) {
        let mut all = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        all.push_back(wanted);
        drop(all);
        self.changed.notify_one();
    }

    pub(super) fn again(&self, run: RunId) {
        self.put(Wanted::Again(run));
    }

    fn failed(&self, wanted: Wanted) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.push(wanted);
    }

    fn try_again(&self) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = std::mem::take(&mut *failed);
        failed.into_iter().for_each(|wanted| self.put(wanted));
    }

    fn take(&self) -> Vec<Wanted> {
        let mut all = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.len().min(LOADED.0);
        all.drain(..count).collect()
    }
}

impl Engine {
    /// Has the request of a run read; at most one for each slot waits.
    pub(super) fn read_request(&self, run: RunId, replayed: bool) {
        if let Some(storage) = &self.0.storage {
            storage.reads.put(Wanted::Request { run, replayed });
        }
    }

    /// Has entries read that go with a request, for the call that writes them.
    pub fn read_replay(&self, outbox: Arc<Outbox>, missing: Missing) {
        if let Some(storage) = &self.0.storage {
            storage.reads.put(Wanted::Replay(outbox, missing));
        }
    }

    /// Reads until `stop`: first every run that has not ended, then what is wanted. Exactly one task
    /// runs this, where there is a store.
    pub async fn run_store(&self, stop: CancellationToken) {
        let Some(storage) = self.0.storage.clone() else {
            return;
        };
        tokio::select! {
            () = self.restore(&storage) => {}
            () = stop.cancelled() => return,
        }
        let reading = async {
            loop {
                let batch = storage.reads.take();
                match batch.is_empty() {
                    true => storage.reads.changed.notified().await,
                    false => self.read(&storage, batch).await,
                }
            }
        };
        let mut ticks = interval(FORGET_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let forgetting = async {
            loop {
                ticks.tick().await;
                self.forget(&storage).await;
            }
        };
        let mut tries = interval(READ_AGAIN);
        tries.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let trying = async {
            loop {
                tries.tick().await;
                storage.reads.try_again();
            }
        };
        // None waits for another: a store that stalls forgets nothing, but is read.
        tokio::select! {
            () = reading => {}
            () = trying => {}
            () = forgetting => {}
            () = stop.cancelled() => {}
        }
    }

    async fn read(&self, storage: &Arc<Storage>, batch: Vec<Wanted>) {
        let mut requests = VecDeque::new();
        for wanted in batch {
            match wanted {
                Wanted::Request { run, replayed } => requests.push_back((run, replayed)),
                Wanted::Again(run) => self.take_in(storage, run, true).await,
                Wanted::Replay(outbox, missing) => self.replay(storage, outbox, missing).await,
            }
        }
        while !requests.is_empty() {
            let read = self.reading(storage, move |_, storage| Ok(load_some(storage, requests)));
            let loads = read
                .await
                .expect("what cannot be read must be told in what is read");
            requests = loads.left;
            if let Some(error) = loads.failed {
                self.note_store(storage, &Err::<(), _>(error));
            }
            for (run, loaded) in loads.loaded {
                self.apply(Event::Loaded { run, loaded });
            }
        }
    }

    /// Reads entries that go with a request, unless its call is over.
    async fn replay(&self, storage: &Arc<Storage>, outbox: Arc<Outbox>, missing: Missing) {
        if outbox.is_over() {
            return;
        }
        let read = self.reading(storage, move |_, storage| piece(storage, missing));
        match read.await {
            Ok(entries) => outbox.replayed(missing, entries),
            Err(_) => storage.reads.failed(Wanted::Replay(outbox, missing)),
        }
    }

    /// Reads off the runtime. A read keeps its place until it is made, also when nobody waits for it
    /// any more: a store that stalls must not gather threads.
    pub(super) async fn reading<T: Send + 'static>(
        &self,
        storage: &Arc<Storage>,
        read: impl FnOnce(&Self, &Storage) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let permit = storage.reading.clone().acquire_owned().await;
        let permit = permit.expect("the places of reads must not be closed");
        let (engine, held) = (self.clone(), storage.clone());
        let read = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            read(&engine, &held)
        });
        let outcome = read.await.expect("reading a store must not panic");
        if outcome.is_err() {
            self.note_store(storage, &outcome);
        }
        outcome
    }
}

/// What came of reading requests.
struct Loads {
    loaded: Vec<(RunId, Option<Box<Loaded>>)>,
    left: VecDeque<(RunId, bool)>,
    /// Why one of them could not be read.
    failed: Option<StoreError>,
}

/// Reads requests, at least one, as long as they are not too large.
fn load_some(storage: &Storage, mut wanted: VecDeque<(RunId, bool)>) -> Loads {
    let (mut loaded, mut failed, mut bytes) = (Vec::new(), None, 0);
    while bytes < LOADED.1
        && let Some((run, replayed)) = wanted.pop_front()
    {
        let read = load(storage, run, replayed).unwrap_or_else(|error| {
            failed = Some(error);
            None
        });
        bytes += read
            .as_ref()
            .map_or(0, |read| read.request.frame_bytes() + read.replay.bytes);
        loaded.push((run, read.map(Box::new)));
    }
    Loads {
        loaded,
        left: wanted,
        failed,
    }
}

fn load(storage: &Storage, run: RunId, replayed: bool) -> Result<Option<Loaded>, StoreError> {
    let store = storage.store();
    let Some(record) = store.get(run)? else {
        return Ok(None);
    };
    let first = store.journal(run, 1, 1, usize::MAX)?;
    let asked = first.entries.first();
    let request = asked.and_then(|first| storage.records().request(&record, &first.content));
    let Some(request) = request else {
        return Err(StoreError::Corrupt);
    };
    let replay = match replayed {
        true => replay(storage, run)?,
        false => Replay::default(),
    };
    Ok(Some(Loaded { request, replay }))
}

/// What goes with the next request of a run.
fn replay(storage: &Storage, run: RunId) -> Result<Replay, StoreError> {
    let mut replay = Replay::default();
    // After run_started.
    let mut next = 2;
    loop {
        let page = storage.store().journal(run, next, PAGE.0, PAGE.1)?;
        let Some(last) = page.entries.last() else {
            return Ok(replay);
        };
        next = last.seq + 1;
        for entry in page.entries {
            if entry.worker_seq > 0 && storage.records().is_replayed(&entry.content) {
                replay.add(entry);
            }
        }
    }
}

/// The next entries that go with a request, at least one.
fn piece(storage: &Storage, missing: Missing) -> Result<Vec<Entry>, StoreError> {
    let mut next = missing.from;
    loop {
        let run = missing.delivery.run;
        let page = storage.store().journal(run, next, PIECE.0, PIECE.1)?;
        // It was there when the request was made.
        let last = page.entries.last().ok_or(StoreError::Corrupt)?;
        next = last.seq + 1;
        let mut entries = page.entries;
        entries
            .retain(|entry| entry.worker_seq > 0 && storage.records().is_replayed(&entry.content));
        if !entries.is_empty() {
            return Ok(entries);
        }
    }
}
