//! A cgroup (v2) for one worker and all its descendants.
//!
//! Owns its life, from the guardian that makes it to the guardian that removes it, and the two
//! limits that it keeps better than anything else, or alone. It is made below the cgroup of the
//! harness or beside it, where the harness must have the right to: under systemd by
//! `Delegate=yes` and `DelegateSubgroup=harness`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::supervisor::isolation::{Isolation, IsolationError};

/// Gone when removed.
#[derive(Debug)]
pub(super) struct Cgroup(PathBuf);

/// What a cgroup keeps its processes to, all of them together.
#[derive(Clone, Copy, Default)]
struct Limits {
    memory: Option<u64>,
    processes: Option<u64>,
}

impl Limits {
    /// The controllers that keep them.
    fn controllers(self) -> impl Iterator<Item = &'static str> {
        let memory = self.memory.map(|_| "memory");
        memory.into_iter().chain(self.processes.map(|_| "pids"))
    }

    /// The first setting, as the configuration names it, and what does without a cgroup.
    fn setting(self) -> (&'static str, &'static str) {
        match self.memory {
            Some(_) => ("limits.memory", "limits.memory_address_space"),
            None => ("limits.processes", "limits.processes beside sandbox.user"),
        }
    }
}

/// Puts `worker` into a cgroup of its own when a setting needs one, and takes what that keeps out
/// of what is left to be taken on. `own` is this process's id.
pub(super) fn take_on(
    isolation: &mut Isolation,
    own: u32,
    worker: u32,
) -> Result<Option<Cgroup>, IsolationError> {
    let mut limits = Limits {
        memory: isolation.memory,
        processes: isolation.processes,
    };
    let mut made = make(limits, own, worker);
    if made.is_err() && limits.processes.is_some() && isolation.user.is_some() {
        // Those of a user can be limited without.
        limits.processes = None;
        made = make(limits, own, worker);
    }
    let cgroup = made.map_err(|reason| {
        let (setting, instead) = limits.setting();
        IsolationError::new(setting, format!("{reason}; {instead} needs no cgroup"))
    })?;
    isolation.memory = None;
    if limits.processes.is_some() {
        isolation.processes = None;
    }
    Ok(cgroup)
}

/// A cgroup with the worker in it, or none when there is nothing to limit; else why not.
fn make(limits: Limits, own: u32, worker: u32) -> Result<Option<Cgroup>, String> {
    if limits.controllers().next().is_none() {
        return Ok(None);
    }
    let cgroup = Cgroup::create(&home(limits)?, own)?;
    match cgroup.limit(limits).and_then(|()| cgroup.add(worker)) {
        Ok(()) => Ok(Some(cgroup)),
        Err(reason) => {
            cgroup.remove();
            Err(reason)
        }
    }
}

/// The cgroup that can have one below it with these limits.
fn home(limits: Limits) -> Result<PathBuf, String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|error| error.to_string())?;
    let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
    let (mount, below) = place(&mounts, &own).ok_or("there is no cgroup v2 here")?;
    let own = mount.join(&below);
    let beside = own.parent().filter(|parent| parent.starts_with(&mount));
    let mut told = None;
    for home in [Some(own.as_path()), beside].into_iter().flatten() {
        match enable(home, limits) {
            Ok(()) => return Ok(home.to_owned()),
            Err(reason) => told = Some(reason),
        }
    }
    Err(told.expect("the first home must have been tried"))
}

/// Where cgroup v2 is mounted, and where below that this process is.
fn place(mounts: &str, own: &str) -> Option<(PathBuf, PathBuf)> {
    // "36 35 98:0 /root /mount/point options - type source options"
    let (root, mount) = mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, mount) = (fields.next()?, fields.next()?);
        kind.starts_with("cgroup2 ").then_some((root, mount))
    })?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let below = Path::new(own).strip_prefix(root).ok()?;
    Some((PathBuf::from(mount), below.to_owned()))
}

/// Makes sure that cgroups below `home` can have the limits.
fn enable(home: &Path, limits: Limits) -> Result<(), String> {
    let words = |file: &str| {
        let text = fs::read_to_string(home.join(file));
        text.map_err(|error| format!("{}: {error}", home.display()))
    };
    let there = words("cgroup.controllers")?;
    let enabled = words("cgroup.subtree_control")?;
    for controller in limits.controllers() {
        if !there.split_whitespace().any(|it| it == controller) {
            let home = home.display();
            return Err(format!("the cgroup {home} has no controller {controller}"));
        }
        if !enabled.split_whitespace().any(|it| it == controller) {
            write(home, "cgroup.subtree_control", format!("+{controller}"))?;
        }
    }
    Ok(())
}

fn write(cgroup: &Path, file: &str, text: String) -> Result<(), String> {
    let path = cgroup.join(file);
    fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
}

