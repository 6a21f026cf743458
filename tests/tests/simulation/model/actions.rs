//! What Core does, held against what it must do.

use std::time::Duration;

use harness_server::dispatch::{Action, Note, Resumed};
use harness_server::envelope::Code;
use harness_server::ids::{Delivery, Lease, SchemaId};
use harness_server::slot::{End, Refusal};

use super::{
    Expected, Fault, Judged, Model, State, Trigger, Unreleased, is_full, run_index, run_of,
    slot_index, worker_index,
};

impl Model {
    /// Takes one action, in the order Core gave them.
    pub(crate) fn action(&mut self, action: &Action) {
        match action {
            Action::Welcome { slot, resumed } => self.welcome(slot_index(*slot), *resumed),
            Action::Deliver {
                slot,
                worker,
                delivery,
                lease,
                request,
                deadline,
                replay,
                window,
            } => {
                let full = is_full(&self.slots[slot_index(*slot)].offer);
                let waited = self.limits.interactive_reattach_window;
                let waited = if full { waited } else { Duration::ZERO };
                assert_eq!(*window, waited, "how long its worker is waited for");
                assert!(replay.is_none(), "of an interactive run");
                let run = run_of(*delivery);
                let of = self.slots[slot_index(*slot)].worker;
                assert_eq!(worker_index(*worker), of, "whose slot it is");
                assert_eq!(
                    request.depth, self.runs[run].depth,
                    "the depth of {delivery}"
                );
                self.deliver(slot_index(*slot), *delivery, *lease, *deadline);
            }
            Action::Acknowledge {
                slot,
                delivery,
                seq,
            } => {
                let held = self.slots[slot_index(*slot)].held.as_ref();
                assert_eq!(
                    held.map(|held| held.delivery),
                    Some(*delivery),
                    "acknowledged"
                );
                let expected = self.expected_ack.take();
                assert_eq!(expected, Some((slot_index(*slot), *seq)), "acknowledged");
            }
            Action::End { slot, end } => self.end(slot_index(*slot), end),
            Action::Judge { run, schema, .. } => self.judge(run_index(*run), *schema),
            Action::Answer { run, answer } => {
                let run = run_index(*run);
                let code = answer.outcome.as_ref().err().map(|failure| failure.code);
                self.answer(run, code);
                assert_eq!(
                    answer.attempt.0, self.runs[run].attempt,
                    "the newest attempt"
                );
            }
            Action::Grew { run } => {
                assert!(
                    self.runs[run_index(*run)].watchers > 0,
                    "nobody watches {run}"
                );
            }
            Action::Drain { slot, .. } => self.told(slot_index(*slot)),
            Action::Note(note) => self.note(note),
            Action::Write(_)
            | Action::Load { .. }
            | Action::Reload { .. }
            | Action::Started { .. }
            | Action::Decided { .. } => panic!("no run is durable here: {action:?}"),
        }
    }

    fn welcome(&mut self, id: usize, resumed: Option<Resumed>) {
        assert_eq!(
            self.trigger,
            Trigger::Opened(id),
            "a welcome answers a hello"
        );
        assert!(
            !matches!(
                self.expected_end.take(),
                Some((
                    _,
                    Expected::Exactly(_) | Expected::Refused { certainly: true }
                ))
            ),
            "slot {id} breaks a limit and is welcome"
        );
        self.is_told(id, resumed);
        let slot = &mut self.slots[id];
        slot.open = true;
        let class = (slot.offer.request_schema, slot.offer.max_receive_bytes);
        let (agent, worker) = (slot.agent, slot.worker);
        self.count_worker(worker, |counts| counts.0 += 1);
        self.totals.slots += 1;
        let agent = &mut self.agents[agent];
        agent.offered = true;
        agent.open.push(id);
        let known = agent
            .classes
            .iter_mut()
            .find(|known| (known.0, known.1) == class);
        if let Some(known) = known {
            known.2 += 1;
        } else {
            agent.classes.push((class.0, class.1, 1));
            for run in agent.queued.clone() {
                self.settle(run);
            }
        }
        self.become_free(id);
    }

