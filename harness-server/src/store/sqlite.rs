//! The store in one SQLite file: WAL, `synchronous=FULL`, one thread that writes, group commit.
//!
//! All steps that wait while a commit is under way share the next one, and so its fsync. Moving the
//! log into the file goes on beside it, on a thread of its own. Reads have connections of their own.

mod checkpoints;
mod place;
mod queue;
mod reads;
mod steps;
mod writer;

use std::fs::{File, TryLockError};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};
use rusqlite_migration::{M, MigrationDefinitionError, Migrations};

use super::{
    AgentKey, Attempt, Done, Entry, Extent, Filter, Page, Record, RunId, Stamp, Step, Store,
    StoreError,
};

use checkpoints::Checkpoints;
use place::Place;
use queue::Queue;

/// The file in the store's folder, and its log.
const FILE: &str = "harness.db";
const LOG: &str = "harness.db-wal";

/// What says that a harness uses the folder.
const LOCK: &str = "harness.lock";

/// How long a connection waits for another one of ours.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// A store in one SQLite file.
pub struct Sqlite {
    path: PathBuf,
    queue: Arc<Queue>,
    checkpoints: Arc<Checkpoints>,
    /// The one that writes, and then the others.
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Connections for reading that are free: as many as ever were needed at once, since opening one
    /// costs more than most reads.
    readers: Mutex<Vec<Connection>>,
    /// Held as long as the store is open.
    _lock: File,
}

/// How a file is opened; tests make it small.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    /// The most pages the file may have.
    pages_max: Option<u32>,
}

impl Sqlite {
    /// Opens the store of a folder, which is made where there is none.
    ///
    /// # Errors
    /// What is wrong with the folder or its file; nothing of it is changed then.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        Self::open_with(folder, Options::default())
    }

    fn open_with(folder: &Path, options: Options) -> Result<Self, StoreError> {
        let told = |error: &std::io::Error| match error.kind() {
            std::io::ErrorKind::ReadOnlyFilesystem | std::io::ErrorKind::PermissionDenied => {
                StoreError::ReadOnly
            }
            std::io::ErrorKind::StorageFull => StoreError::Full,
            std::io::ErrorKind::AlreadyExists | std::io::ErrorKind::NotADirectory => {
                StoreError::Failed("a file is in its place: name a folder".to_owned())
            }
            _ => StoreError::Failed(error.to_string()),
        };
        place::make_folder(folder).map_err(|error| told(&error))?;
        place::writable(folder)?;
        let lock = place::make_file(&folder.join(LOCK)).map_err(|error| told(&error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::InUse),
            Err(TryLockError::Error(error)) => return Err(told(&error)),
        }
        let path = folder.join(FILE);
        // SQLite would open what it may not write for reading alone.
        for file in [&path, &folder.join(LOG)] {
            place::writable(file)?;
        }
        // Its log gets the mode of the file.
        drop(place::make_file(&path).map_err(|error| told(&error))?);
        let mut writing = connect(&path, options)?;
        migrate(&mut writing)?;
        let queue = Arc::new(Queue::default());
        let checkpoints = Arc::new(Checkpoints::default());
        let checkpointing = connect(&path, options)?;
        let place = Place::of([path.clone(), folder.join(LOG), folder.join(LOCK)])
            .map_err(|error| told(&error))?;
        let threads = vec![
            spawn("store-writer", {
                let (queue, checkpoints) = (queue.clone(), checkpoints.clone());
                move || writer::run(writing, &place, &queue, &checkpoints)
            })?,
            spawn("store-checkpoint", {
                let checkpoints = checkpoints.clone();
                move || checkpoints.run(&checkpointing)
            })?,
        ];
        Ok(Self {
            path,
            queue,
            checkpoints,
            threads: Mutex::new(threads),
            readers: Mutex::default(),
            _lock: lock,
        })
    }

    /// Waits for the end of all threads but the first so many.
    fn join(&self, but: usize) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let but = but.min(threads.len());
        for thread in threads.drain(but..) {
            // What is told of a step may be the last to hold the store, on the thread that writes.
            if thread.thread().id() != thread::current().id() {
                thread.join().expect("a thread of the store must not panic");
            }
        }
    }

    /// Asks over a connection for reading.
    fn read<T>(
        &self,
        ask: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let kept = || self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let free = kept().pop();
        let connection = match free {
            Some(connection) => connection,
            None => read_only(&self.path)?,
        };
        // One that has failed is not asked again.
        let answer = ask(&connection).map_err(|error| failed(&error))?;
        kept().push(connection);
        Ok(answer)
    }
}

impl Store for Sqlite {
    fn write(&self, step: Step, done: Done) {
        self.queue.put(step, done);
    }

    fn get(&self, run: RunId) -> Result<Option<Record>, StoreError> {
        self.read(|connection| reads::get(connection, run))
    }

    fn find(&self, agent: &AgentKey, key: &str) -> Result<Option<RunId>, StoreError> {
        self.read(|connection| reads::find(connection, agent, key))
    }

    fn list(
        &self,
        filter: &Filter,
        before: Option<RunId>,
        max: usize,
    ) -> Result<Vec<Record>, StoreError> {
        self.read(|connection| reads::list(connection, filter, before, max))
    }

