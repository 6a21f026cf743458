//! The `harness` program: a command line over the two libraries.

mod cli;
mod shutdown;
mod telemetry;

use std::process::ExitCode;

use cli::Cli;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if let Some(code) = cli::guard::run() {
        return code;
    }
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    telemetry::start(cli.log_level());
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return cli.cannot_start(error),
    };
    let code = runtime.block_on(cli.run());
    // A name lookup that hangs must not keep the process.
    runtime.shutdown_background();
    code
}
