//! `harness guard`: the process between the harness and one worker.
//!
//! Owns the worker's life: it starts it, signals it, and outlives it and every descendant. One
//! thread, no runtime. It ends when the harness says so, when the worker has ended, and when the
//! harness is gone, which closes its socket; never before nothing is left below it. As a subreaper
//! it becomes the parent of every orphan below it, whatever group or session that is in. It
//! signals only children it has not reaped, whose ids can be nobody else's.

mod cgroup;
mod confine;
mod descendants;
mod stage;
mod tree;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{self, Command, ExitCode, Stdio};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::SigSet;

use super::process::Signal;
use super::wire::{self, Channel, Launch, Order, Progress, Refusal, Report};
use cgroup::Cgroup;
use tree::Tree;

/// The argument that makes this program the process that becomes the worker.
const STAGE: &str = "exec";

/// All the environment of a guardian and of what becomes a worker: the allocator of the program
/// they are may otherwise have a thread of its own, and the kernel gives a user namespace to
/// processes of one thread alone.
pub(super) const ENVIRONMENT: [(&str, &str); 1] =
    [("_RJEM_MALLOC_CONF", "background_thread:false")];

/// What `harness guard` does with the arguments after it.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let done = match arguments.as_slice() {
        [] => guard(),
        [stage] if stage == STAGE => stage::become_worker(),
        _ => Err(io::Error::other("it takes no arguments")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&format!("harness guard, which a harness starts: {error}"));
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stderr, reason = "nobody else is there to tell")]
fn tell(text: &str) {
    eprintln!("{text}");
}

/// Standard input as the socket it is, out of the way of the streams to come.
fn socket() -> io::Result<UnixStream> {
    let fd: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    Ok(UnixStream::from(fd))
}

fn guard() -> io::Result<()> {
    prctl::set_child_subreaper(true)?;
    // Whoever wants this process to end tells the harness; SIGCHLD is waited for.
    SigSet::all().thread_block()?;
    let harness = Channel::new(socket()?);
    let (ours, theirs) = UnixStream::pair()?;
    let worker = Command::new("/proc/self/exe")
        .args(["guard", STAGE])
        .env_clear()
        .envs(ENVIRONMENT)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .spawn();
    let worker = worker.inspect_err(|error| {
        let reason = format!("it cannot run itself again: {error}");
        report(&harness, &Report::Refused(Refusal::Broken(reason)));
    })?;
    Guard {
        harness,
        stage: Some(Channel::new(ours)),
        ready: false,
        tree: Tree::new(worker.id())?,
        cgroup: None,
    }
    .run()
}

struct Guard {
    harness: Channel,
    /// To the process that becomes the worker; none once it has.
    stage: Option<Channel>,
    /// Whether only the execution of the command was left to do.
    ready: bool,
    tree: Tree,
    cgroup: Option<Cgroup>,
}

impl Guard {
    fn run(mut self) -> io::Result<()> {
        let watched = self.watch();
        // Whatever went wrong, nothing is left behind.
        self.end().and(watched)
    }

    /// Serves until it is time to end.
    fn watch(&mut self) -> io::Result<()> {
        loop {
            let [harness, stage, children] = self.wait()?;
            if stage {
                self.hear_stage()?;
            }
            if (harness && self.hear_harness()?) || (children && self.tree.tidy()?) {
                return Ok(());
            }
        }
    }

    /// Waits until something happens: with the harness, the stage, the children.
    fn wait(&self) -> io::Result<[bool; 3]> {
        let wanted = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![wanted(self.harness.as_fd()), wanted(self.tree.as_fd())];
        fds.extend(self.stage.as_ref().map(|stage| wanted(stage.as_fd())));
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => return Ok([false; 3]),
            other => other?,
        };
        let happened = |at: usize| fds.get(at).is_some_and(|fd| fd.any().unwrap_or(true));
        Ok([happened(0), happened(2), happened(1)])
    }

    /// Acts out what the harness says; true when that is to end.
    fn hear_harness(&mut self) -> io::Result<bool> {
        let there = self.harness.fill()?;
        while let Some(line) = self.harness.line() {
            match serde_json::from_slice(&line)? {
                Order::Launch(launch) => {
                    if !self.pass_on(launch)? {
                        return Ok(true);
                    }
                }
                Order::Signal(Signal::Term) => self.tree.terminate(),
                Order::Signal(Signal::Kill) => return Ok(true),
            }
        }
        Ok(!there)
    }

    /// Gives the order and the streams to the process that becomes the worker, and keeps neither;
    /// false when the isolation is refused.
    fn pass_on(&mut self, mut launch: Box<Launch>) -> io::Result<bool> {
        let streams = std::mem::take(&mut self.harness.streams);
        let isolation = &mut launch.isolation;
        match cgroup::take_on(isolation, process::id(), self.tree.worker()) {
            Ok(cgroup) => self.cgroup = cgroup,
            Err(error) => {
                self.report(&Report::Refused(Refusal::Isolation(error)));
                return Ok(false);
            }
        }
        if let Some(stage) = &self.stage {
            let streams: Vec<_> = streams.iter().map(AsFd::as_fd).collect();
            stage.send(&wire::line(&Order::Launch(launch))?, &streams)?;
        }
        Ok(true)
    }

    fn hear_stage(&mut self) -> io::Result<()> {
        let Some(stage) = &mut self.stage else {
            return Ok(());
        };
        let there = stage.fill()?;
        let mut refusal = None;
        while let Some(line) = stage.line() {
            match serde_json::from_slice(&line)? {
                Progress::Ready => self.ready = true,
                Progress::Refused(why) => refusal = Some(why),
            }
        }
        if !there {
            self.stage = None;
        }
        if let Some(why) = refusal {
            self.ready = false;
            self.report(&Report::Refused(why));
        } else if !there && self.ready {
            let pid = self.tree.worker();
            self.report(&Report::Started { pid });
        }
        Ok(())
    }

    /// Kills and reaps all there is, and tells of it.
    fn end(mut self) -> io::Result<()> {
        // A worker that has ended at once has begun before.
        let heard = if self.tree.has_exited() {
            self.hear_stage()
        } else {
            Ok(())
        };
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        let harness = &self.harness;
        self.tree
            .kill(|exit| report(harness, &Report::Exited(exit)))?;
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove();
        }
        self.report(&Report::Reaped);
        heard
    }

    fn report(&self, report: &Report) {
        self::report(&self.harness, report);
    }
}

/// Tells the harness, which need not hear it when it has gone.
fn report(harness: &Channel, report: &Report) {
    let line = wire::line(report).expect("a report must serialize");
    let _ = harness.send(&line, &[]);
}
