//! What each step writes. The statement that comes first holds the fence: where it changes nothing,
//! nothing else is written.

use rusqlite::{Connection, OptionalExtension, Result, params};

use super::super::{Entry, Fence, Holder, NewRun, Stamp, State, Step, Written};
use crate::ids::{AgentKey, Attempt, RunId};
use crate::run::Counts;

/// Writes one step; none when its fence does not hold.
pub(super) fn write(connection: &Connection, step: &Step) -> Result<Option<Written>> {
    match step {
        Step::Enqueue {
            run,
            entries,
            first,
        } => enqueue(connection, run, entries, first.as_ref()).map(Some),
        Step::StartAttempt {
            fence,
            holder,
            entries,
        } => start_attempt(connection, fence, holder, entries),
        Step::Append {
            fence,
            entries,
            replayed,
        } => append(connection, fence, entries, replayed.as_deref()),
        Step::EndAttempt {
            fence,
            counts,
            not_before,
            reply_seq,
            entries,
        } => end_attempt(
            connection,
            fence,
            *counts,
            (*not_before, *reply_seq),
            entries,
        ),
        Step::Finish {
            fence,
            state,
            reply_seq,
            entries,
        } => finish(connection, fence, (*state, *reply_seq), entries),
        Step::Note {
            run,
            attempt,
            time,
            content,
        } => note(connection, *run, *attempt, *time, content),
        Step::KeepAgent { agent, seen } => keep_agent(connection, agent, *seen).map(Some),
        Step::Forget { before, max } => forget(connection, *before, *max).map(Some),
        Step::Flush => Ok(Some(Written::Done)),
    }
}

fn enqueue(
    connection: &Connection,
    run: &NewRun,
    entries: &[Entry],
    first: Option<&Holder>,
) -> Result<Written> {
    let (state, attempt) = match first {
        Some(_) => (State::Running, 1),
        None => (State::Queued, 0),
    };
    let made = connection
        .prepare_cached(
            "INSERT INTO runs (run_id, namespace, agent, idempotency_key, priority, create_time, \
             start_time, deadline, caller, depth, options, state, attempt, counted, uncounted, \
             killed, not_before, worker_id, lease, reply_seq) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, 0, 0, 0, NULL, ?14, \
             ?15, 0) \
             ON CONFLICT DO NOTHING",
        )?
        .execute(params![
            run.id.0.as_bytes(),
            &*run.agent.namespace,
            &*run.agent.name,
            run.key,
            run.priority,
            run.created.0,
            run.start.map(|start| start.0),
            run.deadline.0,
            run.caller,
            run.depth,
            &*run.options,
            code(state),
            attempt,
            first.map(|holder| *holder.worker.0.as_bytes()),
            first.map(|holder| holder.lease.0),
        ])?;
    if made == 0 {
        return known(connection, run, entries);
    }
    for (key, value) in &run.labels {
        connection
            .prepare_cached("INSERT INTO labels (run_id, key, value) VALUES (?1, ?2, ?3)")?
            .execute(params![run.id.0.as_bytes(), key, value])?;
    }
    add(connection, run.id, entries)?;
    Ok(Written::Done)
}

