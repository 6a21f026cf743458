//! Finding the programs under test: Rust ones beside the test itself, Python ones in the sources.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::tell;

/// The path of a program of this workspace, such as `harness` or `echo`.
///
/// # Panics
/// When it has not been built, with the command that builds it.
#[track_caller]
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test must know its own path");
    // The test is target/debug/deps/cli-0123456789abcdef, its programs are in target/debug.
    let found = test
        .ancestors()
        .skip(1)
        .take(3)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!("{name} is not built: run `cargo build --workspace --bins`, or ./tests/run")
    })
}

/// A command of a program of this workspace, without what the environment says of harnesses, and
/// without colours.
///
/// # Panics
/// As [`program`].
#[track_caller]
pub fn command(name: &str) -> Command {
    command_of(&program(name))
}

/// [`command`] of a program that lies elsewhere.
pub(crate) fn command_of(program: &Path) -> Command {
    let mut command = Command::new(program);
    for variable in ["HARNESS_ADDRESS", "HARNESS_SLOTS", "RUST_LOG"] {
        command.env_remove(variable);
    }
    command.env("NO_COLOR", "1");
    command
}

/// A file of this repository.
#[must_use]
pub fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// A command of a Python program, which can import the generated stubs and what lies in
/// `examples/python`; none where `./tests/run` has not set Python up (it names interpreter and
/// stubs in HARNESS_PYTHON and HARNESS_PYTHON_STUBS).
///
/// # Panics
/// When they are missing though CI=true.
pub fn python(script: impl AsRef<Path>) -> Option<Command> {
    let variables = ["HARNESS_PYTHON", "HARNESS_PYTHON_STUBS"].map(std::env::var_os);
    let [Some(python), Some(stubs)] = variables else {
        let ci = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!ci, "HARNESS_PYTHON is not set: run ./tests/run");
        tell("skipped: HARNESS_PYTHON is not set; ./tests/run sets Python up");
        return None;
    };
    let folders = [PathBuf::from(stubs), source("examples/python")];
    let path = std::env::join_paths(folders).expect("the folders must have no colon");
    let mut command = Command::new(python);
    command
        .arg(script.as_ref())
        .env("PYTHONPATH", path)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PYTHONUNBUFFERED", "1");
    for variable in ["HARNESS_ADDRESS", "HARNESS_SLOTS", "HARNESS_AGENT"] {
        command.env_remove(variable);
    }
    Some(command)
}
