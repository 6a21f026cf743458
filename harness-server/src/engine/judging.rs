//! Holding payloads against schemas: cheap checks where they are needed, all others apart.
//!
//! A schema comes from a worker, and the validator it is given to knows no limit. A check that is
//! not cheap by calculation gets a thread of its own: a few at a time, one at a time for each
//! schema, in the order they came. The threads are not the runtime's, so that one that never
//! returns neither takes a place in its pool nor keeps the process from ending.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::task::TaskTracker;
use tracing::{error, warn};

use crate::dispatch::{Action, Event, Reply};
use crate::envelope::{Code, Failure, Payload, Request};
use crate::ids::{RunId, SchemaId};
use crate::schema::{CHECK_TIMEOUT, Flaw, STACK_BYTES, Schema, SchemaError, Subject};

use super::{Engine, Shared};

/// Checks made apart at the same time.
const CHECKS_AT_ONCE: usize = 2;

/// Schemas compiled at the same time.
const COMPILES_AT_ONCE: usize = 2;

/// Requests that may wait to be checked apart.
const WAITING_MAX: usize = 1000;

/// When to ask again if that many wait.
const WAITING_RETRY: Duration = Duration::from_millis(100);

/// How long compiling a schema may take. The limits on what is compiled keep it far below.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(5);

/// How much longer than its limit a thread gets to say that it has reached it.
const GRACE: Duration = Duration::from_millis(500);

/// Threads that went on after their time, which nothing can stop. Each holds a core and memory of
/// ours until it returns by itself, which may be never. With this many of them the harness makes
/// no check and compiles no schema apart until one returns: it answers at once that it cannot.
/// What needs no thread goes on. An operator who sees that error restarts the harness, and finds
/// the schemas in its log.
const STUCK_MAX: usize = 4;

/// Why work on a thread of its own has no result.
#[derive(Clone, Copy, Debug)]
enum NoResult {
    /// It goes on; nobody waits for it any more.
    TooSlow,
    /// It broke.
    Broken,
    /// Too many threads went on after their time, or no thread can be started.
    NoThread(&'static str),
}

/// What checks made apart share.
pub(super) struct Judges {
    checks: Semaphore,
    compiles: Semaphore,
    waiting: Arc<Semaphore>,
    stuck: Arc<AtomicUsize>,
    tasks: TaskTracker,
}

/// A reply held against its slot's schema, or being held.
pub enum Checked {
    /// It is done.
    Now(Reply),
    /// It comes; without one, the harness is leaving.
    Later(oneshot::Receiver<Reply>),
}

impl Judges {
    pub(super) fn new() -> Self {
        Self {
            checks: Semaphore::new(CHECKS_AT_ONCE),
            compiles: Semaphore::new(COMPILES_AT_ONCE),
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
            stuck: Arc::default(),
            tasks: TaskTracker::new(),
        }
    }

    /// Waits for the checks under way.
    pub(super) async fn finished(&self) {
        self.tasks.close();
        // What a check finds after that is about runs that have ended.
        drop(tokio::time::timeout(CHECK_TIMEOUT, self.tasks.wait()).await);
    }

    /// Works on a thread of its own and waits for a limited time.
    async fn apart<T, W>(&self, limit: Duration, work: W) -> Result<T, NoResult>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        if self.stuck.load(Ordering::Relaxed) >= STUCK_MAX {
            return Err(NoResult::NoThread(
                "too many checks have not ended in time and still run; restart the harness",
            ));
        }
        let (sender, result) = oneshot::channel();
        let parting = Parting {
            over: Arc::default(),
            stuck: self.stuck.clone(),
        };
        let over = parting.over.clone();
        let thread = thread::Builder::new()
            .name("schema".to_owned())
            .stack_size(STACK_BYTES);
        let started = thread.spawn(move || {
            let _parting = parting;
            // Whoever waited may be gone.
            drop(sender.send(work()));
        });
        if started.is_err() {
            return Err(NoResult::NoThread("the system starts no thread for it"));
        }
        match tokio::time::timeout(limit + GRACE, result).await {
            Ok(result) => result.map_err(|_| NoResult::Broken),
            Err(_) => {
                self.stuck.fetch_add(1, Ordering::Relaxed);
                if over.swap(true, Ordering::Relaxed) {
                    self.stuck.fetch_sub(1, Ordering::Relaxed);
                }
                Err(NoResult::TooSlow)
            }
        }
    }
}

/// Counts a thread that was given up as returned when it returns.
struct Parting {
    /// Set by the thread and by whoever waits for it; the second to come knows of the first.
    over: Arc<AtomicBool>,
    stuck: Arc<AtomicUsize>,
}

