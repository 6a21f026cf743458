//! The command line: what can be said, and who acts it out.
//!
//! Owns the grammar and the exit code. Each command is a module of its own; what is printed goes
//! through [`output`], what fails is a [`CliError`].

mod agents;
mod ask;
mod bench;
mod check;
mod demo;
mod dev;
mod drain;
mod error;
#[cfg(target_os = "linux")]
pub(crate) mod guard;
mod output;
mod pools;
mod program;
mod progress;
mod reloads;
mod restart;
mod run;
mod serve;
mod usage;
mod workers;

use std::io;
use std::num::NonZero;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand};
use worker_sdk::Harness;

use crate::telemetry::Level;
use error::CliError;
use output::Form;

const EXAMPLES: &str = "\
Examples:
  harness demo                       see it work: an answer, tools, a hung agent stopped on time
  harness serve                      run a harness on 127.0.0.1:7070
  harness dev -- python3 worker.py   and a worker of yours, replaced when you save
  harness ask echo '\"hello\"'         ask an agent
  harness ask echo hello --json | jq .reply
  harness ask echo --many < requests.jsonl > answers.jsonl
  harness run start report may         have a run made that outlives all of us
  harness agents                     what can be asked
  harness workers                    who answers, and with what they are busy
  harness drain box-4711             have a worker finish, leave and not come back
  harness pools                      how the processes fare that the harness starts itself
  harness restart summarize          replace those of one pool
  harness check harness.toml         validate a configuration file
  harness bench echo --inflight 64   how fast it is

Exit codes:
  0  answered, or left in good order
  1  answered with an error, or the command failed
  2  a wrong flag, value, address or configuration file
  3  no harness could be reached
  4  the deadline passed
  130, 143  stopped by Ctrl-C or SIGTERM before an answer";

/// Runs agents that may hang, crash or lie, and keeps the caller in control.
#[derive(Debug, Parser)]
#[command(name = "harness", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// Tell every cause of an error, and log more; twice for the most
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Serve),
    Ask(ask::Ask),
    Agents(agents::Agents),
    Workers(workers::Workers),
    Drain(drain::Drain),
    Pools(pools::Pools),
    Restart(restart::Restart),
    Run(run::Run),
    Check(check::Check),
    Bench(bench::Bench),
    Demo(demo::Demo),
    Dev(dev::Dev),
    #[command(hide = true)]
    DemoWorker(demo::worker::DemoWorker),
}

/// This binary as the guardian of workers; it holds even when the file is replaced.
fn guardian() -> PathBuf {
    PathBuf::from("/proc/self/exe")
}

/// How long a harness may take to be connected to, or to answer what it knows at once.
const PATIENCE: Duration = Duration::from_secs(5);

/// Which harness a command speaks to.
#[derive(Debug, Args)]
struct Server {
    /// The harness: host:port, http://host:port or unix:/absolute/path
    /// [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDRESS", env = "HARNESS_ADDRESS")]
    server: Option<String>,
}

impl Server {
    fn address(&self) -> &str {
        match self.server.as_deref() {
            Some(address) if !address.is_empty() => address,
            Some(_) | None => harness_server::config::DEFAULT_ADDRESS,
        }
    }

    /// Connects, for at most `patience`.
    async fn connect(&self, patience: Duration) -> Result<Harness, CliError> {
        self.within(patience, Harness::connect(self.address()))
            .await
    }

    /// A call to the harness; one that has no answer in time has reached none.
    async fn within<T>(
        &self,
        patience: Duration,
        call: impl Future<Output = Result<T, worker_sdk::Error>>,
    ) -> Result<T, CliError> {
        match tokio::time::timeout(patience, call).await {
            Ok(answer) => answer.map_err(|error| self.explain(error)),
            Err(_) => Err(CliError::Unreachable {
                address: self.address().to_owned(),
                source: None,
            }),
        }
    }

    fn explain(&self, error: worker_sdk::Error) -> CliError {
        CliError::of_call(self.address(), error)
    }
}

impl Cli {
    /// Reads the arguments of this process; help and mistakes are told here.
    ///
    /// # Errors
    /// The exit code when there is nothing more to do.
    pub(crate) fn read() -> Result<Self, ExitCode> {
        Self::try_parse().map_err(|error| usage::tell(&error))
    }

    /// How much is logged unless RUST_LOG says.
    pub(crate) fn log_level(&self) -> Level {
        let service = matches!(self.command, Command::Serve(_));
        match (self.verbose, service) {
            (0, false) if self.shows_workers() => Level::Own,
            (0, false) => Level::Warn,
            (0, true) => Level::Info,
            (1, _) => Level::Debug,
            (_, _) => Level::Trace,
        }
    }

    /// Whether what workers write is shown as it is.
    pub(crate) fn shows_workers(&self) -> bool {
        matches!(self.command, Command::Dev(_))
    }

    /// How many threads the runtime has.
    pub(crate) fn threads(&self) -> NonZero<usize> {
        match &self.command {
            Command::Serve(serve) => serve.threads,
            Command::Bench(bench) => bench.threads,
            _ => NonZero::<usize>::MIN,
        }
    }

    /// Acts the command out and tells how it failed.
    pub(crate) async fn run(self) -> ExitCode {
        let (form, verbose) = (self.command.form(), self.verbose > 0);
        match self.command.run().await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                output::failure(&error, form, verbose);
                ExitCode::from(error.exit_code())
            }
        }
    }

    /// Tells that not even a runtime could be made.
    pub(crate) fn cannot_start(&self, source: io::Error) -> ExitCode {
        let error = CliError::io("cannot start", source);
        output::failure(&error, self.command.form(), self.verbose > 0);
        ExitCode::from(error.exit_code())
    }
}

impl Command {
    async fn run(self) -> Result<(), CliError> {
        match self {
            Self::Serve(serve) => serve.run().await,
            Self::Ask(ask) => ask.run().await,
            Self::Agents(agents) => agents.run().await,
            Self::Workers(workers) => workers.run().await,
            Self::Drain(drain) => drain.run().await,
            Self::Pools(pools) => pools.run().await,
            Self::Restart(restart) => restart.run().await,
            Self::Run(run) => run.run().await,
            Self::Check(check) => check.run().await,
            Self::Bench(bench) => bench.run().await,
            Self::Demo(demo) => demo.run().await,
            Self::Dev(dev) => dev.run().await,
            Self::DemoWorker(worker) => worker.run().await,
        }
    }

    /// What standard output is to hold.
    fn form(&self) -> Form {
        let json = match self {
            Self::Ask(ask) => return ask.form(),
            Self::Run(run) => return run.form(),
            Self::Agents(agents) => agents.json,
            Self::Workers(workers) => workers.json,
            Self::Drain(drain) => drain.json,
            Self::Pools(pools) => pools.json,
            Self::Restart(restart) => restart.json,
            Self::Check(check) => check.json,
            Self::Bench(bench) => bench.json,
            Self::Serve(_) | Self::Demo(_) | Self::Dev(_) | Self::DemoWorker(_) => false,
        };
        if json { Form::Json } else { Form::Text }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_grammar_is_consistent() {
        Cli::command().debug_assert();
    }
}
