//! Workers: what each does with its calls, well and badly.

use harness_server::dispatch::{Back, Event};
use harness_server::ids::{Delivery, Lease};
use harness_server::slot::{EntryKind, Level};

use crate::frames::{Down, Says, Up};
use crate::model::{Trigger, slot_id};
use crate::world::{What, World};

mod coming_back;
mod endings;

pub(crate) use coming_back::Previous;
use coming_back::at_level;
use endings::Then;

/// A slot's number before its hello was taken.
const UNKNOWN: usize = usize::MAX;

/// One call, seen by its worker.
pub(crate) struct Call {
    worker: usize,
    level: Level,
    /// The slot it is to the harness.
    pub(crate) slot: usize,
    /// The harness knows that it is gone, or nothing of it arrives any more.
    pub(crate) gone: bool,
    /// Up to which number the harness has written an acknowledgement.
    pub(crate) written: u64,
    last_up: u64,
    last_down: u64,
    previous: Previous,
    side: Side,
    /// The newest step.
    step: u32,
    silent: bool,
    /// What it worked on before.
    past: Option<Delivery>,
}

#[derive(Clone, Copy, Debug)]
enum Side {
    Dials,
    Idle,
    Works(Work),
    Over,
}

/// What a worker has in hand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    delivery: Delivery,
    lease: Lease,
    seq: u64,
    acknowledged: u64,
    appends: u32,
    then: Then,
}

impl Call {
    /// Whether the harness has heard of it.
    pub(crate) fn is_known(&self) -> bool {
        self.slot != UNKNOWN
    }
}

impl World {
    pub(crate) fn dials(&mut self, worker: usize, previous: Previous) {
        let now = self.micros();
        let call = self.calls.len();
        if call > 4 * self.setting.workers.len() + 8 {
            return;
        }
        let previous = self.wants_more(previous);
        let level = self.level_of(worker, previous);
        let silent = self.random.percent(3);
        self.calls.push(Call {
            worker,
            level,
            slot: UNKNOWN,
            gone: false,
            written: 0,
            last_up: now,
            last_down: now,
            previous,
            side: Side::Dials,
            step: 0,
            silent,
            past: None,
        });
        self.sends(call, Up::Hello);
    }

    /// The harness takes a hello.
    pub(crate) fn opens(&mut self, call: usize) {
        let worker = self.calls[call].worker;
        let previous = self.calls[call].previous;
        let behind = self.random.percent(50);
        if !behind {
            self.is_released(worker, previous);
        }
        let id = self.model.slots.len();
        self.calls[call].slot = id;
        self.by_slot.push(call);
        let (offer, agent) = {
            let of = &self.setting.workers[worker];
            (of.offer.clone(), of.agent)
        };
        let offer = at_level(offer, self.calls[call].level);
        let resume = self.resume_of(previous);
        self.before(Trigger::Opened(id));
        self.model
            .opened((id, offer.clone()), agent, worker, resume);
        self.apply(Event::Opened {
            slot: slot_id(id),
            offer: (*offer).clone(),
            back: resume.map(|resume| Back::Resume(resume.delivery, resume.lease)),
        });
        if behind {
            self.is_released(worker, previous);
        }
    }

    /// Puts a frame on its way to the harness, behind those before it.
    fn sends(&mut self, call: usize, up: Up) {
        let lag = self.random.micros(50, self.setting.lag);
        let at = self.calls[call].last_up.max(self.micros() + lag);
        self.calls[call].last_up = at;
        self.at(at, What::Up(call, up));
    }

    /// Puts a frame on its way to the worker of a slot, behind those before it.
    pub(crate) fn writes(&mut self, slot: usize, down: Down) {
        let call = self.by_slot[slot];
        if matches!(down, Down::Request(..)) {
            self.calls[call].written = 0;
        }
        let lag = self.random.micros(50, self.setting.lag);
        let at = self.calls[call].last_down.max(self.micros() + lag);
        self.calls[call].last_down = at;
        self.at(at, What::Down(call, down));
    }

