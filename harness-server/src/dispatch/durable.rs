//! Durable runs in Core: headers, and what is being written of them.
//!
//! What happens to one is decided here and then written; whoever waits for it is told once it is
//! (`stored`). Steps of a run are written in the order they are decided, so what was decided first
//! is what stands. Nothing of what is on disk already is kept.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use crate::envelope::{Code, Failure, Outcome};
use crate::ids::{AgentKey, Attempt, Delivery, RunId, SlotId};
use crate::journal::Content;
use crate::slot;
use crate::store::State;

use super::asks::whole;
use super::writes::{Change, NewEntry, Replay, Said, Start, Write};
use super::{Action, Core, Frame, Timer, trim};

/// Where a durable run stands with what is on disk.
#[derive(Debug)]
pub(super) enum Phase {
    /// Not made yet: it is held against schemas.
    New(Box<Start>),
    /// It waits: in its queue, for its start, for the end of its back-off.
    Waiting,
    /// Its request is being read, for a slot that is kept for it.
    Loading(SlotId),
    /// Its next attempt is being written, for a slot that is kept for it.
    Starting(SlotId),
    /// A worker has it, or may come back to it.
    Working,
    /// How it ended is being written.
    Ending,
}

/// What to do once a step is written.
#[derive(Debug)]
pub(super) enum After {
    Enqueued { first: bool },
    Started,
    Appended { worker_seq: u64 },
    AttemptEnded { reply: Option<Reply> },
    Finished,
    Noted,
}

/// A step that is on its way.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) after: After,
    /// The number of its last entry.
    pub(super) head: u64,
}

/// A worker's reply that is owed an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reply {
    pub(super) slot: SlotId,
    pub(super) delivery: Delivery,
    pub(super) seq: u64,
}

/// Where the request of a durable run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// Here, since it was given.
    Given,
    /// Here, since it was read.
    Read,
    /// On disk only.
    OnDisk,
}

/// What a durable run has beside what every run has.
#[derive(Debug)]
pub(super) struct Durable {
    pub(super) phase: Phase,
    /// The number of the newest entry, written or on its way.
    pub(super) head: u64,
    /// The number of the newest entry that is on disk; 0 before it is made.
    pub(super) on_disk: u64,
    /// What is on its way, the oldest first.
    pub(super) pending: VecDeque<Pending>,
    pub(super) request: Held,
    /// The entries that go with its next request.
    pub(super) replay: Option<Arc<Replay>>,
    /// The last worker_seq of the newest attempt that is written.
    pub(super) written: u64,
    /// What its journal holds of workers' entries, in bytes.
    pub(super) bytes: u64,
    /// The version of the agent that wrote what is replayed, where something is.
    pub(super) replayed: Option<Arc<str>>,
    pub(super) reply: Option<Reply>,
    /// Who wants it stopped, and why.
    pub(super) cancel: Option<(Arc<str>, String)>,
    /// What its slot learns once its end is written.
    pub(super) over: Option<(SlotId, slot::Over)>,
}

impl Durable {
    pub(super) fn new(phase: Phase) -> Self {
        Self {
            phase,
            head: 0,
            on_disk: 0,
            pending: VecDeque::new(),
            request: Held::Given,
            replay: None,
            written: 0,
            bytes: 0,
            replayed: None,
            reply: None,
            cancel: None,
            over: None,
        }
    }

    /// Whether it is on disk, or on its way there.
    pub(super) fn is_made(&self) -> bool {
        !matches!(self.phase, Phase::New(_))
    }

    /// Whether it waits and all of it is on disk, so that nothing is missing of what is read.
    pub(super) fn may_be_read(&self) -> bool {
        self.pending.is_empty() && matches!(self.phase, Phase::Waiting)
    }

    /// The slot that is kept for it.
    pub(super) fn kept_slot(&self) -> Option<SlotId> {
        match self.phase {
            Phase::Loading(slot) | Phase::Starting(slot) => Some(slot),
            Phase::New(_) | Phase::Waiting | Phase::Working | Phase::Ending => None,
        }
    }
}

/// An entry of the harness.
pub(super) fn own(at: Instant, attempt: Attempt, content: Said) -> NewEntry {
    NewEntry {
        attempt,
        worker_seq: 0,
        at,
        content,
    }
}

impl Core {
    /// Has a step of a run written; it is over to `stored` then.
    pub(super) fn write(
        &mut self,
        id: RunId,
        change: Change,
        entries: Vec<NewEntry>,
        after: After,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.runs.get_mut(&id) else {
            return;
        };
        let attempt = match change {
            // It counts from now on, but it is written behind the one before.
            Change::StartAttempt(_) => Attempt(entry.run.attempt().0.saturating_sub(1)),
            Change::Enqueue { .. }
            | Change::Append(_)
            | Change::EndAttempt { .. }
            | Change::Finish { .. }
            | Change::Note => entry.run.attempt(),
        };
        let Some(durable) = &mut entry.durable else {
            return;
        };
        let head = durable.head;
        durable.head += entries.len() as u64;
        let step = Pending {
            after,
            head: durable.head,
        };
        durable.pending.push_back(step);
        actions.push(Action::Write(Write {
            run: id,
            attempt,
            head,
            change,
            entries,
        }));
    }

