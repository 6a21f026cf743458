//! One worker process: started through its guardian, held, signalled, reaped.
//!
//! Owns the words for it. When to start, stop or replace one is the pools' affair; how its
//! guardian is spoken to is in `guardian`.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tokio::net::unix::pipe;

use super::isolation::{Isolation, IsolationError};

pub use super::guardian::{Guardian, Process};
pub use crate::pool::Exit;

/// The standard streams of a process.
pub(super) const STREAMS: usize = 3;

/// What is to be started.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The program, then its arguments. A name without a slash is looked up in the PATH of `env`,
    /// a relative path with one from `cwd`.
    pub command: Vec<OsString>,
    /// Its folder; that of the harness when none.
    pub cwd: Option<PathBuf>,
    /// Its whole environment; nothing is inherited.
    pub env: Vec<(OsString, OsString)>,
    /// What it is kept to.
    pub isolation: Isolation,
    /// The `harness` binary, which is run as the guardian. `/proc/self/exe` in that binary itself:
    /// it then holds even when the file is replaced.
    pub guard: PathBuf,
    /// Whether its standard input is a pipe; else it is empty.
    pub stdin: bool,
}

/// The harness's ends of a process's standard streams. They close, as pipes do, when the last
/// process that holds the other end has; when [`Process::reaped`] answers, that has happened.
#[derive(Debug)]
pub struct Streams {
    /// Writes to its standard input; dropping it ends that.
    pub stdin: Option<pipe::Sender>,
    /// Reads its standard output.
    pub stdout: pipe::Receiver,
    /// Reads its standard error.
    pub stderr: pipe::Receiver,
}

/// What can be sent to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Signal {
    /// SIGTERM to its process group: a request to stop.
    Term,
    /// SIGKILL to its process group and every descendant, those in other groups and sessions too.
    Kill,
}

/// Why a process could not be started. Nothing of it is left then.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The guardian cannot be run.
    #[error("cannot start the guardian {}", path.display())]
    Guard {
        /// What was to be run.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The guardian ended, or said what this harness does not understand.
    #[error("the guardian {} failed: {reason}", path.display())]
    Broken {
        /// What was run.
        path: PathBuf,
        /// What it did.
        reason: String,
    },
    /// The pipes of the process cannot be made.
    #[error("cannot make the pipes of a worker process")]
    Pipes(#[source] io::Error),
    /// The folder cannot be entered.
    #[error("cannot enter the folder {}", path.display())]
    Cwd {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The command cannot be executed.
    #[error("cannot execute {command}")]
    Command {
        /// The program.
        command: String,
        /// Why.
        source: io::Error,
    },
    /// The isolation cannot be given.
    #[error(transparent)]
    Isolation(#[from] IsolationError),
}

impl Process {
    /// Starts a process and waits until its command runs. Dropping this future kills what it has
    /// started.
    ///
    /// ```no_run
    /// use harness_server::supervisor::isolation::Isolation;
    /// use harness_server::supervisor::process::{Launch, Process, Signal};
    ///
    /// # async fn start() -> Result<(), Box<dyn std::error::Error>> {
    /// let launch = Launch {
    ///     command: vec!["python3".into(), "worker.py".into()],
    ///     cwd: Some("agents".into()),
    ///     env: vec![("PATH".into(), "/usr/bin:/bin".into())],
    ///     isolation: Isolation { open_files: Some(256), ..Isolation::default() },
    ///     guard: "/usr/local/bin/harness".into(),
    ///     stdin: true,
    /// };
    /// let (mut process, streams) = Process::start(launch).await?;
    /// process.signal(Signal::Term);
    /// println!("{} ended with {}", process.pid(), process.reaped().await);
    /// # drop(streams);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Why the command does not run: it or its folder is not there, the isolation cannot be given,
    /// the guardian does not work.
    pub async fn start(launch: Launch) -> Result<(Self, Streams), StartError> {
        Guardian::start(&launch.guard)?.launch(launch).await
    }
}

impl Launch {
    /// Tries folder and isolation, by a process that takes them on, looks whether it could then
    /// execute the command, and ends.
    ///
    /// # Errors
    /// As [`Process::start`].
    pub async fn check(&self) -> Result<(), StartError> {
        Guardian::start(&self.guard)?.check(self.clone()).await
    }

    /// The launcher and the command, as one.
    pub(super) fn whole_command(&self) -> Vec<OsString> {
        let mut whole = self.isolation.launcher.clone();
        whole.extend(self.command.iter().cloned());
        whole
    }

    /// What `whole_command` runs, for messages.
    pub(super) fn program(&self) -> String {
        let program = self.isolation.launcher.first().or(self.command.first());
        program.map_or_else(String::new, |program| program.to_string_lossy().into())
    }
}

/// The harness's ends of the streams, and the worker's.
pub(super) fn pipes(stdin: bool) -> io::Result<(Streams, [OwnedFd; STREAMS])> {
    let (stdin, stdin_theirs): (_, OwnedFd) = if stdin {
        let (theirs, ours) = io::pipe()?;
        (
            Some(pipe::Sender::from_owned_fd(ours.into())?),
            theirs.into(),
        )
    } else {
        (None, File::open("/dev/null")?.into())
    };
    let (stdout, stdout_theirs) = io::pipe()?;
    let (stderr, stderr_theirs) = io::pipe()?;
    let streams = Streams {
        stdin,
        stdout: pipe::Receiver::from_owned_fd(stdout.into())?,
        stderr: pipe::Receiver::from_owned_fd(stderr.into())?,
    };
    let theirs = [stdin_theirs, stdout_theirs.into(), stderr_theirs.into()];
    Ok((streams, theirs))
}
