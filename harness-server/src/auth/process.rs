//! The process of a pool, as the calls that show its token meet it.
//!
//! Owns what the calls of a process and its supervisor must know of each other: that it has one
//! call at most, what is in hand, that it is to go, how it died. What follows is decided elsewhere.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::envelope::Failure;
use crate::ids::{AgentKey, Delivery, ProcessId, WorkerId};
use crate::pool::{Detached, Exit};

use super::workers::{NotItself, Workers};

/// How long a new call waits for the one before it to be over.
const ENTER_TIMEOUT: Duration = Duration::from_secs(3);

/// News of a process that may wait to be told; a call whose news does not fit waits with it.
const NEWS_WAITING: usize = 16;

/// The process of a pool.
#[derive(Debug)]
pub struct Process {
    agent: AgentKey,
    id: ProcessId,
    /// Whether it is to answer one request.
    per_request: bool,
    told: mpsc::Sender<Told>,
    /// The one call it may have open.
    calls: Arc<Semaphore>,
    /// What it said of itself in its first hello.
    worker: OnceLock<(WorkerId, String)>,
    /// What it and the others said.
    workers: Workers,
    in_hand: InHand,
    asked: AtomicBool,
    told_to_leave: AtomicBool,
    answered: AtomicU64,
    dismissed: CancellationToken,
    death: watch::Sender<Option<Death>>,
}

/// What becomes of the calls of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It has a call. After the end of a call before, what that held has stopped.
    Attached,
    /// It has answered a request.
    Answered,
    /// It has no call any more, or is about to have none.
    Detached(Detached),
}

/// How a process died.
#[derive(Clone, Debug)]
pub struct Death {
    /// How it ended.
    pub exit: Exit,
    /// What to tell whoever waits for the request in it; none when the harness has ended it.
    pub failure: Option<Failure>,
}

/// Which request a process works on; clones are the same.
#[derive(Clone, Debug, Default)]
pub struct InHand(Arc<Mutex<Option<Delivery>>>);

/// The one open `Attach` call of a process, as long as a clone of this lives.
#[derive(Clone, Debug)]
pub struct Attendance {
    process: Arc<Process>,
    _call: Arc<OwnedSemaphorePermit>,
}

impl InHand {
    /// Says what it works on.
    pub fn set(&self, delivery: Option<Delivery>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = delivery;
    }

    /// What it works on.
    #[must_use]
    pub fn get(&self) -> Option<Delivery> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Process {
    /// A process that has no call yet, and what will be told of its calls.
    #[must_use]
    pub fn new(agent: AgentKey, id: ProcessId, per_request: bool) -> (Self, mpsc::Receiver<Told>) {
        let (told, news) = mpsc::channel(NEWS_WAITING);
        let process = Self {
            agent,
            id,
            per_request,
            told,
            calls: Arc::new(Semaphore::new(1)),
            worker: OnceLock::new(),
            workers: Workers::default(),
            in_hand: InHand::default(),
            asked: AtomicBool::new(false),
            told_to_leave: AtomicBool::new(false),
            answered: AtomicU64::new(0),
            dismissed: CancellationToken::new(),
            death: watch::Sender::new(None),
        };
        (process, news)
    }

    /// The agent it is to offer.
    #[must_use]
    pub fn agent(&self) -> &AgentKey {
        &self.agent
    }

    /// Its number in its pool.
    #[must_use]
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Whether it is to answer one request.
    #[must_use]
    pub fn is_per_request(&self) -> bool {
        self.per_request
    }

    /// Begins a call; none while another one is open. The one before is waited for, which may be
    /// about to learn of its end.
    pub async fn enter(self: &Arc<Self>) -> Option<Attendance> {
        let alone = self.calls.clone().acquire_owned();
        let call = tokio::time::timeout(ENTER_TIMEOUT, alone)
            .await
            .ok()?
            .ok()?;
        Some(Attendance {
            process: self.clone(),
            _call: Arc::new(call),
        })
    }

    /// Waits until it has no call open.
    pub async fn alone(&self) {
        // It is never closed.
        drop(self.calls.acquire().await);
    }

    /// The same, of which no worker id is one of the others'.
    pub(super) fn among(self, workers: &Workers) -> Self {
        let workers = workers.clone();
        Self { workers, ..self }
    }

    /// Takes what it says of itself.
    ///
    /// # Errors
    /// That it cannot be that worker.
    pub fn is_worker(&self, worker: WorkerId, name: &str) -> Result<(), NotItself> {
        match self.worker.get() {
            Some((first, _)) if *first == worker => Ok(()),
            Some(_) => Err(NotItself::Changed),
            None if !self.workers.take(worker) => Err(NotItself::Taken),
            None => {
                // It has one call at a time, so that nobody else says it here.
                self.worker.get_or_init(|| (worker, name.to_owned()));
                Ok(())
            }
        }
    }

    /// Nothing is left of it: another process may be the worker it was.
    pub(super) fn is_gone(&self) {
        if let Some(worker) = self.worker() {
            self.workers.give_back(worker);
        }
    }

    /// The worker it said to be, once it did.
    #[must_use]
    pub fn worker(&self) -> Option<WorkerId> {
        self.worker.get().map(|(worker, _)| *worker)
    }

    /// The name it gave itself, once it did.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.worker.get().map(|(_, name)| name.as_str())
    }

