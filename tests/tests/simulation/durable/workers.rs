//! Calls of the workers of durable runs: how they begin, what arrives of them, and how they are lost.
//! What a worker does with its work is in `hand`.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use harness_server::dispatch::{Back, Event, Frame};
use harness_server::envelope::{Code, Failure};
use harness_server::ids::{Delivery, Lease};
use harness_server::slot::Level;
use harness_server::store::Holder;

use super::account::{Slot, Trigger};
use super::frames::{Down, Previous, Says, Up};
use super::life::Phase;
use super::setting::process_id;
use super::{What, World};
use crate::model::slot_id;
use crate::tally::Tally;

mod hand;

/// A slot's number before its hello was taken.
const UNKNOWN: usize = usize::MAX;

/// One call.
pub(super) struct Call {
    seat: usize,
    slot: usize,
    /// The harness knows that it is gone, or its harness is.
    pub(super) gone: bool,
    generation: u32,
    /// Up to which number the harness has written an acknowledgement.
    written: u64,
    last_up: u64,
    last_down: u64,
}

/// A place of a worker for one call.
pub(super) struct Seat {
    worker: usize,
    process: u64,
    call: Option<usize>,
    hand: Option<Work>,
    /// What is to be said of the call before, once it is over.
    released: Option<(Delivery, Lease)>,
    step: u32,
}

/// What a worker has in hand.
struct Work {
    delivery: Delivery,
    lease: Lease,
    steps: u8,
    done: BTreeSet<u8>,
    next_seq: u64,
    /// What is not acknowledged, the oldest first.
    unacked: VecDeque<(u64, Up)>,
    replied: bool,
    then: Then,
    /// When it stops, if its call stays lost.
    until: u64,
}

/// How it goes on after its steps.
#[derive(Clone, Copy, Debug)]
enum Then {
    Reply(Says),
    Hang,
    /// The connection is cut, or the process dies with it.
    Cut(bool),
    HalfClose,
    LeaveThenReply,
}

impl Call {
    pub(super) fn is_known(&self) -> bool {
        self.slot != UNKNOWN
    }
}

impl World {
    pub(super) fn new_process(&mut self) -> u64 {
        self.processes += 1;
        self.processes
    }

    pub(super) fn sits(&mut self, worker: usize, process: u64) -> usize {
        self.seats.push(Seat {
            worker,
            process,
            call: None,
            hand: None,
            released: None,
            step: 0,
        });
        self.seats.len() - 1
    }

    fn is_full(&self, seat: usize) -> bool {
        self.setting.workers[self.seats[seat].worker].offer.level == Level::Full
    }

    /// A worker opens a call, and says what became of the one before.
    pub(super) fn dials(&mut self, seat: usize) {
        let place = &mut self.seats[seat];
        if place.call.is_some() || self.is_over || self.calls.len() > 200 {
            return;
        }
        let now = self.micros;
        let mut previous = Previous::None;
        if let Some((delivery, lease)) = place.released.take() {
            previous = Previous::Released(delivery, lease);
        }
        if let Some(work) = &place.hand {
            previous = match work.until > now {
                true => Previous::Resume(work.delivery, work.lease),
                false => Previous::Released(work.delivery, work.lease),
            };
            if work.until <= now {
                place.hand = None;
            }
        }
        let call = self.calls.len();
        place.call = Some(call);
        self.calls.push(Call {
            seat,
            slot: UNKNOWN,
            gone: false,
            generation: self.generation,
            written: 0,
            last_up: now,
            last_down: now,
        });
        self.sends(call, Up::Hello(previous));
    }

    fn sends(&mut self, call: usize, up: Up) {
        let lag = self.random.micros(50, self.setting.lag);
        let at = self.calls[call].last_up.max(self.micros + lag);
        self.calls[call].last_up = at;
        self.at(at, What::Up(call, up));
    }

    /// Puts a frame on its way to the worker of a slot.
    pub(super) fn writes(&mut self, slot: usize, down: Down) {
        let call = self.by_slot[slot];
        match &down {
            Down::Request { .. } => self.calls[call].written = 0,
            Down::Acknowledged(_, seq) => self.calls[call].written = *seq,
            Down::End { .. } => self.calls[call].gone = true,
            Down::Welcome(_) | Down::Broken => {}
        }
        self.sends_down(call, down);
    }

    pub(super) fn sends_down(&mut self, call: usize, down: Down) {
        let lag = self.random.micros(50, self.setting.lag);
        let at = self.calls[call].last_down.max(self.micros + lag);
        self.calls[call].last_down = at;
        self.at(at, What::Down(call, down));
    }

