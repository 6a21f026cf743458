//! What a worker of durable runs does with a request: it records steps, keeps what is not acknowledged,
//! sends it again after a resume, answers, and goes wrong.

use std::collections::VecDeque;
use std::sync::Arc;

use harness_server::dispatch::{Replay, Resumed};
use harness_server::ids::{Delivery, Lease};
use harness_server::slot::EntryKind;

use super::{Then, Work};
use crate::durable::frames::{Down, Says, Up};
use crate::durable::setting::{is_durable, process_id};
use crate::durable::{What, World, entries};

impl World {
    /// A worker reads a frame.
    pub(in crate::durable) fn reads(&mut self, call: usize, down: Down) {
        let seat = self.calls[call].seat;
        if self.seats[seat].call != Some(call) {
            return;
        }
        match down {
            Down::Welcome(resumed) => self.is_welcome(seat, call, resumed),
            Down::Request {
                delivery,
                lease,
                steps,
                replay,
            } => self.gets(seat, call, (delivery, lease), (steps, replay)),
            Down::Acknowledged(delivery, seq) => self.hears(seat, delivery, seq),
            Down::End { stop } => self.is_ended(seat, stop),
            Down::Broken => self.is_cut_off(seat),
        }
    }

    fn is_welcome(&mut self, seat: usize, call: usize, resumed: Option<Resumed>) {
        if self.is_full(seat) {
            self.later(4_500_000, What::Beat(call));
        }
        let place = &mut self.seats[seat];
        let Some(resumed) = resumed.filter(|_| place.hand.is_some()) else {
            place.hand = None;
            return;
        };
        self.hears(seat, resumed.delivery, resumed.last_seq);
        let place = &mut self.seats[seat];
        if resumed.deadline.is_none() {
            place.hand = None;
            return;
        }
        let again: Vec<Up> = match &place.hand {
            Some(work) => work.unacked.iter().map(|(_, up)| up.clone()).collect(),
            None => return,
        };
        for up in again {
            self.sends(call, up);
        }
        self.steps_later(seat, 1_000_000);
    }

    fn gets(
        &mut self,
        seat: usize,
        call: usize,
        (delivery, lease): (Delivery, Lease),
        (steps, replay): (u8, Option<Arc<Replay>>),
    ) {
        let place = &self.seats[seat];
        assert!(
            place.hand.is_none(),
            "{delivery} comes to a worker that has another"
        );
        let manners = &self.setting.workers[place.worker];
        let (mischief, of_pool, dies) = (manners.mischief, manners.of_pool, manners.dies);
        let bad = self.random.percent(mischief);
        let then = match (bad, self.random.below(8)) {
            (false, _) => Then::Reply(Says::Value),
            (true, 0) => Then::Reply(Says::Error { retryable: true }),
            (true, 1) => Then::Reply(Says::Error { retryable: false }),
            (true, 2) => Then::Reply(Says::Declined),
            (true, 3) => Then::Hang,
            (true, 4) => Then::HalfClose,
            (true, 5) => Then::LeaveThenReply,
            (true, _) => Then::Cut(of_pool && self.random.percent(80)),
        };
        let then = if dies { Then::Cut(true) } else { then };
        let replayed = replay.iter().flat_map(|replay| &replay.entries);
        let done = replayed.filter_map(|entry| entries::step_of(&entry.content));
        self.seats[seat].hand = Some(Work {
            delivery,
            lease,
            steps,
            done: done.collect(),
            next_seq: 1,
            unacked: VecDeque::new(),
            replied: false,
            then,
            until: u64::MAX,
        });
        let deaf = bad && self.random.percent(15);
        if self.is_full(seat) && !deaf {
            self.sends(call, Up::Heartbeat(Some(delivery)));
        }
        if !deaf {
            self.steps_later(seat, 3_000_000);
        }
    }

    /// Everything up to a number is on disk, as the harness says.
    fn hears(&mut self, seat: usize, delivery: Delivery, seq: u64) {
        let Some(work) = &mut self.seats[seat].hand else {
            return;
        };
        if work.delivery != delivery {
            return;
        }
        assert!(
            seq < work.next_seq,
            "{delivery} is acknowledged up to {seq}"
        );
        let kept = work.unacked.iter().position(|(number, _)| *number > seq);
        let all = work.unacked.len();
        for (_, up) in work.unacked.drain(..kept.unwrap_or(all)) {
            if let Up::Append { entry, .. } = up
                && let Some(step) = entries::step_of(&entry)
                && is_durable(delivery.run)
            {
                self.account.recorded.insert((delivery.run, step));
            }
        }
        if work.replied && work.unacked.is_empty() {
            self.seats[seat].hand = None;
            return;
        }
        self.steps_later(seat, 500_000);
    }

    fn steps_later(&mut self, seat: usize, most: u64) {
        self.seats[seat].step += 1;
        let number = self.seats[seat].step;
        let after = self.random.micros(100, most);
        self.later(after, What::Step(seat, number));
    }

