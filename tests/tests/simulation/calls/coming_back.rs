//! Workers whose calls break under work: whether and how they come back to it, in time and late, with
//! the right lease and a wrong one, and how they go on.

use std::sync::Arc;

use harness_server::dispatch::{Event, Offer, Resumed};
use harness_server::ids::{Delivery, Lease};
use harness_server::slot::{EntryKind, Level};

use super::endings::{Break, Then};
use super::{Side, Work};
use crate::frames::{Says, Up};
use crate::model::{Resume, Trigger, worker_id};
use crate::setting::AGENTS;
use crate::world::{What, World};

/// What a hello says of the call before.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Previous {
    Nothing,
    Released(Delivery, Lease),
    /// The work at this place in `lost_works`.
    Resume(usize),
}

impl World {
    /// Whether calls may be lost and their runs go on.
    pub(crate) fn has_window(&self) -> bool {
        !self.setting.limits.interactive_reattach_window.is_zero()
    }

    /// Whether a worker may go on with what it has on a call that breaks.
    pub(super) fn may_come_back(&self, call: usize) -> bool {
        self.is_full(call) && self.has_window()
    }

    /// Whether it is the connection that is cut, and not a process that dies with it.
    pub(super) fn outlives_its_call(&mut self, call: usize) -> bool {
        let worker = &self.setting.workers[self.calls[call].worker];
        let dies = worker.dies || (worker.of_pool && self.random.percent(60));
        self.may_come_back(call) && !dies
    }

    /// The level of a new call: a worker that resumes may have become another.
    pub(super) fn level_of(&mut self, worker: usize, previous: Previous) -> Level {
        let resumes = matches!(previous, Previous::Resume(_));
        match resumes && self.random.percent(4) {
            true => Level::Minimal,
            false => self.setting.workers[worker].offer.level,
        }
    }

    /// A hello says that cancelled work has stopped, if it does.
    pub(super) fn is_released(&mut self, worker: usize, previous: Previous) {
        let Previous::Released(delivery, lease) = previous else {
            return;
        };
        self.before(Trigger::Released);
        self.model.released(worker, delivery, lease);
        self.apply(Event::Released {
            worker: worker_id(worker),
            delivery,
            lease,
        });
    }

    /// Notes what a worker has, so that it may come back to it.
    fn keeps(&mut self, work: Work) -> usize {
        self.lost_works.push(work);
        self.lost_works.len() - 1
    }

    /// A worker has got work, which some will want to go on with for no reason.
    pub(super) fn remembers(&mut self, work: Work) {
        if self.random.percent(20) {
            self.keeps(work);
        }
    }

    /// A hello that need say nothing may want what is long over, or another's.
    pub(super) fn wants_more(&mut self, previous: Previous) -> Previous {
        let often = if self.has_window() { 15 } else { 3 };
        match previous {
            Previous::Nothing if !self.lost_works.is_empty() && self.random.percent(often) => {
                let newest = self.lost_works.len() - 1;
                Previous::Resume(newest - self.random.index(newest.min(7) + 1))
            }
            previous => previous,
        }
    }

    /// What the harness is asked for by a hello that resumes.
    pub(super) fn resume_of(&self, previous: Previous) -> Option<Resume> {
        let Previous::Resume(at) = previous else {
            return None;
        };
        let work = &self.lost_works[at];
        Some(Resume {
            delivery: work.delivery,
            lease: work.lease,
            is_known: self.core.is_known(work.delivery.run),
        })
    }

    /// The connection breaks under work. The harness learns of it behind what is on its way, at once,
    /// so that some of that is lost, late, or not at all.
    pub(super) fn breaks_off(&mut self, call: usize, work: Work) {
        match self.random.below(5) {
            0 | 1 => self.sends(call, Up::Cut),
            2 => {
                let lag = self.random.micros(50, self.setting.lag);
                self.later(lag, What::Up(call, Up::Cut));
            }
            3 => {
                let after = self.random.micros(1000, 20_000_000);
                self.later(after, What::Up(call, Up::Cut));
            }
            _ => {}
        }
        self.comes_back(call, work);
    }

