//! A journal in a SQLite file, for agents that run without a harness.
//!
//! Owns the file: the same table, and entries in the same bytes, as the harness keeps, so that
//! whatever reads one reads the other. Holds no queue and starts nothing.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, params};
use uuid::Uuid;

use super::{Appending, Entry, Journal, Recorded};
use crate::agent::{Agent, AgentError};
use crate::context::{Context, Sink, alone};
use crate::error::{Error, ErrorKind, Remote};
use crate::wire::entries::{ENTRY_BYTES_MAX, JOURNAL_SQL, too_large};

/// SQLite's own clock counts in milliseconds; the column in microseconds.
const APPEND: &str = "INSERT INTO journal (run_id, seq, attempt, worker_seq, time, entry) \
     VALUES (?1, ?2, ?3, ?4, CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER) * 1000, ?5)";

/// A file of journals. Cheap to clone; clones are the same file.
///
/// ```
/// use worker_sdk::journal::Local;
/// use worker_sdk::{Context, agent_fn};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("journal.db");
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let agent = agent_fn(|ctx: Context, cents: u64| async move {
///     Ok(ctx.step("charge", |_key| async move { Ok(cents) }).side_effect().await?)
/// });
/// let attempt = Local::open(&path)?.begin();
/// // Kept with whatever the run is about, so that it is found again after a crash.
/// let run_id = attempt.run_id();
/// assert_eq!(attempt.run(&agent, 7).await?, 7);
///
/// // As often as it takes: what is recorded is not done again.
/// let attempt = Local::open(&path)?.attempt(&run_id)?;
/// assert_eq!((attempt.number(), attempt.run(&agent, 7).await?), (2, 7));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Local(Arc<Mutex<Connection>>);

impl Local {
    /// Opens the file, or makes it. Blocks for as long as the disk does.
    ///
    /// # Errors
    /// `StoreUnavailable` when the file is none of these, or cannot be written.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let open = || {
            let connection = Connection::open(path)?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.pragma_update(None, "synchronous", "FULL")?;
            connection.execute_batch(JOURNAL_SQL)?;
            Ok(connection)
        };
        let opened = open().map_err(|error| unavailable(&format!("{}", path.display()), &error));
        Ok(Self(Arc::new(Mutex::new(opened?))))
    }

    /// The first attempt of a new run. Keep its [`Attempt::run_id`]: under it [`Local::attempt`] goes
    /// on with the run.
    pub fn begin(&self) -> Attempt {
        Attempt {
            file: self.clone(),
            run_id: Uuid::now_v7(),
            number: 1,
            timeout: Duration::MAX,
            recorded: Vec::new(),
            place: Arc::new(Mutex::new(Place {
                head: 0,
                written: 0,
            })),
        }
    }

    /// The next attempt of a run: one more than the newest in the file. Its id is a UUID, one of
    /// [`Local::begin`] or of your own, such as one that is kept with an order. Blocks for as long
    /// as the disk does.
    ///
    /// # Errors
    /// `InvalidRequest` when the run's id is no UUID, `StoreUnavailable` when the file cannot be
    /// read.
    pub fn attempt(&self, run_id: &str) -> Result<Attempt, Error> {
        let run_id = Uuid::parse_str(run_id).map_err(|error| {
            Error::new(
                ErrorKind::InvalidRequest,
                format!(
                    "{run_id:?} is no run id, which is a UUID such as Local::begin makes: {error}"
                ),
            )
        })?;
        let (newest, head, recorded) =
            read(&self.lock(), run_id).map_err(|error| unavailable("the local journal", &error))?;
        Ok(Attempt {
            file: self.clone(),
            run_id,
            number: newest + 1,
            timeout: Duration::MAX,
            recorded,
            place: Arc::new(Mutex::new(Place { head, written: 0 })),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The newest attempt of a run, the number of its newest entry, and what is replayed.
fn read(connection: &Connection, run_id: Uuid) -> rusqlite::Result<(u32, u64, Vec<Recorded>)> {
    let mut select = connection
        .prepare("SELECT seq, attempt, entry FROM journal WHERE run_id = ?1 ORDER BY seq")?;
    let mut rows = select.query([run_id.as_bytes()])?;
    let (mut newest, mut head, mut recorded) = (0, 0, Vec::new());
    while let Some(row) = rows.next()? {
        head = row.get(0)?;
        let attempt: u32 = row.get(1)?;
        newest = newest.max(attempt);
        let entry = Entry::from_bytes(row.get_ref(2)?.as_blob()?);
        if let Some(entry @ (Entry::Step(_) | Entry::Usage(_))) = entry {
            recorded.push(Recorded::new(head, attempt, entry));
        }
    }
    Ok((newest, head, recorded))
}

/// One attempt of a run, which goes on where the file ends. Every append is on disk when it returns.
#[derive(Clone)]
pub struct Attempt {
    file: Local,
    run_id: Uuid,
    number: u32,
    timeout: Duration,
    recorded: Vec<Recorded>,
    place: Arc<Mutex<Place>>,
}

/// Where the next entry goes.
#[derive(Debug)]
struct Place {
    head: u64,
    written: u64,
}

impl Attempt {
    /// The run's id, in the form that [`Local::attempt`] takes.
    pub fn run_id(&self) -> String {
        self.run_id.to_string()
    }

    /// Its number, from 1.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// How long the agent may take, from the moment it is given its context. Default as long as it
    /// likes.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Runs an agent to its reply. At the deadline it is dropped, as a harness would; what it has
    /// recorded stays, and the next attempt goes on from there. So it does when this future is
    /// dropped.
    ///
    /// # Errors
    /// What the agent answers, or an error of type `DEADLINE_EXCEEDED`.
    pub async fn run<A: Agent>(
        self,
        agent: &A,
        request: A::Request,
    ) -> Result<A::Reply, AgentError> {
        alone::run(agent, self.context(), request).await
    }

    /// A context for whoever runs the agent otherwise, such as `agent_loop::AgentLoop::run`. Nobody
    /// stops it at its deadline but who uses it; [`Context::ask`] reaches no harness.
    pub fn context(self) -> Context {
        let facts = alone::facts(self.run_id.to_string(), self.number, self.timeout);
        Context::new(facts, Sink::Journal(Arc::new(self)), None)
    }

    /// Writes where nobody else has: another attempt that has written since has taken the place.
    fn write(&self, entry: &Entry) -> Result<(), Error> {
        let bytes = entry.to_bytes();
        if bytes.len() as u64 > ENTRY_BYTES_MAX {
            return Err(too_large(bytes.len() as u64, ENTRY_BYTES_MAX));
        }
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let (seq, worker_seq) = (place.head + 1, place.written + 1);
        let row = params![self.run_id.as_bytes(), seq, self.number, worker_seq, bytes];
        match self.file.lock().execute(APPEND, row) {
            Ok(_) => {
                *place = Place {
                    head: seq,
                    written: worker_seq,
                };
                Ok(())
            }
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => {
                Err(Error::new(
                    ErrorKind::StoreUnavailable,
                    "another attempt writes to this run's journal",
                ))
            }
            Err(error) => Err(unavailable("the local journal", &error)),
        }
    }
}

impl Journal for Attempt {
    fn replay(&self) -> Vec<Recorded> {
        self.recorded.clone()
    }

    fn append(&self, entry: Entry) -> Appending<'_> {
        let attempt = self.clone();
        Box::pin(async move {
            let writing = tokio::task::spawn_blocking(move || attempt.write(&entry));
            writing
                .await
                .unwrap_or_else(|_| Err(Error::new(ErrorKind::Cancelled, "the runtime is ending")))
        })
    }
}

fn unavailable(what: &str, error: &rusqlite::Error) -> Error {
    let failed = Error::new(
        ErrorKind::StoreUnavailable,
        format!("{what} cannot be used as a journal"),
    );
    match Remote::chain(Some(error)) {
        Some(source) => failed.with_source(source),
        None => failed,
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").finish_non_exhaustive()
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("run_id", &self.run_id)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_synced_before_it_is_told() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let local = Local::open(folder.path().join("file")).expect("a file");
        let connection = local.0.lock().expect("nobody has panicked");
        let synchronous = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
        let set = connection.query_row("PRAGMA synchronous", [], synchronous);
        // FULL, as SQLite tells it.
        assert_eq!(set, Ok(2));
    }
}