    /// A frame of a worker has come.
    pub(super) fn arrives(&mut self, call: usize, up: Up, tally: &mut Tally) {
        if self.calls[call].gone {
            return;
        }
        if let Up::Hello(previous) = up {
            return self.is_greeted(call, previous, tally);
        }
        let of_this = self.calls[call].generation == self.generation;
        if !of_this || !self.calls[call].is_known() {
            return;
        }
        let id = self.calls[call].slot;
        let acknowledged = self.calls[call].written;
        let (frame, trigger) = match up {
            Up::Hello(_) => unreachable!("it was looked at"),
            Up::Cut(died) => return self.loses(call, died, tally),
            Up::Heartbeat(named) => {
                self.account.names(id, named);
                (Frame::Heartbeat(named), Trigger::OtherFrame(id))
            }
            Up::Append {
                delivery,
                seq,
                kind,
                entry,
            } => {
                self.account.names(id, Some(delivery));
                self.account.takes_append(id, delivery, seq);
                let frame = Frame::Append {
                    delivery,
                    seq,
                    kind,
                    entry,
                    acknowledged,
                };
                (frame, Trigger::Append(id))
            }
            Up::Reply {
                delivery,
                seq,
                says,
            } => {
                self.account.names(id, Some(delivery));
                let taken = self.account.takes_reply(id, delivery, seq, says);
                let frame = Frame::Reply {
                    delivery,
                    seq,
                    reply: says.into_reply(),
                };
                let trigger = match taken {
                    true => Trigger::Reply(id, delivery, seq, says),
                    false => Trigger::OtherFrame(id),
                };
                (frame, trigger)
            }
            Up::Leave => {
                self.account.slots[id].stopping = true;
                (Frame::Leave, Trigger::OtherFrame(id))
            }
            Up::HalfClose => (Frame::HalfClosed, Trigger::OtherFrame(id)),
        };
        let slot = slot_id(id);
        self.apply(trigger, Event::Frame { slot, frame }, tally);
    }

    /// The harness learns that a call is gone.
    pub(super) fn loses(&mut self, call: usize, died: bool, tally: &mut Tally) {
        let id = self.calls[call].slot;
        self.calls[call].gone = true;
        self.account.lost(id, died);
        let slot = slot_id(id);
        if died {
            tally.meet("durable: a process dies");
            let failure = Failure::new(Code::WorkerLost, "the worker died");
            return self.apply(Trigger::Died(id), Event::Died { slot, failure }, tally);
        }
        let why = String::new();
        self.apply(Trigger::Lost(id), Event::Lost { slot, why }, tally);
    }

    /// A hello has come.
    fn is_greeted(&mut self, call: usize, previous: Previous, tally: &mut Tally) {
        self.calls[call].generation = self.generation;
        if self.phase == Phase::Down || self.is_over {
            self.calls[call].gone = true;
            return self.sends_down(call, Down::Broken);
        }
        let worker = process_id(self.seats[self.calls[call].seat].process);
        match previous {
            Previous::None => self.opens(call, None, tally),
            Previous::Released(delivery, lease) => {
                let event = Event::Released {
                    worker,
                    delivery,
                    lease,
                };
                self.apply(Trigger::Released, event, tally);
                self.opens(call, None, tally);
            }
            Previous::Resume(delivery, lease) if self.core.has_durable(delivery.run) => {
                self.opens(call, Some(Back::Resume(delivery, lease)), tally);
            }
            Previous::Resume(delivery, lease) => self.looks_up(call, (delivery, lease), tally),
        }
    }

    /// A worker wants to go on with what this harness does not have in hand.
    fn looks_up(&mut self, call: usize, (delivery, lease): (Delivery, Lease), tally: &mut Tally) {
        let run = delivery.run;
        if !self.is_readable() || self.core.is_adrift(run) {
            return self.refuses(call, false);
        }
        let Some(row) = self.disk.rows.get(&run) else {
            return self.refuses(call, true);
        };
        if !row.state.is_ended() {
            let (adopted, head) = self.read(run).expect("it was looked at");
            let after = self.random.micros(1, 20_000);
            self.later(after, What::Adopt(run, adopted, head, false));
            return self.later(after, What::Resumes(call, delivery, lease));
        }
        let worker = process_id(self.seats[self.calls[call].seat].process);
        let holds = row.holder == Some(Holder { worker, lease });
        if delivery.attempt == row.attempt && holds && row.reply_seq > 0 {
            let replied = Back::Replied(delivery, row.reply_seq);
            return self.opens(call, Some(replied), tally);
        }
        self.refuses(call, true);
    }

    pub(super) fn resumes(
        &mut self,
        call: usize,
        delivery: Delivery,
        lease: Lease,
        tally: &mut Tally,
    ) {
        if !self.calls[call].gone && !self.is_over {
            self.opens(call, Some(Back::Resume(delivery, lease)), tally);
        }
    }

    fn refuses(&mut self, call: usize, stop: bool) {
        self.calls[call].gone = true;
        self.sends_down(call, Down::End { stop });
    }

    fn opens(&mut self, call: usize, back: Option<Back>, tally: &mut Tally) {
        let seat = &self.seats[self.calls[call].seat];
        let worker = process_id(seat.process);
        let mut offer = self.setting.workers[seat.worker].offer.clone();
        offer.worker = worker;
        let id = self.account.slots.len();
        self.account.slots.push(Slot {
            worker,
            offer: Arc::new(offer.clone()),
            open: false,
            stopping: false,
            held: None,
            owes: None,
        });
        self.calls[call].slot = id;
        self.by_slot.push(call);
        if back.is_some() {
            tally.meet("durable: a worker resumes");
        }
        let resumes = matches!(back, Some(Back::Resume(..)));
        let event = Event::Opened {
            slot: slot_id(id),
            offer,
            back,
        };
        self.apply(Trigger::Opened(id), event, tally);
        // Its slot is free at once: it had replied, and its run goes on.
        if resumes && self.account.slots[id].open && self.account.slots[id].held.is_none() {
            tally.meet("durable: a failed attempt is resumed");
        }
    }
}