    pub(crate) fn acknowledges(&mut self, slot: usize, seq: u64) {
        let call = self.by_slot[slot];
        // One held back from before the newest request is of no use.
        let last = self.model.slots[slot]
            .held
            .as_ref()
            .map_or(0, |held| held.last_seq);
        if seq <= last && seq > self.calls[call].written {
            self.calls[call].written = seq;
            self.writes(slot, Down::Acknowledged(seq));
        }
    }

    /// A worker reads a frame.
    pub(crate) fn reads(&mut self, call: usize, down: Down) {
        if self.calls[call].gone {
            return;
        }
        match down {
            Down::Welcome(resumed) => {
                match (self.calls[call].previous, resumed) {
                    (Previous::Resume(at), Some(resumed)) => self.goes_on(call, at, resumed),
                    _ => self.calls[call].side = Side::Idle,
                }
                if self.is_full(call) && !self.calls[call].silent {
                    self.later(4_500_000, What::Beat(call));
                }
                if self.random.percent(15) {
                    let after = self.random.micros(1000, 20_000_000);
                    self.later(after, What::Idle(call));
                }
            }
            Down::Request(delivery, lease) => self.takes(call, delivery, lease),
            Down::Acknowledged(seq) => {
                if let Side::Works(work) = &mut self.calls[call].side {
                    work.acknowledged = seq;
                    work.seq = work.seq.max(seq);
                }
            }
            // Most finish and leave; what does not is ended when it has been idle for long.
            Down::Drain => {
                if matches!(self.calls[call].side, Side::Idle) && self.random.percent(70) {
                    self.sends(call, Up::HalfClose);
                    self.calls[call].side = Side::Over;
                }
            }
            Down::End { lost } => self.is_ended(call, lost),
        }
    }

    fn is_full(&self, call: usize) -> bool {
        self.calls[call].level == Level::Full
    }

    fn takes(&mut self, call: usize, delivery: Delivery, lease: Lease) {
        if !matches!(self.calls[call].side, Side::Idle) {
            return;
        }
        let worker = &self.setting.workers[self.calls[call].worker];
        let (declines, dies, of_pool) = (worker.declines, worker.dies, worker.of_pool);
        let bad = self.random.percent(worker.mischief);
        let then = match (declines, bad) {
            _ if dies => Then::Cut,
            (true, _) => Then::Reply(Says::Declined),
            (false, true) => self.bad_end(of_pool),
            (false, false) => Then::Reply(Says::Value),
        };
        let none = if self.may_come_back(call) { 40 } else { 70 };
        let appends = if self.random.percent(none) {
            0
        } else {
            self.random.below(8) as u32
        };
        let work = Work {
            delivery,
            lease,
            seq: 0,
            acknowledged: 0,
            appends,
            then,
        };
        self.calls[call].side = Side::Works(work);
        self.remembers(work);
        let deaf = bad && self.random.percent(30);
        if self.is_full(call) && !deaf && !self.calls[call].silent {
            self.sends(call, Up::Heartbeat(Some(delivery)));
        }
        if !deaf {
            self.steps_later(call, 3_000_000);
        }
    }

    fn steps_later(&mut self, call: usize, most: u64) {
        self.calls[call].step += 1;
        let number = self.calls[call].step;
        let after = self.random.micros(100, most);
        self.later(after, What::Step(call, number));
    }