/// The run that has the key already, and whether it asks the same.
fn known(connection: &Connection, run: &NewRun, entries: &[Entry]) -> Result<Written> {
    let (id, asked): ([u8; 16], Vec<u8>) = connection
        .prepare_cached(
            "SELECT runs.run_id, entry FROM runs JOIN journal USING (run_id) \
             WHERE namespace = ?1 AND agent = ?2 AND idempotency_key = ?3 \
             AND idempotency_key <> '' AND seq = 1",
        )?
        .query_row(
            params![&*run.agent.namespace, &*run.agent.name, run.key],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
    let id = RunId(uuid::Uuid::from_bytes(id));
    let same = entries.first().is_some_and(|first| first.content == asked);
    Ok(match same {
        true => Written::Existing(id),
        false => Written::Conflict(id),
    })
}

/// A change of `runs` behind a fence, whose parameters are ?1 to ?3.
macro_rules! fenced {
    ($change:literal) => {
        concat!(
            $change,
            " WHERE run_id = ?1 AND attempt = ?2 AND end_time IS NULL AND ?3 = ",
            "(SELECT seq FROM journal WHERE run_id = ?1 ORDER BY seq DESC LIMIT 1)"
        )
    };
}

fn start_attempt(
    connection: &Connection,
    fence: &Fence,
    holder: &Holder,
    entries: &[Entry],
) -> Result<Option<Written>> {
    const SQL: &str = fenced!(
        "UPDATE runs SET state = 2, attempt = attempt + 1, worker_id = ?4, lease = ?5, \
         not_before = NULL, reply_seq = 0"
    );
    let held = connection.prepare_cached(SQL)?.execute(params![
        fence.run.0.as_bytes(),
        fence.attempt.0,
        fence.head.cast_signed(),
        holder.worker.0.as_bytes(),
        holder.lease.0,
    ])?;
    fenced(connection, held, fence, entries)
}

fn end_attempt(
    connection: &Connection,
    fence: &Fence,
    counts: Counts,
    (not_before, reply_seq): (Option<Stamp>, u64),
    entries: &[Entry],
) -> Result<Option<Written>> {
    const SQL: &str = fenced!(
        "UPDATE runs SET state = 1, counted = ?4, uncounted = ?5, killed = ?6, not_before = ?7, \
         reply_seq = ?8"
    );
    let held = connection.prepare_cached(SQL)?.execute(params![
        fence.run.0.as_bytes(),
        fence.attempt.0,
        fence.head.cast_signed(),
        counts.counted,
        counts.uncounted_in_row,
        counts.killed,
        not_before.map(|until| until.0),
        reply_seq.cast_signed(),
    ])?;
    fenced(connection, held, fence, entries)
}

fn finish(
    connection: &Connection,
    fence: &Fence,
    (state, reply_seq): (State, u64),
    entries: &[Entry],
) -> Result<Option<Written>> {
    const SQL: &str = fenced!(
        "UPDATE runs SET state = ?4, reply_seq = ?5, end_time = ?6, end_seq = ?7, \
         not_before = NULL"
    );
    let Some(last) = entries.last() else {
        return Ok(None);
    };
    let held = connection.prepare_cached(SQL)?.execute(params![
        fence.run.0.as_bytes(),
        fence.attempt.0,
        fence.head.cast_signed(),
        code(state),
        reply_seq.cast_signed(),
        last.time.0,
        last.seq.cast_signed(),
    ])?;
    fenced(connection, held, fence, entries)
}

fn fenced(
    connection: &Connection,
    held: usize,
    fence: &Fence,
    entries: &[Entry],
) -> Result<Option<Written>> {
    if held == 0 {
        return Ok(None);
    }
    add(connection, fence.run, entries)?;
    Ok(Some(Written::Done))
}

fn append(
    connection: &Connection,
    fence: &Fence,
    entries: &[Entry],
    replayed: Option<&str>,
) -> Result<Option<Written>> {
    let Some((first, rest)) = entries.split_first() else {
        return Ok(Some(Written::Done));
    };
    // Not an insert of its own behind a check: the fence is in this statement.
    let held = connection
        .prepare_cached(
            "INSERT OR IGNORE INTO journal (run_id, seq, attempt, worker_seq, time, entry) \
             SELECT ?1, ?2, ?3, ?4, ?5, ?6 FROM runs WHERE run_id = ?1 AND attempt = ?7 \
             AND end_time IS NULL \
             AND EXISTS (SELECT 1 FROM journal WHERE run_id = ?1 AND seq = ?8)",
        )?
        .execute(params![
            fence.run.0.as_bytes(),
            first.seq.cast_signed(),
            first.attempt.0,
            first.worker_seq.cast_signed(),
            first.time.0,
            &*first.content,
            fence.attempt.0,
            fence.head.cast_signed(),
        ])?;
    if held == 0 || first.seq != fence.head + 1 {
        return Ok(None);
    }
    add(connection, fence.run, rest)?;
    if let Some(version) = replayed {
        connection
            .prepare_cached("UPDATE runs SET replayed = ?2 WHERE run_id = ?1")?
            .execute(params![fence.run.0.as_bytes(), version])?;
    }
    Ok(Some(Written::Done))
}

fn add(connection: &Connection, run: RunId, entries: &[Entry]) -> Result<()> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO journal (run_id, seq, attempt, worker_seq, time, entry) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?;
    for entry in entries {
        insert.execute(params![
            run.0.as_bytes(),
            entry.seq.cast_signed(),
            entry.attempt.0,
            entry.worker_seq.cast_signed(),
            entry.time.0,
            &*entry.content,
        ])?;
    }
    Ok(())
}

