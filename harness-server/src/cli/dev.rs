//! `harness dev`: a harness and one worker process, replaced at each save.
//!
//! Owns the life of the two and what is told at the start. What is run and what it is called is
//! `command`, which files matter and when one is saved is `saves`.

mod command;
mod saves;

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use harness_server::config::{DEFAULT_ADDRESS, Pool};
use harness_server::ids::AgentKey;
use harness_server::pool::{Dialect, Restart};
use harness_server::supervisor;
use harness_server::{Config, Server};

use super::error::CliError;
use super::{guardian, output, program, progress};
use crate::shutdown::Stops;
use saves::Saves;

/// The dialect of a worker that is told none.
const DIALECT: Spoken = Spoken::Grpc;

/// Has Python show at once what it prints to a pipe. Not for a worker whose replies go there: it must
/// flush them itself, and should find out here.
const UNBUFFERED: &str = "PYTHONUNBUFFERED";

/// How long requests that are in work may go on when all ends.
const GRACE: Duration = Duration::from_secs(1);

/// How long the process may take to be ready; a command may build it first.
const READY_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// Run a harness and your worker, which is replaced when you save
#[derive(Debug, Args)]
#[command(after_help = "\
Starts a harness and one process of the command, and prints what to type to ask it. What the process
writes to standard error is shown here, with --dialect grpc standard output too. A file that is saved
below the current folder, or that the command names, has another process started; the one before
finishes what it works on and goes. A process that does not start is started again at the next save.
Not watched: what begins with a dot, target, node_modules, __pycache__, virtual environments, *.log,
*.tmp and editors' own files.
The process has your environment. Ctrl-C ends everything.

Examples:
  harness dev -- python3 worker.py
  harness dev --dialect jsonl -- python3 worker.py
  harness dev --agent summarize --watch src --watch prompts -- node build/worker.js")]
pub(super) struct Dev {
    /// The agent's name [default: after the file that is run, else after the folder]
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,

    /// How the worker is spoken to
    #[arg(long, value_enum, default_value_t = DIALECT)]
    dialect: Spoken,

    /// Where to listen: host:port or unix:/absolute/path
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADDRESS)]
    listen: String,

    /// A file or folder to watch, in place of the current folder; may be given more than once
    #[arg(long, value_name = "PATH")]
    watch: Vec<PathBuf>,

    /// The worker's program, then its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    command: Vec<String>,
}

/// A dialect as it is written on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Spoken {
    /// The worker dials back over the worker protocol
    Grpc,
    /// JSON Lines on its standard input and output
    Jsonl,
}

impl From<Spoken> for Dialect {
    fn from(spoken: Spoken) -> Self {
        match spoken {
            Spoken::Grpc => Self::Grpc,
            Spoken::Jsonl => Self::Jsonl,
        }
    }
}

impl Dev {
    pub(super) async fn run(self) -> Result<(), CliError> {
        let stops =
            Stops::listen().map_err(|error| CliError::io("cannot listen to signals", error))?;
        command::find(&self.command)?;
        let folder = env::current_dir()
            .map_err(|error| CliError::io("cannot tell the current folder", error))?;
        let saves = Saves::watch(&self.watched(&folder))?;
        let named = command::agent(&self.command, &folder);
        let agent = self.agent.clone().unwrap_or_else(|| named.agent.clone());
        let server = Server::bind(self.config(&agent)).await?;
        let address = server.addresses().first().cloned().unwrap_or_default();
        let why = match self.agent {
            Some(_) => String::new(),
            None => format!(" (named after {}; --agent names it otherwise)", named.after),
        };
        for line in invitation(&agent, &why, &address) {
            output::note(&line);
        }
        let (pools, mend) = (server.pools(), self.mend());
        let work = async |stop| {
            tokio::select! {
                () = server.run(stop) => Ok(()),
                failed = replace(&agent, &pools, saves) => failed,
                () = progress::tell(&pools, Vec::new(), mend) => Ok(()),
            }
        };
        stops
            .run(work)
            .await
            .unwrap_or_else(|stop| Err(CliError::cut_off(stop)))
    }

    /// What helps a process that does not start.
    fn mend(&self) -> &'static str {
        match self.dialect {
            Spoken::Grpc => {
                "save a file to start it again; one that speaks JSON Lines needs --dialect jsonl"
            }
            Spoken::Jsonl => "save a file to start it again",
        }
    }

    /// The files and folders whose saves count.
    fn watched(&self, folder: &Path) -> Vec<PathBuf> {
        let mut watched = command::files(&self.command);
        watched.extend(self.watch.iter().cloned());
        if self.watch.is_empty() {
            watched.push(folder.to_owned());
        }
        watched
    }

    fn config(&self, agent: &str) -> Config {
        let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let mut added = BTreeMap::new();
        if self.dialect == Spoken::Grpc && env::var_os(UNBUFFERED).is_none() {
            added.insert(UNBUFFERED.to_owned(), "1".to_owned());
        }
        let pool = Pool {
            agent: agent.to_owned(),
            command: self.command.clone(),
            dialect: self.dialect.into(),
            pass_env: names.filter(|name| !name.starts_with("HARNESS_")).collect(),
            env: added,
            ready_timeout: READY_TIMEOUT,
            restart: Restart {
                // The same file fails again: the next save is what helps.
                max_failed_starts: 1,
                max_crashes: 0,
                ..Restart::default()
            },
            ..Pool::default()
        };
        let mut config = Config {
            listen: vec![self.listen.clone()],
            guard: Some(guardian()),
            pools: vec![pool],
            ..Config::default()
        };
        config.limits.shutdown_grace = GRACE;
        config
    }
}

/// Has the process replaced at each save; returns only what keeps it from seeing one.
async fn replace(
    agent: &str,
    pools: &supervisor::Handle,
    mut saves: Saves,
) -> Result<(), CliError> {
    loop {
        let saved = saves.next().await?;
        output::note(&format!(
            "{} was saved: starting another process",
            saved.display()
        ));
        // A harness that leaves ends this too.
        drop(pools.restart(AgentKey::new("", agent)).await);
    }
}

/// What to type to ask the agent.
fn invitation(agent: &str, why: &str, address: &str) -> Vec<String> {
    let (program, flag) = (program::called_as(), program::server_flag(address));
    let curl = match address.strip_prefix("unix:") {
        Some(path) => format!(
            "--unix-socket {} -d '\"hello\"' http://harness",
            program::quoted(path)
        ),
        None => format!("-d '\"hello\"' http://{address}"),
    };
    vec![
        format!("agent {agent} on {address}{why}; from another terminal:"),
        String::new(),
        format!("  {program} ask {agent} hello{flag}"),
        format!("  curl {curl}/v1/agents/{agent}/ask"),
        String::new(),
    ]
}
