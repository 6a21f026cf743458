//! What a configuration says of one pool, with defaults and ranges.
//!
//! Owns the form. What the rules make of it is `pool`'s affair, what a process is started with the
//! supervisor's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

use crate::ids::is_valid_name;
use crate::pool::{CRASHES_MAX, Dialect, Restart, Rules, Stop};
use crate::retry;

use super::limits::YEAR;

/// Most processes of one pool.
const SIZE_MAX: usize = 1_000;

/// Processes that the harness starts, watches and replaces: one `[[pool]]` of the file.
///
/// ```
/// use harness_server::config::{Config, Pool};
/// use harness_server::pool::Dialect;
///
/// let pool = Pool {
///     agent: "summarize".into(),
///     command: vec!["python3".into(), "worker.py".into()],
///     size: 4,
///     dialect: Dialect::Jsonl,
///     ..Pool::default()
/// };
/// let config = Config { pools: vec![pool], ..Config::default() };
/// assert_eq!(config.pools[0].ready_timeout.as_secs(), 30);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pool {
    /// The agent it offers, which also names the pool.
    pub agent: String,
    /// The program, then its arguments.
    pub command: Vec<String>,
    /// Processes, each with one slot. Default 1.
    pub size: usize,
    /// How they are spoken to. Default grpc.
    pub dialect: Dialect,
    /// Whether a process works many requests or one. Default reuse.
    pub mode: Mode,
    /// Where a child of the grpc dialect dials back. Default unix.
    pub address: DialBack,
    /// The folder they run in; in a file, relative to it. Default that of the file, and without one
    /// the harness's own.
    pub cwd: Option<PathBuf>,
    /// Their environment, beside PATH, LANG, HOME and TZ.
    pub env: BTreeMap<String, String>,
    /// Variables of the harness's own environment that they get as well.
    pub pass_env: Vec<String>,
    /// How long a process may take to be ready. Default 30 s.
    #[serde(with = "humantime_serde")]
    pub ready_timeout: Duration,
    /// Replace a process when it has answered so many requests. Default 0, never.
    pub max_requests: u64,
    /// Replace a process when it has lived so long. Default 0 s, never.
    #[serde(with = "humantime_serde")]
    pub max_age: Duration,
    /// The graces of the kill ladder.
    pub stop: Stop,
    /// When the pool gives up.
    pub restart: Restart,
    /// What a process may use.
    pub limits: ProcessLimits,
    /// What a process may reach.
    pub sandbox: Sandbox,
    /// What is put before the command, for a container.
    pub launcher: Vec<String>,
}

/// How long a process serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// For many requests.
    #[default]
    Reuse,
    /// For one request.
    PerRequest,
}

/// Where a child of the grpc dialect dials back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DialBack {
    /// A Unix socket of its own.
    #[default]
    Unix,
    /// A TCP address, for runtimes without Unix sockets.
    Tcp,
}

/// What a process may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProcessLimits {
    /// Memory, with its descendants. Needs cgroup v2.
    pub memory: Option<ByteSize>,
    /// Address space. Breaks runtimes that reserve much more than they use: Node, Java, Go.
    pub memory_address_space: Option<ByteSize>,
    /// Open files.
    pub open_files: Option<u64>,
    /// Processes. Needs `sandbox.user` or a cgroup.
    pub processes: Option<u64>,
    /// Processor time, in whole seconds; in per-request mode only.
    #[serde(with = "humantime_serde")]
    pub cpu_time: Option<Duration>,
}

/// What a process may reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sandbox {
    /// The user it runs as.
    pub user: Option<String>,
    /// Files and folders it may read; with this or `write` it may touch no others. In a file,
    /// relative to it.
    pub read: Option<Vec<PathBuf>>,
    /// Files and folders it may also write.
    pub write: Option<Vec<PathBuf>>,
    /// Whether it has the network. Default true.
    pub network: bool,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            agent: String::new(),
            command: Vec::new(),
            size: 1,
            dialect: Dialect::default(),
            mode: Mode::default(),
            address: DialBack::default(),
            cwd: None,
            env: BTreeMap::new(),
            pass_env: Vec::new(),
            ready_timeout: Duration::from_secs(30),
            max_requests: 0,
            max_age: Duration::ZERO,
            stop: Stop::default(),
            restart: Restart::default(),
            limits: ProcessLimits::default(),
            sandbox: Sandbox::default(),
            launcher: Vec::new(),
        }
    }
}

impl Default for Sandbox {
    fn default() -> Self {
        Self {
            user: None,
            read: None,
            write: None,
            network: true,
        }
    }
}

/// A setting of a pool that cannot be.
#[derive(Debug, thiserror::Error)]
#[error("pool \"{agent}\": {key}: {message}")]
pub struct PoolError {
    pub(super) agent: String,
    pub(super) key: &'static str,
    message: String,
}

impl Pool {
    /// One with every setting set, so that their names are known.
    pub(super) fn sample() -> Self {
        Self {
            cwd: Some(PathBuf::new()),
            limits: ProcessLimits {
                memory: Some(ByteSize::b(0)),
                memory_address_space: Some(ByteSize::b(0)),
                open_files: Some(0),
                processes: Some(0),
                cpu_time: Some(Duration::ZERO),
            },
            sandbox: Sandbox {
                user: Some(String::new()),
                read: Some(Vec::new()),
                write: Some(Vec::new()),
                network: true,
            },
            ..Self::default()
        }
    }

