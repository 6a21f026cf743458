//! Calls that are lost: which runs then wait for their workers, what a worker comes back to that
//! resumes, and what becomes of a run whose worker stays away.
//!
//! It knows of every attempt whose it was, and of every run that has ended how and when. That an ended
//! run is still kept it is told; it only knows some that must be.

use std::time::Instant;

use harness_server::dispatch::{Offer, Resumed};
use harness_server::envelope::Code;
use harness_server::ids::{Delivery, Lease};
use harness_server::slot::{End, Refusal};

use super::{Fault, Held, Model, State, Trigger, is_full, run_of};

/// So many bytes of journals are never reached.
const BYTES_ENOUGH: usize = 1 << 20;

/// Whose an attempt was.
pub(crate) struct Hand {
    pub(super) worker: usize,
    pub(super) lease: Lease,
    /// Whether its slot was of the full level.
    pub(super) full: bool,
}

/// A resume in a hello, and whether its run is still known when it comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resume {
    pub(crate) delivery: Delivery,
    pub(crate) lease: Lease,
    pub(crate) is_known: bool,
}

/// What a resume must come to.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Back {
    /// Its call has the attempt, and its slot is busy.
    GoesOn(Resumed, Lease),
    /// The attempt's reply was taken, and its slot is free.
    Replied(Resumed),
    /// It ends in one of these ways.
    Missed(Vec<End>),
}

impl Model {
    /// A call is about to be reported as gone.
    pub(crate) fn lost(&mut self, id: usize) {
        if let Some(held) = self.close(id) {
            self.breaks_off(id, &held);
        }
    }

    /// The process behind a call is about to be reported as dead.
    pub(crate) fn died(&mut self, id: usize) {
        if let Some(held) = self.close(id) {
            let run = run_of(held.delivery);
            self.runs[run].killed += 1;
            self.fail(run, Fault::counted(Code::WorkerLost), None);
        }
    }

    /// A call that was lost had a request in it.
    pub(super) fn breaks_off(&mut self, id: usize, held: &Held) {
        let run = run_of(held.delivery);
        let window = self.limits.interactive_reattach_window;
        let slot = &self.slots[id];
        let may_come_back = is_full(&slot.offer) && !window.is_zero() && !held.has_stopped;
        let is_wanted = !self.leaving && !self.drained[slot.worker];
        let bytes = self.totals.queued_bytes + self.runs[run].bytes;
        let has_room = self.away.len() < self.limits.away_runs && bytes <= self.limits.queue_bytes;
        if may_come_back && is_wanted && has_room {
            self.met.push("went away");
            self.expected_away = Some(held.delivery);
            self.waits_for_worker(run, self.now + window);
        } else {
            self.fail(run, Fault::counted(Code::WorkerLost), None);
        }
    }

    fn waits_for_worker(&mut self, run: usize, until: Instant) {
        self.runs[run].state = State::Away(until);
        self.away.push(run);
        self.agents[self.runs[run].agent].away += 1;
        self.totals.queued_bytes += self.runs[run].bytes;
    }

    pub(super) fn waits_no_more(&mut self, run: usize) {
        self.away.retain(|other| *other != run);
        self.agents[self.runs[run].agent].away -= 1;
        self.totals.queued_bytes -= self.runs[run].bytes;
    }

    /// A drained worker may not come back.
    pub(super) fn drained_stay_away(&mut self, worker: usize) {
        for run in self.away.clone() {
            if self.runs[run].hands.last().map(|hand| hand.worker) == Some(worker) {
                self.met.push("drained while away");
                self.fail(run, Fault::counted(Code::WorkerLost), None);
            }
        }
    }

    /// The log says that a worker has come back.
    pub(super) fn is_back(&self, worker: usize, delivery: Delivery) {
        let Some(Back::GoesOn(told, _)) = &self.expected_back else {
            panic!("{delivery} is not resumed");
        };
        let hand = self.runs[run_of(delivery)].hands.last();
        let whose = hand.map(|hand| hand.worker);
        assert_eq!(
            (told.delivery, whose),
            (delivery, Some(worker)),
            "who is back"
        );
    }

