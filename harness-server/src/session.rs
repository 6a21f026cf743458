//! One Attach call, from hello to its end: reads the worker's frames without pause, sends
//! heartbeats, notices a lost connection.
//!
//! Holds no slot state: every frame goes to the engine through a `SlotHandle`, and what goes back
//! is in the call's `Outbox`, which `api` writes.

mod attended;
mod hello;
mod pump;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Interval, MissedTickBehavior};
use tokio_stream::{Stream, StreamExt};
use tracing::{debug, info, warn};

use crate::auth::{AUDIT, Attendance, Principal};
use crate::dispatch::{Comer, Offer};
use crate::engine::{Engine, OfferSchemas, Outbox, Resumes, SlotHandle};
use crate::envelope::{Failure, Payload};
use crate::ids::{Delivery, Lease};
use crate::slot::{End, EntryKind, Level, Refusal};

use attended::Attended;

pub use hello::{Hello, PROTOCOL_VERSION, Previous};

/// A frame from the worker, decoded.
#[derive(Debug)]
pub enum Incoming {
    /// Who it is and what it offers.
    Hello(Box<Hello>),
    /// It is there, and works on this.
    Heartbeat(Option<Delivery>),
    /// A journal entry.
    Append {
        /// Whose.
        delivery: Delivery,
        /// Its worker_seq.
        seq: u64,
        /// What it holds.
        kind: EntryKind,
        /// It, encoded.
        entry: Bytes,
    },
    /// The end of a request.
    Reply {
        /// Whose.
        delivery: Delivery,
        /// Its worker_seq.
        seq: u64,
        /// The agent's answer.
        answer: Answered,
    },
    /// It takes no new request.
    Leave,
    /// No known case.
    Unknown,
    /// Over the limit; sizes in bytes.
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
}

/// What a reply frame says.
#[derive(Debug)]
pub enum Answered {
    /// A value.
    Value(Payload),
    /// An error.
    Error(Failure),
    /// The request is given back unworked.
    Declined,
}

/// One call.
pub struct Session {
    engine: Engine,
    outbox: Arc<Outbox>,
    peer: Arc<str>,
    principal: Principal,
    attendance: Option<Attendance>,
}

impl Session {
    /// A call that has just come, from the address `peer`. That of a process of a pool comes with
    /// its attendance.
    #[must_use]
    pub fn new(
        engine: Engine,
        outbox: Arc<Outbox>,
        peer: Arc<str>,
        principal: Principal,
        attendance: Option<Attendance>,
    ) -> Self {
        Self {
            engine,
            outbox,
            peer,
            principal,
            attendance,
        }
    }

    /// Serves the call until its end. An error of `inbound` is a broken connection; its end is a
    /// half-close.
    pub async fn run<S>(self, mut inbound: S)
    where
        S: Stream<Item = Result<Incoming, String>> + Unpin,
    {
        let hello = match self.hello(&mut inbound).await {
            Ok(Some(hello)) => hello,
            Ok(None) => return self.outbox.end(End::Closed),
            Err(refusal) => return self.refuse(refusal),
        };
        let level = hello.level();
        match self.open(*hello).await {
            Ok((slot, mut attended)) => {
                let interval = self.engine.limits().heartbeat_interval;
                // One that the engine has not let in was not attached.
                if let Some(attended) = &mut attended
                    && !self.outbox.has_end()
                {
                    attended.attached().await;
                }
                pump::pump(slot, inbound, heartbeats(level, interval), attended).await;
            }
            Err(End::Refused(refusal)) => self.refuse(refusal),
            Err(end) => self.outbox.end(end),
        }
    }