impl Drop for Parting {
    fn drop(&mut self) {
        if self.over.swap(true, Ordering::Relaxed) {
            self.stuck.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Engine {
    /// The compiled form of a schema; none for an empty text. Compiles off the runtime's threads.
    ///
    /// # Errors
    /// What is wrong with the schema.
    pub async fn intern(&self, text: &Bytes) -> Result<Option<Arc<Schema>>, SchemaError> {
        let schemas = &self.0.schemas;
        if text.is_empty() {
            return Ok(None);
        }
        if let Some(known) = schemas.known(text)? {
            return Ok(Some(known));
        }
        let _place = self.0.judges.compiles.acquire().await;
        let (shared, given) = (self.0.clone(), text.clone());
        let compile = move || shared.schemas.intern(&given);
        match self.0.judges.apart(COMPILE_TIMEOUT, compile).await {
            Ok(compiled) => compiled,
            Err(NoResult::TooSlow) => {
                error!("compiling a schema took longer than {COMPILE_TIMEOUT:?}");
                schemas.refuse(text);
                Err(SchemaError::Condemned)
            }
            Err(NoResult::Broken) => Err(SchemaError::Invalid("it cannot be compiled".to_owned())),
            Err(NoResult::NoThread(why)) => Err(SchemaError::Unable(why)),
        }
    }

    /// Holds a request against a schema: what that means for its run, now if it is cheap.
    pub(super) fn judge(&self, judgement: Action) -> Option<Event> {
        let Action::Judge {
            run,
            schema,
            request,
        } = judgement
        else {
            return None;
        };
        let judged = |refusal| Event::Judged {
            run,
            schema,
            refusal,
        };
        let Some(held) = self.0.schemas.get(schema) else {
            // The last slot of that schema is gone, and its verdict with it.
            let gone = Failure::new(Code::InvalidRequest, "the agent's schema is gone");
            return Some(judged(Some(gone)));
        };
        match held.check_here(Subject::Request, &request.payload) {
            Some(result) => Some(judged(result.err().map(|refusal| *refusal))),
            None => self
                .judge_apart(held, run, request)
                .err()
                .map(|refusal| judged(Some(*refusal))),
        }
    }

    /// Holds a request against a schema apart; its run waits, up to its deadline.
    fn judge_apart(
        &self,
        schema: Arc<Schema>,
        run: RunId,
        request: Arc<Request>,
    ) -> Result<(), Box<Failure>> {
        let waiting = &self.0.judges.waiting;
        let Ok(place) = waiting.clone().try_acquire_owned() else {
            let message = format!(
                "agent \"{}\" is busy: {WAITING_MAX} requests wait to be held against schemas",
                request.agent
            );
            let busy = Failure::new(Code::Busy, message).retry_after(WAITING_RETRY);
            return Err(Box::new(busy));
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            let message = "the harness is shutting down and checks no request any more";
            return Err(Box::new(Failure::new(Code::ShuttingDown, message)));
        };
        let engine = self.clone();
        let check = async move {
            let _place = place;
            let wanted = || engine.lock().callers.contains_key(&run);
            let payload = PayloadOf::Request(request.clone());
            let found = engine
                .check_apart(&schema, Subject::Request, payload, wanted)
                .await;
            let too_slow = matches!(found, Err(Flaw::TooSlow));
            let refusal = match found {
                Ok(()) => None,
                Err(Flaw::Mismatch(failure)) => Some(*failure),
                Err(Flaw::TooSlow) => Some(too_slow_for(&request)),
            };
            engine.apply(Event::Judged {
                run,
                schema: schema.id(),
                refusal,
            });
            // After the answer, which would otherwise wait for another worker.
            if too_slow {
                engine.condemn(&schema);
            }
        };
        self.0.judges.tasks.spawn_on(check, &runtime);
        Ok(())
    }

    /// Holds a reply against the schema of its slot.
    pub fn check_reply(&self, schema: Option<&Arc<Schema>>, value: Payload) -> Checked {
        let Some(schema) = schema else {
            return Checked::Now(Reply::Value(value));
        };
        match schema.check_here(Subject::Reply, &value) {
            Some(Ok(())) => return Checked::Now(Reply::Value(value)),
            Some(Err(mismatch)) => return Checked::Now(Reply::Invalid(*mismatch)),
            None => {}
        }
        let (sender, reply) = oneshot::channel();
        let (engine, schema) = (self.clone(), schema.clone());
        self.0.judges.tasks.spawn(async move {
            let wanted = || !sender.is_closed();
            let payload = PayloadOf::Reply(value.clone());
            let found = engine
                .check_apart(&schema, Subject::Reply, payload, wanted)
                .await;
            let reply = match found {
                Ok(()) => Reply::Value(value),
                Err(Flaw::Mismatch(failure)) => Reply::Invalid(*failure),
                Err(Flaw::TooSlow) => {
                    // Ends the slot and fails what is in it, so the reply has nowhere to go.
                    engine.condemn(&schema);
                    return;
                }
            };
            drop(sender.send(reply));
        });
        Checked::Later(reply)
    }

    /// Holds a payload against a schema on a thread, in its turn. Not at all if it is not wanted
    /// any more by then.
    async fn check_apart(
        &self,
        schema: &Arc<Schema>,
        subject: Subject,
        payload: PayloadOf,
        wanted: impl Fn() -> bool + Send,
    ) -> Result<(), Flaw> {
        // Its own turn first: one schema's checks hold one of the places at most.
        let _turn = schema.turn().acquire().await;
        let _place = self.0.judges.checks.acquire().await;
        if schema.is_condemned() {
            return Err(Flaw::TooSlow);
        }
        if !wanted() {
            return Ok(());
        }
        let held = schema.clone();
        let check = move || held.check_apart(subject, payload.get());
        match self.0.judges.apart(CHECK_TIMEOUT, check).await {
            Ok(found) => found,
            Err(NoResult::TooSlow) => Err(Flaw::TooSlow),
            Err(NoResult::Broken) => Err(unable(subject, "the check broke")),
            Err(NoResult::NoThread(why)) => Err(unable(subject, why)),
        }
    }

    /// Refuses a schema from now on and ends every slot that has it.
    pub(super) fn condemn(&self, schema: &Schema) {
        let SchemaId(number) = schema.id();
        warn!(
            schema = number,
            "a check took longer than {CHECK_TIMEOUT:?}: refusing the schema from now on"
        );
        self.0.schemas.condemn(schema);
        self.apply(Event::Condemned {
            text: schema.text().clone(),
            why: SchemaError::Condemned.to_string(),
        });
    }
}

impl Shared {
    /// Whether one of these schemas is refused since it was interned.
    pub(super) fn condemned<'a>(
        &self,
        of: [Option<&'a Arc<Schema>>; 2],
    ) -> Option<&'a Arc<Schema>> {
        of.into_iter()
            .flatten()
            .find(|schema| schema.is_condemned())
    }
}

/// A payload that a thread can take along.
enum PayloadOf {
    Request(Arc<Request>),
    Reply(Payload),
}

impl PayloadOf {
    fn get(&self) -> &Payload {
        match self {
            Self::Request(request) => &request.payload,
            Self::Reply(payload) => payload,
        }
    }
}

fn too_slow_for(request: &Request) -> Failure {
    let message = format!(
        "holding the request against the request schema of agent \"{}\" took longer than \
         {CHECK_TIMEOUT:?}: its workers are sent away until they offer a simpler schema",
        request.agent
    );
    Failure::new(Code::ProtocolViolation, message)
}

fn unable(subject: Subject, why: &str) -> Flaw {
    let code = match subject {
        Subject::Request => Code::Internal,
        Subject::Reply => Code::InvalidReply,
    };
    let message = format!("the {subject} cannot be held against the agent's schema: {why}");
    Flaw::Mismatch(Box::new(Failure::new(code, message)))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn threads_that_never_return_stop_further_checks_until_they_do() {
        let judges = Judges::new();
        let (release, held) = mpsc::channel::<()>();
        let held = Arc::new(std::sync::Mutex::new(held));
        let stuck = (0..STUCK_MAX).map(|_| {
            let held = held.clone();
            judges.apart(Duration::ZERO, move || {
                let _ = held.lock().expect("not poisoned").recv();
            })
        });
        for gave_up in futures_util::future::join_all(stuck).await {
            assert!(matches!(gave_up, Err(NoResult::TooSlow)), "{gave_up:?}");
        }
        let start = Instant::now();
        let refused = judges.apart(GRACE, || ()).await;
        assert!(matches!(refused, Err(NoResult::NoThread(_))), "{refused:?}");
        assert!(start.elapsed() < GRACE);
        drop(release);
        tokio::time::timeout(Duration::from_secs(10), async {
            while judges.apart(GRACE, || ()).await.is_err() {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("the threads have returned");
        let breaks = || -> () { panic!("as a test wants") };
        let broken = judges.apart(GRACE, breaks).await;
        assert!(matches!(broken, Err(NoResult::Broken)), "{broken:?}");
    }
}
