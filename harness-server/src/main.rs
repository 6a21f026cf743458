//! The `harness` program: a command line over the two libraries.

mod cli;
mod shutdown;
mod telemetry;

use std::io;
use std::num::NonZero;
use std::process::ExitCode;

use cli::Cli;
use tokio::runtime::{Builder, Runtime};

/// Gives memory back that is no longer used, as the system's allocator does not after a crowd.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if let Some(code) = cli::guard::run() {
        return code;
    }
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    telemetry::start(cli.log_level(), cli.shows_workers());
    let runtime = match runtime(cli.threads()) {
        Ok(runtime) => runtime,
        Err(error) => return cli.cannot_start(error),
    };
    let code = runtime.block_on(cli.run());
    // A name lookup that hangs must not keep the process.
    runtime.shutdown_background();
    code
}

/// A runtime of so many threads; one that needs no second is cheaper by all hand-overs.
fn runtime(threads: NonZero<usize>) -> io::Result<Runtime> {
    match threads.get() {
        1 => Builder::new_current_thread().enable_all().build(),
        more => Builder::new_multi_thread()
            .worker_threads(more)
            .enable_all()
            .build(),
    }
}
