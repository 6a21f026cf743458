//! The worker and all its descendants, as their guardian sees them.
//!
//! Owns finding, signalling and reaping them. An orphan below becomes this process's child, so
//! killing the children, and then those that become children by that, ends in none being left.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, getpid};

use crate::supervisor::process::Exit;

/// How long after a kill the children are looked for again when none has died.
const LOOK_AGAIN_MS: u16 = 5;

pub(super) struct Tree {
    /// The worker; not yet reaped while `exit` is none.
    worker: Child,
    exit: Option<Exit>,
    /// Readable when a child has died.
    deaths: SignalFd,
}

impl Tree {
    /// All signals must be blocked.
    pub(super) fn new(worker: Child) -> io::Result<Self> {
        let mut deaths = SigSet::empty();
        deaths.add(Signal::SIGCHLD);
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self {
            worker,
            exit: None,
            deaths: SignalFd::with_flags(&deaths, flags)?,
        })
    }

    /// The worker's process id.
    pub(super) fn worker(&self) -> u32 {
        self.worker.id()
    }

    fn worker_pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.worker.id()).expect("a process id must fit"))
    }

    /// Asks the worker's group to stop.
    pub(super) fn terminate(&self) {
        self.signal_group(Signal::SIGTERM);
    }

    fn signal_group(&self, signal: Signal) {
        // Once it is reaped, its id may be that of a group of somebody else.
        if self.exit.is_some() {
            return;
        }
        if killpg(self.worker_pid(), signal).is_err() {
            // It has not made its group yet; or it has just died, which is heard of elsewhere.
            let _ = kill(self.worker_pid(), signal);
        }
    }

    /// Whether the worker has ended; it is not reaped by this.
    pub(super) fn has_exited(&self) -> bool {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let state = waitid(Id::Pid(self.worker_pid()), flags);
        self.exit.is_some() || !matches!(state, Ok(WaitStatus::StillAlive))
    }

    /// Reaps orphans that have died; true when the worker has ended.
    pub(super) fn tidy(&mut self) -> io::Result<bool> {
        self.forget_deaths()?;
        if self.has_exited() {
            return Ok(true);
        }
        for child in children()? {
            if child != self.worker_pid() {
                reap(child);
            }
        }
        Ok(false)
    }

    /// Kills and reaps all there is. Says how the worker ended as soon as that is known.
    pub(super) fn kill(&mut self, mut exited: impl FnMut(Exit)) -> io::Result<()> {
        // All of the group at one instant: none of them can fork its way out.
        self.signal_group(Signal::SIGKILL);
        loop {
            self.forget_deaths()?;
            if self.exit.is_none()
                && let Some(status) = self.worker.try_wait()?
            {
                let exit = exit_of(status);
                self.exit = Some(exit);
                exited(exit);
            }
            if !any_child() {
                return Ok(());
            }
            for child in children()? {
                // Unreaped as it is, its id cannot be another's.
                let _ = kill(child, Signal::SIGKILL);
                if child != self.worker_pid() || self.exit.is_some() {
                    reap(child);
                }
            }
            let mut deaths = [PollFd::new(self.deaths.as_fd(), PollFlags::POLLIN)];
            // Interrupted or not, the children are looked for again.
            let _ = poll(&mut deaths, PollTimeout::from(LOOK_AGAIN_MS));
        }
    }

    fn forget_deaths(&self) -> io::Result<()> {
        while self.deaths.read_signal()?.is_some() {}
        Ok(())
    }
}

impl AsFd for Tree {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.deaths.as_fd()
    }
}

fn exit_of(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Unknown,
    }
}

/// Reaps a child if it has died.
fn reap(child: Pid) {
    // Neither a real-time signal, which has no name here, nor a child that is gone matters.
    let _ = waitpid(child, Some(WaitPidFlag::WNOHANG));
}

/// Whether there is any child, dead or alive.
fn any_child() -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    waitid(Id::All, flags) != Err(Errno::ECHILD)
}

/// This process's children. A child that comes or goes meanwhile can make the kernel miss one.
fn children() -> io::Result<Vec<Pid>> {
    match listed_children() {
        // Not every kernel is built with that file.
        Err(error) if error.kind() == io::ErrorKind::NotFound => searched_children(),
        other => other,
    }
}

fn listed_children() -> io::Result<Vec<Pid>> {
    let own = getpid();
    let listed = fs::read_to_string(format!("/proc/self/task/{own}/children"))?;
    let pids = listed.split_whitespace().map(str::parse);
    Ok(pids.filter_map(Result::ok).map(Pid::from_raw).collect())
}

/// The same by way of every process there is.
fn searched_children() -> io::Result<Vec<Pid>> {
    let own = getpid();
    let mut found = Vec::new();
    for process in fs::read_dir("/proc")? {
        let Some(pid) = process?.file_name().to_str().and_then(|it| it.parse().ok()) else {
            continue;
        };
        if parent(pid) == Some(own) {
            found.push(Pid::from_raw(pid));
        }
    }
    Ok(found)
}

/// The parent of a process; none when it has gone.
fn parent(pid: i32) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // "pid (name) state parent ...", and a name may hold anything.
    let after_name = stat.rsplit(") ").next()?;
    let parent = after_name.split_whitespace().nth(1)?.parse().ok()?;
    Some(Pid::from_raw(parent))
}