    fn end(&mut self, id: usize, end: &End) {
        if let Trigger::Opened(opened) = self.trigger
            && opened == id
        {
            let expected = self.expected_end.take().map(|(_, expected)| expected);
            let fits = match (&expected, end) {
                (Some(Expected::Exactly(expected)), end) => expected == end,
                (
                    Some(Expected::Refused { .. }),
                    End::Refused(Refusal::TooMany(_) | Refusal::Drained),
                ) => true,
                (_, _) => self.misses(end),
            };
            self.expected_back = None;
            assert!(fits, "{end:?} where {expected:?} was due");
            return;
        }
        let slot = &self.slots[id];
        assert!(slot.open, "slot {id} is ended twice: {end:?}");
        let held = slot.held.as_ref();
        let held = held.map(|held| (held.delivery, held.lease, held.has_stopped));
        self.explain(id, end, held.map(|(delivery, ..)| delivery));
        if let Some((delivery, lease, false)) = held
            && still_runs(end)
        {
            self.remember(id, delivery, lease);
        }
        let worker = self.slots[id].worker;
        let Some(held) = self.close(id) else { return };
        let run = run_of(held.delivery);
        match end {
            End::DeadlineExceeded(_) | End::Cancelled(_) | End::Idle | End::Refused(_) => {}
            End::StoreFailed => panic!("no run is durable here: {end:?}"),
            End::Superseded(_) => self.is_superseded(id, &held),
            End::Leaving => self.owe(run, Some(Code::ShuttingDown)),
            End::NotAccepted(_) => self.fail(run, Fault::uncounted(), Some(worker)),
            End::Closed if !held.accepted => self.fail(run, Fault::uncounted(), Some(worker)),
            End::Closed => self.fail(run, Fault::counted(Code::WorkerLost), None),
            End::HeartbeatsMissed => self.breaks_off(id, &held),
            End::WrongAttempt { .. } | End::Violation(_) | End::Broken(_) => {
                self.fail(run, Fault::counted(Code::ProtocolViolation), None);
            }
            End::FrameTooLarge { .. } => {
                self.fail(run, Fault::never_retried(Code::PayloadTooLarge), None);
            }
        }
    }

    /// Panics unless there is a reason for this end, now.
    fn explain(&mut self, id: usize, end: &End, held: Option<Delivery>) {
        let slot = &self.slots[id];
        let rules = self.limits.slot;
        let now = self.now;
        let tick = self.trigger == Trigger::Tick;
        let explained = match end {
            End::DeadlineExceeded(delivery) => {
                held == Some(*delivery) && self.deadline_explains(id, *delivery)
            }
            End::Cancelled(delivery) => {
                let run = run_of(*delivery);
                held == Some(*delivery) && self.trigger == Trigger::Cancelled(run)
            }
            End::NotAccepted(delivery) => slot.held.as_ref().is_some_and(|held| {
                let late = !held.accepted && held.accept_by <= now;
                tick && held.delivery == *delivery && late && is_full(&slot.offer)
            }),
            End::HeartbeatsMissed => {
                tick && is_full(&slot.offer) && slot.heard + 3 * rules.heartbeat_interval <= now
            }
            End::Idle => {
                let since = slot
                    .stopping
                    .map(|since| since + rules.idle_stopping_timeout);
                tick && held.is_none() && since.is_some_and(|at| at <= now)
            }
            End::Leaving => self.leaving && (held.is_none() || self.left),
            End::Superseded(delivery) => self.is_taken_over(held, *delivery),
            End::Closed
            | End::WrongAttempt { .. }
            | End::Violation(_)
            | End::Broken(_)
            | End::FrameTooLarge { .. } => match self.expected_end.take() {
                Some((expected, Expected::Exactly(exactly))) => expected == id && exactly == *end,
                Some((_, Expected::Refused { .. })) | None => false,
            },
            End::StoreFailed | End::Refused(_) => false,
        };
        assert!(
            explained,
            "slot {id} holds {held:?} and is ended for no reason: {end:?}"
        );
    }

    /// Whether the run in a slot has just met its deadline, or its attempt did.
    fn deadline_explains(&mut self, id: usize, delivery: Delivery) -> bool {
        let run = run_of(delivery);
        let entry = &self.runs[run];
        if entry.state != State::Running(id) {
            return entry.changed == self.event;
        }
        let due = entry.attempt_ends.is_some_and(|at| at <= self.now);
        if due {
            self.fail(run, Fault::counted(Code::AttemptTimeout), None);
        }
        due && self.trigger == Trigger::Tick && !matches!(self.runs[run].state, State::Owed(_))
    }

    fn remember(&mut self, id: usize, delivery: Delivery, lease: Lease) {
        if self.unreleased.len() >= self.limits.unreleased {
            return;
        }
        let worker = self.slots[id].worker;
        self.unreleased.push(Unreleased {
            worker,
            delivery,
            lease,
            since: self.now,
        });
        self.totals.unreleased += 1;
        self.count_worker(worker, |counts| counts.1 += 1);
    }

    fn forget(&mut self, at: usize) {
        let worker = self.unreleased.swap_remove(at).worker;
        self.totals.unreleased -= 1;
        self.count_worker(worker, |counts| counts.1 -= 1);
    }

    /// A worker is about to have stopped: it owes nothing any more.
    pub(crate) fn stopped(&mut self, worker: usize) {
        while let Some(at) = self
            .unreleased
            .iter()
            .position(|held| held.worker == worker)
        {
            self.forget(at);
        }
    }

    /// A worker is about to say released.
    pub(crate) fn released(&mut self, worker: usize, delivery: Delivery, lease: Lease) {
        let held = self.unreleased.iter().position(|held| {
            held.worker == worker && held.delivery == delivery && held.lease == lease
        });
        // It may be about what the harness believes to be in an older call.
        let older = self.older_call(worker, delivery, lease);
        match held {
            Some(at) => self.forget(at),
            None => self.works_no_more(older),
        }
        let proves =
            held.is_some() || older.is_some() || self.gives_up_resuming(worker, delivery, lease);
        self.expected_released = Some(proves);
    }

