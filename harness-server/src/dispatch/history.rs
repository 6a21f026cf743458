//! What is known of runs, live or ended: their journals and views. Ended runs are kept for a while,
//! so that somebody may still ask what became of them.

use std::time::Instant;

use crate::ids::{AgentKey, Attempt, Delivery, RunId, SlotId};
use crate::journal::{Content, Ended, Page};
use crate::run;
use crate::slot;

use super::entry::RunEntry;
use super::past::{Kept, Past};
use super::{Action, Core, Timer};

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// Waiting for a slot or for its back-off.
    Queued,
    /// In a slot.
    Running,
    /// Ended; how is in the view.
    Ended,
}

/// What is told of a run.
#[derive(Clone, Debug)]
pub struct RunView {
    /// Its agent and namespace.
    pub agent: AgentKey,
    /// Where it stands.
    pub state: RunState,
    /// The newest attempt.
    pub attempt: Attempt,
    /// When it was made.
    pub created: Instant,
    /// When it ends at the latest.
    pub deadline: Instant,
    /// When and how it ended.
    pub ended: Option<(Instant, Ended)>,
    /// The number of the newest entry of its journal.
    pub head: u64,
    /// Its priority.
    pub priority: i32,
    /// The delivery that asked it.
    pub parent: Option<Delivery>,
}

/// A part of a run's journal, and whether more can come.
#[derive(Debug)]
pub struct Reading {
    /// The entries.
    pub page: Page,
    /// Whether the run has ended.
    pub ended: bool,
    /// Whether its last attempt's work has stopped too.
    pub stopped: bool,
}

impl Core {
    /// Keeps an ended run for a while.
    pub(super) fn keep(&mut self, now: Instant, id: RunId, entry: Box<RunEntry>, ended: Ended) {
        let past = Past {
            id,
            at: now,
            view: RunView {
                agent: entry.request.agent.clone(),
                state: RunState::Ended,
                attempt: entry.run.attempt(),
                created: entry.created,
                deadline: entry.run.deadline(),
                ended: Some((now, ended)),
                head: 0,
                priority: entry.order.0.0,
                parent: entry.request.parent,
            },
            journal: entry.journal,
            watchers: entry.watchers,
            claim: entry.claim,
            owed: false,
        };
        let kept = Kept {
            time: self.limits.ended_kept,
            runs: self.limits.ended_runs,
            bytes: self.limits.ended_bytes,
        };
        self.history.keep(now, past, kept);
        if self.history.wake.is_none() {
            self.wake_for_history(now + kept.time);
        }
    }

    /// Nobody may ask any more what became of them.
    pub(super) fn forget_old_runs(&mut self, now: Instant) {
        let time = self.limits.ended_kept;
        self.history.wake = None;
        if let Some(oldest) = self.history.forget_old(now, time) {
            self.wake_for_history(oldest + time);
        }
    }

    fn wake_for_history(&mut self, at: Instant) {
        self.history.wake = Some(at);
        self.timers.set(at, Timer::History);
    }

    /// What is known of an interactive run; of others the store knows.
    #[must_use]
    pub fn view_run(&self, now: Instant, id: RunId) -> Option<RunView> {
        if let Some(entry) = self.runs.get(&id) {
            if entry.durable.is_some() {
                return None;
            }
            return Some(RunView {
                agent: entry.request.agent.clone(),
                state: match entry.run.state() {
                    run::State::Queued => RunState::Queued,
                    run::State::Running(_) | run::State::Away | run::State::Ended => {
                        RunState::Running
                    }
                },
                attempt: entry.run.attempt(),
                created: entry.created,
                deadline: entry.run.deadline(),
                ended: None,
                head: entry.journal.head(),
                priority: entry.order.0.0,
                parent: entry.request.parent,
            });
        }
        let past = self.history.get(id)?;
        let fresh = past
            .view
            .ended
            .as_ref()
            .is_some_and(|(at, _)| now < *at + self.limits.ended_kept);
        (fresh || past.watchers > 0).then(|| RunView {
            head: past.journal.head(),
            ..past.view.clone()
        })
    }

