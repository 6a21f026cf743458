//! What Core does, held against the account and the disk.

use harness_server::dispatch::{Action, Change, NewEntry, Resumed, Said, Write};
use harness_server::envelope::{Code, Request};
use harness_server::ids::{Delivery, Lease, RunId, WorkerId};
use harness_server::journal::Content;
use harness_server::run::Counts;
use harness_server::slot::{End, Level};
use harness_server::store::{Holder, State};

use super::account::{Account, Follows, Held, LATE, Stand, Trigger, attempt_ends};
use super::disk::Disk;
use super::frames::Says;
use super::setting::is_durable;
use crate::model::slot_index;

impl Account {
    /// Takes one action, in the order Core gave them; gives the number of the reply that is on disk
    /// with a step.
    pub(super) fn action(&mut self, disk: &Disk, action: &Action) -> Option<u64> {
        match action {
            Action::Welcome { slot, resumed } => self.welcome(disk, slot_index(*slot), *resumed),
            Action::Deliver {
                slot,
                worker,
                delivery,
                lease,
                request,
                deadline,
                replay,
                window: _,
            } => {
                let slot = slot_index(*slot);
                self.deliver(slot, *worker, *delivery, *lease);
                if is_durable(delivery.run) {
                    let replayed = replay.as_ref().map_or(&[][..], |replay| &replay.entries);
                    self.begins(disk, (slot, *delivery, *lease), request, replayed);
                    let run = self.run(delivery.run);
                    let latest = run.attempt_ends.unwrap_or(run.terms.deadline);
                    assert_eq!(*deadline, latest, "the time {delivery} is given");
                } else {
                    assert!(replay.is_none(), "{delivery} is interactive");
                }
            }
            Action::Write(write) => return self.write(write),
            Action::Acknowledge {
                slot,
                delivery,
                seq,
            } => self.acknowledge(disk, slot_index(*slot), *delivery, *seq),
            Action::Started { run, started } => {
                let started = started
                    .as_ref()
                    .map(|it| *it)
                    .map_err(|failure| failure.code);
                self.started(disk, *run, started);
            }
            Action::Decided { run, failure } => {
                let ended = disk.rows.get(run).map(|row| row.state.is_ended());
                let told = self.run(*run);
                told.cancels = 0;
                if told.stand == Stand::Decided {
                    told.stand = Stand::Gone;
                }
                let holds = failure.is_some() || ended.unwrap_or(told.told != Some(Ok(*run)));
                assert!(holds, "the end of run {run} is told and not on disk");
            }
            Action::End { slot, end } => self.end(disk, slot_index(*slot), end),
            Action::Answer { run, .. } => {
                let now = self.now;
                let ask = self.asks.get_mut(run).expect("an ask");
                assert!(
                    !std::mem::replace(&mut ask.answered, true),
                    "{run} is answered twice"
                );
                assert!(now <= ask.deadline + LATE, "{run} is answered too late");
            }
            Action::Load { run, .. } => {
                assert!(self.loading.insert(*run), "run {run} is read twice");
                let waits = matches!(self.stand(*run), Stand::Waits(_));
                assert!(waits, "run {run} is read for no slot");
            }
            Action::Reload { .. }
            | Action::Judge { .. }
            | Action::Grew { .. }
            | Action::Drain { .. }
            | Action::Note(_) => {}
        }
        None
    }

    fn welcome(&mut self, disk: &Disk, slot: usize, resumed: Option<Resumed>) {
        let entry = &mut self.slots[slot];
        entry.open = true;
        let Some(resumed) = resumed else { return };
        let delivery = resumed.delivery;
        let worker = entry.worker;
        let row = disk
            .rows
            .get(&delivery.run)
            .expect("a resumed run is on disk");
        let holds =
            row.attempt == delivery.attempt && row.holder.map(|it| it.worker) == Some(worker);
        assert!(
            holds || disk.shaken.contains(&delivery.run),
            "{delivery} is resumed"
        );
        if resumed.deadline.is_none() {
            assert!(row.reply_seq > 0, "{delivery} was answered");
            assert_ne!(row.state, State::Running, "{delivery} was answered");
            return assert_eq!(resumed.last_seq, row.reply_seq, "{delivery}");
        }
        let written = row.worker_seq();
        assert!(
            resumed.last_seq <= written,
            "{delivery} is told of what is not on disk"
        );
        let run = self
            .runs
            .get_mut(&delivery.run)
            .expect("a run that was started");
        let stood = std::mem::replace(&mut run.stand, Stand::Works(slot));
        let works = matches!(stood, Stand::Away { .. } | Stand::Works(_));
        assert!(works, "{delivery} is resumed as it is {stood:?}");
        entry.held = Some(Held {
            delivery,
            last_seq: run.taken,
            accepted: true,
        });
    }