    /// What a worker must come back to.
    pub(super) fn comes_back(
        &self,
        offer: &Offer,
        agent: usize,
        worker: usize,
        resume: Resume,
    ) -> Back {
        let delivery = resume.delivery;
        let not_yours = || End::Refused(Refusal::NotYours);
        let nothing = Back::Missed(vec![not_yours()]);
        let Some(entry) = self.runs.get(run_of(delivery)) else {
            return nothing;
        };
        let of_another = entry.agent != agent;
        let (attempt, newest) = (delivery.attempt.0, entry.attempt);
        let is_forgotten = self.is_forgotten(run_of(delivery), resume.is_known);
        if is_forgotten || of_another || attempt > newest {
            return nothing;
        }
        let hand = entry.hands.get((attempt as usize).wrapping_sub(1));
        let proves = hand
            .is_some_and(|hand| hand.full && (hand.worker, hand.lease) == (worker, resume.lease));
        let window = self.limits.interactive_reattach_window;
        let proves = proves && is_full(offer) && !window.is_zero();
        // Leases are kept of the newest attempt alone.
        match (attempt < newest, proves) {
            (true, true) => return Back::Missed(vec![End::Superseded(delivery)]),
            (true, false) => return Back::Missed(vec![End::Superseded(delivery), not_yours()]),
            (false, false) => return nothing,
            (false, true) => {}
        }
        let told = |last_seq, deadline| Resumed {
            delivery,
            last_seq,
            deadline,
        };
        match entry.state {
            State::Running(_) | State::Away(_) => {
                let unread = entry.unread.first();
                let last_seq = unread.map_or(entry.taken, |(_, seq)| seq - 1);
                let ends = entry.attempt_ends.unwrap_or(entry.deadline);
                Back::GoesOn(told(last_seq, Some(ends)), resume.lease)
            }
            State::Queued | State::BackingOff(_) | State::Owed(_) | State::Ended
                if entry.replied > 0 =>
            {
                Back::Replied(told(entry.replied, None))
            }
            State::Queued | State::BackingOff(_) | State::Owed(_) | State::Ended => {
                Back::Missed(vec![match entry.outcome {
                    Some(Code::DeadlineExceeded) => End::DeadlineExceeded(delivery),
                    Some(Code::Cancelled) => End::Cancelled(delivery),
                    Some(_) | None => End::Superseded(delivery),
                }])
            }
        }
    }

    /// Whether a run has ended and is not kept any more, as is said; some must be kept.
    fn is_forgotten(&self, run: usize, is_known: bool) -> bool {
        let entry = &self.runs[run];
        if entry.state != State::Ended {
            assert!(is_known, "run {run} is not known while it is here");
            return false;
        }
        let is_fresh = self.now < entry.ended_at + self.limits.ended_kept;
        let later = self.ends - entry.ends_before - 1;
        // Those that are read take the places of others.
        let has_place = later + self.watched_most < self.limits.ended_runs
            && self.limits.ended_bytes >= BYTES_ENOUGH;
        if is_fresh && (later == 0 || has_place) {
            assert!(is_known, "run {run} is forgotten too soon");
        }
        !is_known
    }

    /// A resume is welcome: what its worker is told, and what its slot then holds.
    pub(super) fn is_told(&mut self, id: usize, resumed: Option<Resumed>) {
        let expected = self.expected_back.take();
        let (told, lease) = match expected {
            None => (None, None),
            Some(Back::GoesOn(told, lease)) => (Some(told), Some(lease)),
            Some(Back::Replied(told)) => {
                self.met.push("resumed after its reply");
                (Some(told), None)
            }
            Some(Back::Missed(ends)) => panic!("slot {id} is welcome and had to miss {ends:?}"),
        };
        assert_eq!(resumed, told, "what slot {id} is told of its resume");
        if let (Some(told), Some(lease)) = (told, lease) {
            self.met.push("resumed");
            self.goes_on(id, told.delivery, lease);
        }
    }

    fn goes_on(&mut self, id: usize, delivery: Delivery, lease: Lease) {
        let run = run_of(delivery);
        let state = self.runs[run].state;
        let is_free = matches!(state, State::Away(_));
        assert!(is_free, "{delivery} is resumed as it is {state:?}");
        self.waits_no_more(run);
        let entry = &mut self.runs[run];
        entry.state = State::Running(id);
        // Of what is not acknowledged its number counts; how large it was is not known any more.
        let unacked = entry.unread.iter().map(|(_, seq)| (*seq, 0));
        self.slots[id].held = Some(Held {
            accepted: true,
            last_seq: entry.taken,
            unacked: unacked.collect(),
            ..Held::new(delivery, lease, self.now)
        });
    }

    /// The call in which a worker has an attempt, as far as the harness knows.
    pub(super) fn older_call(
        &self,
        worker: usize,
        delivery: Delivery,
        lease: Lease,
    ) -> Option<usize> {
        self.slots.iter().position(|slot| {
            let held = slot.held.as_ref();
            let is_it = held
                .is_some_and(|it| it.delivery == delivery && it.lease == lease && !it.has_stopped);
            slot.open && slot.worker == worker && is_it
        })
    }