    /// A part of an interactive run's journal; none when the run is not known.
    #[must_use]
    pub fn read_journal(&self, id: RunId, from: u64, max: usize) -> Option<Reading> {
        if let Some(entry) = self.runs.get(&id) {
            let page = entry.journal.read(from, max);
            return Some(Reading {
                page,
                ended: false,
                stopped: false,
            });
        }
        let past = self.history.get(id)?;
        let page = past.journal.read(from, max);
        Some(Reading {
            page,
            ended: true,
            stopped: !past.owed,
        })
    }

    /// Counts who reads a run's journal as it grows.
    pub(super) fn watched(&mut self, now: Instant, id: RunId, more: bool) {
        let counted = |watchers: u32| match more {
            true => watchers + 1,
            false => watchers.saturating_sub(1),
        };
        if let Some(entry) = self.runs.get_mut(&id) {
            entry.watchers = counted(entry.watchers);
        } else if let Some(past) = self.history.get_mut(id) {
            past.watchers = counted(past.watchers);
            // It may have stayed for them alone.
            let over = past.at + self.limits.ended_kept;
            if past.watchers == 0 && self.history.wake.is_none() {
                self.wake_for_history(over.max(now));
            }
        }
    }

    /// Adds an entry of the harness to a run's journal, live or ended.
    pub(super) fn note(
        &mut self,
        now: Instant,
        delivery: Delivery,
        content: Content,
        actions: &mut Vec<Action>,
    ) {
        let id = delivery.run;
        let (journal, watchers) = match self.runs.get_mut(&id) {
            Some(entry) if entry.durable.is_some() => {
                return self.write_note(now, delivery, content, actions);
            }
            Some(entry) => (&mut entry.journal, entry.watchers),
            None => match self.history.get_mut(id) {
                Some(past) => {
                    match content {
                        Content::AttemptStopping(_) => past.owed = true,
                        Content::AttemptStopped { .. } => past.owed = false,
                        Content::Worker(_)
                        | Content::RunStarted
                        | Content::AttemptStarted(_)
                        | Content::AttemptEnded(_)
                        | Content::CancelRequested { .. }
                        | Content::RunEnded(_) => {}
                    }
                    (&mut past.journal, past.watchers)
                }
                None => return,
            },
        };
        journal.note(now, delivery.attempt, content);
        if watchers > 0 {
            actions.push(Action::Grew { run: id });
        }
    }

    /// Takes an entry of a worker; its acknowledgement waits while the run's caller reads slowly.
    pub(super) fn take(
        &mut self,
        now: Instant,
        slot: SlotId,
        (delivery, worker_seq): (Delivery, u64),
        (kind, encoded): (slot::EntryKind, bytes::Bytes),
        actions: &mut Vec<Action>,
    ) {
        let limits = self.limits.journal;
        let Some(entry) = self.runs.get_mut(&delivery.run) else {
            return;
        };
        if entry.durable.is_some() {
            let place = (delivery, worker_seq);
            return self.take_durable(now, slot, place, (kind, encoded), actions);
        }
        entry.has_taken(worker_seq);
        let seq = entry.journal.append(now, delivery.attempt, encoded, limits);
        let full = self
            .slots
            .get(&slot)
            .is_some_and(|held| held.slot.level() == slot::Level::Full);
        if entry.paced && full {
            entry.unread.push_back((seq, worker_seq));
        } else if full {
            actions.push(Action::Acknowledge {
                slot,
                delivery,
                seq: worker_seq,
            });
        }
        if entry.watchers > 0 {
            actions.push(Action::Grew { run: delivery.run });
        }
    }

    /// The caller of a streamed ask has taken the entries up to a number.
    pub(super) fn read_up_to(&mut self, id: RunId, seq: u64, actions: &mut Vec<Action>) {
        let Some(entry) = self.runs.get_mut(&id) else {
            return;
        };
        let mut read = None;
        while let Some((first, worker_seq)) = entry.unread.front().copied() {
            if first > seq {
                break;
            }
            read = Some(worker_seq);
            entry.unread.pop_front();
        }
        if let (Some(seq), run::State::Running(slot)) = (read, entry.run.state()) {
            let (slot, delivery) = (*slot, entry.run.delivery());
            actions.push(Action::Acknowledge {
                slot,
                delivery,
                seq,
            });
        }
    }
}
