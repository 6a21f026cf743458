//! What must be, of every durable run, slot and caller: kept from the events that went into Core, the
//! actions that came out and what the disk has, by the words of the protocol.
//!
//! Owns the account; `actions` holds what Core does against it, `checks` what is so after an event.
//! It draws nothing and sends nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use harness_server::dispatch::{Adopted, Offer, Placing};
use harness_server::envelope::{Code, Request};
use harness_server::ids::{Attempt, Delivery, RunId, WorkerId};
use harness_server::run::{Counts, Terms};
use harness_server::slot::{End, Level};

use super::frames::Says;
use super::setting::{POISON_MAX, UNCOUNTED_MAX, is_durable};
use crate::model::back_off;

/// The longest a due tick is late.
pub(super) const LATE: Duration = Duration::from_millis(20);

/// What set off an event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Trigger {
    Opened(usize),
    Lost(usize),
    Died(usize),
    Append(usize),
    /// A reply that its slot takes.
    Reply(usize, Delivery, u64, Says),
    OtherFrame(usize),
    Released,
    Start(RunId),
    /// A step is on disk, or is not.
    Stored(RunId, bool),
    Loaded(RunId),
    Adopt(RunId),
    Ask,
    Other,
    Cancel(RunId),
    Leaving,
    Tick,
}

/// Where a run stands in the harness that lives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stand {
    /// Nothing is decided of it.
    New,
    Waits(Option<Instant>),
    /// Its attempt is on its way to the disk.
    Starting,
    Works(usize),
    /// Its call is lost; whether it was one of the harness before.
    Away {
        restarted: bool,
    },
    /// How it ends is on its way to the disk.
    Decided,
    /// This harness does not have it.
    Gone,
}

/// A run, from its StartRun on.
pub(super) struct Run {
    pub(super) request: Request,
    pub(super) terms: Terms,
    pub(super) placing: Placing,
    pub(super) not_before: Option<Instant>,
    pub(super) stand: Stand,
    pub(super) attempt: Attempt,
    pub(super) counts: Counts,
    /// The last number that was taken of the attempt's worker.
    pub(super) taken: u64,
    /// The number of the reply that the newest attempt has ended with; 0 where none was taken.
    pub(super) replied: u64,
    /// The attempt ends by then, as its worker was told.
    pub(super) attempt_ends: Option<Instant>,
    /// What StartRun was told.
    pub(super) told: Option<Result<RunId, Code>>,
    /// Whether its StartRun died with its harness.
    pub(super) unheard: bool,
    /// CancelRun calls that wait.
    pub(super) cancels: u32,
    /// A slot has given it back or left before it came.
    pub(super) avoids: bool,
    /// Its journal holds what goes with its next request, or is about to.
    pub(super) has_steps: bool,
}

/// The request in a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) delivery: Delivery,
    pub(super) last_seq: u64,
    /// Its worker has named it.
    pub(super) accepted: bool,
}

/// One slot.
pub(super) struct Slot {
    pub(super) worker: WorkerId,
    pub(super) offer: Arc<Offer>,
    pub(super) open: bool,
    pub(super) stopping: bool,
    pub(super) held: Option<Held>,
    /// The reply that is not acknowledged.
    pub(super) owes: Option<(Delivery, u64)>,
}

/// An interactive ask.
pub(super) struct Ask {
    pub(super) deadline: Instant,
    pub(super) answered: bool,
}

pub(super) struct Account {
    pub(super) now: Instant,
    pub(super) trigger: Trigger,
    pub(super) slots: Vec<Slot>,
    pub(super) runs: BTreeMap<RunId, Run>,
    pub(super) asks: BTreeMap<RunId, Ask>,
    /// Steps whose record a worker knows to be on disk.
    pub(super) recorded: BTreeSet<(RunId, u8)>,
    /// Unfinished runs that this harness has yet to take in, or take in again.
    pub(super) outside: BTreeSet<RunId>,
    /// What is being read for a slot.
    pub(super) loading: BTreeSet<RunId>,
    /// How calls were ended in this event.
    pub(super) ends: Vec<(Held, End)>,
    /// Until when nothing may be read, as far as is known.
    pub(super) pause_until: Instant,
    pub(super) leaving: bool,
    pub(super) last_lease: u128,
}

