//! Worker processes where there are no guardians: everywhere but on Linux.
//!
//! Owns starting and killing a process group, no more. There is no isolation, and what a process
//! leaves behind when it ends, or when the harness is killed, lives on; the first start says so.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Once;

use nix::sys::signal::{Signal as UnixSignal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use super::executable;
use super::isolation::IsolationError;
use super::process::{Exit, Launch, Signal, StartError, Streams, pipes};

/// Stands for the guardian that is not there.
#[derive(Debug)]
pub struct Guardian;

/// A process that runs. Dropping it kills its process group.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    child: Child,
    exit: Option<Exit>,
}

static TOLD: Once = Once::new();

impl Guardian {
    /// Starts nothing.
    ///
    /// # Errors
    /// None.
    pub fn start(_path: &Path) -> Result<Self, StartError> {
        TOLD.call_once(|| {
            tracing::warn!("not on Linux: workers can outlive the harness, isolation is refused");
        });
        Ok(Self)
    }

    /// Starts a process.
    ///
    /// # Errors
    /// As [`Process::start`].
    pub async fn launch(self, launch: Launch) -> Result<(Process, Streams), StartError> {
        self.check(launch.clone()).await?;
        let (streams, [stdin, stdout, stderr]) = pipes(launch.stdin).map_err(StartError::Pipes)?;
        let whole = launch.whole_command();
        let failed = |source| StartError::Command {
            command: launch.program(),
            source,
        };
        let [program, arguments @ ..] = whole.as_slice() else {
            return Err(failed(io::ErrorKind::NotFound.into()));
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .envs(launch.env.iter().cloned())
            .process_group(0)
            .stdin(stdin)
            .stdout(stdout)
            .stderr(stderr);
        if let Some(cwd) = &launch.cwd {
            command.current_dir(cwd);
        }
        let child = command.spawn().map_err(failed)?;
        let pid = child.id().expect("a child not waited for must have an id");
        let exit = None;
        Ok((Process { pid, child, exit }, streams))
    }

    /// Looks at what would be refused.
    pub(super) async fn check(&self, launch: Launch) -> Result<(), StartError> {
        if launch.isolation.is_any() {
            let setting = "sandbox and limits";
            return Err(IsolationError::new(setting, "they are there on Linux only").into());
        }
        let folder = launch.cwd.clone().unwrap_or_default();
        if let Some(Err(source)) = launch.cwd.as_ref().map(std::fs::metadata) {
            return Err(StartError::Cwd {
                path: folder,
                source,
            });
        }
        let mut env = launch.env.iter().rev();
        let path = env.find(|(name, _)| name == "PATH");
        let path = path.map(|(_, value)| value.as_os_str());
        let whole = launch.whole_command();
        let program = whole.first().map(OsString::as_os_str).unwrap_or_default();
        executable::check(program, path, &folder).map_err(|source| StartError::Command {
            command: launch.program(),
            source,
        })
    }
}

impl Process {
    /// Its process id, which is also that of its process group.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Signals its process group; nothing when it has been reaped.
    pub fn signal(&self, signal: Signal) {
        let signal = match signal {
            Signal::Term => UnixSignal::SIGTERM,
            Signal::Kill => UnixSignal::SIGKILL,
        };
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok()) {
            // It may end by itself just now.
            let _ = killpg(Pid::from_raw(pid), signal);
        }
    }

    /// Waits until the process itself has ended. Answers at once ever after. Losing this future
    /// loses nothing.
    pub async fn exited(&mut self) -> Exit {
        use std::os::unix::process::ExitStatusExt;
        if let Some(exit) = self.exit {
            return exit;
        }
        let status = self.child.wait().await.ok();
        let exit = match status.map(|status| (status.code(), status.signal())) {
            Some((Some(code), _)) => Exit::Code(code),
            Some((None, Some(signal))) => Exit::Signal(signal),
            Some((None, None)) | None => Exit::Unknown,
        };
        *self.exit.insert(exit)
    }

    /// The same here.
    pub async fn reaped(&mut self) -> Exit {
        self.exited().await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::Kill);
    }
}
