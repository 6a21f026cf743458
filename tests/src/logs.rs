//! What the programs of these tests say of themselves: to standard error, as much as RUST_LOG asks
//! for, so that standard output stays for what they are told to print.

/// Sets the log of this process up.
///
/// # Panics
/// When it has one already.
pub fn log_to_stderr() {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
}
