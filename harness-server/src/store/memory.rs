//! The store that is gone with its process: for tests, and for trying things out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::{
    Done, Entry, Extent, Fence, Filter, Holder, NewRun, Page, Record, Stamp, State, Step, Store,
    StoreError, Written,
};
use crate::ids::{AgentKey, Attempt, RunId};

/// A store in memory.
#[derive(Default)]
pub struct Memory {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    runs: BTreeMap<RunId, Row>,
    agents: BTreeMap<AgentKey, Stamp>,
    closed: bool,
}

struct Row {
    record: Record,
    journal: Vec<Entry>,
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Memory {
    fn write(&self, step: Step, done: Done) {
        let outcome = self.lock().write(step);
        done(outcome);
    }

    fn get(&self, run: RunId) -> Result<Option<Record>, StoreError> {
        Ok(self.lock().runs.get(&run).map(|row| row.record.clone()))
    }

    fn find(&self, agent: &AgentKey, key: &str) -> Result<Option<RunId>, StoreError> {
        Ok(self.lock().find(agent, key))
    }

    fn list(
        &self,
        filter: &Filter,
        before: Option<RunId>,
        max: usize,
    ) -> Result<Vec<Record>, StoreError> {
        let kept = self.lock();
        let runs = kept.runs.values().rev().map(|row| &row.record);
        let listed = runs
            .filter(|record| before.is_none_or(|before| record.run.id < before))
            .filter(|record| matches(filter, record))
            .take(max);
        Ok(listed.cloned().collect())
    }

    fn unfinished(&self, after: Option<RunId>, max: usize) -> Result<Vec<Record>, StoreError> {
        let kept = self.lock();
        let runs = kept.runs.values().map(|row| &row.record);
        let unfinished = runs
            .filter(|record| after.is_none_or(|after| record.run.id > after))
            .filter(|record| !record.state.is_ended())
            .take(max);
        // As the other backends: labels are for lists.
        Ok(unfinished
            .map(|record| {
                let mut record = record.clone();
                record.run.labels.clear();
                record
            })
            .collect())
    }

    fn journal(
        &self,
        run: RunId,
        from: u64,
        max: usize,
        bytes_max: usize,
    ) -> Result<Page, StoreError> {
        let kept = self.lock();
        let Some(row) = kept.runs.get(&run) else {
            return Ok(Page::default());
        };
        let mut page = Page {
            entries: Vec::new(),
            head: row.record.head,
            ended: row.record.state.is_ended(),
        };
        let mut bytes = 0;
        for entry in row.journal.iter().filter(|entry| entry.seq >= from) {
            bytes += entry.content.len();
            let full = bytes > bytes_max && !page.entries.is_empty();
            if page.entries.len() >= max || full {
                break;
            }
            page.entries.push(entry.clone());
        }
        Ok(page)
    }

    fn extent(&self, run: RunId, attempt: Attempt) -> Result<Extent, StoreError> {
        let kept = self.lock();
        let entries = kept.runs.get(&run).map(|row| &*row.journal);
        let mut extent = Extent::default();
        for entry in entries.unwrap_or_default() {
            if entry.worker_seq > 0 {
                extent.bytes += entry.content.len() as u64;
            }
            if entry.attempt == attempt {
                extent.worker_seq = extent.worker_seq.max(entry.worker_seq);
                let before = extent.began.is_some_and(|began| began <= entry.time);
                extent.began = extent.began.filter(|_| before).or(Some(entry.time));
            }
        }
        Ok(extent)
    }

    fn agents(&self) -> Result<Vec<(AgentKey, Stamp)>, StoreError> {
        let kept = self.lock();
        let agents = kept.agents.iter();
        Ok(agents.map(|(agent, seen)| (agent.clone(), *seen)).collect())
    }

    fn close(&self) {
        self.lock().closed = true;
    }
}

impl Kept {
    fn write(&mut self, step: Step) -> Result<Written, StoreError> {
        if self.closed {
            return Err(StoreError::Failed("it is closed".to_owned()));
        }
        match step {
            Step::Enqueue {
                run,
                entries,
                first,
            } => return Ok(self.enqueue(Arc::unwrap_or_clone(run), entries, first)),
            step @ (Step::StartAttempt { .. }
            | Step::Append { .. }
            | Step::EndAttempt { .. }
            | Step::Finish { .. }) => self.change(step)?,
            Step::Note {
                run,
                attempt,
                time,
                content,
            } => self.note(run, attempt, time, content)?,
            Step::KeepAgent { agent, seen } => {
                self.agents.insert(agent, seen);
            }
            Step::Forget { before, max } => return Ok(self.forget(before, max)),
            Step::Flush => {}
        }
        Ok(Written::Done)
    }