    /// A slot gets a request.
    fn deliver(&mut self, slot: usize, worker: WorkerId, delivery: Delivery, lease: Lease) {
        let entry = &mut self.slots[slot];
        assert!(
            entry.open && !entry.stopping,
            "{delivery} goes to a slot that is not there"
        );
        assert_eq!(entry.worker, worker, "whose slot it is");
        assert!(
            entry.held.is_none(),
            "slot {slot} gets {delivery} and holds another"
        );
        assert!(
            entry.owes.is_none(),
            "slot {slot} gets {delivery} before an acknowledgement"
        );
        assert!(!self.leaving, "{delivery} starts in a harness that leaves");
        let number = u128::from_be_bytes(lease.0);
        if !is_durable(delivery.run) {
            assert!(
                number > self.last_lease,
                "{delivery} has a lease of another"
            );
            self.last_lease = number;
            assert!(!self.asks[&delivery.run].answered, "{delivery} is over");
        }
        entry.held = Some(Held {
            delivery,
            last_seq: 0,
            accepted: false,
        });
    }

    /// The request of a durable run leaves.
    fn begins(
        &mut self,
        disk: &Disk,
        (slot, delivery, lease): (usize, Delivery, Lease),
        request: &Request,
        replayed: &[harness_server::store::Entry],
    ) {
        let row = disk
            .rows
            .get(&delivery.run)
            .expect("it leaves before it is on disk");
        let worker = self.slots[slot].worker;
        let holder = Holder { worker, lease };
        let stands = (row.state, row.attempt, row.holder);
        assert_eq!(
            stands,
            (State::Running, delivery.attempt, Some(holder)),
            "{delivery} leaves and is not on disk"
        );
        assert_eq!(
            request.payload, row.made.request.payload,
            "what {delivery} asks"
        );
        let there = row.replay();
        assert_eq!(replayed, there, "what goes with {delivery}");
        let full = self.slots[slot].offer.level == Level::Full;
        assert!(
            full || there.is_empty(),
            "steps of {delivery} go to a minimal worker"
        );
        let now = self.now;
        let run = self.run(delivery.run);
        assert_eq!(run.stand, Stand::Starting, "{delivery} leaves");
        assert!(
            now < run.terms.deadline + LATE,
            "{delivery} has no time left"
        );
        run.stand = Stand::Works(slot);
        run.taken = 0;
        run.attempt_ends = attempt_ends(run, Some(now));
    }

    fn acknowledge(&mut self, disk: &Disk, slot: usize, delivery: Delivery, seq: u64) {
        let entry = &mut self.slots[slot];
        assert!(entry.open, "an acknowledgement for a call that is gone");
        assert_eq!(entry.offer.level, Level::Full, "{delivery} is acknowledged");
        if is_durable(delivery.run) {
            assert!(
                disk.has(delivery, seq),
                "{delivery} up to {seq} is not on disk"
            );
        }
        if entry
            .owes
            .is_some_and(|(owed, reply)| (owed, reply) == (delivery, seq))
        {
            entry.owes = None;
        }
    }

    /// StartRun is told.
    fn started(&mut self, disk: &Disk, run: RunId, started: Result<RunId, Code>) {
        let told = self.run(run);
        let before = told.told.replace(started);
        assert_eq!(before, None, "StartRun of {run} is told twice");
        match started {
            Ok(known) => {
                let row = disk.rows.get(&known).expect("it is told and not on disk");
                let same = row.made.request.payload == told.request.payload;
                assert!(
                    same && row.made.request.durable == told.request.durable,
                    "{known}"
                );
                if known != run {
                    told.stand = Stand::Gone;
                }
            }
            Err(code) => {
                assert!(
                    !disk.rows.contains_key(&run),
                    "{code:?} is told and run {run} is made"
                );
                told.stand = Stand::Gone;
            }
        }
    }