    /// Writes what the harness has to say of a durable run.
    pub(super) fn write_note(
        &mut self,
        now: Instant,
        delivery: Delivery,
        content: Content,
        actions: &mut Vec<Action>,
    ) {
        let entry = own(now, delivery.attempt, Said::Content(content));
        let id = delivery.run;
        let live = self.runs.get(&id).and_then(|entry| entry.durable.as_ref());
        let ends = live.is_none_or(|durable| matches!(durable.phase, Phase::Ending));
        if ends {
            *self.noting.entry(id).or_default() += 1;
            return actions.push(Action::Write(Write {
                run: id,
                attempt: delivery.attempt,
                head: 0,
                change: Change::Note,
                entries: vec![entry],
            }));
        }
        self.write(id, Change::Append(None), vec![entry], After::Noted, actions);
    }

    /// Takes an entry of a worker; it is acknowledged once it is on disk.
    pub(super) fn take_durable(
        &mut self,
        now: Instant,
        slot: SlotId,
        (delivery, worker_seq): (Delivery, u64),
        (kind, encoded): (slot::EntryKind, Bytes),
        actions: &mut Vec<Action>,
    ) {
        let (id, limits) = (delivery.run, self.limits.durable_journal);
        let version = self.slots.get(&slot).map(|held| &*held.started.version);
        let Some(entry) = self.runs.get_mut(&id) else {
            return;
        };
        let Some(durable) = &mut entry.durable else {
            return;
        };
        let bytes = encoded.len() as u64;
        let is_full =
            durable.head >= limits.entries as u64 || durable.bytes + bytes > limits.bytes as u64;
        if is_full {
            return self.journal_full(now, id, slot, actions);
        }
        durable.bytes += bytes;
        let mut first_replayed = None;
        if matches!(kind, slot::EntryKind::Step | slot::EntryKind::Usage) {
            // It goes out again in a frame of its own, with its numbers.
            const NUMBERS: u64 = 64;
            entry.frame_bytes = entry.frame_bytes.max(bytes + NUMBERS);
            if durable.replayed.is_none() {
                first_replayed = Some(Arc::from(version.unwrap_or_default()));
                durable.replayed.clone_from(&first_replayed);
            }
        }
        entry.has_taken(worker_seq);
        let new = NewEntry {
            attempt: delivery.attempt,
            worker_seq,
            at: now,
            content: Said::Content(Content::Worker(encoded)),
        };
        let after = After::Appended { worker_seq };
        self.write(
            id,
            Change::Append(first_replayed),
            vec![new],
            after,
            actions,
        );
    }

    /// What a worker writes of a run whose end is on its way to the disk shows that it is there, and
    /// nothing more: its call ends once that is written.
    pub(super) fn behind_the_end(&self, frame: Frame) -> Frame {
        let (Frame::Append { delivery, .. } | Frame::Reply { delivery, .. }) = &frame else {
            return frame;
        };
        let durable = self
            .runs
            .get(&delivery.run)
            .and_then(|it| it.durable.as_ref());
        match durable.is_some_and(|durable| matches!(durable.phase, Phase::Ending)) {
            true => Frame::Heartbeat(Some(*delivery)),
            false => frame,
        }
    }

    fn journal_full(&mut self, now: Instant, id: RunId, slot: SlotId, actions: &mut Vec<Action>) {
        let limits = self.limits.durable_journal;
        let message = format!(
            "the run's journal is at its limit of {} entries or {} bytes: write less into it, or \
             split the work into more runs",
            limits.entries, limits.bytes
        );
        if let Some(durable) = self.durable_mut(id) {
            durable.over = Some((slot, slot::Over::Cancelled));
        }
        self.refuse(now, id, Failure::new(Code::JournalFull, message), actions);
    }

    /// An attempt is over and its run waits for the next.
    pub(super) fn write_attempt_end(
        &mut self,
        now: Instant,
        delivery: Delivery,
        failure: Option<Arc<Failure>>,
        not_before: Option<Instant>,
        actions: &mut Vec<Action>,
    ) {
        let id = delivery.run;
        let Some(entry) = self.runs.get_mut(&id) else {
            return;
        };
        let (counts, reply_seq) = (entry.run.counts(), entry.reply_seq());
        let Some(durable) = &mut entry.durable else {
            return;
        };
        let reply = durable.reply.take();
        let kept = durable.kept_slot();
        durable.phase = Phase::Waiting;
        let ended = Said::Content(Content::AttemptEnded(failure));
        let change = Change::EndAttempt {
            counts,
            not_before,
            reply_seq,
        };
        self.write(
            id,
            change,
            vec![own(now, delivery.attempt, ended)],
            After::AttemptEnded { reply },
            actions,
        );
        self.give_up_slot(now, id, kept, actions);
    }