/// How an attempt failed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fault {
    pub(super) counts: bool,
    pub(super) restarted: bool,
    pub(super) killed: bool,
    pub(super) retried: bool,
}

/// What must follow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Follows {
    Waits(Option<Instant>),
    /// There is no time for another attempt.
    NoTime,
    Ends(Code),
}

impl Account {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            now,
            trigger: Trigger::Tick,
            slots: Vec::new(),
            runs: BTreeMap::new(),
            asks: BTreeMap::new(),
            recorded: BTreeSet::new(),
            outside: BTreeSet::new(),
            loading: BTreeSet::new(),
            ends: Vec::new(),
            pause_until: now,
            leaving: false,
            last_lease: 0,
        }
    }

    pub(super) fn before(&mut self, now: Instant, trigger: Trigger) {
        self.now = now;
        self.trigger = trigger;
        self.ends.clear();
    }

    pub(super) fn run(&mut self, run: RunId) -> &mut Run {
        self.runs.get_mut(&run).expect("a run that was started")
    }

    pub(super) fn stand(&self, run: RunId) -> Stand {
        self.runs.get(&run).map_or(Stand::Gone, |run| run.stand)
    }

    /// A call is about to be reported as gone.
    pub(super) fn lost(&mut self, slot: usize, died: bool) {
        if let Some(held) = self.close(slot) {
            let full = self.slots[slot].offer.level == Level::Full;
            self.breaks_off(slot, held, full && !died);
        }
    }

    pub(super) fn close(&mut self, slot: usize) -> Option<Held> {
        let slot = &mut self.slots[slot];
        slot.open = false;
        slot.owes = None;
        slot.held.take()
    }

    /// A call with a request ends; whether its worker may come back, to this harness or the next.
    pub(super) fn breaks_off(&mut self, slot: usize, held: Held, comes_back: bool) {
        let leaving = self.leaving;
        let Some(run) = self.runs.get_mut(&held.delivery.run) else {
            return;
        };
        if run.stand == Stand::Works(slot) && comes_back {
            run.stand = match leaving {
                true => Stand::Gone,
                false => Stand::Away { restarted: false },
            };
        }
    }

    /// What must follow when an attempt fails so; the counts go on with it.
    pub(super) fn fails(&mut self, id: RunId, code: Code, fault: Fault) -> Follows {
        let now = self.now;
        let run = self.run(id);
        let counts = &mut run.counts;
        counts.killed += u32::from(fault.killed);
        counts.uncounted_in_row += u32::from(!fault.counts && !fault.restarted);
        let row = counts.uncounted_in_row > UNCOUNTED_MAX && !fault.restarted;
        if !fault.counts && !row {
            return Follows::Waits(None);
        }
        counts.uncounted_in_row = 0;
        counts.counted += 1;
        if counts.killed >= POISON_MAX {
            return Follows::Ends(Code::Poisoned);
        }
        if counts.counted >= run.terms.retry.max_attempts || !fault.retried {
            return Follows::Ends(code);
        }
        let until = now + back_off(&run.terms.retry, counts.counted);
        match until < run.terms.deadline {
            true => Follows::Waits(Some(until)),
            false => Follows::NoTime,
        }
    }

    /// How the attempt of a run has failed, by what set this event off.
    pub(super) fn fault(&self, id: RunId, code: Code) -> Fault {
        let counted = Fault {
            counts: true,
            retried: true,
            ..Fault::default()
        };
        let uncounted = Fault {
            retried: true,
            ..Fault::default()
        };
        let ended = self.ends.iter().find(|(held, _)| held.delivery.run == id);
        assert_ne!(
            code,
            Code::ProtocolViolation,
            "no worker here breaks a rule"
        );
        if code == Code::AttemptTimeout {
            return counted;
        }
        match (self.trigger, ended) {
            (Trigger::Reply(_, _, _, says), _) => match says {
                Says::Value => panic!("a value is no failure"),
                Says::Error { retryable } => Fault {
                    retried: retryable,
                    ..counted
                },
                Says::Declined => uncounted,
            },
            (_, Some((_, End::NotAccepted(_)))) => uncounted,
            (_, Some((held, End::Closed))) if !held.accepted => uncounted,
            // Its slot left before the attempt was on disk.
            (Trigger::Stored(..), _) => uncounted,
            (Trigger::Died(_), _) => Fault {
                killed: true,
                ..counted
            },
            (Trigger::Tick | Trigger::Released, _) => match self.stand(id) {
                Stand::Away { restarted: true } => Fault {
                    restarted: true,
                    ..uncounted
                },
                _ => counted,
            },
            _ => counted,
        }
    }

    /// A harness takes a run in as it was read.
    pub(super) fn adopts(&mut self, id: RunId, adopted: Option<&Adopted>) {
        self.outside.remove(&id);
        let leaving = self.leaving;
        let now = self.now;
        let run = self.run(id);
        let (Some(adopted), Stand::Gone, false) = (adopted, run.stand, leaving) else {
            return;
        };
        run.attempt = adopted.attempt;
        run.taken = adopted.worker_seq;
        run.replied = adopted.reply_seq;
        run.counts = adopted.counts;
        run.avoids = false;
        run.has_steps = adopted.replayed.is_some();
        run.attempt_ends = attempt_ends(run, adopted.began.filter(|_| adopted.running));
        run.stand = match adopted.running {
            true => Stand::Away { restarted: true },
            false => Stand::Waits(adopted.not_before.filter(|at| *at > now)),
        };
    }

    /// The harness leaves: what its worker may come back to is the next one's.
    pub(super) fn leaves(&mut self) {
        self.leaving = true;
        for run in self.runs.values_mut() {
            if matches!(run.stand, Stand::Away { .. }) {
                run.stand = Stand::Gone;
                run.attempt_ends = None;
            }
        }
    }

    /// The harness is gone, and all it had.
    pub(super) fn crashed(&mut self) {
        for slot in 0..self.slots.len() {
            self.close(slot);
        }
        for run in self.runs.values_mut() {
            run.stand = Stand::Gone;
            run.attempt_ends = None;
            run.unheard |= run.told.is_none();
            run.cancels = 0;
        }
        for ask in self.asks.values_mut() {
            ask.answered = true;
        }
        self.outside.clear();
        self.loading.clear();
        self.leaving = false;
        self.pause_until = self.now;
    }
}

