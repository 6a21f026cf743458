//! What is asked of the file, over a connection that writes nothing.

use bytes::Bytes;
use rusqlite::types::Value;
use rusqlite::{Connection, Result, Row, params, params_from_iter};
use uuid::Uuid;

use super::super::{Entry, Extent, Filter, Holder, NewRun, Page, Record, Stamp};
use super::steps::{code, optional, state};
use crate::ids::{AgentKey, Attempt, Lease, RunId, WorkerId};
use crate::run::Counts;

/// The columns of a record, in the order `record` reads them.
const COLUMNS: &str = "run_id, namespace, agent, idempotency_key, priority, create_time, \
     start_time, deadline, options, state, attempt, counted, uncounted, killed, not_before, \
     worker_id, lease, replayed, reply_seq, end_time, end_seq, caller, depth, \
     (SELECT seq FROM journal WHERE journal.run_id = runs.run_id ORDER BY seq DESC LIMIT 1)";

pub(super) fn get(connection: &Connection, run: RunId) -> Result<Option<Record>> {
    let sql = format!("SELECT {COLUMNS} FROM runs WHERE run_id = ?1");
    let row = connection
        .prepare_cached(&sql)?
        .query_row([run.0.as_bytes()], record);
    optional(row)?
        .map(|record| labelled(connection, record))
        .transpose()
}

pub(super) fn find(connection: &Connection, agent: &AgentKey, key: &str) -> Result<Option<RunId>> {
    let row = connection
        .prepare_cached(
            "SELECT run_id FROM runs WHERE namespace = ?1 AND agent = ?2 \
             AND idempotency_key = ?3 AND idempotency_key <> ''",
        )?
        .query_row(params![&*agent.namespace, &*agent.name, key], |row| {
            row.get(0).map(run_id)
        });
    optional(row)
}

pub(super) fn list(
    connection: &Connection,
    filter: &Filter,
    before: Option<RunId>,
    max: usize,
) -> Result<Vec<Record>> {
    let mut sql = format!("SELECT {COLUMNS} FROM runs WHERE namespace = ?");
    let mut values = vec![Value::Text(filter.namespace.clone())];
    let mut and = |condition: &str, value: Value| {
        sql.push_str(" AND ");
        sql.push_str(condition);
        values.push(value);
    };
    if !filter.agent.is_empty() {
        and("agent = ?", Value::Text(filter.agent.clone()));
    }
    if let Some(before) = before {
        and("run_id < ?", Value::Blob(before.0.as_bytes().to_vec()));
    }
    if let Some(from) = filter.created_from {
        and("create_time >= ?", Value::Integer(from.0));
    }
    if let Some(before) = filter.created_before {
        and("create_time < ?", Value::Integer(before.0));
    }
    for (key, wanted) in &filter.labels {
        let has = "EXISTS (SELECT 1 FROM labels WHERE labels.run_id = runs.run_id AND key = ?";
        and(has, Value::Text(key.clone()));
        and("value = ?)", Value::Text(wanted.clone()));
    }
    if !filter.states.is_empty() {
        let states: Vec<String> = filter
            .states
            .iter()
            .map(|state| code(*state).to_string())
            .collect();
        sql.push_str(&format!(" AND state IN ({})", states.join(", ")));
    }
    sql.push_str(" ORDER BY run_id DESC LIMIT ?");
    values.push(Value::Integer(i64::try_from(max).unwrap_or(i64::MAX)));
    let records: Vec<Record> = connection
        .prepare(&sql)?
        .query_map(params_from_iter(values), record)?
        .collect::<Result<_>>()?;
    records
        .into_iter()
        .map(|record| labelled(connection, record))
        .collect()
}

