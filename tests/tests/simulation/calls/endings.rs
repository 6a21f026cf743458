//! How a worker brings a request to an end: a reply, or one of the many ways to go wrong.

use harness_server::ids::{Attempt, Delivery, Lease};
use harness_server::pool::Rung;
use harness_server::slot::EntryKind;

use super::{Side, Work};
use crate::frames::{Says, Up};
use crate::world::{What, World};

/// How it goes on after its appends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Then {
    Reply(Says),
    /// The same reply, twice.
    ReplyTwice,
    Hang,
    LeaveThenReply(Says),
    HalfClose,
    Cut,
    Break(Break),
}

/// A rule that is broken.
#[derive(Clone, Copy, Debug)]
pub(super) enum Break {
    OtherAttempt,
    OlderDelivery,
    Gap,
    NoNumber,
    Window,
    Step,
    Foreign,
    Hello,
    Unknown,
    TooLarge,
}

impl World {
    pub(super) fn bad_end(&mut self, of_pool: bool) -> Then {
        if of_pool && self.random.percent(50) {
            return Then::Cut;
        }
        match self.random.below(20) {
            0 => Then::Reply(Says::Error { retryable: true }),
            1 => Then::Reply(Says::Error { retryable: false }),
            2 => Then::Reply(Says::Forbidden),
            3 => Then::Reply(Says::Invalid),
            4 => Then::Reply(Says::TooLarge),
            5 | 6 => Then::Reply(Says::Declined),
            7 => Then::ReplyTwice,
            8 | 9 => Then::Hang,
            10 => Then::LeaveThenReply(Says::Value),
            11 => Then::LeaveThenReply(Says::Declined),
            12 => Then::HalfClose,
            13 | 14 => Then::Cut,
            _ => Then::Break(self.random.pick(&[
                Break::OtherAttempt,
                Break::OlderDelivery,
                Break::Gap,
                Break::NoNumber,
                Break::Window,
                Break::Step,
                Break::Foreign,
                Break::Hello,
                Break::Unknown,
                Break::TooLarge,
            ])),
        }
    }

    pub(super) fn replies(&mut self, call: usize, work: &Work, says: Says) {
        let (delivery, seq) = (work.delivery, work.seq + 1);
        self.sends(
            call,
            Up::Reply {
                delivery,
                seq,
                says,
            },
        );
        self.calls[call].past = Some(delivery);
        self.calls[call].side = Side::Idle;
    }

    pub(super) fn finishes(&mut self, call: usize, work: Work) {
        match work.then {
            Then::Reply(says) => {
                self.replies(call, &work, says);
                self.is_unsure_of_its_reply(call, work);
            }
            Then::ReplyTwice => {
                self.replies(call, &work, Says::Value);
                self.replies(call, &work, Says::Invalid);
            }
            Then::Hang => {}
            Then::LeaveThenReply(says) => {
                self.sends(call, Up::Leave);
                self.replies(call, &work, says);
                if self.random.percent(60) {
                    self.sends(call, Up::HalfClose);
                    self.dials_again(call, None);
                }
            }
            Then::HalfClose => {
                self.sends(call, Up::HalfClose);
                self.dials_again(call, None);
            }
            Then::Cut if self.outlives_its_call(call) => self.breaks_off(call, work),
            Then::Cut => self.cuts(call, Some((work.delivery, work.lease))),
            Then::Break(how) => self.breaks(call, &work, how),
        }
    }

    pub(super) fn breaks(&mut self, call: usize, work: &Work, how: Break) {
        let (delivery, next) = (work.delivery, work.seq + 1);
        match how {
            Break::OtherAttempt => {
                let other = Delivery {
                    attempt: Attempt(self.random.below(4) as u32),
                    ..delivery
                };
                self.sends(call, Up::Heartbeat(Some(other)));
            }
            Break::OlderDelivery => {
                let past = self.calls[call].past.unwrap_or(delivery);
                let older = Work {
                    delivery: past,
                    ..*work
                };
                self.appends(call, &older, 1, EntryKind::Plain, 1);
                self.sends(call, Up::Heartbeat(Some(past)));
                self.replies(call, work, Says::Value);
            }
            Break::Gap => self.appends(call, work, next + 1, EntryKind::Plain, 1),
            Break::NoNumber => self.appends(call, work, 0, EntryKind::Plain, 1),
            Break::Window => {
                for seq in next..next + 6 {
                    self.appends(call, work, seq, EntryKind::Usage, 400);
                }
            }
            Break::Step => self.appends(call, work, next, EntryKind::Step, 1),
            Break::Foreign => self.appends(call, work, next, EntryKind::Foreign, 1),
            Break::Hello => self.sends(call, Up::HelloAgain),
            Break::Unknown => self.sends(call, Up::Unknown),
            Break::TooLarge => self.sends(call, Up::TooLarge),
        }
    }

    /// The harness stops the process that works on, when it has started that.
    pub(super) fn is_brought_to_its_end(&mut self, call: usize) {
        let worker = self.calls[call].worker;
        if self.setting.workers[worker].of_pool && self.random.percent(60) {
            let after = self.random.micros(1000, 3_000_000);
            self.later(after, What::Stopping(worker, Rung::Sigterm));
            if self.random.percent(50) {
                self.later(2 * after, What::Stopping(worker, Rung::Sigkill));
            }
            self.later(3 * after, What::Stopped(worker));
        }
    }

    /// The process dies, or its connection: at once, or behind what is on its way.
    pub(super) fn cuts(&mut self, call: usize, work: Option<(Delivery, Lease)>) {
        self.sends(call, Up::Cut);
        let says_so = self.random.percent(50);
        self.dials_again(call, work.filter(|_| says_so));
    }
}
