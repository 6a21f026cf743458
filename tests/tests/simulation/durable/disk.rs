//! The disk: a line of steps, what is committed of it, and what is still to be told.
//!
//! Owns what is durable and holds each step against what is there, by the words of the journal's
//! rules. It draws nothing: when it commits and whether it can is the world's affair.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use harness_server::dispatch::{Change, NewEntry, Said, Start, Write};
use harness_server::envelope::{Code, Request};
use harness_server::ids::{AgentKey, Attempt, Delivery, RunId};
use harness_server::journal::Content;
use harness_server::run::Counts;
use harness_server::store::{Entry, Holder, Stamp, State};

use super::entries;

/// A step in line, with what its account says of it.
pub(super) struct Step {
    pub(super) write: Write,
    /// The number of the reply that is acknowledged with it.
    pub(super) reply: Option<u64>,
}

/// What stands in line.
pub(super) enum Line {
    Step(Box<Step>),
    /// What was put in line before it has been tried.
    Flush(RunId),
}

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    Done,
    Existing(RunId),
    Conflict(RunId),
    Failed,
    Flushed,
}

/// What a run is made with.
pub(super) struct Made {
    pub(super) request: Arc<Request>,
    pub(super) start: Box<Start>,
    pub(super) created: Instant,
    pub(super) deadline: Instant,
}

/// A run on disk.
pub(super) struct Row {
    pub(super) made: Made,
    pub(super) state: State,
    pub(super) attempt: Attempt,
    pub(super) counts: Counts,
    pub(super) not_before: Option<Instant>,
    pub(super) holder: Option<Holder>,
    pub(super) replayed: Option<Arc<str>>,
    pub(super) reply_seq: u64,
    pub(super) journal: Vec<NewEntry>,
    /// When its newest attempt began.
    pub(super) began: Instant,
    /// Up to which number each attempt's entries, and its reply, are here.
    pub(super) acknowledged: BTreeMap<Attempt, u64>,
    running: bool,
}

#[derive(Default)]
pub(super) struct Disk {
    pub(super) rows: BTreeMap<RunId, Row>,
    pub(super) line: VecDeque<Line>,
    pub(super) told: VecDeque<(RunId, Came)>,
    /// Runs of which a step was not written in this life of the harness, or that were read while they
    /// changed: what was decided of them on top of that is refused.
    pub(super) shaken: BTreeSet<RunId>,
}

impl Line {
    pub(super) fn is_of(&self, run: RunId) -> bool {
        match self {
            Self::Step(step) => step.write.run == run,
            Self::Flush(other) => *other == run,
        }
    }
}

impl Row {
    pub(super) fn head(&self) -> u64 {
        self.journal.len() as u64
    }

    /// The last number the newest attempt's worker gave.
    pub(super) fn worker_seq(&self) -> u64 {
        let of = self.journal.iter().filter(|it| it.attempt == self.attempt);
        of.map(|entry| entry.worker_seq).max().unwrap_or_default()
    }

    pub(super) fn bytes(&self) -> u64 {
        let bytes = |entry: &NewEntry| worker_bytes(entry).map_or(0, |bytes| bytes.len() as u64);
        self.journal.iter().map(bytes).sum()
    }

    /// What goes with its next request.
    pub(super) fn replay(&self) -> Vec<Entry> {
        let mut replay = Vec::new();
        for (at, entry) in self.journal.iter().enumerate() {
            if let Some(bytes) = worker_bytes(entry)
                && entries::is_replayed(bytes)
            {
                replay.push(Entry {
                    seq: at as u64 + 1,
                    attempt: entry.attempt,
                    worker_seq: entry.worker_seq,
                    time: Stamp::default(),
                    content: bytes.clone(),
                });
            }
        }
        replay
    }
}

impl Disk {
    pub(super) fn is_quiet(&self) -> bool {
        self.line.is_empty() && self.told.is_empty()
    }

    pub(super) fn find(&self, agent: &AgentKey, key: &str) -> Option<RunId> {
        let asks = |row: &Row| {
            let request = &row.made.request;
            request.agent == *agent && request.durable.as_deref() == Some(key)
        };
        let found = self.rows.iter().find(|(_, row)| asks(row));
        found.filter(|_| !key.is_empty()).map(|(id, _)| *id)
    }

