//! A worker process of the demo, as the demo sees it: started by running this program again,
//! heard through its standard output, ended through its standard input.

use std::fmt;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};

use crate::cli::error::CliError;

/// How long a worker process may take to end once its standard input is closed.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// A worker process. Killed when dropped; when this process is killed, the worker ends by itself,
/// because its standard input then closes.
pub(super) struct Child {
    process: tokio::process::Child,
    stdin: Option<ChildStdin>,
    stdout: Lines<BufReader<ChildStdout>>,
    pid: u32,
}

/// What a worker process tells of its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// `reply` was called.
    Called,
    /// Its future was dropped before it was finished.
    Dropped,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Called => "reply was called",
            Self::Dropped => "its future was dropped",
        })
    }
}

impl Event {
    /// The line that says it.
    pub(super) fn line(self) -> &'static str {
        match self {
            Self::Called => "called",
            Self::Dropped => "dropped",
        }
    }
}

impl Child {
    pub(super) fn start(agent: &str, address: &str) -> Result<Self, CliError> {
        let failed = |error| CliError::io(format!("cannot start the worker of {agent}"), error);
        let program = std::env::current_exe().map_err(failed)?;
        let mut process = Command::new(program)
            .args(["demo-worker", agent, "--server", address])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A Ctrl-C of the terminal is for the demo, which then ends its workers.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let stdout = process.stdout.take().expect("a piped stdout must be there");
        Ok(Self {
            pid: process
                .id()
                .expect("a child that was not waited for must have an id"),
            stdin: process.stdin.take(),
            stdout: BufReader::new(stdout).lines(),
            process,
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// The next thing it tells.
    ///
    /// # Errors
    /// That the process has ended.
    pub(super) async fn event(&mut self) -> Result<Event, CliError> {
        let pid = self.pid;
        loop {
            let line = self.stdout.next_line().await;
            let line = line.map_err(|error| CliError::io("cannot read from a worker", error))?;
            let Some(line) = line else {
                return Err(CliError::Demo(format!("worker process {pid} has ended")));
            };
            let events = [Event::Called, Event::Dropped];
            if let Some(event) = events.into_iter().find(|event| event.line() == line) {
                return Ok(event);
            }
        }
    }

    /// Has it end and reaps it.
    pub(super) async fn leave(mut self) {
        drop(self.stdin.take());
        if tokio::time::timeout(END_TIMEOUT, self.process.wait())
            .await
            .is_err()
        {
            tracing::warn!(pid = self.pid, "killing a worker process that did not end");
            // It may end by itself just now.
            let _ = self.process.kill().await;
        }
    }
}
