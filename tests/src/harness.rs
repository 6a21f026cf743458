//! A harness under test: `harness serve` in a process of its own.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::guarded::public;
use crate::process::{Finished, Process, Signal};
use crate::programs::{command, command_of};
use crate::wait::{BOUND, eventually};

/// A running harness; killed when dropped.
pub struct Harness {
    process: Process,
    address: String,
    folder: TempDir,
    #[expect(dead_code, reason = "holds the program that another user runs")]
    program: Option<TempDir>,
}

/// A harness to be started.
pub struct HarnessBuilder {
    listen: Option<String>,
    unix: bool,
    config: Option<String>,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    user: Option<u32>,
}

impl Harness {
    /// Starts one with default settings on a free port of 127.0.0.1, and waits until it listens.
    ///
    /// # Panics
    /// When it does not start.
    #[track_caller]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Sets one up.
    pub fn builder() -> HarnessBuilder {
        HarnessBuilder {
            listen: None,
            unix: false,
            config: None,
            arguments: Vec::new(),
            environment: Vec::new(),
            user: None,
        }
    }

    /// Where it listens, as callers and workers write it.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The command `harness ARGUMENTS...`, speaking to this harness.
    pub fn command<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Command {
        let mut command = command("harness");
        command
            .env("HARNESS_ADDRESS", &self.address)
            .args(arguments);
        command
    }

    /// Runs `harness ARGUMENTS...` against this harness until it ends.
    ///
    /// # Panics
    /// When it does not end within [`BOUND`].
    #[track_caller]
    pub fn cli<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Finished {
        Process::run("harness (client)", self.command(arguments))
    }

    /// The summary of an agent as `harness agents --json` tells it; none while it is unknown.
    #[track_caller]
    pub fn agent(&self, agent: &str) -> Option<serde_json::Value> {
        let told = self.cli(["agents", "--json"]);
        assert_eq!(told.code, Some(0), "{told}");
        let agents = told.json();
        let agents = agents.as_array().expect("a list of agents");
        agents.iter().find(|found| found["name"] == agent).cloned()
    }

    /// The workers of an agent as `harness workers --json` tells them.
    #[track_caller]
    pub fn workers(&self, agent: &str) -> serde_json::Value {
        let told = self.cli(["workers", agent, "--json"]);
        assert_eq!(told.code, Some(0), "{told}");
        told.json()
    }

    /// Its folder, where its configuration file is, and with it its socket.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A pool as `harness pools --json` tells it.
    ///
    /// # Panics
    /// When there is none of that name.
    #[track_caller]
    pub fn pool(&self, agent: &str) -> serde_json::Value {
        let told = self.cli(["pools", "--json"]);
        assert_eq!(told.code, Some(0), "{told}");
        let pools = told.json();
        let mut pools = pools.as_array().expect("a list of pools").iter();
        let found = pools.find(|pool| pool["agent"] == agent);
        found
            .unwrap_or_else(|| panic!("no pool {agent} in {told}"))
            .clone()
    }

    /// Waits until a pool is as it should be; gives it.
    ///
    /// # Panics
    /// When it is not within [`BOUND`].
    #[track_caller]
    pub fn wait_for_pool(
        &self,
        agent: &str,
        what: &str,
        is: impl Fn(&serde_json::Value) -> bool,
    ) -> serde_json::Value {
        let what = format!("pool {agent}: {what}");
        eventually(&what, BOUND, || {
            let pool = self.pool(agent);
            is(&pool).then_some(pool)
        })
    }

    /// Waits until every process of a pool is ready, and none is beside them; gives the pool.
    ///
    /// # Panics
    /// When it is not so within [`BOUND`].
    #[track_caller]
    pub fn wait_for_full(&self, agent: &str) -> serde_json::Value {
        self.wait_for_pool(agent, "all ready", |pool| {
            let processes = pool["processes"].as_array().map(Vec::len);
            pool["state"] == "RUNNING" && processes == pool["size"].as_u64().map(|n| n as usize)
        })
    }

    /// Gives it another configuration file and has it read that.
    ///
    /// # Panics
    /// When the file cannot be written.
    #[track_caller]
    pub fn reload(&self, config: &str) {
        let path = self.folder.path().join("harness.toml");
        std::fs::write(path, config).expect("the configuration must be written");
        self.process.signal(Signal::SIGHUP);
    }