    /// A worker goes on: with its next step, with output, or to its end.
    pub(in crate::durable) fn steps(&mut self, seat: usize, number: u32) {
        let full = self.is_full(seat);
        let process = process_id(self.seats[seat].process);
        let wide = self.setting.limits.slot.unacked_entries;
        let place = &mut self.seats[seat];
        let (Some(call), Some(work)) = (place.call, &mut place.hand) else {
            return;
        };
        if place.step != number || work.replied || (full && work.unacked.len() >= wide) {
            return;
        }
        let next = (0..work.steps).find(|step| !work.done.contains(step));
        let Some(step) = next else {
            return self.finishes(seat, call);
        };
        work.done.insert(step);
        let (delivery, seq) = (work.delivery, work.next_seq);
        work.next_seq += 1;
        let kind = match full {
            true => self
                .random
                .mostly(70, EntryKind::Step, &[EntryKind::Usage, EntryKind::Plain]),
            false => EntryKind::Plain,
        };
        let newest = self.disk.rows.get(&delivery.run).map(|row| row.attempt);
        if kind == EntryKind::Step && newest == Some(delivery.attempt) {
            let again = self.account.recorded.contains(&(delivery.run, step));
            assert!(
                !again,
                "step {step} of {delivery} was recorded and runs again"
            );
        }
        let padding = self.random.index(60);
        let append = Up::Append {
            delivery,
            seq,
            kind,
            entry: entries::encode(kind, (delivery.attempt, process, seq), step, padding),
        };
        if full {
            let hand = self.seats[seat].hand.as_mut().expect("it was looked at");
            hand.unacked.push_back((seq, append.clone()));
        }
        self.sends(call, append.clone());
        if self.random.percent(5) {
            self.sends(call, append);
        }
        self.steps_later(seat, 1_000_000);
        if self.random.percent(5) {
            self.cuts(seat, call, false);
        }
    }

    fn finishes(&mut self, seat: usize, call: usize) {
        let full = self.is_full(seat);
        let work = self.seats[seat].hand.as_mut().expect("it was looked at");
        let says = match work.then {
            Then::Reply(says) => says,
            Then::LeaveThenReply => Says::Value,
            Then::Hang => return,
            Then::HalfClose => {
                self.seats[seat].hand = None;
                self.sends(call, Up::HalfClose);
                return;
            }
            Then::Cut(died) => return self.cuts(seat, call, died),
        };
        let leaves = matches!(work.then, Then::LeaveThenReply);
        let (delivery, seq) = (work.delivery, work.next_seq);
        work.next_seq += 1;
        let reply = Up::Reply {
            delivery,
            seq,
            says,
        };
        work.replied = true;
        work.unacked.push_back((seq, reply.clone()));
        // Nobody acknowledges these.
        if !full || !is_durable(delivery.run) || says == Says::Declined {
            self.seats[seat].hand = None;
        }
        if leaves {
            self.sends(call, Up::Leave);
        }
        self.sends(call, reply);
        // Often before its worker can know what became of that.
        if matches!(says, Says::Error { .. }) && self.random.percent(70) {
            self.cuts(seat, call, false);
        }
    }

    /// The connection is cut, or the process dies.
    fn cuts(&mut self, seat: usize, call: usize, died: bool) {
        self.sends(call, Up::Cut(died));
        if died {
            self.begins_anew(seat);
        } else {
            self.is_cut_off(seat);
        }
    }

    fn begins_anew(&mut self, seat: usize) {
        let process = self.new_process();
        let place = &mut self.seats[seat];
        (place.process, place.hand, place.released) = (process, None, None);
        self.dials_later(seat);
    }

    fn dials_later(&mut self, seat: usize) {
        self.seats[seat].call = None;
        self.seats[seat].step += 1;
        let after = self.random.micros(1000, 8_000_000);
        self.later(after, What::Dial(seat));
    }

    /// The harness has ended the call and means the work: it stops, at once or never says so.
    fn is_ended(&mut self, seat: usize, stop: bool) {
        if !stop {
            return self.is_cut_off(seat);
        }
        let says_so = self.random.percent(85);
        let place = &mut self.seats[seat];
        let work = place.hand.take().filter(|_| says_so);
        place.released = work.map(|work| (work.delivery, work.lease));
        self.dials_later(seat);
    }

    /// The call is lost: its work goes on for a while, or is dropped.
    fn is_cut_off(&mut self, seat: usize) {
        let full = self.is_full(seat);
        let window = self.setting.limits.reattach_window.as_micros() as u64;
        if self.random.percent(15) {
            return self.begins_anew(seat);
        }
        let resumes = self.random.percent(85);
        let now = self.micros;
        let place = &mut self.seats[seat];
        match &mut place.hand {
            Some(work) if full && is_durable(work.delivery.run) && resumes => {
                work.until = work.until.min(now + window);
            }
            Some(work) => {
                place.released = Some((work.delivery, work.lease));
                place.hand = None;
            }
            None => {}
        }
        self.dials_later(seat);
    }

    pub(in crate::durable) fn beats(&mut self, call: usize) {
        let seat = self.calls[call].seat;
        if self.seats[seat].call != Some(call) || self.is_over {
            return;
        }
        let named = self.seats[seat].hand.as_ref().filter(|work| !work.replied);
        let named = named.map(|work| work.delivery);
        self.sends(call, Up::Heartbeat(named));
        self.later(4_500_000, What::Beat(call));
    }
}