    /// A durable run has its outcome, which stands once it is written.
    pub(super) fn write_end(
        &mut self,
        now: Instant,
        id: RunId,
        (delivery, failed): (Option<Delivery>, Option<Arc<Failure>>),
        outcome: Outcome,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.runs.get_mut(&id) else {
            return;
        };
        // The one that ends it, or the one its newest attempt had ended with before.
        let (deadline, reply_seq) = (entry.run.deadline(), entry.reply_seq());
        let Some(durable) = &mut entry.durable else {
            return;
        };
        if let Phase::New(_) = durable.phase {
            if let Err(failure) = outcome {
                self.remove_durable(id);
                let started = Err(failure);
                actions.push(Action::Started { run: id, started });
                let failure = None;
                actions.push(Action::Decided { run: id, failure });
            }
            return;
        }
        let mut entries = Vec::new();
        if let Some((who, why)) = durable.cancel.take() {
            let cancel = Content::CancelRequested { who, why };
            entries.push(own(now, Attempt::default(), Said::Content(cancel)));
        }
        if let Some(delivery) = delivery {
            let failed =
                failed.or_else(|| outcome.as_ref().err().map(|it| Arc::new((**it).clone())));
            let ended = Content::AttemptEnded(failed);
            entries.push(own(now, delivery.attempt, Said::Content(ended)));
        }
        let state = State::ended(outcome.as_ref().err().map(|failure| failure.code));
        entries.push(own(now, Attempt::default(), Said::Ended(outcome)));
        let kept = durable.kept_slot();
        durable.phase = Phase::Ending;
        let change = Change::Finish { state, reply_seq };
        self.write(id, change, entries, After::Finished, actions);
        self.clear_timer(id);
        self.leave_queue(id);
        self.timers.clear(deadline, Timer::Run(id));
        self.give_up_slot(now, id, kept, actions);
    }

    /// Whether a run is a durable one that is here.
    #[must_use]
    pub fn has_durable(&self, id: RunId) -> bool {
        let entry = self.runs.get(&id);
        entry.is_some_and(|entry| entry.durable.is_some())
    }

    /// Whether a step of a run was not written and it has yet to be taken in again, behind all that was
    /// decided of it: only then is clear which steps are still told of.
    #[must_use]
    pub fn is_adrift(&self, id: RunId) -> bool {
        self.adrift.contains(&id)
    }

    /// Of whom a durable run asks, and up to which number its journal is on disk; none when it is not
    /// here, or not made yet.
    #[must_use]
    pub fn durable_on_disk(&self, id: RunId) -> Option<(&AgentKey, u64)> {
        let entry = self.runs.get(&id)?;
        let on_disk = entry.durable.as_ref()?.on_disk;
        (on_disk > 0).then_some((&entry.request.agent, on_disk))
    }

    pub(super) fn durable_mut(&mut self, id: RunId) -> Option<&mut Durable> {
        self.runs.get_mut(&id)?.durable.as_deref_mut()
    }

    /// A slot was kept for a run that does not go there.
    pub(super) fn give_up_slot(
        &mut self,
        now: Instant,
        id: RunId,
        kept: Option<SlotId>,
        actions: &mut Vec<Action>,
    ) {
        let Some(slot) = kept else {
            return;
        };
        let Some(held) = self.slots.get_mut(&slot) else {
            return;
        };
        if held.kept_for == Some(id) {
            held.kept_for = None;
            if matches!(held.slot.state(), slot::State::Ready) {
                self.freed(now, slot, actions);
            }
        }
    }

    /// Drops a durable run from memory; what is on disk stays.
    pub(super) fn remove_durable(&mut self, id: RunId) {
        self.clear_timer(id);
        self.stop_awaiting(id);
        self.leave_queue(id);
        let Some(entry) = self.runs.remove(&id) else {
            return;
        };
        trim(&mut self.runs);
        self.timers.clear(entry.run.deadline(), Timer::Run(id));
        self.durable_runs -= 1;
        if entry
            .durable
            .as_ref()
            .is_some_and(|it| it.request == Held::Read)
        {
            self.reads_less();
        }
        let key: &AgentKey = &entry.request.agent;
        if let Some(agent) = self.agents.get_mut(key) {
            agent.durable_runs -= 1;
        }
        self.forget_unoffered(key);
    }
}

/// A run as a whole and its entry about that.
pub(super) fn about(run: RunId, now: Instant, content: Said) -> NewEntry {
    own(now, whole(run).attempt, content)
}
