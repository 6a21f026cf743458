//! `harness guard`: what a harness starts between itself and each worker it runs; for nobody else,
//! so not in the help.
//!
//! Owns knowing that this process is to be one, before anything else is done: every worker waits
//! for its guardian, and the grammar of the command line alone takes a fifth of that.

use std::env;
use std::process::ExitCode;

use harness_server::supervisor::guard;

/// Runs the guardian when this process is to be one.
pub(crate) fn run() -> Option<ExitCode> {
    let mut arguments = env::args_os().skip(1);
    (arguments.next()? == "guard").then(|| guard::main(arguments))
}
