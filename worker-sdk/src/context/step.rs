//! Steps: work that is done once, whatever happens to the attempt it is done in.
//!
//! Owns the order in which a step's begin, its work and its result follow each other. Which
//! recorded step is meant, and what to do about it, is `journal`'s affair.

mod blocking;

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Context;
use crate::agent::AgentError;
use crate::journal::{self, Asked, Effect, Entry, Id, Ledger, Outcome, StepError, Usage};
use crate::payload::{FromPayload, IntoPayload};

pub use blocking::BlockingStep;

tokio::task_local! {
    /// Set within the work of a step.
    static WITHIN: ();
}

type Working<'a, T> = Pin<Box<dyn Future<Output = Result<T, AgentError>> + Send + 'a>>;
type Work<'a, T> = Box<dyn FnOnce(String) -> Working<'a, T> + Send + 'a>;

/// A step that has not run; `.await` runs it. See [`Context::step`].
#[must_use = "a step runs when it is awaited"]
pub struct Step<'a, T> {
    ctx: &'a Context,
    name: String,
    key: Option<String>,
    effect: Effect,
    check: Option<Work<'a, Option<T>>>,
    gate: Option<Work<'a, Option<Result<T, AgentError>>>>,
    work: Work<'a, T>,
}

impl Context {
    /// Does a piece of work once. Its result is recorded in the run's journal before it is
    /// returned; a later attempt of the run gets the recorded result and does not run the work.
    ///
    /// The work is given an idempotency key, which is the same in every attempt, for the services
    /// it calls. It returns a value of any type that goes through JSON, or [`crate::Payload`] raw,
    /// or an error; both are recorded. What the step returns is read from the record, the first
    /// time too.
    ///
    /// ```
    /// use worker_sdk::{AgentError, Context};
    ///
    /// # async fn reserve(hotel: &str, key: &str) -> Result<String, std::io::Error> { Ok(hotel.to_owned()) }
    /// # async fn charge(cents: u64, key: &str) -> Result<u64, std::io::Error> { Ok(cents) }
    /// async fn reply(ctx: Context, hotel: String) -> Result<String, AgentError> {
    ///     // Runs again, under the same key, if the worker dies meanwhile.
    ///     let room = ctx.step("reserve", |key| async move { Ok(reserve(&hotel, &key).await?) }).await?;
    ///     // Never runs twice.
    ///     let paid = ctx
    ///         .step("charge", |key| async move { Ok(charge(12_000, &key).await?) })
    ///         .side_effect()
    ///         .await?;
    ///     Ok(format!("{room}, paid {paid}"))
    /// }
    /// ```
    ///
    /// # Which step is meant
    /// Steps without a [`Step::key`] run one after the other and are told apart by their order. Code
    /// that asks for them in another order than the journal holds is not the code that wrote it:
    /// [`StepError::Mismatch`]. So what decides which step comes next must itself come out of a
    /// step or the request, not out of a clock or a random number. Steps with a key may run at the
    /// same time and in any order:
    ///
    /// ```
    /// # use worker_sdk::{AgentError, Context};
    /// # async fn fetch(url: &str) -> Result<String, std::io::Error> { Ok(url.to_owned()) }
    /// async fn both(ctx: &Context) -> Result<(String, String), AgentError> {
    ///     let ours = ctx.step("fetch", |_| async { Ok(fetch("ours").await?) }).key("ours");
    ///     let theirs = ctx.step("fetch", |_| async { Ok(fetch("theirs").await?) }).key("theirs");
    ///     Ok(tokio::try_join!(ours.into_future(), theirs.into_future())?)
    /// }
    /// ```
    ///
    /// # When it fails
    /// An error of the work is its result. One that is [`AgentError::retryable`] and with which the
    /// attempt ended, no other step recorded after it, is tried again by the next attempt, unless
    /// the step is a [`Step::side_effect`].
    ///
    /// # Durability
    /// What is recorded outlives worker and harness in durable runs. In others it is kept in memory
    /// and no later attempt sees it after the harness is gone.
    ///
    /// # Errors
    /// What [`StepError`] lists. `?` in an agent passes it on.
    pub fn step<'a, T, W, F>(&'a self, name: impl Into<String>, work: W) -> Step<'a, T>
    where
        T: IntoPayload + FromPayload + Send + 'a,
        W: FnOnce(String) -> F + Send + 'a,
        F: Future<Output = Result<T, AgentError>> + Send + 'a,
    {
        Step {
            ctx: self,
            name: name.into(),
            key: None,
            effect: Effect::Idempotent,
            check: None,
            gate: None,
            work: Box::new(move |key| Box::pin(work(key))),
        }
    }

    /// Records what a model call used, so that a later attempt goes on counting where this one
    /// stopped. Belongs into the work of the step that calls the model: a recorded result then
    /// uses nothing.
    ///
    /// # Errors
    /// As [`Context::output`].
    pub async fn usage(&self, usage: Usage) -> Result<(), crate::Error> {
        self.append(Entry::Usage(Box::new(usage.clone()))).await?;
        self.ledger().use_up(usage);
        Ok(())
    }

    /// What all attempts of the run have used so far, oldest first.
    pub fn used(&self) -> Vec<Usage> {
        self.ledger().used()
    }

    /// What all attempts have used since a step last got a result that stands.
    #[cfg(feature = "agent-loop")]
    pub(crate) fn unsettled(&self) -> Vec<Usage> {
        self.ledger().unsettled()
    }

    /// What is recorded of a step with a key, which is not asked for: nothing, a begin, or a result.
    #[cfg(feature = "agent-loop")]
    pub(crate) fn recorded(&self, name: &str, key: &str) -> Option<Option<Outcome>> {
        self.ledger().recorded(name, key)
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        let ledger = self.0.ledger.get_or_init(|| {
            let ledger = Ledger::of(self.run_id(), self.0.sink.replay());
            Box::new(Mutex::new(ledger))
        });
        ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a, T> Step<'a, T>
where
    T: IntoPayload + FromPayload + Send + 'a,
{
    /// What tells steps of one name apart, such as an order's number; it has something else than
    /// digits. Default: how often the name was asked for.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The work changes nothing: only its result is recorded, and it may run again.
    pub fn read_only(mut self) -> Self {
        self.effect = Effect::ReadOnly;
        self
    }

    /// The work must not run twice. If an attempt ended between its begin, which is recorded before
    /// it runs, and its result, the step is [`StepError::OutcomeUnknown`] in every later one.
    pub fn side_effect(mut self) -> Self {
        self.effect = Effect::Once;
        self
    }

    /// As [`Step::side_effect`], but whether it happened can be found out: `check`, given the
    /// idempotency key, returns the result if it did, and None if the work is to run. An error of
    /// the check is the step's and is not recorded.
    ///
    /// ```
    /// # use worker_sdk::{AgentError, Context};
    /// # async fn find(key: &str) -> Result<Option<u64>, std::io::Error> { Ok(None) }
    /// # async fn send(key: &str) -> Result<u64, std::io::Error> { Ok(7) }
    /// async fn notify(ctx: &Context) -> Result<u64, AgentError> {
    ///     let number = ctx
    ///         .step("send", |key| async move { Ok(send(&key).await?) })
    ///         .verifiable(|key| async move { Ok(find(&key).await?) })
    ///         .await?;
    ///     Ok(number)
    /// }
    /// ```
    pub fn verifiable<C, F>(mut self, check: C) -> Self
    where
        C: FnOnce(String) -> F + Send + 'a,
        F: Future<Output = Result<Option<T>, AgentError>> + Send + 'a,
    {
        self.effect = Effect::Verifiable;
        self.check = Some(Box::new(move |key| Box::pin(check(key))));
        self
    }

    /// Asks before the work begins: None lets it run, Some is recorded as its result in its stead.
    /// An error of the gate is the step's and is not recorded. What was let through is not asked
    /// about again, so the begin of the work is recorded whatever its effect.
    #[cfg(feature = "agent-loop")]
    pub(crate) fn gated<G, F>(mut self, gate: G) -> Self
    where
        G: FnOnce(String) -> F + Send + 'a,
        F: Future<Output = Result<Option<Result<T, AgentError>>, AgentError>> + Send + 'a,
    {
        if self.effect == Effect::ReadOnly {
            self.effect = Effect::Idempotent;
        }
        self.gate = Some(Box::new(move |key| Box::pin(gate(key))));
        self
    }

    async fn run(self) -> Result<T, StepError> {
        let asked = Asking::new(self.ctx, &self.name, self.key.as_deref(), self.effect)?;
        let mut running = match asked {
            Asking::Recorded { id, outcome } => return read(&id, outcome),
            Asking::Run(running) => running,
        };
        let key = running.idempotency_key();
        if let Some(check) = self.check.filter(|_| running.check)
            && let Some(value) = WITHIN
                .scope((), check(key.clone()))
                .await
                .map_err(StepError::Failed)?
        {
            return running.finish(Ok(value)).await;
        }
        if let Some(gate) = self.gate.filter(|_| running.begin)
            && let Some(instead) = WITHIN
                .scope((), gate(key.clone()))
                .await
                .map_err(StepError::Failed)?
        {
            return running.finish(instead).await;
        }
        running.begin().await?;
        let result = WITHIN.scope((), (self.work)(key)).await;
        running.finish(result).await
    }
}

impl<'a, T> IntoFuture for Step<'a, T>
where
    T: IntoPayload + FromPayload + Send + 'a,
{
    type Output = Result<T, StepError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl<T> fmt::Debug for Step<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step")
            .field("name", &self.name)
            .field("key", &self.key)
            .field("effect", &self.effect)
            .finish_non_exhaustive()
    }
}

