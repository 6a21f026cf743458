//! Whether the store's files still are where they were opened, and may be written. What is written
//! into one that was removed or replaced is gone with this process, however well it was synced; and
//! a log would grow for ever beside a file that it cannot be moved into.
//!
//! Makes them, too: nobody but this user reads what callers and agents say.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, access, faccessat};

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

    /// That each file still is the one that was opened, and may be written.
    ///
    /// # Errors
    /// Which is not, or that one may not.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let is_gone = |(file, opened): &&(PathBuf, (u64, u64))| {
            found(file).ok().is_none_or(|there| there != *opened)
        };
        let Some((file, _)) = self.0.iter().find(is_gone) else {
            return self.0.iter().try_for_each(|(file, _)| writable(file));
        };
        Err(StoreError::Failed(format!(
            "{} was removed or replaced while it was open: stop the harness, put it back and start \
             again",
            file.display()
        )))
    }
}

/// Makes a folder where there is none.
///
/// # Errors
/// It cannot be made.
pub(super) fn make_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Opens a file for writing, which is made where there is none.
///
/// # Errors
/// It cannot be opened.
pub(super) fn make_file(file: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    options.open(file)
}

/// That this process may write a file or into a folder, if it is there: as its effective user, which
/// is who writes. What SQLite has open already says nothing of that.
///
/// # Errors
/// It may not.
pub(super) fn writable(path: &Path) -> Result<(), StoreError> {
    let asked = faccessat(AT_FDCWD, path, AccessFlags::W_OK, AtFlags::AT_EACCESS);
    let asked = match asked {
        // Of an immutable file; or a sandbox may not know the call, but knows the older one.
        Err(Errno::EPERM) => access(path, AccessFlags::W_OK),
        told => told,
    };
    match asked {
        Err(Errno::EACCES | Errno::EPERM | Errno::EROFS) => Err(StoreError::ReadOnly),
        // What else may be wrong is said by whoever opens it.
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The device of a file and its number there, and nothing else of it: after a look at its times the
/// next write would note them anew, and the sync behind it write them too, each time.
#[cfg(target_os = "linux")]
fn found(file: &Path) -> io::Result<(u64, u64)> {
    use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
    match statx(CWD, file, AtFlags::empty(), StatxFlags::INO) {
        Ok(found) => {
            let device = makedev(found.stx_dev_major, found.stx_dev_minor);
            Ok((device, found.stx_ino))
        }
        // A sandbox may not know the call.
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => found_with_times(file),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn found(file: &Path) -> io::Result<(u64, u64)> {
    found_with_times(file)
}

fn found_with_times(file: &Path) -> io::Result<(u64, u64)> {
    let file = file.metadata()?;
    Ok((file.dev(), file.ino()))
}
