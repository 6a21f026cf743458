//! A worker: a process that offers slots for one agent.
//!
//! Owns the builder and the life of the whole worker: it starts a task per slot, leaves in good
//! order when asked, and ends when all slots have. One slot's life is `slot`, one call's is
//! `call`, one request's is `work`; what a call's frames mean is [`crate::session`]'s affair.

mod call;
mod profile;
mod signals;
mod slot;
mod work;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::agent::Agent;
use crate::client::Harness;
use crate::connect::{self, Link};
use crate::error::{Error, ErrorKind};

pub(crate) use profile::Profile;
use profile::invalid;
use signals::Signals;
use work::Serve;

/// The most slots of one worker; they share one connection.
pub const SLOTS_MAX: usize = 1000;

/// A worker ready to run; see [`Worker::builder`].
///
/// ```no_run
/// use worker_sdk::{Payload, Worker, agent_fn};
///
/// # async fn run() -> Result<(), worker_sdk::Error> {
/// Worker::builder(agent_fn(|_ctx, request: Payload| async move { Ok(request) }))
///     .name("echo")
///     .slots(8)
///     .connect("http://127.0.0.1:7070")
///     .run()
///     .await
/// # }
/// ```
pub struct Worker {
    profile: Profile,
    agent: Arc<dyn Serve>,
    settings: Settings,
}

#[derive(Debug, Clone)]
struct Settings {
    url: Option<String>,
    slots: usize,
    leave_on_signals: bool,
    backoff_initial: Duration,
    backoff_max: Duration,
}

/// What all slots of a worker share.
struct Shared {
    profile: Profile,
    agent: Arc<dyn Serve>,
    link: Link,
    /// For agents that ask agents, on a connection of its own.
    harness: Harness,
    leaving: CancellationToken,
    attached: AtomicBool,
    backoff_initial: Duration,
    backoff_max: Duration,
}

impl Worker {
    /// Sets up a worker for this agent. The name is the one thing that must be set.
    pub fn builder<A: Agent>(agent: A) -> WorkerBuilder {
        let mut profile = Profile::new();
        profile.describe::<A>();
        let settings = Settings {
            url: None,
            slots: 1,
            leave_on_signals: true,
            backoff_initial: Duration::from_millis(100),
            backoff_max: Duration::from_secs(5),
        };
        WorkerBuilder {
            worker: Self {
                profile,
                agent: work::erase(agent),
                settings,
            },
        }
    }

    /// Offers the agent until this process is asked to stop by SIGTERM or SIGINT, or the harness
    /// drains it. Leaving in good order means: take no new request, finish the one in hand, leave.
    /// A harness that is away, now or later, is waited for.
    ///
    /// # Errors
    /// `Unauthenticated`, `PermissionDenied`, `InvalidWorker`, `UnsupportedProtocol` or
    /// `Unimplemented` when the harness refuses this worker; `InvalidAddress`; `Interrupted` when
    /// a second signal came before all work was finished.
    pub async fn run(self) -> Result<(), Error> {
        if !self.settings.leave_on_signals {
            return self.run_until(std::future::pending()).await;
        }
        let mut signals = Signals::listen()?;
        let leave = CancellationToken::new();
        let mut running = std::pin::pin!(self.run_until(leave.clone().cancelled_owned()));
        loop {
            tokio::select! {
                result = &mut running => return result,
                signal = signals.next() => {
                    if leave.is_cancelled() {
                        return Err(Error::new(
                            ErrorKind::Interrupted,
                            format!("a second signal, {signal}, came before all work was finished"),
                        ));
                    }
                    info!(signal, "leaving once the work in hand is finished");
                    leave.cancel();
                }
            }
        }
    }

    /// As [`Worker::run`], but leaves when `shutdown` is ready and looks at no signal. Dropping
    /// the returned future drops the work in hand.
    ///
    /// # Errors
    /// As [`Worker::run`], without `Interrupted`.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let address = connect::resolve(self.settings.url.as_deref())?;
        let shared = Arc::new(Shared {
            harness: Harness::at(address.clone())?,
            link: Link::new(
                address,
                self.settings.backoff_initial,
                self.settings.backoff_max,
            ),
            profile: self.profile,
            agent: self.agent,
            leaving: CancellationToken::new(),
            attached: AtomicBool::new(false),
            backoff_initial: self.settings.backoff_initial,
            backoff_max: self.settings.backoff_max,
        });
        let mut slots = JoinSet::new();
        for _ in 0..self.settings.slots {
            slots.spawn(slot::run(Arc::clone(&shared)));
        }
        let mut failed = None;
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown, if !shared.leaving.is_cancelled() => shared.leaving.cancel(),
                ended = slots.join_next() => match ended {
                    None => return failed.map_or(Ok(()), Err),
                    Some(Ok(Ok(()))) => {}
                    Some(Ok(Err(error))) => {
                        // What one slot is refused all will be: the others leave in good order.
                        failed.get_or_insert(error);
                        shared.leaving.cancel();
                    }
                    Some(Err(panic)) => resume_unwind(panic.into_panic()),
                },
            }
        }
    }
}

