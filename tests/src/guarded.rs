//! Worker processes under test: what to start, and finding what is left of it in `/proc`.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use harness_server::supervisor::isolation::Isolation;
use harness_server::supervisor::process::{Exit, Launch, Process, StartError};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;

use crate::programs::program;
use crate::wait::BOUND;

/// A command with a PATH and nothing else.
///
/// # Panics
/// When the harness binary is not built.
#[track_caller]
pub fn launch<S: AsRef<OsStr>>(command: impl IntoIterator<Item = S>) -> Launch {
    let words = command.into_iter();
    Launch {
        command: words.map(|word| word.as_ref().to_owned()).collect(),
        cwd: None,
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        isolation: Isolation::default(),
        guard: program("harness"),
        stdin: false,
    }
}

/// A script of `sh`.
///
/// # Panics
/// As [`launch`].
#[track_caller]
pub fn sh(script: &str) -> Launch {
    launch(["sh", "-c", script])
}

/// Starts a process and gives its standard output and how it ended, when all of it has.
///
/// # Errors
/// That it does not start.
///
/// # Panics
/// When it does not end within [`BOUND`].
pub async fn output(launch: Launch) -> Result<(String, Exit), StartError> {
    let what = format!("{:?} ends", launch.command);
    let whole = async {
        let (mut process, mut streams) = Process::start(launch).await?;
        let mut stdout = String::new();
        let read = streams.stdout.read_to_string(&mut stdout);
        read.await.expect("its output must be UTF-8");
        Ok((stdout, process.reaped().await))
    };
    let whole = tokio::time::timeout(BOUND, whole).await;
    whole.unwrap_or_else(|_| panic!("not within {BOUND:?}: {what}"))
}

/// A folder that every user can reach, with programs of this workspace in it.
///
/// # Panics
/// When it cannot be made.
#[must_use]
pub fn public(programs: &[&str]) -> TempDir {
    use std::os::unix::fs::PermissionsExt;
    let folder = TempDir::new().expect("a folder");
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(folder.path(), open).expect("opened");
    for name in programs {
        link(&program(name), &folder.path().join(name));
    }
    folder
}

/// A file under a second name, by which processes that run it can be told apart.
///
/// # Panics
/// When it cannot be made.
pub fn link(file: &Path, name: &Path) {
    if fs::hard_link(file, name).is_err() {
        fs::copy(file, name).expect("the copy of a program");
    }
}

/// The processes alive, zombies apart, that have `MARK=mark` in their environment or run `program`.
#[must_use]
pub fn marked(mark: &str, program: &Path) -> Vec<(u32, String)> {
    let mark = format!("MARK={mark}").into_bytes();
    let mut found = Vec::new();
    for process in fs::read_dir("/proc")
        .expect("/proc must be there")
        .flatten()
    {
        let Ok(pid) = process.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        let folder = process.path();
        let environment = fs::read(folder.join("environ")).unwrap_or_default();
        let runs = fs::read_link(folder.join("exe")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|it| it == mark) || runs == program {
            let command = fs::read(folder.join("cmdline")).unwrap_or_default();
            found.push((pid, String::from_utf8_lossy(&command).replace('\0', " ")));
        }
    }
    found
}

/// Whether a process is there, dead or alive.
#[must_use]
pub fn exists(pid: u32) -> bool {
    PathBuf::from(format!("/proc/{pid}")).exists()
}
