//! `harness check`: whether a configuration file can be used here, without starting it.

use std::path::PathBuf;

use clap::Args;
use harness_server::listener::Address;
use harness_server::supervisor::{self, Means};
use harness_server::{Config, ListenError, ServerError};

use super::error::CliError;
use super::{guardian, output};

/// Validate a configuration file without starting anything
#[derive(Debug, Args)]
#[command(after_help = "\
Reads the file as `harness serve` would, and tries the folder and the isolation of each pool with a
process that ends at once, and the socket it would dial back to. That process also looks whether it
could execute the command, or the launcher before it: with the PATH, folder, user and files it would
have. Commands are not run and addresses are not listened on.

Whatever cannot be had here is an error, so check a file where it is to be served. `harness serve`
refuses the same, but for commands that are not there: it starts, and their pools end up crash-looping.

Examples:
  harness check harness.toml")]
pub(super) struct Check {
    /// The file (TOML)
    file: PathBuf,

    /// Print a JSON object
    #[arg(long)]
    pub(super) json: bool,
}

impl Check {
    pub(super) async fn run(self) -> Result<(), CliError> {
        let (file, shown) = (self.file.clone(), self.file.display().to_string());
        let config =
            Config::read(&self.file).map_err(|source| CliError::Config { file, source })?;
        let mut means = Means {
            guard: Some(guardian()),
            tcp: None,
        };
        for address in &config.listen {
            let address = address.parse::<Address>().map_err(ListenError::Address);
            if let Address::Tcp(address) = address.map_err(ServerError::Listen)? {
                means.tcp.get_or_insert(address);
            }
        }
        supervisor::check(&config.pools, &means)
            .await
            .map_err(ServerError::Pools)?;
        let pools: Vec<&str> = config.pools.iter().map(|pool| &*pool.agent).collect();
        if self.json {
            return output::json(&serde_json::json!({ "file": shown, "pools": pools }));
        }
        let pools = match pools[..] {
            [] => "no pools".to_owned(),
            _ => format!("pools: {}", pools.join(", ")),
        };
        output::line(&format!("{shown} is valid; {pools}"))
    }
}
