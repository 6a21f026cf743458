//! Starting a durable run.
//!
//! Owns the call and its options beside those of every ask. What becomes of the run is in
//! [`super::runs`]; following it is [`Harness::watch_run`].

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use harness_proto::v1;
use tonic::Request;

use super::runs::Run;
use super::{Ask, Harness, RetryPolicy};
use crate::error::Error;
use crate::wire;

/// How long the harness may take to have a run on its disk.
const PATIENCE: Duration = Duration::from_secs(30);

/// The way of a durable run.
#[derive(Debug)]
pub(super) struct Durable(pub(super) Harness);

/// A durable run about to be started; `.await` starts it and gives it as it is on disk, or as it has
/// ended where [`StartRun::wait_for_end`] says so. Dropping the future does not stop the run.
#[must_use = "a run is started when it is awaited"]
pub struct StartRun {
    ask: Ask<(), Durable>,
    idempotency_key: String,
    start_time: Option<SystemTime>,
    labels: std::collections::HashMap<String, String>,
    wait_for_end: Option<Duration>,
}

impl StartRun {
    pub(super) fn new(ask: Ask<(), Durable>) -> Self {
        Self {
            ask,
            idempotency_key: String::new(),
            start_time: None,
            labels: std::collections::HashMap::new(),
            wait_for_end: None,
        }
    }

    fn with(self, change: impl FnOnce(Ask<(), Durable>) -> Ask<(), Durable>) -> Self {
        Self {
            ask: change(self.ask),
            ..self
        }
    }

    /// The same key and payload give the first run, whatever became of it; another payload is
    /// `IdempotencyConflict`. At most 256 bytes; empty, every call makes a run.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = key.into();
        self
    }

    /// Not delivered before this, at most 366 days ahead. Default: at once.
    pub fn start_time(mut self, at: SystemTime) -> Self {
        self.start_time = Some(at);
        self
    }

    /// For lists; may be given more than once, 32 in all.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// Gives the run when it has ended, or as it stands after so long; see
    /// [`Harness::wait_for_end`]. Default: as soon as it is on disk.
    pub fn wait_for_end(mut self, at_most: Duration) -> Self {
        self.wait_for_end = Some(at_most);
        self
    }

    /// How long the run may take, counted from its start time. Default and at most 24 h.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|ask| ask.timeout(timeout))
    }

    /// A pair the agent can read, as [`Ask::metadata`].
    pub fn metadata(self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|ask| ask.metadata(key, value))
    }

    /// Only slots with this label take the run; may be given more than once.
    pub fn selector(self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|ask| ask.selector(key, value))
    }

    /// -100 to 100, default 0; higher goes first.
    pub fn priority(self, priority: i32) -> Self {
        self.with(|ask| ask.priority(priority))
    }

    /// Starts it although nobody has offered the agent yet.
    pub fn wait_for_agent(self) -> Self {
        self.with(Ask::wait_for_agent)
    }

    /// When a failed attempt is followed by another. Default: three attempts in all.
    pub fn retry(self, policy: RetryPolicy) -> Self {
        self.with(|ask| ask.retry(policy))
    }

    /// The namespace to ask in. Default `default`.
    pub fn namespace(self, namespace: impl Into<String>) -> Self {
        self.with(|ask| ask.namespace(namespace))
    }

    async fn send(self) -> Result<Run, Error> {
        let (Durable(harness), agent, payload, options) = self.ask.into_parts()?;
        let mut request = Request::new(v1::StartRunRequest {
            agent,
            payload: Some(payload),
            options: Some(options),
            idempotency_key: self.idempotency_key,
            start_time: self.start_time.map(Into::into),
            labels: self.labels,
            wait_for_end: self.wait_for_end.map(wire::duration_out),
        });
        let wait = self.wait_for_end.unwrap_or_default().min(wire::LONGEST);
        let patience = PATIENCE.saturating_add(wait);
        request.set_timeout(patience);
        let mut runs = harness.runs();
        let call = harness.called(runs.start_run(request));
        let answer = tokio::time::timeout(patience, call)
            .await
            .unwrap_or_else(|_| Err(harness.unanswered(patience)))?;
        Ok(wire::runs::run(answer.run.unwrap_or_default()))
    }
}

impl IntoFuture for StartRun {
    type Output = Result<Run, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

impl fmt::Debug for StartRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartRun").finish_non_exhaustive()
    }
}