    /// The first frame; none when the call is gone before it.
    async fn hello<S>(&self, inbound: &mut S) -> Result<Option<Box<Hello>>, Refusal>
    where
        S: Stream<Item = Result<Incoming, String>> + Unpin,
    {
        let first = tokio::time::timeout(self.engine.limits().hello_timeout, inbound.next());
        match first.await {
            Err(_) => Err(Refusal::NoHello),
            Ok(None | Some(Err(_))) => Ok(None),
            Ok(Some(Ok(Incoming::Hello(hello)))) => Ok(Some(hello)),
            Ok(Some(Ok(Incoming::TooLarge { bytes, limit }))) => {
                Err(Refusal::TooLarge { bytes, limit })
            }
            Ok(Some(Ok(_))) => Err(Refusal::NotFirst),
        }
    }

    async fn open(&self, hello: Hello) -> Result<(SlotHandle, Option<Attended>), End> {
        let invalid = |message| End::Refused(Refusal::Invalid(message));
        let (mut offer, previous) = hello
            .accept(self.engine.limits(), &self.peer)
            .map_err(End::Refused)?;
        let may = self.principal.may_offer(&offer.agent);
        may.map_err(|why| End::Refused(Refusal::Denied(why.message)))?;
        let (released, resumed) = match previous {
            Previous::None => (None, None),
            Previous::Released(delivery, lease) => (Some((delivery, lease)), None),
            Previous::Resume(delivery, lease) => (None, Some((delivery, lease))),
        };
        let mut attended = match &self.attendance {
            Some(attendance) => {
                let attended = self.attend(attendance, &offer, released);
                Some(attended.map_err(End::Refused)?)
            }
            None => None,
        };
        let schemas = OfferSchemas {
            request: self
                .engine
                .intern(&offer.request_schema_text)
                .await
                .map_err(|error| invalid(format!("agent.request_schema: {error}")))?,
            reply: self
                .engine
                .intern(&offer.reply_schema_text)
                .await
                .map_err(|error| invalid(format!("agent.reply_schema: {error}")))?,
        };
        let worker = offer.worker;
        let back = match resumed {
            Some((delivery, lease)) => {
                let offer = &offer;
                let comer = Comer {
                    offer,
                    delivery,
                    lease,
                };
                match self.engine.resumes(comer).await {
                    Resumes::With(back) => back,
                    Resumes::Ends(end) => return Err(end),
                }
            }
            None => None,
        };
        offer.request_schema = schemas.request.as_ref().map(|schema| schema.id());
        debug!(%worker, name = offer.info.name, agent = %offer.agent, "slot opens");
        let outbox = self.outbox.clone();
        let slot = self.engine.open_again(offer, outbox, schemas, back);
        if let (Some(attended), Some((delivery, _))) = (&mut attended, resumed)
            && slot.holds(delivery)
        {
            attended.resumes(delivery);
        }
        // After the slot is there, so that the worker is known without a break.
        if let Some((delivery, lease)) = released {
            self.engine.released(worker, delivery, lease);
        }
        Ok((slot, attended))
    }

    /// Lets the process of a pool in, if it may come back.
    fn attend(
        &self,
        attendance: &Attendance,
        offer: &Offer,
        released: Option<(Delivery, Lease)>,
    ) -> Result<Attended, Refusal> {
        let process = attendance.process();
        let itself = process.is_worker(offer.worker, &offer.info.name);
        itself.map_err(|why| Refusal::Invalid(why.to_string()))?;
        // One that still works on what was cancelled is stopped in another way.
        if process.is_over() || self.engine.owes_more(offer.worker, released) {
            return Err(Refusal::Drained);
        }
        Ok(Attended::new(attendance.clone(), offer.worker))
    }

    fn refuse(&self, refusal: Refusal) {
        match &refusal {
            Refusal::Denied(why) => {
                warn!(target: AUDIT, peer = %self.peer, who = %self.principal, "refused: {why}");
            }
            _ => info!(peer = %self.peer, ?refusal, "refused a hello"),
        }
        self.outbox.end(End::Refused(refusal));
    }
}

fn heartbeats(level: Level, interval: Duration) -> Option<Interval> {
    match level {
        Level::Minimal => None,
        Level::Full => {
            let mut ticks =
                tokio::time::interval_at(tokio::time::Instant::now() + interval, interval);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            Some(ticks)
        }
    }
}