    fn unfinished(&self, after: Option<RunId>, max: usize) -> Result<Vec<Record>, StoreError> {
        self.read(|connection| reads::unfinished(connection, after, max))
    }

    fn journal(
        &self,
        run: RunId,
        from: u64,
        max: usize,
        bytes_max: usize,
    ) -> Result<Page, StoreError> {
        self.read(|connection| reads::journal(connection, run, from, max, bytes_max))
    }

    fn extent(&self, run: RunId, attempt: Attempt) -> Result<Extent, StoreError> {
        self.read(|connection| reads::extent(connection, run, attempt))
    }

    fn agents(&self) -> Result<Vec<(AgentKey, Stamp)>, StoreError> {
        self.read(reads::agents)
    }

    fn close(&self) {
        // The last connection to close moves the log into the file, if it is one that writes and no
        // other closes beside it.
        self.checkpoints.stop();
        self.join(1);
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.clear();
        drop(readers);
        self.queue.close();
        self.join(0);
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        self.close();
    }
}

/// Reads the journals of a file, the harness's or one that an SDK wrote: the entries of a run, of
/// every run when none is named, in their order, as long as `take` wants more.
///
/// # Errors
/// The file is none, or cannot be read.
pub fn read_file(
    path: &Path,
    run: Option<RunId>,
    take: impl FnMut(RunId, Entry) -> bool,
) -> Result<(), StoreError> {
    let connection = read_only(path)?;
    let (connection, found) = match reads::holds_journals(&connection) {
        // Only who may write beside it can share it with a writer. Without a log there is none.
        Err(error) if failed(&error) == StoreError::ReadOnly && !log_of(path).exists() => {
            let connection = read_alone(path)?;
            let found = reads::holds_journals(&connection);
            (connection, found)
        }
        found => (connection, found),
    };
    match found {
        Ok(true) => {}
        Ok(false) => return Err(StoreError::Failed("it holds no journal".to_owned())),
        Err(error) => return Err(failed(&error)),
    }
    reads::all(&connection, run, take).map_err(|error| failed(&error))
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StoreError> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map_err(|error| StoreError::Failed(error.to_string()))
}

fn read_only(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = || {
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.set_prepared_statement_cache_capacity(64);
        Ok(connection)
    };
    open().map_err(|error: rusqlite::Error| failed(&error))
}

/// Opens a file that nobody writes, and leaves nothing beside it.
fn read_alone(path: &Path) -> Result<Connection, StoreError> {
    let mut uri = "file:".to_owned();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' => uri.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            byte => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri.push_str("?immutable=1");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(uri, flags).map_err(|error| failed(&error))
}

/// The log of a file.
fn log_of(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

fn connect(path: &Path, options: Options) -> Result<Connection, StoreError> {
    let open = || {
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.set_prepared_statement_cache_capacity(64);
        // Before anything else: it is what finds out whether the file is one of SQLite's.
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "wal_autocheckpoint", 0)?;
        if let Some(pages) = options.pages_max {
            connection.pragma_update(None, "max_page_count", pages)?;
        }
        Ok(connection)
    };
    open().map_err(|error: rusqlite::Error| failed(&error))
}

fn migrate(connection: &mut Connection) -> Result<(), StoreError> {
    let steps = [
        M::up(harness_proto::JOURNAL_SQL),
        M::up(include_str!("sqlite/schema.sql")),
    ];
    Migrations::from_slice(&steps)
        .to_latest(connection)
        .map_err(|error| match error {
            rusqlite_migration::Error::MigrationDefinition(
                MigrationDefinitionError::DatabaseTooFarAhead,
            ) => StoreError::NewerSchema,
            // Its text would be the whole of our SQL.
            rusqlite_migration::Error::RusqliteError {
                err: rusqlite::Error::SqlInputError { .. },
                ..
            } => StoreError::Failed(format!(
                "{FILE} holds the tables of something else: start with another folder"
            )),
            rusqlite_migration::Error::RusqliteError { err, .. } => failed(&err),
            other => StoreError::Failed(other.to_string()),
        })
}

fn failed(error: &rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::Full,
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => StoreError::ReadOnly,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreError::Corrupt,
        _ => StoreError::Failed(error.to_string()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use super::{Options, Sqlite, connect};

    /// A store whose file may have so many pages.
    pub(in super::super) fn open_small(folder: &Path, pages_max: u32) -> Sqlite {
        let options = Options {
            pages_max: Some(pages_max),
        };
        Sqlite::open_with(folder, options).expect("a store")
    }

    #[test]
    fn what_writes_syncs_each_commit() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let connection = connect(&folder.path().join("file"), Options::default());
        let connection = connection.expect("a file");
        let set = |pragma: &str| {
            let text = |row: &rusqlite::Row<'_>| row.get::<_, rusqlite::types::Value>(0);
            connection.query_row(&format!("PRAGMA {pragma}"), [], text)
        };
        assert_eq!(set("journal_mode"), Ok("wal".to_owned().into()));
        // FULL, as SQLite tells it.
        assert_eq!(set("synchronous"), Ok(2.into()));
    }
}
