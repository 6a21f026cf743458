//! What an agent is given beside the request.
//!
//! Owns [`Context`]: the deadline, cancellation, output, progress, metadata and asking other
//! agents. What it writes goes to a journal through `sink`, so the same context works without a
//! harness (`journal::Attempt`, [`crate::testing`]). It decides nothing: the harness keeps the deadline.

pub(crate) mod alone;
mod blocking;
mod cancel;
mod facts;
mod sink;
mod step;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::client::{Ask, Harness};
use crate::error::{Error, ErrorKind};
use crate::journal::{Entry, Ledger};
use crate::payload::{FromPayload, IntoPayload};

pub use blocking::BlockingContext;
use cancel::{Cancel, Holds};
pub use cancel::{CancelReason, Hold};
pub use facts::{Caller, LogLevel, Trace};
pub(crate) use facts::{Facts, deadline_in};
pub(crate) use sink::{Append, Sink};
pub use step::{BlockingStep, Step};

/// What an agent is given beside the request. Cheap to clone; clones are the same context.
///
/// ```
/// use worker_sdk::{AgentError, Context};
///
/// async fn reply(ctx: Context, text: String) -> Result<usize, AgentError> {
///     for line in text.lines() {
///         ctx.output(line).await?;
///     }
///     ctx.progress(1.0, "all lines sent").await?;
///     Ok(text.lines().count())
/// }
/// ```
#[derive(Clone)]
pub struct Context(Arc<Inner>);

/// All of a request, in one piece: each has one.
struct Inner {
    facts: Facts,
    cancel: Cancel,
    sink: Sink,
    holds: Holds,
    harness: Option<Harness>,
    /// Made at the first step.
    ledger: OnceLock<Box<Mutex<Ledger>>>,
}

impl Context {
    pub(crate) fn new(facts: Facts, sink: Sink, harness: Option<Harness>) -> Self {
        Self(Arc::new(Inner {
            facts,
            cancel: Cancel::default(),
            sink,
            holds: Holds::default(),
            harness,
            ledger: OnceLock::new(),
        }))
    }

    /// Says that the work is to stop.
    pub(crate) fn stop(&self, reason: CancelReason) {
        self.0.cancel.set(reason);
    }

    /// Waits until nothing holds the slot.
    pub(crate) async fn unheld(&self) {
        self.0.holds.wait().await;
    }

    /// Where what the agent writes goes.
    pub(crate) fn sink(&self) -> &Sink {
        &self.0.sink
    }

    fn holds(&self) -> &Holds {
        &self.0.holds
    }

    /// The run, a UUIDv7 in its 36 character form.
    pub fn run_id(&self) -> &str {
        &self.0.facts.run_id
    }

    /// The delivery of the run, numbered from 1.
    pub fn attempt(&self) -> u32 {
        self.0.facts.attempt
    }

    /// When the run's deadline passes, or the attempt's timeout if that is sooner, by this machine's
    /// monotonic clock.
    pub fn deadline(&self) -> Instant {
        self.0.facts.deadline
    }

    /// What is left until [`Context::deadline`]; zero when it has passed.
    pub fn time_left(&self) -> Duration {
        let now = tokio::time::Instant::now().into_std();
        self.0.facts.deadline.saturating_duration_since(now)
    }

    /// Whether the run outlives restarts of the harness.
    pub fn is_durable(&self) -> bool {
        self.0.facts.durable
    }

    /// The most bytes that an entry of the journal may have when the work began: a piece of output,
    /// or a step's result with its name, its key and its idempotency key. 1 MiB unless the harness
    /// says otherwise.
    pub fn entry_bytes_max(&self) -> u64 {
        self.0.facts.entry_bytes_max
    }

    /// The caller's metadata.
    pub fn metadata(&self) -> &HashMap<String, String> {
        &self.0.facts.metadata
    }

    /// Who asked.
    pub fn caller(&self) -> &Caller {
        &self.0.facts.caller
    }

    /// How many runs stand above this one; 0 when an application asked.
    pub fn depth(&self) -> u32 {
        self.0.facts.depth
    }

    /// The caller's trace context.
    pub fn trace(&self) -> &Trace {
        &self.0.facts.trace
    }

