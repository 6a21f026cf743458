//! Durable runs taken in as they are on disk: all that have not ended at the start, and one that is
//! wanted before its turn or whose step could not be written.
//!
//! Reading takes a while, in which a run may end: what was read of it before must not make it again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ahash::AHashSet;
use tracing::{info, warn};

use crate::dispatch::{Adopted, Event};
use crate::ids::RunId;
use crate::run::Terms;
use crate::store::{Record, State, StoreError};

use super::Engine;
use super::storing::Storage;

/// Unfinished runs that are read at once at the start.
const RESTORED: usize = 256;

/// Runs that are being read to be taken in.
#[derive(Default)]
pub(super) struct Adopting {
    /// How many reads are under way.
    reads: usize,
    /// What has ended since the first of them began.
    ended: AHashSet<RunId>,
}

impl Adopting {
    /// How a run ended is on disk.
    pub(super) fn ended(&mut self, run: RunId) {
        if self.reads > 0 {
            self.ended.insert(run);
        }
    }
}

/// A read of runs that are to be taken in; it lasts until they are.
struct Reading<'a>(&'a Engine);

impl<'a> Reading<'a> {
    fn of(engine: &'a Engine) -> Self {
        engine.lock().adopting.reads += 1;
        Self(engine)
    }

    /// Takes a run in as it was read, unless it has ended since.
    fn adopt(&self, run: RunId, read: Option<Box<Adopted>>, again: bool) {
        let effects = self.0.decide_on(|state| {
            let has_ended = state.adopting.ended.contains(&run);
            let adopted = read.filter(|_| !has_ended);
            Event::Adopt {
                run,
                adopted,
                again,
            }
        });
        self.0.act(effects);
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let adopting = &mut self.0.lock().adopting;
        adopting.reads -= 1;
        if adopting.reads == 0 {
            adopting.ended = AHashSet::new();
        }
    }
}

impl Engine {
    /// Takes in every run that has not ended, whenever it says that it was made: the wall clock may
    /// have been set back since. One that is here already is left alone.
    pub(super) async fn restore(&self, storage: &Arc<Storage>) {
        let began = Instant::now();
        let mut after = None;
        let mut count = 0;
        self.restore_agents(storage).await;
        loop {
            let reading = Reading::of(self);
            let page = self
                .reading(storage, move |engine, storage| {
                    let records = storage.store().unfinished(after, RESTORED)?;
                    let last = records.last().map(|record| record.run.id);
                    let adopted: Result<Vec<_>, StoreError> = records
                        .into_iter()
                        .map(|record| {
                            let run = record.run.id;
                            Ok((run, engine.adopted(storage, record)?))
                        })
                        .collect();
                    Ok((last, adopted?))
                })
                .await;
            match page {
                Ok((last, adopted)) => {
                    count += adopted.len();
                    for (run, adopted) in adopted {
                        reading.adopt(run, adopted, false);
                    }
                    drop(reading);
                    if last.is_none() {
                        break;
                    }
                    after = last;
                    // Whoever asks meanwhile comes first.
                    tokio::task::yield_now().await;
                }
                Err(error) => {
                    // What ends in the pause is found ended by the next read.
                    drop(reading);
                    warn!(%error, "cannot read the runs that have not ended; trying again");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
        if count > 0 {
            info!(runs = count, took = ?began.elapsed(), "took in the runs that have not ended");
        }
    }

    async fn restore_agents(&self, storage: &Arc<Storage>) {
        let agents = self.reading(storage, |_, storage| storage.store().agents());
        match agents.await {
            Ok(agents) => {
                for (agent, _) in agents {
                    self.apply(Event::Remembered { agent });
                }
            }
            Err(error) => warn!(%error, "cannot read the agents that were known"),
        }
    }

    /// Takes a run in as it is on disk.
    pub(super) async fn take_in(&self, storage: &Arc<Storage>, run: RunId, again: bool) {
        let reading = Reading::of(self);
        let read = self.reading(storage, move |engine, storage| {
            match storage.store().get(run)? {
                Some(record) => engine.adopted(storage, record),
                None => Ok(None),
            }
        });
        // One that cannot be read is tried again with the others.
        if let Ok(adopted) = read.await {
            reading.adopt(run, adopted, again);
        }
    }

    /// A run as Core takes it in; none when it has ended.
    fn adopted(
        &self,
        storage: &Storage,
        record: Record,
    ) -> Result<Option<Box<Adopted>>, StoreError> {
        if record.state.is_ended() {
            return Ok(None);
        }
        let extent = match record.attempt.0 {
            0 => crate::store::Extent::default(),
            _ => storage.store().extent(record.run.id, record.attempt)?,
        };
        let recorded = storage.records().options(&record);
        let not_before = record.not_before.max(record.run.start);
        Ok(Some(Box::new(Adopted {
            request: recorded.request,
            frame_bytes: recorded.frame_bytes,
            terms: Terms {
                deadline: self.instant(record.run.deadline),
                retry: recorded.retry,
                uncounted_max: self.limits().uncounted_deliveries,
                poison_max: self.limits().poison,
            },
            placing: recorded.placing,
            created: self.instant(record.run.created),
            not_before: not_before.map(|stamp| self.instant(stamp)),
            attempt: record.attempt,
            counts: record.counts,
            running: record.state == State::Running,
            began: extent.began.map(|stamp| self.instant(stamp)),
            holder: record.holder,
            head: record.head,
            bytes: extent.bytes,
            worker_seq: extent.worker_seq,
            reply_seq: record.reply_seq,
            replayed: record.replayed.map(Into::into),
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::WireRecords;
    use crate::config::Limits;
    use crate::store::{Fault, Faulty, Memory};

    #[tokio::test(start_paused = true)]
    async fn what_ends_between_a_read_that_failed_and_the_next_is_not_remembered() {
        let store = Arc::new(Faulty::over(Arc::new(Memory::default())));
        store.begin(0, Fault::Fails(StoreError::Corrupt));
        let records = Box::new(WireRecords::default());
        let engine = Engine::with_store(Limits::default(), store.clone(), records);
        let storage = engine.0.storage.clone().expect("a store");
        let mut restoring = Box::pin(engine.restore(&storage));
        let paused = tokio::time::timeout(Duration::from_millis(500), &mut restoring).await;
        assert!(paused.is_err(), "it waits before it tries again");
        assert_eq!(store.reads(), 2, "the agents, then the runs");
        assert_eq!(engine.lock().adopting.reads, 0, "no read is under way");

        store.end();
        restoring.await;
        assert_eq!(engine.lock().adopting.reads, 0);
    }
}
