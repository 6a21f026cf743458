//! One Attach call, from hello to its end: reads the worker's frames without pause, sends
//! heartbeats, notices a lost connection.
//!
//! Holds no slot state: every frame goes to the engine through a `SlotHandle`, and what goes back
//! is in the call's `Outbox`, which `api` writes.

mod hello;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Interval, MissedTickBehavior};
use tokio_stream::{Stream, StreamExt};
use tracing::{debug, info};

use crate::dispatch::{Frame, Reply};
use crate::engine::{Engine, OfferSchemas, Outbox, SlotHandle};
use crate::envelope::{Failure, Payload};
use crate::ids::Delivery;
use crate::schema::Subject;
use crate::slot::{End, EntryKind, Level, Refusal};

pub use hello::{Hello, PROTOCOL_VERSION, Previous};

/// How long after a half-close the reset of a dropped call may come.
const DROP_TIMEOUT: Duration = Duration::from_millis(50);

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
}

impl Session {
    /// A call that has just come, from the address `peer`.
    #[must_use]
    pub fn new(engine: Engine, outbox: Arc<Outbox>, peer: Arc<str>) -> Self {
        Self {
            engine,
            outbox,
            peer,
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
            Ok(slot) => {
                let interval = self.engine.limits().heartbeat_interval;
                pump(slot, inbound, heartbeats(level, interval)).await;
            }
            Err(refusal) => self.refuse(refusal),
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
            Ok(Some(Ok(_))) => Err(Refusal::NotFirst),
        }
    }

    async fn open(&self, hello: Hello) -> Result<SlotHandle, Refusal> {
        let (mut offer, previous) = hello.accept(self.engine.limits(), &self.peer)?;
        let schemas = OfferSchemas {
            request: self
                .engine
                .intern(&offer.request_schema_text)
                .await
                .map_err(|error| Refusal::Invalid(format!("agent.request_schema: {error}")))?,
            reply: self
                .engine
                .intern(&offer.reply_schema_text)
                .await
                .map_err(|error| Refusal::Invalid(format!("agent.reply_schema: {error}")))?,
        };
        let released = match previous {
            Previous::None => None,
            Previous::Released(delivery, lease) => Some((delivery, lease)),
            Previous::Resume => return Err(Refusal::NotYours),
        };
        let worker = offer.worker;
        offer.request_schema = schemas.request.as_ref().map(|schema| schema.id());
        debug!(%worker, name = offer.info.name, agent = %offer.agent, "slot opens");
        let slot = self.engine.open(offer, self.outbox.clone(), schemas);
        // After the slot is there, so that the worker is known without a break.
        if let Some((delivery, lease)) = released {
            self.engine.released(worker, delivery, lease);
        }
        Ok(slot)
    }

    fn refuse(&self, refusal: Refusal) {
        info!(peer = %self.peer, ?refusal, "refused a hello");
        self.outbox.end(End::Refused(refusal));
    }
}

async fn pump<S>(slot: SlotHandle, mut inbound: S, mut heartbeats: Option<Interval>)
where
    S: Stream<Item = Result<Incoming, String>> + Unpin,
{
    let mut half_closed = false;
    loop {
        let heartbeat = async {
            match &mut heartbeats {
                Some(interval) => interval.tick().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = slot.outbox().ended() => return,
            frame = inbound.next(), if !half_closed => match frame {
                Some(Ok(incoming)) => slot.frame(judged(&slot, incoming)),
                Some(Err(why)) => return slot.lost(why),
                None => {
                    half_closed = true;
                    slot.frame(Frame::Leave);
                    if slot.is_busy() && is_dropped(&slot).await {
                        return slot.lost("it dropped its call".to_owned());
                    }
                    slot.frame(Frame::HalfClosed);
                }
            },
            _ = heartbeat => slot.outbox().heartbeat(),
        }
    }
}

/// Whether a half-close was the first half of a dropped call: some clients send both, and a
/// request they had is lost, not untaken.
async fn is_dropped(slot: &SlotHandle) -> bool {
    tokio::time::timeout(DROP_TIMEOUT, slot.outbox().abandoned())
        .await
        .is_ok()
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

/// The frame as Core takes it: a reply is held against the slot's schema first, outside its lock.
fn judged(slot: &SlotHandle, incoming: Incoming) -> Frame {
    match incoming {
        Incoming::Hello(_) => Frame::HelloAgain,
        Incoming::Heartbeat(named) => Frame::Heartbeat(named),
        Incoming::Append {
            delivery,
            seq,
            kind,
            entry,
        } => {
            let acknowledged = slot.outbox().acknowledged();
            Frame::Append {
                delivery,
                seq,
                kind,
                entry,
                acknowledged,
            }
        }
        Incoming::Reply {
            delivery,
            seq,
            answer,
        } => {
            let reply = match answer {
                Answered::Value(value) => {
                    let checked = slot
                        .reply_schema()
                        .map(|schema| schema.check(Subject::Reply, &value));
                    match checked {
                        Some(Err(mismatch)) => Reply::Invalid(*mismatch),
                        Some(Ok(())) | None => Reply::Value(value),
                    }
                }
                Answered::Error(failure) => Reply::Error(failure),
                Answered::Declined => Reply::Declined,
            };
            Frame::Reply {
                delivery,
                seq,
                reply,
            }
        }
        Incoming::Leave => Frame::Leave,
        Incoming::Unknown => Frame::Unknown,
        Incoming::TooLarge { bytes, limit } => Frame::TooLarge { bytes, limit },
    }
}