    /// Waits until an agent has so many slots that are READY.
    ///
    /// # Panics
    /// When it does not within [`BOUND`].
    #[track_caller]
    pub fn wait_for_ready(&self, agent: &str, slots: u64) {
        let what = format!("agent {agent} has {slots} READY slots");
        eventually(&what, BOUND, || {
            let ready = self.agent(agent)?["slots_ready"].as_u64();
            (ready == Some(slots)).then_some(())
        });
    }

    /// Waits until an agent has so many slots that are BUSY.
    ///
    /// # Panics
    /// When it does not within [`BOUND`].
    #[track_caller]
    pub fn wait_for_busy(&self, agent: &str, slots: u64) {
        let what = format!("agent {agent} has {slots} BUSY slots");
        eventually(&what, BOUND, || {
            let busy = self.agent(agent)?["slots_busy"].as_u64();
            (busy == Some(slots)).then_some(())
        });
    }

    /// Waits until so many runs of an agent wait for a slot.
    ///
    /// # Panics
    /// When they do not within [`BOUND`].
    #[track_caller]
    pub fn wait_for_queued(&self, agent: &str, runs: u64) {
        let what = format!("{runs} runs of {agent} are queued");
        eventually(&what, BOUND, || {
            let queued = self.agent(agent)?["queued"].as_u64();
            (queued == Some(runs)).then_some(())
        });
    }

    /// Asks it to leave with SIGTERM and waits until it has.
    ///
    /// # Panics
    /// When it does not end within [`BOUND`].
    #[track_caller]
    pub fn stop(self) -> Finished {
        self.stop_with(Signal::SIGTERM)
    }

    /// [`Harness::stop`] with another signal.
    ///
    /// # Panics
    /// When it does not end within [`BOUND`].
    #[track_caller]
    pub fn stop_with(self, signal: Signal) -> Finished {
        self.process.signal(signal);
        self.finish()
    }

    /// Waits until it ends by itself.
    ///
    /// # Panics
    /// When it does not within [`BOUND`].
    #[track_caller]
    pub fn finish(self) -> Finished {
        self.process.finish()
    }
}

impl HarnessBuilder {
    /// Listens on this address instead; a port of 0 is any free one. Starting one on the address
    /// of a harness that was stopped is how a test restarts it.
    #[must_use]
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = Some(address.into());
        self
    }

    /// Listens on a Unix socket in a folder of its own.
    #[must_use]
    pub fn unix(mut self) -> Self {
        self.unix = true;
        self
    }

    /// Uses this text as its configuration file.
    #[must_use]
    pub fn config(mut self, text: impl Into<String>) -> Self {
        self.config = Some(text.into());
        self
    }

    /// One more argument of `harness serve`.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// One more variable of its environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Runs it as a user of this number, who is nobody; takes root and no configuration file.
    #[must_use]
    pub fn user(mut self, uid: u32) -> Self {
        self.user = Some(uid);
        self
    }

    /// Starts it and waits until it listens.
    ///
    /// # Panics
    /// When it does not start.
    #[track_caller]
    pub fn start(self) -> Harness {
        let (mut process, folder, program) = self.spawn();
        let line = process.wait_for_line("listening on ");
        let address = line.rsplit(' ').next().unwrap_or_default().to_owned();
        Harness {
            process,
            address,
            folder,
            program,
        }
    }

    /// Starts one that does not get to listen, and waits until it has ended.
    ///
    /// # Panics
    /// When it does not end within [`BOUND`].
    #[track_caller]
    pub fn refused(self) -> Finished {
        let (process, _folder, _program) = self.spawn();
        process.finish()
    }

    #[track_caller]
    fn spawn(self) -> (Process, TempDir, Option<TempDir>) {
        let folder = TempDir::new().expect("a folder of its own");
        let public = self.user.map(|_| public(&["harness"]));
        let mut command = match &public {
            Some(folder) => command_of(&folder.path().join("harness")),
            None => command("harness"),
        };
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command.arg("serve");
        let listen = if self.unix {
            format!(
                "unix:{}",
                folder.path().join("private/harness.sock").display()
            )
        } else {
            self.listen.unwrap_or_else(|| "127.0.0.1:0".to_owned())
        };
        command.args(["--listen", &listen]);
        if let Some(text) = self.config {
            let path = folder.path().join("harness.toml");
            std::fs::write(&path, text).expect("the configuration must be written");
            command.arg("--config").arg(path);
        }
        command.args(self.arguments).envs(self.environment);
        (Process::start("harness serve", command), folder, public)
    }
}
