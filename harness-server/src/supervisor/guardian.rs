//! The harness's side of a guardian: starting one, and holding a process through it.
//!
//! Owns the socket between them, whose closing is what ends the guardian and all below it. It
//! must therefore be in no other process: it closes on exec, as all that Rust opens does.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Interest, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};

use super::guard;
use super::process::{Exit, Launch, STREAMS, Signal, StartError, Streams, pipes};
use super::wire::{self, Order, Refusal, Report, Word};

/// A guardian that waits for what it is to guard. Keeping one ready takes its start, the larger
/// part of that of a short-lived worker, off the way of a request. It ends when dropped.
#[derive(Debug)]
pub struct Guardian {
    path: PathBuf,
    child: Child,
    socket: UnixStream,
}

/// A process that runs, held through its guardian. Dropping it kills the process and every
/// descendant.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    guardian: Child,
    orders: OwnedWriteHalf,
    reports: Lines<BufReader<OwnedReadHalf>>,
    exit: Option<Exit>,
    reaped: bool,
}

impl Guardian {
    /// Runs the `harness` binary at `path` as a guardian. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// That it cannot be run.
    pub fn start(path: &Path) -> Result<Self, StartError> {
        let failed = |source| StartError::Guard {
            path: path.to_owned(),
            source,
        };
        let (ours, theirs) = StdUnixStream::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let socket = UnixStream::from_std(ours).map_err(failed)?;
        let child = Command::new(path)
            .arg("guard")
            // Its environment can be read by what it guards.
            .env_clear()
            .envs(guard::ENVIRONMENT)
            // A Ctrl-C of the terminal is for the harness.
            .process_group(0)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let path = path.to_owned();
        Ok(Self {
            path,
            child,
            socket,
        })
    }

    /// Has it start a process, and waits until the command runs. Only `launch.guard` is not used.
    ///
    /// # Errors
    /// As [`Process::start`].
    pub async fn launch(self, launch: Launch) -> Result<(Process, Streams), StartError> {
        let (streams, theirs) = pipes(launch.stdin).map_err(StartError::Pipes)?;
        let process = self.begin(&launch, &theirs, false).await?;
        Ok((process, streams))
    }

    /// Has it try everything, and look for the command in place of executing it.
    pub(super) async fn check(self, launch: Launch) -> Result<(), StartError> {
        let (_streams, theirs) = pipes(launch.stdin).map_err(StartError::Pipes)?;
        self.begin(&launch, &theirs, true).await?.reaped().await;
        Ok(())
    }

    async fn begin(
        mut self,
        launch: &Launch,
        theirs: &[OwnedFd; STREAMS],
        trial: bool,
    ) -> Result<Process, StartError> {
        let env = launch.env.iter().cloned();
        let order = Order::Launch(Box::new(wire::Launch {
            command: launch.whole_command().into_iter().map(Word::from).collect(),
            cwd: launch
                .cwd
                .clone()
                .map(|cwd| Word::from(OsString::from(cwd))),
            env: env
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            isolation: launch.isolation.clone(),
            no_new_privs: launch.isolation.is_any(),
            trial,
        }));
        let sent = match wire::line(&order) {
            Ok(line) => self.send(&line, theirs).await,
            Err(error) => Err(error),
        };
        let path = self.path;
        let (reports, orders) = self.socket.into_split();
        let mut process = Process {
            pid: 0,
            guardian: self.child,
            orders,
            reports: BufReader::new(reports).lines(),
            exit: None,
            reaped: false,
        };
        match process.report().await {
            Some(Report::Started { pid }) => {
                process.pid = pid;
                Ok(process)
            }
            Some(Report::Refused(refusal)) => Err(explain(refusal, launch, path)),
            Some(Report::Exited(exit)) => Err(StartError::Broken {
                reason: format!("{exit} before the command ran"),
                path,
            }),
            Some(Report::Reaped) | None => Err(StartError::Broken {
                reason: match sent {
                    Ok(()) => "it ended at once; is it the harness binary?".to_owned(),
                    Err(error) => format!("it takes no orders: {error}; is it the harness binary?"),
                },
                path,
            }),
        }
    }

    async fn send(&mut self, line: &[u8], theirs: &[OwnedFd; STREAMS]) -> io::Result<()> {
        let streams: [BorrowedFd<'_>; STREAMS] = theirs.each_ref().map(AsFd::as_fd);
        let socket = &self.socket;
        let first = socket.async_io(Interest::WRITABLE, || {
            wire::send_first(socket, line, &streams)
        });
        let sent = first.await?;
        self.socket.write_all(&line[sent..]).await
    }
}

impl Process {
    /// Its process id, which is also that of its process group.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Asks its guardian, its parent, to signal it; nothing when it has ended. A process id that
    /// is no longer its own is never signalled.
    pub fn signal(&self, signal: Signal) {
        let line = wire::line(&Order::Signal(signal)).expect("an order must serialize");
        // A guardian that has gone has killed all there was to signal.
        let _ = self.orders.try_write(&line);
    }

    /// Waits until the process itself has ended; its descendants are then being killed. Answers
    /// at once ever after. Losing this future loses nothing.
    pub async fn exited(&mut self) -> Exit {
        loop {
            if let Some(exit) = self.exit {
                return exit;
            }
            self.hear().await;
        }
    }

    /// Waits until the process and every descendant are dead and reaped, its guardian too.
    /// Answers at once ever after. Losing this future loses nothing.
    pub async fn reaped(&mut self) -> Exit {
        while !self.reaped {
            self.hear().await;
        }
        // Only a second wait for a child that somebody else reaped could fail.
        let _ = self.guardian.wait().await;
        self.exit.unwrap_or(Exit::Unknown)
    }

    async fn hear(&mut self) {
        match self.report().await {
            Some(Report::Exited(exit)) => self.exit = Some(exit),
            Some(Report::Reaped) => self.reaped = true,
            Some(Report::Started { .. } | Report::Refused(_)) => {}
            None => {
                if !self.reaped {
                    tracing::warn!(pid = self.pid, "the guardian of a worker was killed");
                }
                self.reaped = true;
                self.exit.get_or_insert(Exit::Unknown);
            }
        }
    }

    /// The next thing its guardian says; none when it has gone.
    async fn report(&mut self) -> Option<Report> {
        let line = self.reports.next_line().await.ok().flatten()?;
        serde_json::from_str(&line).ok()
    }
}

fn explain(refusal: Refusal, launch: &Launch, path: PathBuf) -> StartError {
    match refusal {
        Refusal::Cwd(number) => StartError::Cwd {
            path: launch.cwd.clone().unwrap_or_default(),
            source: io::Error::from_raw_os_error(number),
        },
        Refusal::Command(number) => StartError::Command {
            command: launch.program(),
            source: io::Error::from_raw_os_error(number),
        },
        Refusal::Isolation(error) => StartError::Isolation(error),
        Refusal::Broken(reason) => StartError::Broken { path, reason },
    }
}
