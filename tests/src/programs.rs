//! Finding the programs under test beside the test itself.

use std::path::PathBuf;
use std::process::Command;

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
    let mut command = Command::new(program(name));
    for variable in ["HARNESS_ADDRESS", "HARNESS_SLOTS", "RUST_LOG"] {
        command.env_remove(variable);
    }
    command.env("NO_COLOR", "1");
    command
}
