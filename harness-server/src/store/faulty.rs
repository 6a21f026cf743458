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
    /// Every read waits until this is over; steps are written.
    StallsReads,
}

/// A store over another one, which does what it is told as long as nothing is wrong.
pub struct Faulty {
    inner: Arc<dyn Store>,
    plan: Mutex<Plan>,
    /// A fault is over.
    ended: Condvar,
}

#[derive(Default)]
struct Plan {
    /// Steps that pass before the fault begins; none when it is there.
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
            ended: Condvar::new(),
        }
    }

    /// Has a fault begin after so many more steps.
    pub fn begin(&self, in_steps: usize, fault: Fault) {
        let mut plan = self.lock();
        plan.in_steps = in_steps;
        plan.fault = Some(fault);
    }

    /// Ends the fault; what was stalled is written and read.
    pub fn end(&self) {
        let stalled = {
            let mut plan = self.lock();
            plan.fault = None;
            std::mem::take(&mut plan.stalled)
        };
        self.ended.notify_all();
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

    fn read<T>(
        &self,
        ask: impl FnOnce(&dyn Store) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut plan = self.lock();
        plan.reads += 1;
        while let (0, Some(Fault::StallsReads)) = (plan.in_steps, &plan.fault) {
            plan = self
                .ended
                .wait(plan)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if let (0, Some(Fault::Fails(error))) = (plan.in_steps, &plan.fault) {
            return Err(error.clone());
        }
        drop(plan);
        ask(&*self.inner)
    }
}

impl Store for Faulty {
    fn write(&self, step: Step, done: Done) {
        let mut plan = self.lock();
        plan.seen.push(name(&step));
        let fault = match (plan.in_steps, plan.fault.clone()) {
            (0, fault) => fault,
            (_, None) => None,
            (_, Some(_)) => {
                plan.in_steps -= 1;
                None
            }
        };
        match fault {
            Some(Fault::Fails(error) | Fault::FailsWrites(error)) => {
                drop(plan);
                // In its turn, as a store does it.
                let refused: Done = Box::new(move |_| done(Err(error)));
                self.inner.write(Step::Flush, refused);
            }
            Some(Fault::Stalls) => plan.stalled.push_back((step, done)),
            Some(Fault::StallsReads) | None => {
                drop(plan);
                self.inner.write(step, done);
            }
        }
    }

    fn get(&self, run: RunId) -> Result<Option<Record>, StoreError> {
        self.read(|store| store.get(run))
    }

    fn find(&self, agent: &AgentKey, key: &str) -> Result<Option<RunId>, StoreError> {
        self.read(|store| store.find(agent, key))
    }

    fn list(
        &self,
        filter: &Filter,
        before: Option<RunId>,
        max: usize,
    ) -> Result<Vec<Record>, StoreError> {
        self.read(|store| store.list(filter, before, max))
    }

    fn unfinished(&self, after: Option<RunId>, max: usize) -> Result<Vec<Record>, StoreError> {
        self.read(|store| store.unfinished(after, max))
    }

    fn journal(
        &self,
        run: RunId,
        from: u64,
        max: usize,
        bytes_max: usize,
    ) -> Result<Page, StoreError> {
        self.read(|store| store.journal(run, from, max, bytes_max))
    }

    fn extent(&self, run: RunId, attempt: Attempt) -> Result<Extent, StoreError> {
        self.read(|store| store.extent(run, attempt))
    }

    fn agents(&self) -> Result<Vec<(AgentKey, Stamp)>, StoreError> {
        self.read(|store| store.agents())
    }

    fn close(&self) {
        let stalled = {
            let mut plan = self.lock();
            // No read is waited for any more.
            if plan.fault == Some(Fault::StallsReads) {
                plan.fault = None;
            }
            std::mem::take(&mut plan.stalled)
        };
        self.ended.notify_all();
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