    fn end(&mut self, disk: &Disk, slot: usize, end: &End) {
        let held = self.close(slot);
        let ended = |delivery: &Delivery| {
            let row = disk.rows.get(&delivery.run);
            row.is_some_and(|row| row.state.is_ended())
        };
        match end {
            End::Cancelled(delivery) if is_durable(delivery.run) => {
                assert!(
                    ended(delivery),
                    "{delivery} is told to stop before that is on disk"
                );
            }
            End::StoreFailed => {
                let explained =
                    matches!(self.trigger, Trigger::Stored(_, false) | Trigger::Opened(_));
                assert!(explained, "no step failed: {:?}", self.trigger);
            }
            End::Superseded(delivery) => {
                let row = &disk.rows[&delivery.run];
                let moved = row.attempt > delivery.attempt || row.state != State::Running;
                let again = matches!(self.trigger, Trigger::Opened(newer) if newer != slot);
                // Its attempt ends, and so does its right, before that is on disk.
                let decided = !matches!(self.stand(delivery.run), Stand::Works(_));
                assert!(
                    moved || again || decided,
                    "nothing has come after {delivery}"
                );
                let waits = matches!(self.stand(delivery.run), Stand::Waits(_));
                let is_newest = waits && row.attempt == delivery.attempt;
                assert!(
                    !is_newest || row.reply_seq == 0,
                    "{delivery} was answered and is told that something came after"
                );
            }
            End::Cancelled(_)
            | End::DeadlineExceeded(_)
            | End::Closed
            | End::Idle
            | End::NotAccepted(_)
            | End::HeartbeatsMissed
            | End::Leaving
            | End::WrongAttempt { .. }
            | End::Violation(_)
            | End::Broken(_)
            | End::FrameTooLarge { .. }
            | End::Refused(_) => {}
        }
        let Some(held) = held else { return };
        self.ends.push((held, end.clone()));
        let full = self.slots[slot].offer.level == Level::Full;
        let lost = full && matches!(end, End::StoreFailed | End::HeartbeatsMissed);
        self.breaks_off(slot, held, lost || *end == End::Leaving);
    }

    /// A step is decided; gives the number of the reply that is on disk with it.
    fn write(&mut self, write: &Write) -> Option<u64> {
        let id = write.run;
        let reply = match self.trigger {
            // What is given back is no reply that anybody acknowledges.
            Trigger::Reply(_, _, _, Says::Declined) => None,
            Trigger::Reply(_, delivery, seq, _) if delivery.run == id => Some(seq),
            _ => None,
        };
        let due = |run: &super::account::Run, now| {
            let early = matches!(run.stand, Stand::Waits(Some(until)) if until > now);
            assert!(!early, "run {id} begins before its time");
        };
        let now = self.now;
        match &write.change {
            Change::Enqueue { first, .. } => {
                let run = self.run(id);
                assert_eq!(run.stand, Stand::New, "run {id} is made");
                run.stand = match first {
                    Some(_) => Stand::Starting,
                    None => Stand::Waits(run.not_before.filter(|at| *at > now)),
                };
                run.attempt.0 += u32::from(first.is_some());
                if let Some(holder) = first {
                    assert!(
                        run.not_before.is_none_or(|at| at <= now),
                        "run {id} is early"
                    );
                    self.leases(*holder);
                }
            }
            Change::StartAttempt(holder) => {
                let run = self.run(id);
                due(run, now);
                assert!(matches!(run.stand, Stand::Waits(_)), "run {id} begins");
                assert!(now < run.terms.deadline, "run {id} has no time left");
                run.stand = Stand::Starting;
                run.attempt = run.attempt.next();
                run.replied = 0;
                self.leases(*holder);
            }
            Change::Append(replayed) => {
                self.run(id).has_steps |= replayed.is_some();
                let live = matches!(self.stand(id), Stand::Works(_) | Stand::Away { .. });
                let notes = write.entries.iter().all(|entry| entry.worker_seq == 0);
                assert!(
                    live || notes,
                    "an append of run {id}, which is {:?}",
                    self.stand(id)
                );
            }
            Change::EndAttempt {
                counts,
                not_before,
                reply_seq,
            } => {
                self.ends_attempt(id, failure_of(write), *counts, *not_before);
                self.keeps_reply(write, reply, *reply_seq);
            }
            Change::Finish { state, reply_seq } => {
                self.finishes(id, *state, failure_of(write), outcome_of(write));
                self.keeps_reply(write, reply, *reply_seq);
            }
            Change::Note => {}
        }
        reply
    }