pub(super) fn unfinished(
    connection: &Connection,
    after: Option<RunId>,
    max: usize,
) -> Result<Vec<Record>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM runs INDEXED BY runs_unfinished WHERE end_time IS NULL \
         AND run_id > ?1 ORDER BY run_id LIMIT ?2"
    );
    let after = after.unwrap_or(RunId(Uuid::nil()));
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    connection
        .prepare_cached(&sql)?
        .query_map(params![after.0.as_bytes(), max], record)?
        .collect()
}

pub(super) fn journal(
    connection: &Connection,
    run: RunId,
    from: u64,
    max: usize,
    bytes_max: usize,
) -> Result<Page> {
    // One statement, one picture: what is read with the head is there with it.
    let transaction = connection.unchecked_transaction()?;
    let told = connection
        .prepare_cached(
            "SELECT (SELECT seq FROM journal WHERE run_id = ?1 ORDER BY seq DESC LIMIT 1), \
             end_time IS NOT NULL FROM runs WHERE run_id = ?1",
        )?
        .query_row([run.0.as_bytes()], |row| Ok((number(row, 0)?, row.get(1)?)));
    let Some((head, ended)) = optional(told)? else {
        return Ok(Page::default());
    };
    let mut page = Page {
        entries: Vec::new(),
        head,
        ended,
    };
    let mut statement = connection.prepare_cached(
        "SELECT seq, attempt, worker_seq, time, entry FROM journal \
         WHERE run_id = ?1 AND seq >= ?2 ORDER BY seq LIMIT ?3",
    )?;
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    let from = i64::try_from(from).unwrap_or(i64::MAX);
    let mut rows = statement.query(params![run.0.as_bytes(), from, max])?;
    let mut bytes = 0;
    while let Some(row) = rows.next()? {
        let entry = entry(row, 0)?;
        bytes += entry.content.len();
        if bytes > bytes_max && !page.entries.is_empty() {
            break;
        }
        page.entries.push(entry);
    }
    drop(rows);
    drop(statement);
    transaction.finish()?;
    Ok(page)
}

pub(super) fn extent(connection: &Connection, run: RunId, attempt: Attempt) -> Result<Extent> {
    connection
        .prepare_cached(
            "SELECT coalesce(sum(CASE WHEN worker_seq > 0 THEN length(entry) END), 0), \
             coalesce(max(CASE WHEN attempt = ?2 THEN worker_seq END), 0), \
             min(CASE WHEN attempt = ?2 THEN time END) \
             FROM journal WHERE run_id = ?1",
        )?
        .query_row(params![run.0.as_bytes(), attempt.0], |row| {
            Ok(Extent {
                bytes: number(row, 0)?,
                worker_seq: number(row, 1)?,
                began: row.get::<_, Option<i64>>(2)?.map(Stamp),
            })
        })
}

pub(super) fn agents(connection: &Connection) -> Result<Vec<(AgentKey, Stamp)>> {
    connection
        .prepare_cached("SELECT namespace, agent, seen FROM agents")?
        .query_map([], |row| {
            let (namespace, agent): (String, String) = (row.get(0)?, row.get(1)?);
            Ok((AgentKey::new(&namespace, &agent), Stamp(row.get(2)?)))
        })?
        .collect()
}

/// Whether there is a table of journals.
pub(super) fn holds_journals(connection: &Connection) -> Result<bool> {
    let sql = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'journal'";
    connection.query_row(sql, [], |row| Ok(row.get::<_, i64>(0)? > 0))
}

/// How many bytes of entries are read before they are handed over.
const PART_BYTES: usize = 1024 * 1024;

/// Hands over the entries of a run, or of all, as long as `take` wants more. They are read in parts:
/// whoever takes may wait for long, and what is being read keeps a log from being moved into its file.
pub(super) fn all(
    connection: &Connection,
    run: Option<RunId>,
    mut take: impl FnMut(RunId, Entry) -> bool,
) -> Result<()> {
    let mut after = (run.unwrap_or(RunId(Uuid::nil())), 0);
    loop {
        let part = part(connection, run.is_some(), after)?;
        let Some((of, last)) = part.last() else {
            return Ok(());
        };
        after = (*of, last.seq);
        for (of, entry) in part {
            if !take(of, entry) {
                return Ok(());
            }
        }
    }
}

