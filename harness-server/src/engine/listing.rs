//! A page of ListRuns: runs, and how those that have ended did. What is read for it is bounded, and
//! so is what it holds.

use crate::envelope::Failure;
use crate::ids::RunId;
use crate::store::{Entry, Filter, Record, StoreError};

use super::Engine;
use super::durable::told;
use super::storing::Storage;

/// About how many bytes are read of outcomes for a page; a value is read to be left out.
const READ_BYTES: usize = 16 * 1024 * 1024;

/// About how many bytes a page holds.
const PAGE_BYTES: usize = 1024 * 1024;

/// A page of runs.
#[derive(Debug, Default)]
pub struct Listed {
    /// Runs, the newest first, and what each that has ended ended with, without a value's bytes.
    pub runs: Vec<(Record, Option<Entry>)>,
    /// Whether there are more behind the last.
    pub more: bool,
}

impl Engine {
    /// Runs as asked, the newest first: those older than `before`, at most `max`, and fewer where
    /// they are large.
    ///
    /// # Errors
    /// The store cannot be read, or there is none.
    pub async fn list_runs(
        &self,
        filter: Filter,
        before: Option<RunId>,
        max: usize,
    ) -> Result<Listed, Box<Failure>> {
        let storage = self.storage("ListRuns")?;
        let read = self.reading(storage, move |_, storage| {
            page(storage, &filter, before, max)
        });
        read.await.map_err(told)
    }
}

fn page(
    storage: &Storage,
    filter: &Filter,
    before: Option<RunId>,
    max: usize,
) -> Result<Listed, StoreError> {
    let mut listed = Listed::default();
    let (mut read, mut held) = (0, 0);
    // One more tells whether there is another page.
    for record in storage.store().list(filter, before, max + 1)? {
        if listed.runs.len() == max || read > READ_BYTES || held > PAGE_BYTES {
            listed.more = true;
            break;
        }
        let ended = match record.ended {
            Some((_, seq)) => {
                let page = storage.store().journal(record.run.id, seq, 1, usize::MAX)?;
                page.entries.into_iter().next()
            }
            None => None,
        };
        let ended = ended.map(|mut ended| {
            read += ended.content.len();
            ended.content = storage.records().without_value(ended.content);
            ended
        });
        held += size(&record) + ended.as_ref().map_or(0, |ended| ended.content.len());
        listed.runs.push((record, ended));
    }
    Ok(listed)
}

/// What a caller gave a run to be told with it, in bytes.
fn size(record: &Record) -> usize {
    let labels = record.run.labels.iter();
    let labels: usize = labels.map(|(key, value)| key.len() + value.len()).sum();
    labels + record.run.key.len()
}
