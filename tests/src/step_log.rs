//! What the workers of the crash test write down: a line of one file for each step that runs and
//! for each whose record is acknowledged. Workers of any kind, in any process, share the file.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

/// The agent of the workers that keep such a log.
pub const AGENT: &str = "steady";

/// The environment variable that names the file to a worker in a process of its own.
pub const VARIABLE: &str = "STEPS_LOG";

/// Steps of each run, named `0` and up; the run's reply is its request.
pub const STEPS: usize = 5;

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Its work runs.
    Ran,
    /// Its worker was told that its result is on disk.
    Recorded,
}

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// What it says.
    pub what: What,
    /// Of which run.
    pub run_id: String,
    /// The attempt in which it says so, from 1.
    pub attempt: u32,
    /// Of which step.
    pub step: usize,
    /// What kind of worker says so, one word.
    pub by: String,
}

/// A log that workers of one kind write to.
pub struct StepLog {
    file: File,
    by: &'static str,
}

impl StepLog {
    /// Opens the file for workers of a kind, which is one word; it is made where there is none.
    ///
    /// # Panics
    /// When it cannot be written.
    #[must_use]
    pub fn open(path: &Path, by: &'static str) -> Self {
        let file = OpenOptions::new().append(true).create(true).open(path);
        let file = file.expect("the log of steps must be writable");
        Self { file, by }
    }

    /// Adds a line.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn put(&self, what: What, run_id: &str, attempt: u32, step: usize) {
        let word = match what {
            What::Ran => "ran",
            What::Recorded => "recorded",
        };
        // One write, so that lines of several processes do not mix.
        let line = format!("{word} {run_id} {attempt} {step} {}\n", self.by);
        let written = (&self.file).write_all(line.as_bytes());
        written.expect("the log of steps must be writable");
    }
}

/// Reads a log. A worker that was killed leaves no half of a line.
///
/// # Panics
/// When it cannot be read or holds something else.
#[must_use]
pub fn read(path: &Path) -> Vec<Line> {
    let text = std::fs::read_to_string(path).expect("the log of steps must be readable");
    let parse = |line: &str| {
        let mut words = line.split(' ');
        let what = match words.next()? {
            "ran" => What::Ran,
            "recorded" => What::Recorded,
            _ => return None,
        };
        Some(Line {
            what,
            run_id: words.next()?.to_owned(),
            attempt: words.next()?.parse().ok()?,
            step: words.next()?.parse().ok()?,
            by: words.next()?.to_owned(),
        })
    };
    let lines = text.lines();
    lines
        .map(|line| parse(line).unwrap_or_else(|| panic!("no line of a log of steps: {line:?}")))
        .collect()
}