impl Cgroup {
    fn create(home: &Path, own: u32) -> Result<Self, String> {
        let cgroup = Self(home.join(format!("harness-worker-{own}")));
        let mut made = fs::create_dir(&cgroup.0);
        if made
            .as_ref()
            .is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists)
        {
            // A guardian with this process id, which is now ours, was killed.
            cgroup.kill();
            cgroup.remove();
            made = fs::create_dir(&cgroup.0);
        }
        match made {
            Ok(()) => Ok(cgroup),
            Err(error) => Err(format!("{}: {error}", cgroup.0.display())),
        }
    }

    fn limit(&self, limits: Limits) -> Result<(), String> {
        if let Some(bytes) = limits.memory {
            write(&self.0, "memory.max", bytes.to_string())?;
            write(&self.0, "memory.oom.group", "1".to_owned())?;
            // Not there where there is no swap.
            if self.0.join("memory.swap.max").exists() {
                write(&self.0, "memory.swap.max", "0".to_owned())?;
            }
        }
        if let Some(processes) = limits.processes {
            write(&self.0, "pids.max", processes.to_string())?;
        }
        Ok(())
    }

    fn add(&self, pid: u32) -> Result<(), String> {
        write(&self.0, "cgroup.procs", pid.to_string())
    }

    /// Kills all that is in it, at one instant.
    pub(super) fn kill(&self) {
        // Kernels before 5.14 cannot; their descendants are killed one by one.
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
    }

    /// Removes it, with nothing left in it.
    pub(super) fn remove(&self) {
        // What the worker made below it stays.
        let _ = fs::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{self, Command};

    use super::*;

    const MOUNTS: &str = "\
        24 1 0:22 / /proc rw - proc proc rw\n\
        33 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        42 32 0:39 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
    const BOTH: Limits = Limits {
        memory: Some(1 << 20),
        processes: Some(64),
    };

    /// What the kernel shows of a cgroup, in a folder.
    fn folder(name: &str, there: &str, enabled: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("cgroup-{name}-{}", process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("cgroup.controllers"), there).expect("written");
        fs::write(folder.join("cgroup.subtree_control"), enabled).expect("written");
        folder
    }

    #[test]
    fn the_own_cgroup_is_found_below_the_mount_of_version_2() {
        let (mount, below) = place(MOUNTS, "4:memory:/a\n0::/system/harness\n").expect("there");
        assert_eq!(mount, Path::new("/sys/fs/cgroup/unified"));
        assert_eq!(below, Path::new("system/harness"));
        assert_eq!(place(MOUNTS, "4:memory:/a\n"), None);
        assert_eq!(place("", "0::/\n"), None);
        // In a container: what is mounted is the container's own.
        let mounts = "42 32 0:39 /docker/1 /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
        let (_, below) = place(mounts, "0::/docker/1\n").expect("there");
        assert_eq!(below, Path::new(""));
        assert_eq!(place(mounts, "0::/elsewhere\n"), None);
    }

    #[test]
    fn a_controller_that_is_there_is_enabled_and_one_that_is_not_is_named() {
        let whole = folder("whole", "cpu memory pids\n", "cpu pids\n");
        enable(&whole, BOTH).expect("both");
        let written = fs::read_to_string(whole.join("cgroup.subtree_control"));
        assert_eq!(
            written.expect("read"),
            "+memory",
            "pids are enabled already"
        );
        let part = folder("part", "cpu pids\n", "");
        let reason = enable(&part, BOTH).expect_err("refused");
        assert!(reason.ends_with("has no controller memory"), "{reason}");
        for folder in [whole, part] {
            fs::remove_dir_all(folder).expect("removed");
        }
    }

    #[test]
    fn the_limits_are_written_where_the_kernel_reads_them() {
        let home = folder("limits", "memory pids\n", "memory pids\n");
        let cgroup = Cgroup::create(&home, 7).expect("made");
        fs::write(cgroup.0.join("memory.swap.max"), "max").expect("written");
        cgroup.limit(BOTH).expect("limited");
        cgroup.add(42).expect("added");
        let read = |file| fs::read_to_string(home.join("harness-worker-7").join(file));
        assert_eq!(read("memory.max").expect("read"), "1048576");
        assert_eq!(read("memory.swap.max").expect("read"), "0");
        assert_eq!(read("memory.oom.group").expect("read"), "1");
        assert_eq!(read("pids.max").expect("read"), "64");
        assert_eq!(read("cgroup.procs").expect("read"), "42");
        fs::remove_dir_all(home).expect("removed");
    }

    /// Where this process may make cgroups; none in most containers.
    #[test]
    fn all_in_a_cgroup_is_killed_and_the_next_of_the_same_name_begins_empty() {
        let Ok(home) = home(Limits::default()) else {
            return;
        };
        let Ok(cgroup) = Cgroup::create(&home, process::id()) else {
            return;
        };
        let mut first = Command::new("sleep").arg("1000").spawn().expect("started");
        cgroup.add(first.id()).expect("added");
        // Left behind by a guardian that was killed.
        let again = Cgroup::create(&home, process::id());
        assert_eq!(first.wait().expect("reaped").signal(), Some(9));
        let cgroup = again
            .or_else(|_| Cgroup::create(&home, process::id()))
            .expect("made again");
        let mut second = Command::new("sleep").arg("1000").spawn().expect("started");
        cgroup.add(second.id()).expect("added");
        cgroup.kill();
        assert_eq!(second.wait().expect("reaped").signal(), Some(9));
        cgroup.remove();
        assert!(!cgroup.0.exists());
    }
}
