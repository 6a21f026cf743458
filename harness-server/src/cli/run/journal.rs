//! `harness run journal`: what a journal holds now, a harness's or one in a file.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::Args;
use harness_server::ids::RunId;
use harness_server::store::{self, Stamp};
use worker_sdk::client::WatchEvent;
use worker_sdk::client::runs::Entry;

use super::watch::print;
use crate::cli::error::CliError;
use crate::cli::{PATIENCE, Server};

/// Print what a run's journal holds now
#[derive(Debug, Args)]
#[command(after_help = "\
With --file it reads a file instead of asking a harness: harness.db of its data folder, or one that
an SDK wrote. Without a run it prints all of them. The file may be in use.

Examples:
  harness run journal 0190f5b2-6f0e-7c0b-9d3a-2f1f6f1c9a10
  harness run journal --file /var/lib/harness/harness.db --json | jq .content")]
pub(super) struct Journal {
    /// The run's id
    #[arg(required_unless_present = "file")]
    run_id: Option<String>,

    /// Its namespace [default: default]
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    namespace: String,

    /// Read this file
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Print each entry as a JSON object on a line
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    server: Server,
}

impl Journal {
    pub(super) async fn run(self) -> Result<(), CliError> {
        match &self.file {
            Some(file) => self.of_file(file),
            None => self.of_harness().await,
        }
    }

    fn of_file(&self, file: &std::path::Path) -> Result<(), CliError> {
        let run = match &self.run_id {
            None => None,
            Some(id) => {
                Some(RunId(id.parse().map_err(|_| {
                    CliError::Usage("a run's id is a UUID".to_owned())
                })?))
            }
        };
        let cannot = |why: io::Error| CliError::io(format!("cannot read {}", file.display()), why);
        // What the store would say of these does not tell them apart.
        let found = file.metadata().map_err(cannot)?;
        if found.is_dir() {
            let why = "it is a folder: name a file in it, such as harness.db";
            return Err(cannot(io::Error::new(ErrorKind::IsADirectory, why)));
        }
        let mut is_there = false;
        let mut failed = None;
        let read = store::read_file(file, run, |id, entry| {
            is_there = true;
            let at = Entry::of_stored(entry.seq, entry.attempt.0, time(entry.time), &entry.content);
            let run_id = id.to_string();
            let shown = run.is_none().then_some(run_id.as_str());
            print(&at, shown, self.json).unwrap_or_else(|error| {
                failed = Some(error);
                false
            })
        });
        if let Some(error) = failed {
            return Err(error);
        }
        read.map_err(|error| cannot(io::Error::other(error)))?;
        match run {
            Some(run) if !is_there => {
                let why = format!("it holds no journal of run {run}");
                Err(cannot(io::Error::new(ErrorKind::NotFound, why)))
            }
            Some(_) | None => Ok(()),
        }
    }

    async fn of_harness(&self) -> Result<(), CliError> {
        let run_id = self.run_id.as_deref().unwrap_or_default();
        let harness = self.server.connect(PATIENCE).await?;
        let asked = harness.run(&self.namespace, run_id);
        let head = self.server.within(PATIENCE, asked).await?.head;
        let opening = harness.watch_run(&self.namespace, run_id).include_stop();
        let opening = std::future::IntoFuture::into_future(opening);
        let mut watch = self.server.within(PATIENCE, opening).await?;
        while let Some(event) = watch.next().await {
            let event = event.map_err(|error| self.server.explain(error))?;
            if let WatchEvent::Entry(entry) = event
                && (!print(&entry, None, self.json)? || entry.seq >= head)
            {
                break;
            }
        }
        Ok(())
    }
}

fn time(stamp: Stamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(stamp.0).unwrap_or_default())
}
