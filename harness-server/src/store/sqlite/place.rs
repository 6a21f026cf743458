//! Whether the store's files still are where they were opened. What is written into one that was
//! removed or replaced is gone with this process, however well it was synced.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::StoreError;

/// What each file was when it was opened: its device and its number there.
pub(super) struct Place(Vec<(PathBuf, (u64, u64))>);

impl Place {
    /// Notes where the files are now.
    ///
    /// # Errors
    /// One of them is not there.
    pub(super) fn of(files: [PathBuf; 3]) -> io::Result<Self> {
        let noted = files.into_iter().map(|file| {
            let found = found(&file)?;
            Ok((file, found))
        });
        noted.collect::<io::Result<_>>().map(Self)
    }

    /// That each file still is the one that was opened.
    ///
    /// # Errors
    /// Which is not.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let is_gone = |(file, opened): &&(PathBuf, (u64, u64))| {
            found(file).ok().is_none_or(|there| there != *opened)
        };
        let Some((file, _)) = self.0.iter().find(is_gone) else {
            return Ok(());
        };
        Err(StoreError::Failed(format!(
            "{} was removed or replaced while it was open: stop the harness, put it back and start \
             again",
            file.display()
        )))
    }
}

fn found(file: &Path) -> io::Result<(u64, u64)> {
    let file = file.metadata()?;
    Ok((file.dev(), file.ino()))
}
