//! A child process of a test: its output is kept in files, it is killed when dropped, and its
//! output is printed when the test has failed.

use std::fmt;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::kill;
use nix::unistd::Pid;
use tempfile::TempDir;

pub use nix::sys::signal::Signal;

use crate::wait::{BOUND, eventually};

/// A running child. Its standard input is empty unless the command says otherwise.
pub struct Process {
    name: String,
    child: Child,
    // After the child, so that the folder outlives it.
    folder: TempDir,
}

/// A child that has ended.
#[derive(Debug, Clone)]
pub struct Finished {
    /// The exit code; none when a signal ended it.
    pub code: Option<i32>,
    /// How it ended.
    pub status: ExitStatus,
    /// All of its standard output.
    pub stdout: String,
    /// All of its standard error.
    pub stderr: String,
}

impl Process {
    /// Starts a command; `name` is for messages.
    ///
    /// # Panics
    /// When it cannot be started.
    #[track_caller]
    pub fn start(name: impl Into<String>, command: Command) -> Self {
        Self::start_in(
            name,
            command,
            TempDir::new().expect("a folder of its own"),
            None,
        )
    }

    /// Starts a command that reads `input` from its standard input.
    ///
    /// # Panics
    /// When it cannot be started.
    #[track_caller]
    pub fn start_with_input(name: impl Into<String>, command: Command, input: &[u8]) -> Self {
        let folder = TempDir::new().expect("a folder of its own");
        let path = folder.path().join("stdin");
        fs::write(&path, input).expect("the input must be written");
        Self::start_in(name, command, folder, Some(path))
    }

    #[track_caller]
    fn start_in(
        name: impl Into<String>,
        mut command: Command,
        folder: TempDir,
        input: Option<PathBuf>,
    ) -> Self {
        let name = name.into();
        let create = |file| File::create(folder.path().join(file)).expect("a file for output");
        let stdin = input.map_or_else(Stdio::null, |path| {
            File::open(path).expect("the input just written").into()
        });
        let child = command
            .stdin(stdin)
            .stdout(create("stdout"))
            .stderr(create("stderr"))
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        Self {
            name,
            child,
            folder,
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How much of its memory is in use, in bytes.
    ///
    /// # Panics
    /// When the process is gone, or the system does not tell in `/proc`.
    #[track_caller]
    pub fn resident_bytes(&self) -> u64 {
        let path = format!("/proc/{}/status", self.pid());
        let status = fs::read_to_string(path).expect("a living process");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        let kib: u64 = kib.and_then(|kib| kib.parse().ok()).expect("its memory");
        kib << 10
    }

    /// How many files and sockets it has open.
    ///
    /// # Panics
    /// As [`Process::resident_bytes`].
    #[track_caller]
    pub fn open_files(&self) -> usize {
        let path = format!("/proc/{}/fd", self.pid());
        fs::read_dir(path).expect("a living process").count()
    }

    /// Its standard output so far.
    pub fn stdout(&self) -> String {
        self.read("stdout")
    }

    /// Its standard error so far.
    pub fn stderr(&self) -> String {
        self.read("stderr")
    }

    fn read(&self, file: &str) -> String {
        let bytes = fs::read(self.folder.path().join(file)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits for a whole line of its output, either stream, that holds `text`; gives the line.
    ///
    /// # Panics
    /// When none comes within [`BOUND`] or the process ends without it.
    #[track_caller]
    pub fn wait_for_line(&mut self, text: &str) -> String {
        let what = format!("a line of {} with {text:?}", self.name);
        eventually(&what, BOUND, || {
            // Asked before the output is read, which is then complete.
            let ended = self.try_wait();
            let output = self.stderr() + &self.stdout();
            let whole = output.split_inclusive('\n');
            let found = whole
                .filter(|line| line.ends_with('\n'))
                .find(|line| line.contains(text));
            if found.is_none()
                && let Some(status) = ended
            {
                panic!(
                    "{} ended ({status}) without a line with {text:?}",
                    self.name
                );
            }
            found.map(|line| line.trim_end().to_owned())
        })
    }

    /// How it ended, if it has.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child must be waitable")
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// When the process is gone.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).expect("a process id must fit");
        kill(Pid::from_raw(pid), signal)
            .unwrap_or_else(|error| panic!("cannot signal {}: {error}", self.name));
    }

    /// Waits until it ends by itself.
    ///
    /// # Panics
    /// When it does not within [`BOUND`].
    #[track_caller]
    pub fn finish(self) -> Finished {
        self.finish_within(BOUND)
    }

    /// Waits until it ends by itself.
    ///
    /// # Panics
    /// When it does not within `bound`.
    #[track_caller]
    pub fn finish_within(mut self, bound: Duration) -> Finished {
        let what = format!("{} ends", self.name);
        let status = eventually(&what, bound, || self.try_wait());
        Finished {
            code: status.code(),
            status,
            stdout: self.stdout(),
            stderr: self.stderr(),
        }
    }

    /// Starts a command and waits until it ends.
    ///
    /// # Panics
    /// When it cannot be started or does not end within [`BOUND`].
    #[track_caller]
    pub fn run(name: impl Into<String>, command: Command) -> Finished {
        Self::start(name, command).finish()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.try_wait().is_none() {
            // It may end by itself just now.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            let (stdout, stderr) = (self.stdout(), self.stderr());
            tell(&format!(
                "--- {}: stdout\n{stdout}--- stderr\n{stderr}---",
                self.name
            ));
        }
    }
}

/// Prints where the test harness shows it: with the test that failed.
#[expect(clippy::print_stdout, reason = "what the test harness captures")]
pub(crate) fn tell(text: &str) {
    println!("{text}");
}

impl Finished {
    /// Its standard output as one JSON value.
    ///
    /// # Panics
    /// When it is none.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("stdout is no JSON, {error}: {self}"))
    }
}

impl fmt::Display for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}\n--- stdout\n{}--- stderr\n{}---",
            self.status, self.stdout, self.stderr
        )
    }
}
