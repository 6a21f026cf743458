//! What a frame must do to its slot, said from the rules of the protocol.

use harness_server::envelope::Code;
use harness_server::ids::Delivery;
use harness_server::slot::{End, EntryKind, Violation};

use super::{Expected, Fault, Held, Model, State, is_full, run_of};
use crate::frames::{Says, Up};

impl Model {
    /// A frame is about to be taken; `acknowledged` is what has been written to the worker.
    pub(crate) fn frame(&mut self, id: usize, up: Up, acknowledged: u64) {
        if !self.slots[id].open {
            self.expected_stale = true;
            return;
        }
        match up {
            Up::Heartbeat(named) => {
                self.slots[id].heard = self.now;
                if let Some(named) = named {
                    self.names(id, named);
                }
            }
            Up::Append {
                delivery,
                seq,
                kind,
                bytes,
            } => {
                self.slots[id].heard = self.now;
                if self.names(id, delivery) && self.is_next(id, seq) {
                    self.append(id, seq, kind, bytes, acknowledged);
                }
            }
            Up::Reply {
                delivery,
                seq,
                says,
            } => {
                self.slots[id].heard = self.now;
                if self.names(id, delivery) && self.is_next(id, seq) {
                    self.reply(id, (delivery, seq), says);
                }
            }
            Up::Leave => {
                let slot = &mut self.slots[id];
                slot.heard = self.now;
                slot.stopping.get_or_insert(self.now);
                self.no_longer_free(id);
            }
            Up::HalfClose => self.ends(id, End::Closed),
            Up::HelloAgain => self.ends(id, End::Violation(Violation::SecondHello)),
            Up::Unknown => self.ends(id, End::Violation(Violation::UnknownFrame)),
            Up::TooLarge => self.ends(id, End::FrameTooLarge { bytes: 9, limit: 8 }),
            Up::Hello | Up::Cut => unreachable!("these are no frames of a slot"),
        }
    }

    fn ends(&mut self, id: usize, end: End) {
        self.expected_end = Some((id, Expected::Exactly(end)));
    }

    /// Whether a frame is about the request in the slot; naming it accepts it.
    fn names(&mut self, id: usize, named: Delivery) -> bool {
        let slot = &mut self.slots[id];
        if slot.answered == Some(named) {
            self.expected_stale = true;
            return false;
        }
        let holds = slot.held.as_ref().map(|held| held.delivery);
        match &mut slot.held {
            Some(held) if held.delivery == named => {
                held.accepted = true;
                true
            }
            Some(_) | None => {
                self.ends(id, End::WrongAttempt { named, holds });
                false
            }
        }
    }

    /// Whether a frame has the next number.
    fn is_next(&mut self, id: usize, seq: u64) -> bool {
        let slot = &self.slots[id];
        let full = is_full(&slot.offer);
        let last = slot.held.as_ref().map_or(0, |held| held.last_seq);
        if seq == last + 1 {
            return true;
        }
        if seq == 0 || seq > last {
            let expected = last + 1;
            self.ends(id, End::Violation(Violation::Gap { expected, got: seq }));
        } else if full {
            let acknowledged = self.read_of(id, last);
            self.expected_ack = (acknowledged > 0).then_some((id, acknowledged));
        }
        false
    }

    fn append(&mut self, id: usize, seq: u64, kind: EntryKind, bytes: u64, acknowledged: u64) {
        let rules = self.limits.slot;
        let slot = &mut self.slots[id];
        let full = is_full(&slot.offer);
        let Some(held) = &mut slot.held else { return };
        let broken = if kind == EntryKind::Foreign {
            Some(Violation::ForeignEntry)
        } else if kind == EntryKind::Step && !full {
            Some(Violation::StepFromMinimal)
        } else if full {
            held.unacked.retain(|(seq, _)| *seq > acknowledged);
            let sum: u64 = held.unacked.iter().map(|(_, bytes)| bytes).sum();
            let passed = held.unacked.len() >= rules.unacked_entries
                || (!held.unacked.is_empty() && sum + bytes > rules.unacked_bytes);
            passed.then_some(Violation::WindowPassed)
        } else {
            None
        };
        if let Some(broken) = broken {
            return self.ends(id, End::Violation(broken));
        }
        held.last_seq = seq;
        let run = run_of(held.delivery);
        self.runs[run].taken = seq;
        if full {
            held.unacked.push((seq, bytes));
            if self.runs[run].paced {
                self.taken = Some((run, seq));
            } else {
                self.expected_ack = Some((id, seq));
            }
        }
    }

    /// Up to which number a slot's entries may be acknowledged: what a slow caller has read.
    fn read_of(&self, id: usize, last: u64) -> u64 {
        let held = self.slots[id].held.as_ref();
        let unread = held.and_then(|held| self.runs[run_of(held.delivery)].unread.first());
        unread.map_or(last, |(_, seq)| seq - 1)
    }

    /// The caller of a run is about to have read its journal up to a place.
    pub(crate) fn read(&mut self, run: usize, up_to: u64, output: bool) {
        let entry = &mut self.runs[run];
        if entry.state == State::Ended {
            return;
        }
        entry.output_seen |= output;
        let read = entry.unread.iter().rev().find(|(at, _)| *at <= up_to);
        let read = read.map(|(_, seq)| *seq);
        entry.unread.retain(|(at, _)| *at > up_to);
        if let (Some(seq), State::Running(slot)) = (read, entry.state) {
            self.expected_ack = Some((slot, seq));
        }
    }

    fn reply(&mut self, id: usize, (delivery, seq): (Delivery, u64), says: Says) {
        let slot = &mut self.slots[id];
        slot.held = None;
        slot.answered = Some(delivery);
        if let Some(since) = &mut slot.stopping {
            *since = self.now;
        }
        let worker = slot.worker;
        let run = run_of(delivery);
        // What is given back is not answered.
        self.runs[run].replied = if says == Says::Declined { 0 } else { seq };
        match says {
            Says::Value => self.owe(run, None),
            Says::Error { retryable } => {
                let retried = Fault::counted(Code::AgentError);
                let never = Fault::never_retried(Code::AgentError);
                self.fail(run, if retryable { retried } else { never }, None);
            }
            Says::Forbidden => self.fail(run, Fault::never_retried(Code::AgentError), None),
            Says::Invalid => self.fail(run, Fault::counted(Code::InvalidReply), None),
            Says::TooLarge => self.fail(run, Fault::never_retried(Code::PayloadTooLarge), None),
            Says::Declined => {
                self.become_free_unless_leaving(id);
                self.fail(run, Fault::uncounted(), Some(worker));
            }
        }
        self.become_free_unless_leaving(id);
    }

    fn become_free_unless_leaving(&mut self, id: usize) {
        if !self.leaving {
            self.become_free(id);
        }
    }
}

impl Held {
    pub(super) fn new(
        delivery: Delivery,
        lease: harness_server::ids::Lease,
        accept_by: std::time::Instant,
    ) -> Self {
        Self {
            delivery,
            lease,
            accept_by,
            accepted: false,
            last_seq: 0,
            unacked: Vec::new(),
            has_stopped: false,
        }
    }
}