impl Shared {
    /// A slot was welcomed.
    fn welcomed(&self) {
        self.link.back();
        if !self.attached.swap(true, Ordering::Relaxed) {
            let profile = &self.profile;
            info!(
                agent = profile.agent,
                worker_id = profile.worker_id,
                address = %self.link.address(),
                "attached to the harness"
            );
        }
    }
}

/// A worker being set up; see [`Worker::builder`].
#[must_use = "a worker is started by run"]
pub struct WorkerBuilder {
    worker: Worker,
}

impl WorkerBuilder {
    /// The agent's name: lower case letters, digits, `.`, `_` and `-`, starting and ending with a
    /// letter or digit, at most 63 long.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.worker.profile.agent = name.into();
        self
    }

    /// The version of the agent's code. Default empty.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.worker.profile.version = version.into();
        self
    }

    /// One line for people that says what the agent does. Default empty.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.worker.profile.description = description.into();
        self
    }

    /// A name for this worker process. Default: the harness makes one of host and process id.
    pub fn worker_name(mut self, name: impl Into<String>) -> Self {
        self.worker.profile.worker_name = name.into();
        self
    }

    /// A label that selectors match; at most 32.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.worker.profile.labels.insert(key.into(), value.into());
        self
    }

    /// All labels at once, in place of those set before.
    pub fn labels<K: Into<String>, V: Into<String>>(
        mut self,
        labels: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let labels = labels
            .into_iter()
            .map(|(key, value)| (key.into(), value.into()));
        self.worker.profile.labels = labels.collect::<HashMap<_, _>>();
        self
    }

    /// How many requests this worker works on at once, 1 to [`SLOTS_MAX`]. Default 1.
    pub fn slots(mut self, slots: usize) -> Self {
        self.worker.settings.slots = slots;
        self
    }

    /// The namespace to offer the agent in. Default `default`.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.worker.profile.namespace = namespace.into();
        self
    }

    /// The harness: host:port, http://host:port or unix:/absolute/path. Default: what
    /// `HARNESS_ADDRESS` says, else `http://127.0.0.1:7070`.
    pub fn connect(mut self, url: impl Into<String>) -> Self {
        self.worker.settings.url = Some(url.into());
        self
    }

    /// The largest frame the worker takes, in bytes. Default 4 MiB. Requests that do not fit go to
    /// other workers.
    pub fn max_receive_bytes(mut self, bytes: u64) -> Self {
        self.worker.profile.max_receive_bytes = bytes;
        self
    }

    /// The waits between tries to reach a harness that is away: from `initial`, doubling, to
    /// `max`, each drawn from half to one and a half of that. Default 100 ms to 5 s.
    pub fn reconnect_waits(mut self, initial: Duration, max: Duration) -> Self {
        self.worker.settings.backoff_initial = initial;
        self.worker.settings.backoff_max = max.max(initial);
        self
    }

    /// Whether [`Worker::run`] leaves on SIGTERM and SIGINT. Default true.
    pub fn leave_on_signals(mut self, leave: bool) -> Self {
        self.worker.settings.leave_on_signals = leave;
        self
    }

    /// The worker, checked.
    ///
    /// # Errors
    /// `InvalidWorker` when its name, labels, slots or derived schemas break the protocol's rules,
    /// `InvalidAddress` when the address is none.
    pub fn build(self) -> Result<Worker, Error> {
        let worker = self.worker;
        worker.profile.check()?;
        if !(1..=SLOTS_MAX).contains(&worker.settings.slots) {
            let slots = worker.settings.slots;
            return Err(invalid(format!(
                "a worker has 1 to {SLOTS_MAX} slots, not {slots}"
            )));
        }
        connect::resolve(worker.settings.url.as_deref())?;
        Ok(worker)
    }

    /// [`WorkerBuilder::build`] and [`Worker::run`].
    ///
    /// # Errors
    /// As those two.
    pub async fn run(self) -> Result<(), Error> {
        self.build()?.run().await
    }

    /// [`WorkerBuilder::build`] and [`Worker::run_until`].
    ///
    /// # Errors
    /// As those two.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        self.build()?.run_until(shutdown).await
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("profile", &self.profile)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for WorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WorkerBuilder").field(&self.worker).finish()
    }
}