/// When an attempt that began then is over, if that is before its run is.
pub(super) fn attempt_ends(run: &Run, began: Option<Instant>) -> Option<Instant> {
    let timeout = run.terms.retry.attempt_timeout?;
    began
        .map(|at| at + timeout)
        .filter(|at| *at < run.terms.deadline)
}

impl Account {
    /// A frame names a request, which accepts it.
    pub(super) fn names(&mut self, slot: usize, named: Option<Delivery>) {
        if let Some(held) = &mut self.slots[slot].held
            && Some(held.delivery) == named
        {
            held.accepted = true;
        }
    }

    /// An entry comes; the next one is taken.
    pub(super) fn takes_append(&mut self, slot: usize, delivery: Delivery, seq: u64) {
        // It is told of its end once that is written.
        if self.stand(delivery.run) == Stand::Decided {
            return;
        }
        if let Some(held) = &mut self.slots[slot].held
            && held.delivery == delivery
            && seq == held.last_seq + 1
        {
            held.last_seq = seq;
            if let Some(run) = self.runs.get_mut(&delivery.run) {
                run.taken = seq;
            }
        }
    }

    /// A reply comes; whether it is the one that ends the request in the slot.
    pub(super) fn takes_reply(
        &mut self,
        slot: usize,
        delivery: Delivery,
        seq: u64,
        says: Says,
    ) -> bool {
        let decided = self.stand(delivery.run) == Stand::Decided;
        let slot = &mut self.slots[slot];
        let takes = |held: &Held| held.delivery == delivery && seq == held.last_seq + 1;
        if decided || !slot.open || !slot.held.as_ref().is_some_and(takes) {
            return false;
        }
        slot.held = None;
        let owes = is_durable(delivery.run) && slot.offer.level == Level::Full;
        slot.owes = (owes && says != Says::Declined).then_some((delivery, seq));
        true
    }
}