    /// Tries the first steps in line, all of them or none.
    pub(super) fn commit(&mut self, now: Instant, count: usize, works: bool) {
        for line in self.line.drain(..count).collect::<Vec<_>>() {
            match line {
                Line::Step(step) => {
                    let run = step.write.run;
                    let came = match works {
                        true => self.take(now, *step),
                        false => Came::Failed,
                    };
                    if came == Came::Failed {
                        self.shaken.insert(run);
                    }
                    self.told.push_back((run, came));
                }
                Line::Flush(run) if works => self.told.push_back((run, Came::Flushed)),
                Line::Flush(_) => {}
            }
        }
    }

    fn take(&mut self, now: Instant, step: Step) -> Came {
        let Step { write, reply } = step;
        let run = write.run;
        match write.change {
            Change::Enqueue { .. } => self.enqueue(now, write),
            Change::Note => {
                let ended = self.rows.get_mut(&run).filter(|row| row.state.is_ended());
                // What is told of a run that its harness has just left, or dropped, is not told.
                let Some(row) = ended else {
                    return Came::Failed;
                };
                for entry in write.entries {
                    row.add(run, entry);
                }
                Came::Done
            }
            Change::StartAttempt(_)
            | Change::Append(_)
            | Change::EndAttempt { .. }
            | Change::Finish { .. } => {
                let stands = |row: &Row| {
                    let fence = (write.attempt, write.head);
                    !row.state.is_ended() && fence == (row.attempt, row.head())
                };
                if !self.rows.get(&run).is_some_and(stands) {
                    return self.refused(run);
                }
                let row = self.rows.get_mut(&run).expect("it was just looked at");
                row.change(now, write, reply);
                Came::Done
            }
        }
    }

    /// A step whose fence has moved, which needs its reason.
    fn refused(&self, run: RunId) -> Came {
        assert!(
            self.shaken.contains(&run),
            "a step of run {run} was decided over what is on disk"
        );
        Came::Failed
    }

    fn enqueue(&mut self, now: Instant, write: Write) -> Came {
        let id = write.run;
        let Change::Enqueue {
            start,
            request,
            created,
            deadline,
            first,
            ..
        } = write.change
        else {
            unreachable!("it was looked at")
        };
        let key = request.durable.clone().unwrap_or_default();
        if let Some(known) = self.find(&request.agent, &key) {
            // What was decided of it meanwhile is of a run that is not there.
            self.shaken.insert(id);
            let same = self.rows[&known].made.request.payload == request.payload;
            return if same {
                Came::Existing(known)
            } else {
                Came::Conflict(known)
            };
        }
        assert!(!self.rows.contains_key(&id), "run {id} is made twice");
        assert_eq!(
            (write.head, write.attempt.0),
            (0, u32::from(first.is_some()))
        );
        let mut row = Row {
            made: Made {
                request,
                start,
                created,
                deadline,
            },
            state: first.map_or(State::Queued, |_| State::Running),
            attempt: Attempt(u32::from(first.is_some())),
            counts: Counts::default(),
            not_before: None,
            holder: first,
            replayed: None,
            reply_seq: 0,
            journal: Vec::new(),
            began: now,
            acknowledged: BTreeMap::new(),
            running: false,
        };
        for entry in write.entries {
            row.add(id, entry);
        }
        assert_eq!(row.running, first.is_some(), "its first attempt");
        self.rows.insert(id, row);
        Came::Done
    }

    /// Whether what was acknowledged of an attempt is here.
    pub(super) fn has(&self, delivery: Delivery, seq: u64) -> bool {
        let row = self.rows.get(&delivery.run);
        let there = row.and_then(|row| row.acknowledged.get(&delivery.attempt));
        there.is_some_and(|there| *there >= seq)
    }
}

