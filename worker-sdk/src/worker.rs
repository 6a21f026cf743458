//! A worker: a process that offers slots for one agent.
//!
//! Owns the life of the whole worker: it starts a task per slot, leaves in good
//! order when asked, and ends when all slots have. One slot's life is `slot`, one call's is
//! `call`, one request's is `work`; what a call's frames mean is `session`'s affair.

mod alarm;
mod builder;
mod call;
mod in_hand;
mod profile;
mod signals;
mod slot;
mod work;

use std::fmt;
use std::future::Future;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::client::Harness;
use crate::connect::{Environment, Link};
use crate::error::{Error, ErrorKind};

pub use crate::connect::AGENT_VARIABLE;
pub use builder::{SLOTS_MAX, SLOTS_VARIABLE, WorkerBuilder};
pub(crate) use profile::Profile;
use signals::Signals;
use work::Serve;

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
        let place = Environment::read().place(self.settings.url.as_deref())?;
        let shared = Arc::new(Shared {
            harness: Harness::at(place.clone())?,
            link: Link::new(
                place,
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
    /// A slot was welcomed, on the connection of this number.
    fn welcomed(&self, connection: u64) {
        self.link.back(connection);
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

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("profile", &self.profile)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
