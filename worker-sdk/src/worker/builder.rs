//! Setting up a worker.
//!
//! Owns the options, their defaults and their check. Starts nothing.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use super::profile::{Profile, RECEIVE_BYTES, invalid};
use super::{Settings, Worker, work};
use crate::agent::Agent;
use crate::connect::Environment;
use crate::error::Error;

/// The most slots of one worker; they share one connection.
pub const SLOTS_MAX: usize = 1000;
/// The environment variable a worker reads when it is given no number of slots.
pub const SLOTS_VARIABLE: &str = "HARNESS_SLOTS";

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
            slots: None,
            of_pool: false,
        }
    }
}

/// A worker being set up; see [`Worker::builder`].
#[must_use = "a worker is started by run"]
pub struct WorkerBuilder {
    worker: Worker,
    slots: Option<usize>,
    of_pool: bool,
}

impl WorkerBuilder {
    /// Says that this is a process of a pool: what a harness gives to those it starts must be
    /// there, and is used. `HARNESS_ADDRESS` is where it dials back, `HARNESS_TOKEN` goes with every
    /// call, and `HARNESS_AGENT` is the agent's name where [`WorkerBuilder::name`] gives none. A
    /// process of a pool has one slot.
    ///
    /// A worker that leaves this out uses the same variables where they are set, so it can be
    /// started by a pool and by hand.
    ///
    /// ```no_run
    /// use worker_sdk::{Payload, Worker, agent_fn};
    ///
    /// # async fn run() -> Result<(), worker_sdk::Error> {
    /// Worker::builder(agent_fn(|_ctx, request: Payload| async move { Ok(request) }))
    ///     .from_env()
    ///     .run()
    ///     .await
    /// # }
    /// ```
    pub fn from_env(mut self) -> Self {
        self.of_pool = true;
        self
    }

    /// The agent's name: lower case letters, digits, `.`, `_` and `-`, starting and ending with a
    /// letter or digit, at most 63 long. Default: what `HARNESS_AGENT` says.
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

    /// How many requests this worker works on at once, 1 to [`SLOTS_MAX`]. Default: what
    /// `HARNESS_SLOTS` says, else 1.
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = Some(slots);
        self
    }

    /// The namespace to offer the agent in. Default `default`.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.worker.profile.namespace = namespace.into();
        self
    }

    /// The harness: host:port, http://host:port or unix:/absolute/path. Default: what
    /// `HARNESS_ADDRESS` says, else `http://127.0.0.1:7070`. Only to that default goes the token of
    /// `HARNESS_TOKEN`.
    pub fn connect(mut self, url: impl Into<String>) -> Self {
        self.worker.settings.url = Some(url.into());
        self
    }

    /// The largest frame the worker takes, in bytes. Default, and what 0 means: 4 MiB. Requests
    /// that do not fit go to other workers.
    pub fn max_receive_bytes(mut self, bytes: u64) -> Self {
        self.worker.profile.max_receive_bytes = match bytes {
            0 => RECEIVE_BYTES,
            bytes => bytes,
        };
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
    /// `InvalidWorker` when its name, labels, slots (`HARNESS_SLOTS` included) or derived schemas
    /// break the protocol's rules, or what [`WorkerBuilder::from_env`] needs is not set;
    /// `InvalidAddress` when the address is none.
    pub fn build(self) -> Result<Worker, Error> {
        let environment = Environment::read();
        if self.of_pool {
            environment.check_of_pool()?;
        }
        let mut worker = self.worker;
        if worker.profile.agent.is_empty() {
            worker.profile.agent = environment.agent.clone().unwrap_or_default();
        }
        worker.profile.check()?;
        worker.settings.slots = match self.slots {
            Some(slots) => checked_slots(slots)?,
            None => slots_from(std::env::var_os(SLOTS_VARIABLE).as_deref())?,
        };
        environment.place(worker.settings.url.as_deref())?;
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

fn checked_slots(slots: usize) -> Result<usize, Error> {
    if (1..=SLOTS_MAX).contains(&slots) {
        return Ok(slots);
    }
    let message = format!("a worker has 1 to {SLOTS_MAX} slots, not {slots}");
    Err(invalid(message))
}

/// The slots of a worker that was told no number, by the variable's value.
fn slots_from(variable: Option<&OsStr>) -> Result<usize, Error> {
    let text = variable.unwrap_or_default().to_string_lossy();
    if text.is_empty() {
        return Ok(1);
    }
    let slots = text
        .parse()
        .ok()
        .and_then(|slots| checked_slots(slots).ok());
    slots.ok_or_else(|| {
        invalid(format!(
            "{SLOTS_VARIABLE} is {text:?} and must be a number from 1 to {SLOTS_MAX}"
        ))
    })
}

impl fmt::Debug for WorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerBuilder")
            .field("worker", &self.worker)
            .field("slots", &self.slots)
            .field("of_pool", &self.of_pool)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_says_the_slots_of_a_worker_that_was_told_none() {
        for (text, slots) in [
            (None, 1),
            (Some(""), 1),
            (Some("7"), 7),
            (Some("1000"), 1000),
        ] {
            assert_eq!(slots_from(text.map(OsStr::new)).unwrap(), slots, "{text:?}");
        }
        for text in ["0", "1001", "-1", "many", " 2", "99999999999999999999"] {
            let error = slots_from(Some(OsStr::new(text))).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidWorker);
            assert!(error.message().contains("HARNESS_SLOTS"), "{error}");
            assert!(error.message().contains(text), "{error}");
        }
    }
}
