//! A store that fails when it is told to: at a chosen step, in a chosen way. For tests.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::{Done, Extent, Filter, Page, Record, Stamp, Step, Store, StoreError};
use crate::ids::{AgentKey, Attempt, RunId};

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Every step and read fails like this.
    Fails(StoreError),
    /// Every step fails like this; what is there can be read.
    FailsWrites(StoreError),
    /// Steps are taken and neither written nor refused, until this is over.
    Stalls,
    /// What is read, by every method or by the one of this name, is told once this is over; steps are
    /// written.
    StallsReads(Option<&'static str>),
}

/// A store over another one, which does what it is told as long as nothing is wrong.
pub struct Faulty {
    inner: Arc<dyn Store>,
    plan: Mutex<Plan>,
    /// Another fault is there, or none.
    changed: Condvar,
}

#[derive(Default)]
struct Plan {
    /// Steps of runs that pass before the fault begins; none when it is there.
    in_steps: usize,
    fault: Option<Fault>,
    stalled: VecDeque<(Step, Done)>,
    /// The steps that came, by name.
    seen: Vec<&'static str>,
    /// How much was read.
    reads: usize,
}

impl Faulty {
    /// A store with nothing wrong yet.
    #[must_use]
    pub fn over(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            plan: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Has a fault begin after so many more steps of runs. What keeps house comes when it likes and
    /// does not count.
    pub fn begin(&self, in_steps: usize, fault: Fault) {
        let mut plan = self.lock();
        plan.in_steps = in_steps;
        plan.fault = Some(fault);
        drop(plan);
        // What another fault held up.
        self.changed.notify_all();
    }

    /// Ends the fault; what was stalled is written and read.
    pub fn end(&self) {
        let stalled = {
            let mut plan = self.lock();
            plan.fault = None;
            std::mem::take(&mut plan.stalled)
        };
        self.changed.notify_all();
        for (step, done) in stalled {
            self.inner.write(step, done);
        }
    }

    /// The names of the steps that came, in their order.
    #[must_use]
    pub fn seen(&self) -> Vec<&'static str> {
        self.lock().seen.clone()
    }

    /// How often something was read.
    #[must_use]
    pub fn reads(&self) -> usize {
        self.lock().reads
    }

    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the method `name` reads.
    fn read<T>(
        &self,
        name: &str,
        ask: impl FnOnce(&dyn Store) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let read = match &*self.lock() {
            Plan {
                in_steps: 0,
                fault: Some(Fault::Fails(error)),
                ..
            } => Err(error.clone()),
            _ => Ok(()),
        };
        let read = read.and_then(|()| ask(&*self.inner));
        let mut plan = self.lock();
        plan.reads += 1;
        while plan.stalls(name) {
            plan = self
                .changed
                .wait(plan)
                .unwrap_or_else(PoisonError::into_inner);
        }
        read
    }
}

impl Plan {
    /// Whether what the method `name` reads is not told yet.
    fn stalls(&self, name: &str) -> bool {
        match (self.in_steps, &self.fault) {
            (0, Some(Fault::StallsReads(which))) => which.is_none_or(|which| which == name),
            _ => false,
        }
    }
}

impl Store for Faulty {
    fn write(&self, step: Step, done: Done) {
        let mut plan = self.lock();
        plan.seen.push(name(&step));
        let fault = match (plan.in_steps, plan.fault.clone()) {
            (0, fault) => fault,
            (_, Some(_)) if step.run().is_some() => {
                plan.in_steps -= 1;
                None
            }
            (_, _) => None,
        };
        match fault {
            Some(Fault::Fails(error) | Fault::FailsWrites(error)) => {
                drop(plan);
                // In its turn, as a store does it.
                let refused: Done = Box::new(move |_| done(Err(error)));
                self.inner.write(Step::Flush, refused);
            }
            Some(Fault::Stalls) => plan.stalled.push_back((step, done)),
            Some(Fault::StallsReads(_)) | None => {
                drop(plan);
                self.inner.write(step, done);
            }
        }
    }

    fn get(&self, run: RunId) -> Result<Option<Record>, StoreError> {
        self.read("get", |store| store.get(run))
    }

    fn find(&self, agent: &AgentKey, key: &str) -> Result<Option<RunId>, StoreError> {
        self.read("find", |store| store.find(agent, key))
    }

    fn list(
        &self,
        filter: &Filter,
        before: Option<RunId>,
        max: usize,
    ) -> Result<Vec<Record>, StoreError> {
        self.read("list", |store| store.list(filter, before, max))
    }

    fn unfinished(&self, after: Option<RunId>, max: usize) -> Result<Vec<Record>, StoreError> {
        self.read("unfinished", |store| store.unfinished(after, max))
    }

    fn journal(
        &self,
        run: RunId,
        from: u64,
        max: usize,
        bytes_max: usize,
    ) -> Result<Page, StoreError> {
        self.read("journal", |store| store.journal(run, from, max, bytes_max))
    }

    fn extent(&self, run: RunId, attempt: Attempt) -> Result<Extent, StoreError> {
        self.read("extent", |store| store.extent(run, attempt))
    }

    fn agents(&self) -> Result<Vec<(AgentKey, Stamp)>, StoreError> {
        self.read("agents", |store| store.agents())
    }

    fn close(&self) {
        let stalled = {
            let mut plan = self.lock();
            // No read is waited for any more.
            if matches!(plan.fault, Some(Fault::StallsReads(_))) {
                plan.fault = None;
            }
            std::mem::take(&mut plan.stalled)
        };
        self.changed.notify_all();
        for (_, done) in stalled {
            done(Err(StoreError::Failed("it is closed".to_owned())));
        }
        self.inner.close();
    }
}

fn name(step: &Step) -> &'static str {
    match step {
        Step::Enqueue { .. } => "enqueue",
        Step::StartAttempt { .. } => "start_attempt",
        Step::Append { .. } => "append",
        Step::EndAttempt { .. } => "end_attempt",
        Step::Finish { .. } => "finish",
        Step::Note { .. } => "note",
        Step::KeepAgent { .. } => "keep_agent",
        Step::Forget { .. } => "forget",
        Step::Flush => "flush",
    }
}