/// A step that was asked for.
enum Asking<'a> {
    Recorded { id: Id, outcome: Outcome },
    Run(Running<'a>),
}

impl<'a> Asking<'a> {
    fn new(
        ctx: &'a Context,
        name: &str,
        key: Option<&str>,
        effect: Effect,
    ) -> Result<Self, StepError> {
        let nested = WITHIN.try_with(|()| ()).is_ok();
        let asked = ctx.ledger().ask(name, key, effect, nested)?;
        Ok(match asked {
            Asked::Recorded { id, outcome } => Self::Recorded { id, outcome },
            Asked::Run { id, begin, check } => Self::Run(Running {
                ctx,
                id: Some(id),
                begin,
                check,
                ran: false,
            }),
        })
    }
}

/// A step whose work runs. Dropping it tells the ledger that there is no result.
struct Running<'a> {
    ctx: &'a Context,
    /// None once the result is recorded.
    id: Option<Id>,
    /// Its begin is to be recorded: no attempt before this one had begun it.
    begin: bool,
    check: bool,
    ran: bool,
}

impl Running<'_> {
    fn id(&self) -> &Id {
        self.id
            .as_ref()
            .expect("a running step must have its id until it is done")
    }

    fn idempotency_key(&self) -> String {
        self.ctx.ledger().idempotency_key(self.id())
    }

    async fn record(&self, outcome: Option<Outcome>) -> Result<(), StepError> {
        let Id { name, key } = self.id().clone();
        let step = journal::Step {
            idempotency_key: self.idempotency_key(),
            name,
            key,
            outcome,
        };
        let entry = Entry::Step(Box::new(step));
        self.ctx.append(entry).await.map_err(StepError::Journal)
    }

    /// Records that the work is about to run, where that matters. Its work may have had its effect
    /// from here on.
    async fn begin(&mut self) -> Result<(), StepError> {
        if self.begin {
            self.record(None).await?;
        }
        self.ran = true;
        Ok(())
    }

    /// Records what the work returned and gives it back as it is recorded.
    async fn finish<T>(mut self, result: Result<T, AgentError>) -> Result<T, StepError>
    where
        T: IntoPayload + FromPayload,
    {
        let outcome = match result {
            Ok(value) => match value.into_payload() {
                Ok(payload) => Ok(payload),
                Err(why) => {
                    return Err(StepError::Misused(format!(
                        "the result of the step {} has no JSON form: {why}",
                        self.id()
                    )));
                }
            },
            Err(error) => Err(Box::new(error.into_parts())),
        };
        self.record(Some(outcome.clone())).await?;
        let id = self
            .id
            .take()
            .expect("a step must be finished at most once");
        self.ctx.ledger().done(id.clone(), outcome.clone());
        read(&id, outcome)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.ctx.ledger().dropped(id, self.ran);
        }
    }
}

fn read<T: FromPayload>(id: &Id, outcome: Outcome) -> Result<T, StepError> {
    match outcome {
        Ok(payload) => T::from_payload(payload).map_err(|why| StepError::Unreadable {
            step: id.to_string(),
            why,
        }),
        Err(parts) => Err(StepError::Failed(AgentError::from_parts(*parts))),
    }
}
