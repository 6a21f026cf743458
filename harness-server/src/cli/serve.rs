//! `harness serve`: runs a harness until it is asked to leave.

use std::io;
use std::num::NonZero;
use std::path::PathBuf;

use clap::Args;
use harness_server::{Config, Server};
use tokio::signal::unix::{SignalKind, signal};

use super::error::CliError;
use super::guardian;
use super::output;
use super::reloads::Reloads;
use crate::shutdown::Stops;

/// Run a harness until Ctrl-C or SIGTERM
#[derive(Debug, Args)]
#[command(after_help = "\
A second signal ends it at once. SIGHUP reads the configuration file again and adds, resizes,
changes and removes pools, while requests go on; the rest of the file is read at the start only.
Each address is told on standard error once it is listened on.
A flag wins over the configuration file; README.md tells what the file can say.

Examples:
  harness serve
  harness serve --listen 127.0.0.1:0 --listen unix:/run/harness/harness.sock
  harness serve --data /var/lib/harness
  harness serve --config harness.toml")]
pub(super) struct Serve {
    /// Where to listen: host:port or unix:/absolute/path; may be given more than once
    /// [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<String>,

    /// A configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// The folder of the store, which keeps durable runs; made where there is none
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// How many threads work; one is the fastest on up to two processors
    #[arg(long, value_name = "N", default_value = "1")]
    pub(super) threads: NonZero<usize>,

    /// Listen on addresses that are not loopback although nothing is encrypted
    #[arg(long)]
    insecure: bool,
}

impl Serve {
    pub(super) async fn run(self) -> Result<(), CliError> {
        let stops = Stops::listen().and_then(|stops| outlive_file_limits().map(|()| stops));
        let stops = stops.map_err(|error| CliError::io("cannot listen to signals", error))?;
        let file = self.config.clone();
        let server = Server::bind(self.config()?).await?;
        let reloads = Reloads::listen(file, server.pools())
            .map_err(|error| CliError::io("cannot listen to signals", error))?;
        for address in server.addresses() {
            output::note(&format!("listening on {address}"));
        }
        let serve = async |stop| {
            tokio::select! {
                () = server.run(stop) => {}
                () = reloads.run() => {}
            }
        };
        stops.run(serve).await.map_err(CliError::cut_off)
    }

    fn config(self) -> Result<Config, CliError> {
        let mut config = match self.config {
            Some(file) => {
                Config::read(&file).map_err(|source| CliError::Config { file, source })?
            }
            None => Config::default(),
        };
        if !self.listen.is_empty() {
            config.listen = self.listen;
        }
        config.insecure |= self.insecure;
        config.data = self.data.or(config.data);
        config.guard = Some(guardian());
        if config.listen.is_empty() {
            return Err(CliError::Usage(
                "the configuration listens on no address: give listen at least one".to_owned(),
            ));
        }
        Ok(config)
    }
}

/// Has a write beyond the file size limit of this process fail, as one on a full disk does: unless
/// somebody listens, SIGXFSZ ends the process. Whoever is started by it has the default again.
fn outlive_file_limits() -> io::Result<()> {
    const SIGXFSZ: i32 = 25;
    signal(SignalKind::from_raw(SIGXFSZ)).map(drop)
}