    /// While a run is away its worker is drained now and then, and somebody wants another agent, or
    /// offers one, for which there may be no room.
    pub(crate) fn others_want_its_place(&mut self, worker: usize) {
        if self.has_window() && self.random.percent(5) {
            let after = self.random.micros(1000, 2_000_000);
            self.later(after, What::Drain(worker));
        }
        let is_tight = self.setting.limits.agents < AGENTS.len();
        if !self.has_window() || !is_tight || self.random.percent(50) {
            return;
        }
        let agent = self.setting.workers[worker].agent;
        let other = (agent + 1 + self.random.index(AGENTS.len() - 1)) % AGENTS.len();
        let after = self.random.micros(1000, 2_000_000);
        self.later(after, What::Ask(Some(other)));
        let mut workers = self.setting.workers.iter();
        if let Some(offers) = workers.position(|of| of.agent == other) {
            self.later(after, What::Dial(offers, Previous::Nothing));
        }
    }

    /// A worker whose call is lost goes on, gives up, or is never heard of again.
    pub(super) fn comes_back(&mut self, call: usize, mut work: Work) {
        self.calls[call].side = Side::Over;
        let chance = self.random.below(100);
        if chance < 8 || (72..76).contains(&chance) {
            work.lease = Lease([7; 16]);
        }
        let twice = (8..18).contains(&chance);
        let previous = match chance {
            0..72 => Previous::Resume(self.keeps(work)),
            72..86 => Previous::Released(work.delivery, work.lease),
            86..93 => Previous::Nothing,
            _ => return,
        };
        let worker = self.calls[call].worker;
        for _ in 0..=u32::from(twice) {
            let after = self.random.micros(1000, 15_000_000);
            self.later(after, What::Dial(worker, previous));
        }
    }

    /// A resume is welcome: the worker sends again what is not acknowledged, and goes on.
    pub(super) fn goes_on(&mut self, call: usize, at: usize, resumed: Resumed) {
        let mut work = self.lost_works[at];
        if resumed.deadline.is_none() {
            self.calls[call].past = Some(work.delivery);
            self.calls[call].side = Side::Idle;
            return;
        }
        work.acknowledged = resumed.last_seq;
        // Another call of the same worker may have sent more.
        work.seq = work.seq.max(resumed.last_seq);
        // What is not acknowledged tempts some to forget their window.
        let is_unread = work.seq > resumed.last_seq;
        (work.appends, work.then) = match self.random.below(100) {
            0..30 if is_unread => (0, Then::Break(Break::Window)),
            0..75 => (self.random.below(4) as u32, Then::Reply(Says::Value)),
            _ => (work.appends, work.then),
        };
        self.calls[call].side = Side::Works(work);
        let first = match self.random.percent(15) {
            true => resumed.last_seq.max(1),
            false => resumed.last_seq + 1,
        };
        // A few forget what they have to send again.
        if self.random.percent(95) {
            for seq in first..=work.seq {
                let bytes = self.entry_bytes();
                self.appends(call, &work, seq, EntryKind::Plain, bytes);
            }
        }
        self.steps_later(call, 1_000_000);
    }

    /// Now and then the connection breaks right behind the reply, so that nobody knows whether it came.
    pub(super) fn is_unsure_of_its_reply(&mut self, call: usize, work: Work) {
        if self.may_come_back(call) && self.random.percent(8) {
            self.breaks_off(call, work);
        }
    }
}

/// What a worker offers, on a call of this level.
pub(super) fn at_level(offer: Arc<Offer>, level: Level) -> Arc<Offer> {
    if offer.level == level {
        return offer;
    }
    let mut other = (*offer).clone();
    other.level = level;
    Arc::new(other)
}
