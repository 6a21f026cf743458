//! The process that becomes the worker: it takes on what the order says, then executes the
//! command, which is all that is left of it.
//!
//! Owns the order of these steps. What each part of the isolation takes is in [`super::confine`].

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::sys::prctl;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::unistd::{Pid, dup2_stderr, dup2_stdin, dup2_stdout, getppid, setsid};

use super::{confine, socket};
use crate::supervisor::executable;
use crate::supervisor::process::STREAMS;
use crate::supervisor::wire::{self, Channel, Launch, Order, Progress, Refusal};

/// The first file descriptor that is no standard stream.
const FIRST_FREE: i32 = 3;

/// Reads what to become and becomes it; comes back only when that fails.
pub(super) fn become_worker() -> io::Result<()> {
    let guardian = getppid();
    // Its own session, and so its own group: no terminal, and no way into the group of another.
    setsid()?;
    let mut channel = Channel::new(socket()?);
    let line = loop {
        if let Some(line) = channel.line() {
            break line;
        }
        if !channel.fill()? {
            return Ok(());
        }
    };
    let streams = std::mem::take(&mut channel.streams);
    let done = match serde_json::from_slice(&line)? {
        Order::Launch(launch) => run(&channel, *launch, streams, guardian),
        Order::Signal(_) => Err(Refusal::Broken("a signal came before an order".to_owned())),
    };
    match done {
        Ok(()) => Ok(()),
        Err(refusal) => channel.send(&wire::line(&Progress::Refused(refusal))?, &[]),
    }
}

/// Takes on everything and executes the command; in a trial, only looks whether it could.
fn run(
    channel: &Channel,
    launch: Launch,
    streams: Vec<OwnedFd>,
    guardian: Pid,
) -> Result<(), Refusal> {
    confine::take_on(&launch, &streams)?;
    if let Some(cwd) = launch.cwd.map(OsString::from) {
        std::env::set_current_dir(cwd).map_err(|error| Refusal::Cwd(number(&error)))?;
    }
    let mut words = launch.command.into_iter().map(OsString::from);
    let program = words.next().ok_or(Refusal::Command(nix::libc::ENOENT))?;
    let env = launch.env.into_iter();
    let env = env.map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let env: BTreeMap<OsString, OsString> = env.collect();
    let mut command = Command::new(&program);
    command.args(words).env_clear().envs(&env);
    let settled =
        settle(streams, guardian).and_then(|()| channel.send(&wire::line(&Progress::Ready)?, &[]));
    settled.map_err(|error| Refusal::Broken(error.to_string()))?;
    if launch.trial {
        let path = env.get(OsStr::new("PATH")).map(OsString::as_os_str);
        let found = executable::check(&program, path, Path::new(""));
        return found.map_err(|error| Refusal::Command(number(&error)));
    }
    confine::take_on_last(&launch.isolation)?;
    Err(Refusal::Command(number(&command.exec())))
}

/// The streams in their places, nothing else open, no signal blocked, and death with the guardian.
fn settle(streams: Vec<OwnedFd>, guardian: Pid) -> io::Result<()> {
    let streams: [OwnedFd; STREAMS] = streams
        .try_into()
        .map_err(|_| io::Error::other("the standard streams did not come"))?;
    let [stdin, stdout, stderr] = streams;
    dup2_stdin(stdin)?;
    dup2_stdout(stdout)?;
    dup2_stderr(stderr)?;
    // The harness may itself have inherited some that stay open.
    close_fds::set_fds_cloexec(FIRST_FREE, &[]);
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
    // Not before the user is changed, which unsets it.
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    if getppid() != guardian {
        return Err(io::Error::other("the guardian is gone"));
    }
    Ok(())
}

fn number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(nix::libc::EIO)
}