    fn note(&mut self, note: &Note) {
        match note {
            Note::Released { .. } => assert_eq!(self.expected_released.take(), Some(true)),
            Note::ReleasedUnknown { .. } => {
                assert_eq!(self.expected_released.take(), Some(false));
            }
            Note::GaveUp { worker, delivery } => {
                let worker = worker_index(*worker);
                let held = self
                    .unreleased
                    .iter()
                    .position(|held| held.worker == worker && held.delivery == *delivery)
                    .expect("what is given up must be owed");
                let due = self.unreleased[held].since + self.limits.release_timeout;
                assert!(due <= self.now, "{delivery} was given up too soon");
                self.forget(held);
            }
            // What it tells of is explained by the end or the loss it comes with.
            Note::Failed { delivery, what, .. } => {
                let known = delivery.is_none_or(|held| run_of(held) < self.runs.len());
                assert!(known && what.contains("worker"), "{delivery:?}: {what}");
            }
            Note::Away { delivery, .. } => {
                assert_eq!(self.expected_away.take(), Some(*delivery), "it is away");
            }
            Note::Resumed { worker, delivery } => self.is_back(worker_index(*worker), *delivery),
            Note::Stale { .. } => {
                assert!(
                    std::mem::take(&mut self.expected_stale),
                    "no stale frame came"
                );
            }
        }
    }

    fn judge(&mut self, run: usize, schema: SchemaId) {
        self.mature(run);
        let most = self.limits.agent_classes;
        let entry = &mut self.runs[run];
        assert_eq!(entry.state, State::Queued, "run {run} needs no judgement");
        assert!(entry.is_json, "run {run} is not JSON");
        let room = entry.judged.len() < most;
        match entry.judged.iter_mut().find(|(known, _)| *known == schema) {
            Some((_, judged)) => {
                assert!(!room, "run {run} is judged by {schema:?} again");
                *judged = Judged::Awaited;
                for (settled, awaits) in &mut self.settled {
                    *awaits |= *settled == run;
                }
            }
            None => entry.judged.push((schema, Judged::Awaited)),
        }
    }

    /// A judgement is about to be told.
    pub(crate) fn judged(&mut self, run: usize, schema: SchemaId, takes: bool) {
        let entry = &mut self.runs[run];
        if entry.state == State::Ended {
            return;
        }
        let judged = entry.judged.iter_mut().find(|(known, _)| *known == schema);
        let (_, judged) = judged.expect("it was asked for");
        *judged = if takes {
            Judged::Takes
        } else {
            Judged::Refuses
        };
        if entry.state == State::Queued {
            self.settle(run);
        }
    }

    /// Somebody begins or ceases to watch a run.
    pub(crate) fn watches(&mut self, run: usize, more: bool) {
        if more {
            self.runs[run].watchers += 1;
            self.watching += 1;
            self.watched_most = self.watched_most.max(self.watching);
        } else {
            self.runs[run].watchers -= 1;
            self.watching -= 1;
        }
    }

    /// An operator is about to drain a worker.
    pub(crate) fn drains(&mut self, worker: usize) {
        if self.workers[worker] == (0, 0) {
            return;
        }
        self.drained[worker] = true;
        let agents = self.agents.iter();
        let open: Vec<usize> = agents.flat_map(|agent| agent.open.clone()).collect();
        for id in open {
            if self.slots[id].worker == worker {
                self.slots[id].stopping.get_or_insert(self.now);
                self.no_longer_free(id);
            }
        }
        self.drained_stay_away(worker);
    }

    /// A worker is told to drain on a slot, once, and a minimal one not while it works.
    fn told(&mut self, id: usize) {
        let slot = &mut self.slots[id];
        assert!(self.drained[slot.worker], "slot {id} is told to drain");
        assert!(slot.open && !slot.told, "slot {id} is told to drain again");
        assert!(
            is_full(&slot.offer) || slot.held.is_none(),
            "slot {id} is told while it works"
        );
        slot.told = true;
    }

    /// The harness is about to leave, or to wait no longer.
    pub(crate) fn leaves(&mut self, left: bool) {
        self.leaving = true;
        self.left |= left;
    }
}

/// Whether a worker may still work after this end.
fn still_runs(end: &End) -> bool {
    match end {
        End::DeadlineExceeded(_)
        | End::Cancelled(_)
        | End::NotAccepted(_)
        | End::WrongAttempt { .. }
        | End::Violation(_)
        | End::Broken(_)
        | End::FrameTooLarge { .. } => true,
        End::Closed
        | End::Idle
        | End::HeartbeatsMissed
        | End::Leaving
        | End::StoreFailed
        | End::Superseded(_)
        | End::Refused(_) => false,
    }
}