impl Row {
    fn change(&mut self, now: Instant, write: Write, reply: Option<u64>) {
        let run = write.run;
        match write.change {
            Change::StartAttempt(holder) => {
                let due = self.not_before.max(self.made.start.not_before);
                assert!(due.is_none_or(|at| at <= now), "run {run} begins too early");
                assert_eq!(self.state, State::Queued, "run {run} is begun twice");
                self.state = State::Running;
                self.attempt = self.attempt.next();
                self.holder = Some(holder);
                self.not_before = None;
                self.reply_seq = 0;
                self.began = now;
            }
            Change::Append(replayed) => self.replayed = replayed.or(self.replayed.take()),
            Change::EndAttempt {
                counts,
                not_before,
                reply_seq,
            } => {
                assert_eq!(self.state, State::Running, "run {run} has no attempt");
                self.state = State::Queued;
                self.counts = counts;
                self.not_before = not_before;
                self.reply_seq = reply_seq;
            }
            Change::Finish { state, reply_seq } => {
                assert!(state.is_ended(), "{state:?} is no end");
                self.state = state;
                self.reply_seq = reply_seq;
            }
            Change::Enqueue { .. } | Change::Note => unreachable!("these have no fence"),
        }
        if let Some(seq) = reply {
            self.acknowledged.insert(self.attempt, seq);
        }
        for entry in write.entries {
            self.add(run, entry);
        }
        assert_eq!(
            self.running,
            self.state == State::Running,
            "the journal of run {run} says otherwise than its row"
        );
        let ends =
            matches!(self.journal.last(), Some(entry) if matches!(entry.content, Said::Ended(_)));
        assert_eq!(
            ends,
            self.state.is_ended(),
            "run_ended is the last of run {run}"
        );
    }

    /// Adds an entry, which must be one that may come here.
    fn add(&mut self, run: RunId, entry: NewEntry) {
        let ended = self
            .journal
            .iter()
            .any(|it| matches!(it.content, Said::Ended(_)));
        match &entry.content {
            Said::Asked(_) => assert!(self.journal.is_empty(), "run {run} starts once"),
            Said::Ended(_) => assert!(!ended && !self.running, "run {run} ends once"),
            Said::Content(Content::AttemptStarted(started)) => {
                assert!(
                    !ended && !self.running,
                    "one attempt of run {run} at a time"
                );
                assert_eq!(
                    entry.attempt, self.attempt,
                    "attempts of run {run} grow by 1"
                );
                let holder = self.holder.expect("an attempt must have its holder");
                assert_eq!(started.worker, holder.worker, "who has run {run}");
                self.running = true;
            }
            Said::Content(Content::AttemptEnded(_)) => {
                assert!(self.running, "an attempt of run {run} ends once");
                assert_eq!(entry.attempt, self.attempt, "the attempt of run {run}");
                self.running = false;
            }
            Said::Content(Content::Worker(bytes)) => {
                assert!(
                    self.running,
                    "an entry of an attempt of run {run} that is over"
                );
                let holder = self.holder.expect("an attempt must have its holder");
                let said = (entry.attempt, holder.worker, entry.worker_seq);
                assert_eq!(entries::origin(bytes), said, "a fenced entry of run {run}");
                assert_eq!(entry.attempt, self.attempt, "a fenced entry of run {run}");
                let next = self.worker_seq() + 1;
                assert_eq!(entry.worker_seq, next, "numbers of run {run} grow by 1");
                self.acknowledged.insert(self.attempt, next);
            }
            Said::Content(Content::CancelRequested { .. }) => {
                assert!(!ended, "run {run} is cancelled after its end");
            }
            Said::Content(Content::AttemptStopping(_) | Content::AttemptStopped { .. }) => {}
            Said::Content(Content::RunStarted | Content::RunEnded(_)) => {
                panic!("journals on disk have others for these: {entry:?}")
            }
        }
        self.journal.push(entry);
    }

    /// What the run ended with; none is a value.
    pub(super) fn outcome(&self) -> Option<Option<Code>> {
        self.journal.iter().find_map(|entry| match &entry.content {
            Said::Ended(outcome) => Some(outcome.as_ref().err().map(|failure| failure.code)),
            Said::Asked(_) | Said::Content(_) => None,
        })
    }
}

fn worker_bytes(entry: &NewEntry) -> Option<&Bytes> {
    match &entry.content {
        Said::Content(Content::Worker(bytes)) => Some(bytes),
        Said::Content(
            Content::RunStarted
            | Content::AttemptStarted(_)
            | Content::AttemptEnded(_)
            | Content::CancelRequested { .. }
            | Content::RunEnded(_)
            | Content::AttemptStopping(_)
            | Content::AttemptStopped { .. },
        )
        | Said::Asked(_)
        | Said::Ended(_) => None,
    }
}
