-- The journal of runs on disk: the one table that the harness's SQLite store and an SDK's local
-- journal share, so that either file can be read by whoever reads the other.
--
-- A row is one `harness.v1.JournalEntry`. What it says is `entry`, an encoded `harness.v1.Entry`,
-- the bytes as its writer made them: whoever passes it on does not decode and encode it again. Its
-- place in the journal stands in the columns and nowhere in those bytes.
CREATE TABLE IF NOT EXISTS journal (
    -- The run, the 16 bytes of its UUID.
    run_id     BLOB    NOT NULL CHECK (length(run_id) = 16),
    -- Numbered from 1 within the run, without gaps, never reused.
    seq        INTEGER NOT NULL CHECK (seq >= 1),
    -- The attempt that wrote it, or that it is about; 0 for entries about the run.
    attempt    INTEGER NOT NULL CHECK (attempt >= 0),
    -- The worker's own number of it within the attempt, from 1; 0 where no worker wrote it.
    worker_seq INTEGER NOT NULL CHECK (worker_seq >= 0),
    -- When it was taken: microseconds since 1970-01-01 00:00:00 UTC, by the writer's wall clock.
    time       INTEGER NOT NULL,
    -- What it says.
    entry      BLOB    NOT NULL,
    PRIMARY KEY (run_id, seq)
) STRICT, WITHOUT ROWID;
