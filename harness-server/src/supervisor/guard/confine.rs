//! Taking on the isolation, by the process that becomes the worker.
//!
//! Owns how each part is had from the kernel, and the order: first what needs the permissions of
//! the harness (namespace, limits above the present ones, user), then what holds for ever
//! (`no_new_privs`, files). What a cgroup keeps is in [`super::cgroup`]. Whatever fails is a
//! refusal that names the setting.

mod files;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, fchown};

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Gid, Uid, getegid, geteuid, setgroups, setresgid, setresuid};

use crate::supervisor::isolation::{Isolation, IsolationError, User};
use crate::supervisor::wire::Launch;

/// With fewer this process cannot come as far as the command.
const OPEN_FILES_MIN: u64 = 16;

/// How long after SIGXCPU a process that goes on is killed.
const CPU_GRACE_S: u64 = 1;

/// Takes on everything but [`take_on_last`]. `streams` are those the worker is to have.
pub(super) fn take_on(launch: &Launch, streams: &[OwnedFd]) -> Result<(), IsolationError> {
    let isolation = &launch.isolation;
    if isolation.memory.is_some() {
        return refuse("limits.memory", "no cgroup keeps it");
    }
    if !isolation.network {
        leave_network()?;
    }
    limit(isolation)?;
    if let Some(user) = &isolation.user {
        become_user(user, streams)?;
    }
    if launch.no_new_privs {
        given("sandbox", prctl::set_no_new_privs())?;
    }
    if let Some(files) = &isolation.files {
        files::restrict(files)?;
    }
    Ok(())
}

/// The limit that could keep this process itself from executing the command.
pub(super) fn take_on_last(isolation: &Isolation) -> Result<(), IsolationError> {
    set_limit(
        "limits.memory_address_space",
        Resource::RLIMIT_AS,
        isolation.memory_address_space,
        0,
    )
}

fn refuse<T>(setting: &str, reason: impl ToString) -> Result<T, IsolationError> {
    Err(IsolationError::new(setting, reason))
}

/// The result, or that the system refuses `setting`.
fn given<T>(setting: &str, result: nix::Result<T>) -> Result<T, IsolationError> {
    result.map_err(|errno| IsolationError::new(setting, io::Error::from(errno)))
}

fn limit(isolation: &Isolation) -> Result<(), IsolationError> {
    if isolation.open_files.is_some_and(|it| it < OPEN_FILES_MIN) {
        let reason = format!("it must be at least {OPEN_FILES_MIN}");
        return refuse("limits.open_files", reason);
    }
    let open_files = isolation.open_files;
    set_limit("limits.open_files", Resource::RLIMIT_NOFILE, open_files, 0)?;
    let cpu_s = isolation.cpu_time.map(|time| {
        let begun = u64::from(time.subsec_nanos() > 0);
        (time.as_secs() + begun).max(1)
    });
    set_limit("limits.cpu_time", Resource::RLIMIT_CPU, cpu_s, CPU_GRACE_S)?;
    let processes = isolation.processes;
    let is_root = isolation.user.as_ref().is_some_and(|user| user.uid == 0);
    if processes.is_some() && is_root {
        return refuse(
            "limits.processes",
            "without a cgroup those of root have no limit",
        );
    }
    set_limit("limits.processes", Resource::RLIMIT_NPROC, processes, 0)
}

/// Sets a limit, which no process below can raise; `grace` more is the hard one.
fn set_limit(
    setting: &str,
    resource: Resource,
    wanted: Option<u64>,
    grace: u64,
) -> Result<(), IsolationError> {
    let Some(soft) = wanted else {
        return Ok(());
    };
    match setrlimit(resource, soft, soft.saturating_add(grace)) {
        Err(Errno::EPERM) => {
            let (_, most) = given(setting, getrlimit(resource))?;
            refuse(
                setting,
                format!("{soft} is over this process's own limit, {most}"),
            )
        }
        other => given(setting, other),
    }
}

/// An empty network namespace, by permission or else by a user namespace of its own.
fn leave_network() -> Result<(), IsolationError> {
    const SETTING: &str = "sandbox.network";
    let (uid, gid) = (geteuid(), getegid());
    match unshare(CloneFlags::CLONE_NEWNET) {
        Err(Errno::EPERM) => {}
        other => return given(SETTING, other),
    }
    if let Err(errno) = unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET) {
        let error = io::Error::from(errno);
        let reason = format!("it needs root, or user namespaces for everybody: {error}");
        return refuse(SETTING, reason);
    }
    // The same user inside as outside, so without any capability once the command runs.
    let maps = [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{uid} {uid} 1")),
        ("gid_map", format!("{gid} {gid} 1")),
    ];
    for (file, text) in maps {
        let written = fs::write(format!("/proc/self/{file}"), text);
        written.map_err(|error| IsolationError::new(SETTING, format!("{file}: {error}")))?;
    }
    Ok(())
}

fn become_user(user: &User, streams: &[OwnedFd]) -> Result<(), IsolationError> {
    const SETTING: &str = "sandbox.user";
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    if !geteuid().is_root() {
        if (uid, gid) == (geteuid(), getegid()) {
            return Ok(());
        }
        let own = geteuid();
        return refuse(
            SETTING,
            format!("only root can become {}, and this is {own}", user.name),
        );
    }
    // So that /dev/stdout can be opened, as shell scripts do.
    for stream in streams {
        own_pipe(stream, user).map_err(|error| IsolationError::new(SETTING, error))?;
    }
    let groups: Vec<Gid> = user.groups.iter().copied().map(Gid::from_raw).collect();
    given(SETTING, setgroups(&groups))?;
    given(SETTING, setresgid(gid, gid, gid))?;
    given(SETTING, setresuid(uid, uid, uid))
}

fn own_pipe(stream: &OwnedFd, user: &User) -> io::Result<()> {
    let file = fs::File::from(stream.try_clone()?);
    if file.metadata()?.file_type().is_fifo() {
        fchown(&file, Some(user.uid), Some(user.gid))?;
    }
    Ok(())
}