    /// The worker of a call has said that it works on what is in it no more.
    pub(super) fn works_no_more(&mut self, call: Option<usize>) {
        let held = call.and_then(|id| self.slots[id].held.as_mut());
        if let Some(held) = held {
            self.met.push("released in an older call");
            held.has_stopped = true;
        }
    }

    /// Whether a resume that has just come takes the attempt from this call.
    pub(super) fn is_taken_over(&self, held: Option<Delivery>, delivery: Delivery) -> bool {
        let resumes =
            matches!(&self.expected_back, Some(Back::GoesOn(told, _)) if told.delivery == delivery);
        resumes && held == Some(delivery)
    }

    /// A call has lost its attempt to a newer one, which is about to be welcome.
    pub(super) fn is_superseded(&mut self, id: usize, held: &Held) {
        // The newer one is of the same class, which is there without a break.
        let slot = &self.slots[id];
        let class = (slot.offer.request_schema, slot.offer.max_receive_bytes);
        let classes = &mut self.agents[slot.agent].classes;
        if !classes.iter().any(|known| (known.0, known.1) == class) {
            classes.push((class.0, class.1, 0));
        }
        self.waits_for_worker(run_of(held.delivery), self.now);
    }

    /// Takes the end of a hello that had to be one of those its resume has missed.
    pub(super) fn misses(&mut self, end: &End) -> bool {
        let Some(Back::Missed(ends)) = self.expected_back.take() else {
            return false;
        };
        self.met.push(match end {
            End::Cancelled(_) => "end missed cancelled",
            End::DeadlineExceeded(_) => "end missed deadline",
            End::Superseded(_) => "end missed superseded",
            End::Refused(Refusal::NotYours) => "end not yours",
            other => panic!("a resume ends with {other:?} and not with one of {ends:?}"),
        });
        ends.contains(end)
    }

    /// What has become by now of a run whose worker is waited for; what is due first comes first.
    pub(super) fn comes_due(&mut self, run: usize) {
        let entry = &self.runs[run];
        let State::Away(until) = entry.state else {
            return;
        };
        let times_out = entry.attempt_ends.filter(|at| *at <= until);
        let first = times_out.unwrap_or(until);
        if self.trigger != Trigger::Tick || first > self.now || entry.deadline <= first {
            return;
        }
        let code = match times_out {
            Some(_) => Code::AttemptTimeout,
            None => {
                self.met.push("stayed away");
                Code::WorkerLost
            }
        };
        self.fail(run, Fault::counted(code), None);
    }

    /// Whether a worker is waited for with this.
    pub(super) fn is_waited_for(&self, worker: usize, delivery: Delivery) -> Option<Lease> {
        let entry = self.runs.get(run_of(delivery))?;
        let is_newest = entry.attempt == delivery.attempt.0;
        let hand = entry.hands.last()?;
        let waits = matches!(entry.state, State::Away(_)) && is_newest && hand.worker == worker;
        waits.then_some(hand.lease)
    }

    /// The process of a worker is about to be reported as dead, with what it had in hand.
    pub(crate) fn perished(&mut self, worker: usize, delivery: Delivery, by_itself: bool) {
        if self.is_waited_for(worker, delivery).is_some() {
            self.met.push("perished while away");
            let run = run_of(delivery);
            self.runs[run].killed += u32::from(by_itself);
            self.fail(run, Fault::counted(Code::WorkerLost), None);
        }
    }

    /// A worker is about to say released; whether that ends the waiting for it.
    pub(super) fn gives_up_resuming(
        &mut self,
        worker: usize,
        delivery: Delivery,
        lease: Lease,
    ) -> bool {
        let gives_up = self.is_waited_for(worker, delivery) == Some(lease);
        if gives_up {
            self.met.push("released while away");
            let fault = Fault::counted(Code::WorkerLost);
            self.fail(run_of(delivery), fault, None);
        }
        gives_up
    }

    /// That nobody is waited for in vain.
    pub(super) fn check_away(&self) {
        for run in &self.away {
            let entry = &self.runs[*run];
            assert!(
                !self.leaving,
                "run {run} is away from a harness that leaves"
            );
            if self.trigger != Trigger::Tick {
                continue;
            }
            let State::Away(until) = entry.state else {
                panic!("run {run} is {:?} and counted as away", entry.state);
            };
            let latest = entry.attempt_ends.unwrap_or(entry.deadline).min(until);
            assert!(latest > self.now, "run {run} is away for too long");
        }
    }
}