    /// Writes a step of a run that has not ended.
    fn change(&mut self, step: Step) -> Result<(), StoreError> {
        match step {
            Step::StartAttempt {
                fence,
                holder,
                entries,
            } => {
                let row = self.fenced(&fence)?;
                row.record.state = State::Running;
                row.record.attempt = fence.attempt.next();
                row.record.holder = Some(holder);
                row.record.not_before = None;
                row.record.reply_seq = 0;
                row.add(entries);
            }
            Step::Append {
                fence,
                entries,
                replayed,
            } => {
                let row = self.fenced(&fence)?;
                row.record.replayed = replayed.or(row.record.replayed.take());
                row.add(entries);
            }
            Step::EndAttempt {
                fence,
                counts,
                not_before,
                reply_seq,
                entries,
            } => {
                let row = self.fenced(&fence)?;
                row.record.state = State::Queued;
                row.record.counts = counts;
                row.record.not_before = not_before;
                row.record.reply_seq = reply_seq;
                row.add(entries);
            }
            Step::Finish {
                fence,
                state,
                reply_seq,
                entries,
            } => {
                let row = self.fenced(&fence)?;
                row.record.state = state;
                row.record.reply_seq = reply_seq;
                row.record.not_before = None;
                row.record.ended = entries.last().map(|last| (last.time, last.seq));
                row.add(entries);
            }
            Step::Enqueue { .. }
            | Step::Note { .. }
            | Step::KeepAgent { .. }
            | Step::Forget { .. }
            | Step::Flush => {}
        }
        Ok(())
    }

    fn enqueue(&mut self, run: NewRun, entries: Vec<Entry>, first: Option<Holder>) -> Written {
        if let Some(id) = self.find(&run.agent, &run.key) {
            let asked = self.runs.get(&id).and_then(|row| row.journal.first());
            let asks = entries.first().map(|entry| &entry.content);
            return match asked.map(|entry| &entry.content) == asks {
                true => Written::Existing(id),
                false => Written::Conflict(id),
            };
        }
        let record = Record::made(run, first, 0);
        let mut row = Row {
            record,
            journal: Vec::new(),
        };
        row.add(entries);
        self.runs.insert(row.record.run.id, row);
        Written::Done
    }

    fn note(
        &mut self,
        run: RunId,
        attempt: Attempt,
        time: Stamp,
        content: Bytes,
    ) -> Result<(), StoreError> {
        let row = self.runs.get_mut(&run);
        let row = row
            .filter(|row| row.record.state.is_ended())
            .ok_or(StoreError::Fenced)?;
        row.add(vec![Entry {
            seq: row.record.head + 1,
            attempt,
            worker_seq: 0,
            time,
            content,
        }]);
        Ok(())
    }

    fn find(&self, agent: &AgentKey, key: &str) -> Option<RunId> {
        let mut runs = self.runs.values().map(|row| &row.record.run);
        runs.find(|run| !key.is_empty() && run.agent == *agent && run.key == key)
            .map(|run| run.id)
    }

    fn fenced(&mut self, fence: &Fence) -> Result<&mut Row, StoreError> {
        let holds = |record: &Record| {
            !record.state.is_ended() && record.attempt == fence.attempt && record.head == fence.head
        };
        self.runs
            .get_mut(&fence.run)
            .filter(|row| holds(&row.record))
            .ok_or(StoreError::Fenced)
    }

    fn forget(&mut self, before: Stamp, max: usize) -> Written {
        let is_old = |row: &Row| row.record.ended.is_some_and(|(at, _)| at < before);
        let old: Vec<RunId> = self
            .runs
            .iter()
            .filter(|(_, row)| is_old(row))
            .map(|(id, _)| *id)
            .take(max)
            .collect();
        for run in &old {
            self.runs.remove(run);
        }
        self.agents.retain(|_, seen| *seen >= before);
        Written::Forgotten(old.len())
    }
}

impl Row {
    fn add(&mut self, entries: Vec<Entry>) {
        if let Some(last) = entries.last() {
            self.record.head = last.seq;
        }
        self.journal.extend(entries);
    }
}

fn matches(filter: &Filter, record: &Record) -> bool {
    let run = &record.run;
    *filter.namespace == *run.agent.namespace
        && (filter.agent.is_empty() || *filter.agent == *run.agent.name)
        && (filter.states.is_empty() || filter.states.contains(&record.state))
        && filter.created_from.is_none_or(|from| run.created >= from)
        && filter.created_before.is_none_or(|end| run.created < end)
        && filter
            .labels
            .iter()
            .all(|(key, value)| run.labels.get(key) == Some(value))
}