    /// The key the run was started with, empty for asks.
    pub fn idempotency_key(&self) -> &str {
        &self.0.facts.idempotency_key
    }

    /// Whether the work is to stop. An async agent is dropped at its next `.await` then; blocking
    /// code and whatever it started look at this.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancel.reason().is_some()
    }

    /// Waits until the work is to stop.
    pub async fn cancelled(&self) {
        self.0.cancel.wait().await;
    }

    /// Why the work is to stop; None while it is not.
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        self.0.cancel.reason()
    }

    /// Keeps the slot away until the returned value is dropped, also after the agent's future was
    /// dropped: for a thread, a task or a process that goes on. The harness hears that the work
    /// has stopped, and gives this slot other work, only when all holds are gone.
    ///
    /// A live hold also withholds the reply: what the agent has returned is sent when the last
    /// hold is gone. One that is never dropped makes the run end at its deadline, unanswered.
    pub fn hold(&self) -> Hold {
        Hold::new(self.clone())
    }

    /// Sends a piece of output: a value as JSON, or a [`crate::Payload`] as it is. Waits while too
    /// much is sent and not yet taken by the harness.
    ///
    /// # Errors
    /// `Cancelled` when the work is to stop, `PayloadTooLarge` when the piece is over the
    /// harness's limit ([`Context::entry_bytes_max`]), `Decode` when it has no JSON form.
    pub async fn output(&self, piece: impl IntoPayload) -> Result<(), Error> {
        let payload = piece.into_payload().map_err(unwritable)?;
        self.append(Entry::Output(payload)).await
    }

    /// Says how far the work is, from 0.0 to 1.0, with a line for a person.
    ///
    /// # Errors
    /// As [`Context::output`].
    pub async fn progress(&self, fraction: f64, message: impl Into<String>) -> Result<(), Error> {
        let fraction = if fraction.is_finite() {
            fraction.clamp(0.0, 1.0)
        } else {
            0.0
        };
        self.append(Entry::Progress {
            fraction,
            message: message.into(),
        })
        .await
    }

    /// Writes a log line into the run's journal, where whoever watches the run sees it.
    ///
    /// # Errors
    /// As [`Context::output`].
    pub async fn log(&self, level: LogLevel, message: impl Into<String>) -> Result<(), Error> {
        self.append(Entry::Log {
            level,
            message: message.into(),
        })
        .await
    }

    async fn append(&self, entry: Entry) -> Result<(), Error> {
        if let Some(reason) = self.cancel_reason() {
            return Err(stopped(reason));
        }
        self.0.sink.append(entry).await
    }

    /// Asks another agent. The answer must come before [`Context::deadline`]; [`Ask::timeout`] can
    /// only shorten that. Trace context and namespace are this run's, and the harness is told that
    /// this run asks: it refuses an ask that waits for slots which wait for it (`Busy`, naming the
    /// cycle) and chains deeper than 16. Dropping the future cancels the other run.
    ///
    /// ```
    /// use worker_sdk::{AgentError, Answer, Context};
    ///
    /// async fn reply(ctx: Context, text: String) -> Result<String, AgentError> {
    ///     let short: Answer<String> = ctx.ask("summarize", &text).await?;
    ///     Ok(short.value)
    /// }
    /// ```
    pub fn ask<R: FromPayload>(
        &self,
        agent: impl Into<String>,
        request: impl IntoPayload,
    ) -> Ask<R> {
        let facts = &self.0.facts;
        let ask = Ask::unary(self.0.harness.clone(), agent.into(), request.into_payload())
            .deadline(facts.deadline)
            .namespace(facts.caller.namespace.clone())
            .trace(facts.trace.clone());
        match &self.0.sink {
            Sink::Call(_) => ask.parent(&facts.run_id, facts.attempt),
            // No harness knows the run of a test.
            Sink::Journal(_) => ask,
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("run_id", &self.run_id())
            .field("attempt", &self.attempt())
            .field("cancel_reason", &self.cancel_reason())
            .finish_non_exhaustive()
    }
}

fn unwritable(why: String) -> Error {
    Error::new(
        ErrorKind::Decode,
        format!("the value has no JSON form: {why}"),
    )
}

fn stopped(reason: CancelReason) -> Error {
    Error::new(ErrorKind::Cancelled, reason.to_string())
}