    /// A step says which reply the newest attempt has ended with: this one, or where the attempt was over
    /// before, the one before.
    fn keeps_reply(&mut self, write: &Write, reply: Option<u64>, reply_seq: u64) {
        let ends =
            |entry: &NewEntry| matches!(entry.content, Said::Content(Content::AttemptEnded(_)));
        let run = self.run(write.run);
        if write.entries.iter().any(ends) {
            run.replied = reply.unwrap_or_default();
        }
        assert_eq!(reply_seq, run.replied, "the reply of run {}", write.run);
    }

    fn leases(&mut self, holder: Holder) {
        let number = u128::from_be_bytes(holder.lease.0);
        assert!(number > self.last_lease, "a lease of another");
        self.last_lease = number;
    }

    fn ends_attempt(
        &mut self,
        id: RunId,
        failure: Option<Code>,
        counts: Counts,
        not_before: Option<std::time::Instant>,
    ) {
        let code = failure.expect("an attempt that is tried again has failed");
        let fault = self.fault(id, code);
        let follows = self.fails(id, code, fault);
        let run = self.run(id);
        assert_eq!(
            counts, run.counts,
            "what counts of run {id} after {fault:?}"
        );
        match follows {
            Follows::Waits(until) => assert_eq!(not_before, until, "how long run {id} backs off"),
            Follows::NoTime => assert_eq!(not_before, None, "run {id} has no time"),
            Follows::Ends(code) => panic!("run {id} goes on after its last attempt: {code:?}"),
        }
        run.avoids = !fault.counts && !fault.restarted;
        run.attempt_ends = None;
        run.stand = Stand::Waits(not_before);
    }

    fn finishes(&mut self, id: RunId, state: State, failed: Option<Code>, outcome: Option<Code>) {
        let stood = self.stand(id);
        let live = !matches!(stood, Stand::New | Stand::Decided | Stand::Gone);
        assert!(live, "run {id} ends as it is {stood:?}");
        let now = self.now;
        let late = now >= self.runs[&id].terms.deadline;
        let trigger = self.trigger;
        match (state, outcome) {
            (State::Succeeded, None) => {
                let replied = matches!(trigger, Trigger::Reply(slot, delivery, _, Says::Value)
                    if delivery.run == id && stood == Stand::Works(slot));
                assert!(replied, "run {id} has a value and {trigger:?}");
            }
            (State::Cancelled, Some(Code::Cancelled)) => {
                assert!(
                    trigger == Trigger::Cancel(id) && !late,
                    "nobody cancels run {id}"
                );
            }
            (State::TimedOut, Some(Code::DeadlineExceeded)) => assert!(late, "run {id} has time"),
            (State::Failed, Some(Code::JournalFull)) => {
                assert!(matches!(trigger, Trigger::Append(_)), "nothing is appended");
            }
            (State::Failed, Some(code)) if failed.is_some() => {
                let of = failed.expect("it was looked at");
                let fault = self.fault(id, of);
                assert_eq!(
                    self.fails(id, of, fault),
                    Follows::Ends(code),
                    "the end of run {id}"
                );
            }
            // It backs off no more: the time is over. Or no schema, no worker takes it.
            (State::Failed, Some(code)) => {
                let judged = matches!(code, Code::InvalidRequest | Code::PayloadTooLarge);
                assert!(
                    judged || matches!(stood, Stand::Waits(None)),
                    "run {id}: {code:?}"
                );
            }
            _ => panic!("run {id} ends {state:?} with {outcome:?}"),
        }
        let run = self.run(id);
        run.stand = Stand::Decided;
        run.attempt_ends = None;
    }
}

/// What the attempt that a step ends failed with.
fn failure_of(write: &Write) -> Option<Code> {
    write.entries.iter().find_map(|entry| match &entry.content {
        Said::Content(Content::AttemptEnded(failure)) => failure.as_ref().map(|it| it.code),
        _ => None,
    })
}

/// What a step ends its run with; none is a value.
fn outcome_of(write: &Write) -> Option<Code> {
    write.entries.iter().find_map(|entry| match &entry.content {
        Said::Ended(outcome) => outcome.as_ref().err().map(|failure| failure.code),
        _ => None,
    })
}
