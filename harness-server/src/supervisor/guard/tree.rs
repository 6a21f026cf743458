//! The worker and what is below it, as the guardian, their parent, sees them.
//!
//! Owns signalling the worker's group, and killing and reaping everything. An orphan below becomes
//! this process's child, so nothing is left when there is no child any more. How descendants are
//! found is in [`super::descendants`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal as Number};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, kill_process, kill_process_group,
    wait, waitid,
};

use super::descendants;
use crate::supervisor::process::Exit;

/// How long after a kill the descendants are looked for again when none has died.
const LOOK_AGAIN_MS: u16 = 5;

pub(super) struct Tree {
    worker: Pid,
    /// How the worker ended; not yet reaped, and its id its own, while there is none.
    exit: Option<Exit>,
    /// Readable when a child has died.
    deaths: SignalFd,
}

impl Tree {
    /// Of a worker that nobody else will reap; all signals must be blocked.
    pub(super) fn new(worker: u32) -> io::Result<Self> {
        let worker = i32::try_from(worker).ok().and_then(Pid::from_raw);
        let mut deaths = SigSet::empty();
        deaths.add(Number::SIGCHLD);
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self {
            worker: worker.expect("a child must have a process id"),
            exit: None,
            deaths: SignalFd::with_flags(&deaths, flags)?,
        })
    }

    /// The worker's process id.
    pub(super) fn worker(&self) -> u32 {
        self.worker.as_raw_nonzero().get().unsigned_abs()
    }

    /// Asks the worker's group to stop.
    pub(super) fn terminate(&self) {
        self.signal_group(Signal::TERM);
    }

    fn signal_group(&self, signal: Signal) {
        if self.exit.is_none() && kill_process_group(self.worker, signal).is_err() {
            // It has not made its group yet; or it has just died, which is heard of elsewhere.
            let _ = kill_process(self.worker, signal);
        }
    }

    /// Whether the worker has ended; it is not reaped by this.
    pub(super) fn has_exited(&self) -> bool {
        let flags = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        self.exit.is_some() || !matches!(waitid(WaitId::Pid(self.worker), flags), Ok(None))
    }

    /// Reaps orphans that have died; true when the worker has ended.
    pub(super) fn tidy(&mut self) -> io::Result<bool> {
        self.forget_deaths()?;
        if !self.has_exited() {
            self.reap()?;
        }
        Ok(self.has_exited())
    }

    /// Kills and reaps all there is. Says how the worker ended as soon as that is known.
    pub(super) fn kill(&mut self, mut exited: impl FnMut(Exit)) -> io::Result<()> {
        let mut told = false;
        // All of the group at one instant: none of them can fork its way out.
        self.signal_group(Signal::KILL);
        loop {
            self.forget_deaths()?;
            let is_any_left = self.reap()?;
            if let Some(exit) = self.exit.filter(|_| !told) {
                exited(exit);
                told = true;
            }
            if !is_any_left {
                return Ok(());
            }
            descendants::kill()?;
            let mut deaths = [PollFd::new(self.deaths.as_fd(), PollFlags::POLLIN)];
            // Interrupted or not, they are looked for again.
            let _ = poll(&mut deaths, PollTimeout::from(LOOK_AGAIN_MS));
        }
    }

    /// Reaps every child that has died; false when there is no child any more.
    fn reap(&mut self) -> io::Result<bool> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.worker => self.exit = Some(exit_of(status)),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return Ok(true),
                Err(Errno::CHILD) => return Ok(false),
                Err(other) => return Err(other.into()),
            }
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

fn exit_of(status: WaitStatus) -> Exit {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Unknown,
    }
}