fn note(
    connection: &Connection,
    run: RunId,
    attempt: Attempt,
    time: Stamp,
    content: &[u8],
) -> Result<Option<Written>> {
    let noted = connection
        .prepare_cached(
            "INSERT INTO journal (run_id, seq, attempt, worker_seq, time, entry) \
             SELECT ?1, (SELECT seq FROM journal WHERE run_id = ?1 ORDER BY seq DESC LIMIT 1) + 1, \
             ?2, 0, ?3, ?4 FROM runs WHERE run_id = ?1 AND end_time IS NOT NULL",
        )?
        .execute(params![run.0.as_bytes(), attempt.0, time.0, content])?;
    Ok((noted > 0).then_some(Written::Done))
}

fn keep_agent(connection: &Connection, agent: &AgentKey, seen: Stamp) -> Result<Written> {
    connection
        .prepare_cached(
            "INSERT INTO agents (namespace, agent, seen) VALUES (?1, ?2, ?3) \
             ON CONFLICT DO UPDATE SET seen = excluded.seen",
        )?
        .execute(params![&*agent.namespace, &*agent.name, seen.0])?;
    Ok(Written::Done)
}

/// How many entries and bytes of journals go in one commit, so that none behind it waits for long.
const FORGOTTEN_AT_ONCE: (i64, i64) = (8192, 8 * 1024 * 1024);

fn forget(connection: &Connection, before: Stamp, max: usize) -> Result<Written> {
    // A run's id begins with the millisecond it was made in: only such as were made before the
    // instant can have ended before it.
    let millis = u64::try_from(before.0 / 1000).unwrap_or_default();
    let mut made_before = [0; 16];
    made_before[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
    let old: Vec<[u8; 16]> = connection
        .prepare_cached(
            "SELECT run_id FROM runs WHERE run_id < ?1 AND end_time < ?2 ORDER BY run_id LIMIT ?3",
        )?
        .query_map(
            params![
                made_before,
                before.0,
                i64::try_from(max).unwrap_or(i64::MAX)
            ],
            |row| row.get(0),
        )?
        .collect::<Result<_>>()?;
    let (mut forgotten, mut entries, mut bytes) = (0, 0, 0);
    for run in old {
        // The first goes whatever its size, or nothing ever would.
        if entries >= FORGOTTEN_AT_ONCE.0 || bytes >= FORGOTTEN_AT_ONCE.1 {
            break;
        }
        let held: (i64, i64) = connection
            .prepare_cached(
                "SELECT count(*), coalesce(sum(length(entry)), 0) FROM journal WHERE run_id = ?1",
            )?
            .query_row([run], |row| Ok((row.get(0)?, row.get(1)?)))?;
        (entries, bytes) = (entries + held.0, bytes + held.1);
        for table in ["journal", "labels", "runs"] {
            connection
                .prepare_cached(&format!("DELETE FROM {table} WHERE run_id = ?1"))?
                .execute([run])?;
        }
        forgotten += 1;
    }
    connection
        .prepare_cached("DELETE FROM agents WHERE seen < ?1")?
        .execute([before.0])?;
    Ok(Written::Forgotten(forgotten))
}

pub(super) fn code(state: State) -> i64 {
    match state {
        State::Queued => 1,
        State::Running => 2,
        State::Succeeded => 3,
        State::Failed => 4,
        State::Cancelled => 5,
        State::TimedOut => 6,
    }
}

/// The state of a row; SQLite's own error when it is none.
pub(super) fn state(code: i64) -> Result<State> {
    [
        State::Queued,
        State::Running,
        State::Succeeded,
        State::Failed,
        State::Cancelled,
        State::TimedOut,
    ]
    .into_iter()
    .find(|state| self::code(*state) == code)
    .ok_or(rusqlite::Error::IntegralValueOutOfRange(0, code))
}

/// One row or none.
pub(super) fn optional<T>(row: Result<T>) -> Result<Option<T>> {
    row.optional()
}