    /// A request is written to it.
    pub fn works_on(&self, delivery: Delivery) {
        self.asked.store(true, Ordering::Relaxed);
        self.in_hand.set(Some(delivery));
    }

    /// It is written to it that it is to leave.
    pub fn tell_to_leave(&self) {
        self.told_to_leave.store(true, Ordering::Relaxed);
    }

    /// Whether it was ever given a request.
    #[must_use]
    pub fn was_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Whether it was ever given anything to do: a request, or to leave.
    #[must_use]
    pub fn had_orders(&self) -> bool {
        self.was_asked() || self.told_to_leave.load(Ordering::Relaxed)
    }

    /// Which request is in hand.
    #[must_use]
    pub fn in_hand(&self) -> &InHand {
        &self.in_hand
    }

    /// How many requests it has answered.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Has it given no new request, and no new call.
    pub fn dismiss(&self) {
        self.dismissed.cancel();
    }

    /// Whether a new call of it is to be refused.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let spent = self.per_request && self.was_asked();
        spent || self.dismissed.is_cancelled() || self.death.borrow().is_some()
    }

    /// Waits until it is dismissed.
    pub async fn until_dismissed(&self) {
        self.dismissed.cancelled().await;
    }

    /// It has died.
    pub fn died(&self, death: Death) {
        self.death.send_replace(Some(death));
    }

    /// How it died, if that is known.
    #[must_use]
    pub fn known_death(&self) -> Option<Death> {
        self.death.borrow().clone()
    }

    /// Waits until it has died.
    pub async fn death(&self) -> Death {
        let mut deaths = self.death.subscribe();
        let died = deaths.wait_for(Option::is_some).await;
        match died.ok().and_then(|death| (*death).clone()) {
            Some(death) => death,
            // The sender is here.
            None => std::future::pending().await,
        }
    }

    /// Tells its supervisor.
    pub async fn tell(&self, told: Told) {
        if told == Told::Answered {
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
        // One that is gone need not be told.
        let _ = self.told.send(told).await;
    }
}

impl Attendance {
    /// Whose call it is.
    #[must_use]
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn process(per_request: bool) -> Arc<Process> {
        Arc::new(Process::new(AgentKey::new("", "a"), ProcessId(1), per_request).0)
    }

    fn delivery() -> Delivery {
        Delivery {
            run: crate::ids::RunId(Uuid::from_u128(1)),
            attempt: crate::ids::Attempt(1),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_call_waits_for_the_end_of_the_first_and_not_for_ever() {
        let process = process(false);
        let first = process.enter().await.expect("let in");
        let stream = first.clone();
        assert!(process.enter().await.is_none(), "while the first is open");
        drop(first);
        assert!(
            process.enter().await.is_none(),
            "while a part of it is open"
        );
        let (second, ()) = tokio::join!(process.enter(), async { drop(stream) });
        assert!(second.is_some(), "when it is over");
        drop(second);
        process.alone().await;
    }

    #[test]
    fn a_process_is_one_worker_and_no_other_is_it_until_it_is_gone() {
        let workers = Workers::default();
        let new = || Process::new(AgentKey::new("", "a"), ProcessId(1), false).0;
        let (process, next) = (new().among(&workers), new().among(&workers));
        let (one, other) = (WorkerId(Uuid::from_u128(1)), WorkerId(Uuid::from_u128(2)));
        assert_eq!((process.worker(), process.name()), (None, None));
        for name in ["first", "again"] {
            assert_eq!(process.is_worker(one, name), Ok(()));
        }
        let changed = process.is_worker(other, "first");
        assert_eq!(changed, Err(NotItself::Changed));
        assert_eq!(process.worker(), Some(one));
        assert_eq!(process.name(), Some("first"));

        assert_eq!(next.is_worker(one, "second"), Err(NotItself::Taken));
        assert_eq!(next.worker(), None);
        process.is_gone();
        assert_eq!(next.is_worker(one, "second"), Ok(()));
    }

    #[test]
    fn a_call_is_refused_to_one_that_is_spent_or_dismissed_or_dead() {
        let (reused, spent, dismissed) = (process(false), process(true), process(false));
        for process in [&reused, &spent] {
            assert!(!process.is_over());
            process.works_on(delivery());
        }
        assert!(!reused.is_over() && spent.is_over());
        reused.died(Death {
            exit: Exit::Code(0),
            failure: None,
        });
        dismissed.dismiss();
        assert!(reused.is_over() && dismissed.is_over());
    }
}