    pub(crate) fn steps(&mut self, call: usize, number: u32) {
        let Side::Works(mut work) = self.calls[call].side else {
            return;
        };
        if self.calls[call].step != number {
            return;
        }
        if work.appends == 0 {
            return self.finishes(call, work);
        }
        let unacked = work.seq - work.acknowledged;
        if self.is_full(call) && unacked >= self.setting.limits.slot.unacked_entries as u64 {
            return self.steps_later(call, 2_000_000);
        }
        let bytes = self.entry_bytes();
        work.seq += 1;
        work.appends -= 1;
        let step = self.is_full(call) && self.random.percent(30);
        let kind = if step {
            EntryKind::Step
        } else {
            EntryKind::Plain
        };
        self.appends(call, &work, work.seq, kind, bytes);
        if self.random.percent(5) {
            self.appends(call, &work, work.seq, kind, bytes);
        }
        self.calls[call].side = Side::Works(work);
        if self.may_come_back(call) && self.random.percent(20) {
            return self.breaks_off(call, work);
        }
        self.steps_later(call, 1_000_000);
    }

    /// Half of what the window takes, so that its bytes are never passed.
    fn entry_bytes(&mut self) -> u64 {
        let entries = self.setting.limits.slot.unacked_entries as u64;
        self.random.below(1000 / entries)
    }

    fn appends(&mut self, call: usize, work: &Work, seq: u64, kind: EntryKind, bytes: u64) {
        let delivery = work.delivery;
        self.sends(
            call,
            Up::Append {
                delivery,
                seq,
                kind,
                bytes,
            },
        );
    }

    /// Gives its call up and opens another, some time.
    fn dials_again(&mut self, call: usize, released: Option<(Delivery, Lease)>) {
        let previous = released.map_or(Previous::Nothing, |(delivery, lease)| {
            Previous::Released(delivery, lease)
        });
        self.calls[call].side = Side::Over;
        if self.random.percent(75) {
            let after = self.random.micros(1000, 10_000_000);
            let worker = self.calls[call].worker;
            self.later(after, What::Dial(worker, previous));
        }
    }

    /// The harness has ended the call: work stops at once, late, or is never said to have.
    fn is_ended(&mut self, call: usize, lost: bool) {
        if let Side::Works(work) = self.calls[call].side
            && lost
            && self.may_come_back(call)
        {
            return self.comes_back(call, work);
        }
        let released = match self.calls[call].side {
            Side::Works(work) if self.random.percent(85) => {
                let wrong = self.random.percent(15);
                let lease = if wrong { Lease([7; 16]) } else { work.lease };
                Some((work.delivery, lease))
            }
            // Refused: most do not insist.
            Side::Dials if self.random.percent(75) => return,
            Side::Works(_) | Side::Idle | Side::Dials => None,
            Side::Over => return,
        };
        if let Side::Works(_) = self.calls[call].side {
            self.is_brought_to_its_end(call);
        }
        if let Side::Works(work) = self.calls[call].side
            && self.random.percent(20)
        {
            // It has not read the end yet when it answers.
            self.replies(call, &work, Says::Value);
        }
        self.dials_again(call, released);
    }

    pub(crate) fn beats(&mut self, call: usize) {
        if self.calls[call].gone || self.calls[call].silent {
            return;
        }
        let names = match self.calls[call].side {
            Side::Works(work) => Some(work.delivery),
            Side::Idle => None,
            Side::Dials | Side::Over => return,
        };
        self.sends(call, Up::Heartbeat(names));
        self.later(4_500_000, What::Beat(call));
    }

    /// An idle worker leaves, half-closes, dies, falls silent or breaks a rule.
    pub(crate) fn idles(&mut self, call: usize) {
        if !matches!(self.calls[call].side, Side::Idle) {
            return;
        }
        match self.random.below(6) {
            0 => self.sends(call, Up::Leave),
            1 => {
                self.sends(call, Up::Leave);
                self.sends(call, Up::HalfClose);
                self.dials_again(call, None);
            }
            2 => {
                self.sends(call, Up::HalfClose);
                self.dials_again(call, None);
            }
            3 => self.cuts(call, None),
            4 => self.calls[call].silent = true,
            _ => self.sends(call, Up::Unknown),
        }
    }
}
