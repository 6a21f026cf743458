//! The Python that all sides of a comparison run: the file itself, since what PATH finds may be a
//! script that looks for it first.

use std::fmt;
use std::process::Command;

use crate::report::{Row, row};

/// An interpreter.
pub(super) struct Interpreter {
    path: String,
    version: String,
}

impl Interpreter {
    /// That of `python3`; none where there is none.
    pub(super) fn find() -> Option<Self> {
        let ask = "import sys; print(sys.executable); print(sys.version.split()[0])";
        let told = Command::new("python3").args(["-c", ask]).output().ok()?;
        let told = String::from_utf8(told.stdout).ok()?;
        let (path, version) = told.trim().split_once('\n')?;
        Some(Self {
            path: path.to_owned(),
            version: version.to_owned(),
        })
    }

    /// The words that run a file.
    pub(super) fn command(&self, file: &str) -> Vec<String> {
        vec![self.path.clone(), file.to_owned()]
    }

    /// A process of it.
    pub(super) fn process(&self, arguments: &[String]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(arguments);
        command
    }
}

impl fmt::Display for Interpreter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CPython {}", self.version)
    }
}

/// A row in place of those that need one.
pub(super) fn missing(what: &str) -> Row {
    row(what.to_owned(), "not measured: no python3".to_owned(), "")
}
