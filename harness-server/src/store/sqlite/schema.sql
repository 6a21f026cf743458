-- Runs. A row changes in steps; what happened in them is in `journal`.
CREATE TABLE runs (
    run_id          BLOB    NOT NULL PRIMARY KEY CHECK (length(run_id) = 16),
    namespace       TEXT    NOT NULL,
    agent           TEXT    NOT NULL,
    -- Empty where the caller gave none.
    idempotency_key TEXT    NOT NULL,
    priority        INTEGER NOT NULL,
    -- Times are microseconds since 1970-01-01 00:00:00 UTC.
    create_time     INTEGER NOT NULL,
    start_time      INTEGER,
    deadline        INTEGER NOT NULL,
    -- The principal that asked.
    caller          TEXT    NOT NULL,
    -- How many runs stand above it.
    depth           INTEGER NOT NULL,
    -- An encoded `harness.v1.RunOptions`.
    options         BLOB    NOT NULL,
    -- As `harness.v1.RunState`: 1 queued, 2 running, 3 to 6 ended.
    state           INTEGER NOT NULL CHECK (state BETWEEN 1 AND 6),
    attempt         INTEGER NOT NULL,
    -- What counts for max_attempts, for the uncounted in a row, and for poison.
    counted         INTEGER NOT NULL,
    uncounted       INTEGER NOT NULL,
    killed          INTEGER NOT NULL,
    -- The end of a back-off.
    not_before      INTEGER,
    -- Who got the newest attempt, and the proof of it.
    worker_id       BLOB,
    lease           BLOB,
    -- The version of the agent that wrote the first step or usage; none where there is neither.
    replayed        TEXT,
    -- The worker_seq of the newest attempt's reply, 0 where none was taken.
    reply_seq       INTEGER NOT NULL,
    end_time        INTEGER,
    -- The seq of `run_ended`.
    end_seq         INTEGER
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX runs_by_key ON runs (namespace, agent, idempotency_key)
    WHERE idempotency_key <> '';
CREATE INDEX runs_by_agent ON runs (namespace, agent, run_id);
CREATE INDEX runs_unfinished ON runs (run_id) WHERE end_time IS NULL;

-- For lists.
CREATE TABLE labels (
    run_id BLOB NOT NULL,
    key    TEXT NOT NULL,
    value  TEXT NOT NULL,
    PRIMARY KEY (run_id, key)
) STRICT, WITHOUT ROWID;

-- Agents that were there, so that asking for one is no mistake although none of its workers is back.
CREATE TABLE agents (
    namespace TEXT    NOT NULL,
    agent     TEXT    NOT NULL,
    seen      INTEGER NOT NULL,
    PRIMARY KEY (namespace, agent)
) STRICT, WITHOUT ROWID;