/// The entries that come after one: of its run only, or of all runs.
fn part(
    connection: &Connection,
    of_one: bool,
    (run, seq): (RunId, u64),
) -> Result<Vec<(RunId, Entry)>> {
    let sql = match of_one {
        true => {
            "SELECT run_id, seq, attempt, worker_seq, time, entry FROM journal \
             WHERE run_id = ?1 AND seq > ?2 ORDER BY run_id, seq"
        }
        false => {
            "SELECT run_id, seq, attempt, worker_seq, time, entry FROM journal \
             WHERE (run_id, seq) > (?1, ?2) ORDER BY run_id, seq"
        }
    };
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params![run.0.as_bytes(), seq.cast_signed()])?;
    let (mut part, mut bytes) = (Vec::new(), 0);
    while bytes < PART_BYTES
        && let Some(row) = rows.next()?
    {
        const ROW: usize = 64;
        let entry = entry(row, 1)?;
        bytes += ROW + entry.content.len();
        part.push((run_id(row.get(0)?), entry));
    }
    Ok(part)
}

fn labelled(connection: &Connection, mut record: Record) -> Result<Record> {
    record.run.labels = connection
        .prepare_cached("SELECT key, value FROM labels WHERE run_id = ?1")?
        .query_map([record.run.id.0.as_bytes()], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?
        .collect::<Result<_>>()?;
    Ok(record)
}

fn record(row: &Row<'_>) -> Result<Record> {
    let (namespace, agent): (String, String) = (row.get(1)?, row.get(2)?);
    let worker: Option<[u8; 16]> = row.get(15)?;
    let lease: Option<[u8; 16]> = row.get(16)?;
    let end_time: Option<i64> = row.get(19)?;
    Ok(Record {
        run: NewRun {
            id: run_id(row.get(0)?),
            agent: AgentKey::new(&namespace, &agent),
            key: row.get(3)?,
            priority: row.get(4)?,
            created: Stamp(row.get(5)?),
            start: row.get::<_, Option<i64>>(6)?.map(Stamp),
            deadline: Stamp(row.get(7)?),
            caller: row.get(21)?,
            depth: row.get(22)?,
            options: Bytes::from(row.get::<_, Vec<u8>>(8)?),
            labels: std::collections::BTreeMap::new(),
        },
        state: state(row.get(9)?)?,
        attempt: Attempt(row.get(10)?),
        counts: Counts {
            counted: row.get(11)?,
            uncounted_in_row: row.get(12)?,
            killed: row.get(13)?,
        },
        not_before: row.get::<_, Option<i64>>(14)?.map(Stamp),
        holder: worker.zip(lease).map(|(worker, lease)| Holder {
            worker: WorkerId(Uuid::from_bytes(worker)),
            lease: Lease(lease),
        }),
        replayed: row.get(17)?,
        reply_seq: number(row, 18)?,
        ended: match end_time {
            Some(at) => Some((Stamp(at), number(row, 20)?)),
            None => None,
        },
        head: number(row, 23)?,
    })
}

/// An entry whose columns begin at `at`.
fn entry(row: &Row<'_>, at: usize) -> Result<Entry> {
    Ok(Entry {
        seq: number(row, at)?,
        attempt: Attempt(row.get(at + 1)?),
        worker_seq: number(row, at + 2)?,
        time: Stamp(row.get(at + 3)?),
        content: Bytes::from(row.get::<_, Vec<u8>>(at + 4)?),
    })
}

fn run_id(bytes: [u8; 16]) -> RunId {
    RunId(Uuid::from_bytes(bytes))
}

fn number(row: &Row<'_>, at: usize) -> Result<u64> {
    let number: i64 = row.get(at)?;
    u64::try_from(number).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(at, number))
}
