//! What keeps a worker process from the rest of the machine: values, resolved and complete.
//!
//! Owns their meaning. The guardian applies them ([`super::guard`]); what a configuration file
//! may say is the configuration's affair. Nothing here is ever left out in silence: what the
//! kernel or the permissions of this process cannot give is refused, naming the setting.

#[cfg(target_os = "linux")]
use std::ffi::CString;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a worker process is kept to. The default is nothing: no limit, all files, the network.
///
/// Whatever is set but the launcher, the process also gets `no_new_privs`: no set-uid program
/// leads out of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Isolation {
    /// Whom it runs as; needs root unless it is who the harness runs as.
    pub user: Option<User>,
    /// The files it may use (Landlock, Linux 6.2 and later); all that `user` may when none.
    pub files: Option<Files>,
    /// Whether it has the network. Without, it has an empty network namespace: no address is
    /// reached, not even loopback; Unix sockets of the file system are. Needs root or
    /// unprivileged user namespaces.
    pub network: bool,
    /// Memory of it and its descendants, in bytes; going over kills them all. Needs cgroup v2
    /// with the `memory` controller.
    pub memory: Option<u64>,
    /// Address space of each of its processes, in bytes; allocating more fails. Breaks runtimes
    /// that reserve much more than they use: Node, Java, Go.
    pub memory_address_space: Option<u64>,
    /// Files each of its processes may have open.
    pub open_files: Option<u64>,
    /// Processes and threads that it and its descendants may be; with `user` and no cgroup those
    /// of all processes of that user together.
    pub processes: Option<u64>,
    /// Processor time of each of its processes, in whole seconds; over it SIGXCPU, a second
    /// later SIGKILL. For processes that work one request.
    pub cpu_time: Option<Duration>,
    /// Put before the command, for a container; the rest of the isolation is then that of the
    /// launcher's own process.
    pub launcher: Vec<OsString>,
}

/// The user a process runs as, resolved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// As it was asked for.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// All group ids, the primary one included.
    pub groups: Vec<u32>,
}

/// The only files a process may use, apart from `/dev/null`, `full`, `random`, `urandom` and
/// `zero`. A folder stands for all below it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Files {
    /// May be read, listed and executed. Must hold the command and its libraries.
    pub read: Vec<PathBuf>,
    /// May be read, written, created, renamed and removed.
    pub write: Vec<PathBuf>,
}

/// A setting that this kernel, or the permissions of this process, cannot give.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{setting} cannot be given here: {reason}")]
pub struct IsolationError {
    /// As the configuration file names it: `sandbox.user`, `limits.memory`.
    pub setting: String,
    /// Why, and what to do.
    pub reason: String,
}

impl Default for Isolation {
    fn default() -> Self {
        Self {
            user: None,
            files: None,
            network: true,
            memory: None,
            memory_address_space: None,
            open_files: None,
            processes: None,
            cpu_time: None,
            launcher: Vec::new(),
        }
    }
}

impl Isolation {
    /// Whether anything but the launcher is set.
    #[must_use]
    pub fn is_any(&self) -> bool {
        let launcher = self.launcher.clone();
        *self
            != Self {
                launcher,
                ..Self::default()
            }
    }
}

impl User {
    /// Looks up a user of this system with its groups.
    ///
    /// # Errors
    /// That there is none of that name.
    #[cfg(target_os = "linux")]
    pub fn named(name: &str) -> Result<Self, IsolationError> {
        let refused = |reason: String| IsolationError::new("sandbox.user", reason);
        let found = nix::unistd::User::from_name(name);
        let found = found
            .map_err(|errno| refused(format!("{name} cannot be looked up: {errno}")))?
            .ok_or_else(|| refused(format!("there is no user {name}")))?;
        let c_name = CString::new(name).expect("a name that was found must be a C string");
        let groups = nix::unistd::getgrouplist(&c_name, found.gid)
            .map_err(|errno| refused(format!("the groups of {name}: {errno}")))?;
        Ok(Self {
            name: name.to_owned(),
            uid: found.uid.as_raw(),
            gid: found.gid.as_raw(),
            groups: groups.into_iter().map(|group| group.as_raw()).collect(),
        })
    }

    /// Finds none: workers run as another user on Linux only.
    ///
    /// # Errors
    /// That.
    #[cfg(not(target_os = "linux"))]
    pub fn named(name: &str) -> Result<Self, IsolationError> {
        let reason = format!("running as {name} is there on Linux only");
        Err(IsolationError::new("sandbox.user", reason))
    }
}

impl IsolationError {
    /// A refusal of `setting`.
    pub fn new(setting: &str, reason: impl ToString) -> Self {
        Self {
            setting: setting.to_owned(),
            reason: reason.to_string(),
        }
    }
}
