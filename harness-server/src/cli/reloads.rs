//! SIGHUP: the pools of the configuration file as it is now.

use std::io;
use std::path::PathBuf;

use harness_server::{Config, supervisor};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info, warn};

use super::error::CliError;

/// Reloads at each SIGHUP, which from then on no longer ends the process.
pub(super) struct Reloads {
    file: Option<PathBuf>,
    pools: supervisor::Handle,
    hang_ups: Signal,
}

impl Reloads {
    pub(super) fn listen(file: Option<PathBuf>, pools: supervisor::Handle) -> io::Result<Self> {
        let hang_ups = signal(SignalKind::hangup())?;
        Ok(Self {
            file,
            pools,
            hang_ups,
        })
    }

    /// Never returns.
    pub(super) async fn run(mut self) {
        loop {
            if self.hang_ups.recv().await.is_none() {
                std::future::pending().await
            }
            match &self.file {
                Some(file) => self.reload(file.clone()).await,
                None => warn!("SIGHUP, and there is no configuration file to read again"),
            }
        }
    }

    /// A file that cannot be used changes nothing.
    async fn reload(&self, file: PathBuf) {
        let shown = file.display().to_string();
        let reloaded = match Config::read(&file) {
            Ok(config) => {
                let done = self.pools.reload(config.pools).await;
                done.map_err(|error| CliError::Server(error.into()))
            }
            Err(source) => Err(CliError::Config { file, source }),
        };
        match reloaded {
            Ok(()) => info!(file = shown, "reloaded the pools"),
            Err(error) => error!(file = shown, "not reloaded: {}", error.line()),
        }
    }
}
