//! What a process of a pool is started with: its environment, its isolation, its guardian.
//!
//! Owns the step from what a configuration says to what is started.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::{Pool, Sandbox};

use super::isolation::{Files, Isolation, IsolationError, User};
use super::process::Launch;

/// What every process inherits of the harness's environment.
const INHERITED: [&str; 4] = ["PATH", "LANG", "HOME", "TZ"];

/// A variable that is to be passed on and is not there.
#[derive(Debug, thiserror::Error)]
#[error("pass_env: {0} is not set in the environment of the harness")]
pub struct NotSet(String);

/// What all pools of a harness have from it.
#[derive(Clone, Debug, Default)]
pub struct Means {
    /// The `harness` binary, which is run as the guardian of each process.
    pub guard: Option<PathBuf>,
    /// A TCP address that the harness listens on, as a process of the same machine dials it.
    pub tcp: Option<String>,
}

/// What a process of a pool is started with.
pub(super) fn launch(pool: &Pool, guard: &Path) -> Result<Launch, LaunchError> {
    Ok(Launch {
        command: pool.command.iter().map(OsString::from).collect(),
        cwd: pool.cwd.clone(),
        env: environment(pool)?,
        isolation: isolation(pool)?,
        guard: guard.to_owned(),
        stdin: pool.dialect == crate::pool::Dialect::Jsonl,
    })
}

/// Why it cannot be said what a process is started with.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// A variable is missing.
    #[error(transparent)]
    NotSet(#[from] NotSet),
    /// The isolation cannot be given.
    #[error(transparent)]
    Isolation(#[from] IsolationError),
    /// It is to dial a TCP address, and there is none.
    #[error("address = \"tcp\" needs a TCP address to listen on, such as 127.0.0.1:7070")]
    NoTcp,
    /// The socket it is to dial cannot be made.
    #[error("cannot make the Unix socket that its processes dial back to")]
    Door(#[source] io::Error),
}

fn environment(pool: &Pool) -> Result<Vec<(OsString, OsString)>, NotSet> {
    let said = |name: &str| pool.env.contains_key(name);
    let mut variables: Vec<(OsString, OsString)> = Vec::new();
    for name in INHERITED.into_iter().filter(|name| !said(name)) {
        variables.extend(env::var_os(name).map(|value| (name.into(), value)));
    }
    for name in pool.pass_env.iter().filter(|name| !said(name)) {
        let value = env::var_os(name).ok_or_else(|| NotSet(name.clone()))?;
        if !INHERITED.contains(&name.as_str()) {
            variables.push((name.into(), value));
        }
    }
    variables.extend(
        pool.env
            .iter()
            .map(|(name, value)| (name.into(), value.into())),
    );
    Ok(variables)
}

fn isolation(pool: &Pool) -> Result<Isolation, IsolationError> {
    let Sandbox {
        user,
        read,
        write,
        network,
    } = &pool.sandbox;
    let limits = &pool.limits;
    let user = user.as_deref().map(User::named).transpose()?;
    let files = (read.is_some() || write.is_some()).then(|| Files {
        read: read.clone().unwrap_or_default(),
        write: write.clone().unwrap_or_default(),
    });
    Ok(Isolation {
        user,
        files,
        network: *network,
        memory: limits.memory.map(|size| size.as_u64()),
        memory_address_space: limits.memory_address_space.map(|size| size.as_u64()),
        open_files: limits.open_files,
        processes: limits.processes,
        cpu_time: limits.cpu_time,
        launcher: pool.launcher.iter().map(OsString::from).collect(),
    })
}
