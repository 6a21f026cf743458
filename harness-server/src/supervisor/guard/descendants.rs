//! All processes below this one, found in `/proc` and signalled.
//!
//! Owns never signalling another's process. A process id says little: it may be another process's
//! by the time it is used. So each process is pinned by a pidfd, and only then asked for its birth
//! and its parent, which must itself have been found to be below this one, and still be there.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

/// How often they are looked for until none is found that was not stopped. What appears later is
/// found when this is done again.
const LOOKS_MAX: usize = 8;

/// A process as `/proc` has it.
#[derive(Clone, Copy)]
struct Process {
    parent: i32,
    /// When it was started: with its id, who it is.
    born: u64,
    is_dead: bool,
}

/// Kills everything below this process that is there now. All are stopped first: what is killed
/// makes room, under a limit, for what its siblings fork, and so a fork bomb would live on.
pub(super) fn kill() -> io::Result<()> {
    let mut stopped = HashSet::new();
    for _ in 0..LOOKS_MAX {
        let before = stopped.len();
        signal(Signal::STOP, |pid, born| stopped.insert((pid, born)))?;
        if stopped.len() == before {
            break;
        }
    }
    signal(Signal::KILL, |_, _| true)
}

/// Signals everything below this process, parents first, that `wanted` is true for.
fn signal(signal: Signal, mut wanted: impl FnMut(i32, u64) -> bool) -> io::Result<()> {
    // Each with its birth; this process is not asked for its own.
    let mut parents = vec![(getpid().as_raw_nonzero().get(), None)];
    while let Some((parent, parent_born)) = parents.pop() {
        for pid in children(parent)? {
            let Some(pinned) =
                Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
            else {
                continue;
            };
            let Some(process) = look(pid).filter(|it| it.parent == parent && !it.is_dead) else {
                continue;
            };
            if parent_born.is_some() && look(parent).map(|it| it.born) != parent_born {
                continue;
            }
            if wanted(pid, process.born) {
                // It may have died just now.
                let _ = pidfd_send_signal(pinned, signal);
            }
            parents.push((pid, Some(process.born)));
        }
    }
    Ok(())
}

/// The children of a process; one that comes or goes meanwhile can make another be missed.
fn children(parent: i32) -> io::Result<Vec<i32>> {
    // Not every kernel is built with this file.
    if !Path::new("/proc/thread-self/children").exists() {
        return searched_children(parent);
    }
    let mut found = Vec::new();
    // Each thread has those it has forked. A process that is gone has none.
    let threads = fs::read_dir(format!("/proc/{parent}/task"));
    for thread in threads.into_iter().flatten().flatten() {
        let listed = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        let pids = listed.split_ascii_whitespace().map(str::parse::<i32>);
        found.extend(pids.filter_map(Result::ok));
    }
    Ok(found)
}

/// The same, by asking every process there is.
fn searched_children(parent: i32) -> io::Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        if let Some(pid) = name.to_str().and_then(|name| name.parse().ok())
            && look(pid).is_some_and(|it| it.parent == parent)
        {
            found.push(pid);
        }
    }
    Ok(found)
}

/// A process, unless it has gone.
fn look(pid: i32) -> Option<Process> {
    // "pid (name) state parent ... started ...", and a name may hold anything.
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let after_name = str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    let mut fields = after_name.split_ascii_whitespace();
    Some(Process {
        is_dead: matches!(fields.next()?, "Z" | "X"),
        parent: fields.next()?.parse().ok()?,
        born: fields.nth(17)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_found_by_its_parent_either_way_until_it_is_reaped() {
        let mut child = Command::new("sleep").arg("1000").spawn().expect("started");
        let own = getpid().as_raw_nonzero().get();
        let pid = i32::try_from(child.id()).expect("a process id");
        let (one, again) = (look(pid).expect("there"), look(pid).expect("there"));
        assert_eq!(one.parent, own);
        assert_eq!(one.born, again.born);
        assert!(one.born >= look(own).expect("there").born);
        assert!(children(own).expect("listed").contains(&pid));
        assert!(searched_children(own).expect("searched").contains(&pid));
        child.kill().expect("killed");
        child.wait().expect("reaped");
        assert!(!children(own).expect("listed").contains(&pid));
        assert!(!searched_children(own).expect("searched").contains(&pid));
    }
}