    /// Makes its relative paths those of a folder.
    pub(super) fn resolve(&mut self, folder: &Path) {
        self.cwd = Some(match &self.cwd {
            Some(cwd) => folder.join(cwd),
            None => folder.to_owned(),
        });
        for paths in [&mut self.sandbox.read, &mut self.sandbox.write] {
            for path in paths.iter_mut().flatten() {
                *path = folder.join(&*path);
            }
        }
    }

    /// What the pool's rules keep to.
    #[must_use]
    pub fn rules(&self) -> Rules {
        Rules {
            size: self.size,
            dialect: self.dialect,
            per_request: self.mode == Mode::PerRequest,
            ready_timeout: self.ready_timeout,
            max_requests: self.max_requests,
            max_age: self.max_age,
            stop: self.stop,
            restart: self.restart,
            back_off: retry::Policy::attempts(1),
        }
    }

    /// Whether a process of `other` is of the same make: whether only the rules differ.
    #[must_use]
    pub fn same_make(&self, other: &Self) -> bool {
        let make = |pool: &Self| Self {
            size: 0,
            ready_timeout: Duration::ZERO,
            max_requests: 0,
            max_age: Duration::ZERO,
            stop: Stop::default(),
            restart: Restart::default(),
            ..pool.clone()
        };
        make(self) == make(other)
    }

    /// Checks that every setting is in its range and goes with the others.
    ///
    /// # Errors
    /// The first that does not, and what to do.
    pub fn check(&self) -> Result<(), PoolError> {
        self.check_names()?;
        let ms = Duration::from_millis;
        let restart = &self.restart;
        for (key, value, least) in [
            ("ready_timeout", self.ready_timeout, ms(1)),
            ("max_age", self.max_age, ms(0)),
            ("stop.cancel_grace", self.stop.cancel_grace, ms(0)),
            ("stop.term_grace", self.stop.term_grace, ms(0)),
            ("restart.min_uptime", restart.min_uptime, ms(0)),
            ("restart.window", restart.window, ms(1)),
        ] {
            if value < least || value > YEAR {
                let range = format!("{value:?} must be {least:?} to 366 days");
                return Err(self.wrong(key, range));
            }
        }
        if self.size > SIZE_MAX {
            let range = format!("{} must be 0 to {SIZE_MAX}", self.size);
            return Err(self.wrong("size", range));
        }
        if restart.max_crashes > CRASHES_MAX {
            let range = format!(
                "{} must be 0 (no limit) to {CRASHES_MAX}",
                restart.max_crashes
            );
            return Err(self.wrong("restart.max_crashes", range));
        }
        let dials = self.dialect == Dialect::Grpc;
        if dials && self.address == DialBack::Tcp && !self.sandbox.network {
            let message = "without sandbox.network no TCP address is reached: leave address out";
            return Err(self.wrong("address", message));
        }
        self.check_limits()
    }

    fn check_names(&self) -> Result<(), PoolError> {
        if !is_valid_name(&self.agent) {
            let pattern = "it must match [a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?";
            return Err(self.wrong("agent", pattern));
        }
        if self.command.first().is_none_or(String::is_empty) {
            let example =
                "give the program and its arguments, such as [\"python3\", \"worker.py\"]";
            return Err(self.wrong("command", example));
        }
        let names = self.env.keys().map(|name| ("env", name));
        let passed = self.pass_env.iter().map(|name| ("pass_env", name));
        for (key, name) in names.chain(passed) {
            if name.is_empty() || name.contains(['=', '\0']) {
                let message = format!("\"{}\" is no variable's name", name.escape_debug());
                return Err(self.wrong(key, message));
            }
            if name.starts_with("HARNESS_") {
                let message = format!("{name}: names that start with HARNESS_ are the harness's");
                return Err(self.wrong(key, message));
            }
        }
        let values = self.env.values().map(|value| ("env", value));
        let arguments = self.command.iter().map(|part| ("command", part));
        let launcher = self.launcher.iter().map(|part| ("launcher", part));
        for (key, text) in values.chain(arguments).chain(launcher) {
            if text.contains('\0') {
                return Err(self.wrong(key, "it must hold no NUL"));
            }
        }
        Ok(())
    }

    fn check_limits(&self) -> Result<(), PoolError> {
        let counts = [
            (
                "limits.memory",
                self.limits.memory.map(|size| size.as_u64()),
            ),
            (
                "limits.memory_address_space",
                self.limits.memory_address_space.map(|size| size.as_u64()),
            ),
            ("limits.open_files", self.limits.open_files),
            ("limits.processes", self.limits.processes),
        ];
        for (key, value) in counts {
            if value == Some(0) {
                return Err(self.wrong(key, "it must be at least 1; leave it out for no limit"));
            }
        }
        if let Some(time) = self.limits.cpu_time {
            if self.mode != Mode::PerRequest {
                let message = "it is only for mode = \"per-request\": a process that is used again \
                               would be killed in the middle of a request";
                return Err(self.wrong("limits.cpu_time", message));
            }
            if time < Duration::from_secs(1) || time > YEAR || time.subsec_nanos() != 0 {
                let range = format!("{time:?} must be whole seconds, at least 1");
                return Err(self.wrong("limits.cpu_time", range));
            }
        }
        Ok(())
    }

    pub(super) fn wrong(&self, key: &'static str, message: impl Into<String>) -> PoolError {
        PoolError {
            agent: self.agent.clone(),
            key,
            message: message.into(),
        }
    }
}
