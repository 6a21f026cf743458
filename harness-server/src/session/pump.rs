//! After the hello: the worker's frames, in the order they came, until the call ends.
//!
//! A reply that takes long to be held against its schema is waited for here, and here alone: the
//! call is still read, heartbeats go both ways, and what came after the reply follows it.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Interval;
use tokio_stream::{Stream, StreamExt};

use crate::dispatch::{Frame, Reply};
use crate::engine::{Checked, SlotHandle};
use crate::ids::Delivery;
use crate::slot::End;

use super::attended::{Attended, News};
use super::{Answered, Incoming};

/// How long after a half-close the reset of a dropped call may come.
const DROP_TIMEOUT: Duration = Duration::from_millis(50);

/// Frames that may follow a reply before it is taken, heartbeats apart. A worker has nothing to
/// send then but that it leaves.
const FOLLOWING_MAX: usize = 8;

/// What comes from the worker.
enum Inbound {
    Frame(Incoming),
    HalfClosed,
    Lost(String),
}

/// A reply that is being held against its schema.
struct Pending {
    delivery: Delivery,
    seq: u64,
    reply: oneshot::Receiver<Reply>,
}

/// What is read and not yet handed over.
#[derive(Default)]
struct Pump {
    /// The process behind the call, where that is a pool's.
    attended: Option<Attended>,
    pending: Option<Pending>,
    following: VecDeque<Inbound>,
}

/// Whether the call goes on.
enum Flow {
    On,
    Lost(String),
}

pub(super) async fn pump<S>(
    mut slot: SlotHandle,
    mut inbound: S,
    mut heartbeats: Option<Interval>,
    attended: Option<Attended>,
) where
    S: Stream<Item = Result<Incoming, String>> + Unpin,
{
    let mut pump = Pump {
        attended,
        ..Pump::default()
    };
    let mut closed = false;
    loop {
        let heartbeat = async {
            match &mut heartbeats {
                Some(interval) => interval.tick().await,
                None => std::future::pending().await,
            }
        };
        let flow = tokio::select! {
            biased;
            end = slot.outbox().ended() => return pump.ended(&end).await,
            reply = checked(&mut pump.pending) => pump.replied(&slot, reply).await,
            frame = inbound.next(), if !closed => {
                let came = match frame {
                    Some(Ok(incoming)) => Inbound::Frame(incoming),
                    Some(Err(why)) => Inbound::Lost(why),
                    None => Inbound::HalfClosed,
                };
                closed = !matches!(came, Inbound::Frame(_));
                pump.came(&slot, came).await
            }
            news = news(&pump.attended) => pump.heard(&slot, news),
            _ = heartbeat => {
                slot.outbox().heartbeat();
                Flow::On
            }
        };
        match (flow, &mut pump.attended) {
            (Flow::On, None) => {}
            (Flow::On, Some(attended)) => attended.look(&slot).await,
            (Flow::Lost(why), None) => return slot.lost(why),
            (Flow::Lost(why), Some(attended)) => return attended.lost(slot, why).await,
        }
    }
}

/// Waits for the reply that is being checked; none when its schema was condemned meanwhile.
async fn checked(pending: &mut Option<Pending>) -> Option<Reply> {
    match pending {
        Some(pending) => (&mut pending.reply).await.ok(),
        None => std::future::pending().await,
    }
}

/// Waits for news of the process behind the call.
async fn news(attended: &Option<Attended>) -> News {
    match attended {
        Some(attended) => attended.news().await,
        None => std::future::pending().await,
    }
}

impl Pump {
    /// The harness has ended the call.
    async fn ended(&mut self, end: &End) {
        if let Some(attended) = &mut self.attended {
            attended.ended(end).await;
        }
    }

    fn heard(&mut self, slot: &SlotHandle, news: News) -> Flow {
        match (news, &mut self.attended) {
            (News::Dismissed, Some(attended)) => attended.dismiss(slot),
            (News::Dismissed, None) => {}
            (News::Died, _) => return Flow::Lost("its process has ended".to_owned()),
        }
        Flow::On
    }

    async fn came(&mut self, slot: &SlotHandle, came: Inbound) -> Flow {
        if self.pending.is_none() {
            return self.hand_over(slot, came).await;
        }
        match came {
            // True whenever it is said, and it must not be missed.
            Inbound::Frame(Incoming::Heartbeat(named)) => slot.frame(Frame::Heartbeat(named)),
            came @ (Inbound::Frame(_) | Inbound::HalfClosed | Inbound::Lost(_)) => {
                if self.following.len() >= FOLLOWING_MAX {
                    return Flow::Lost("it sent more after its reply than it may".to_owned());
                }
                self.following.push_back(came);
            }
        }
        Flow::On
    }

    /// The check is done: the reply is taken, then what followed it.
    async fn replied(&mut self, slot: &SlotHandle, reply: Option<Reply>) -> Flow {
        let Some(pending) = self.pending.take() else {
            return Flow::On;
        };
        // Without one the slot has ended, or the harness is leaving and ends it.
        if let Some(reply) = reply {
            self.reply(slot, pending.delivery, pending.seq, reply).await;
        }
        while self.pending.is_none()
            && let Some(next) = self.following.pop_front()
        {
            if let Flow::Lost(why) = self.hand_over(slot, next).await {
                return Flow::Lost(why);
            }
        }
        Flow::On
    }

    async fn hand_over(&mut self, slot: &SlotHandle, came: Inbound) -> Flow {
        match came {
            Inbound::Frame(incoming) => self.frame(slot, incoming).await,
            Inbound::Lost(why) => return Flow::Lost(why),
            Inbound::HalfClosed => {
                slot.frame(Frame::Leave);
                if slot.is_busy() && is_dropped(slot).await {
                    return Flow::Lost("it dropped its call".to_owned());
                }
                slot.frame(Frame::HalfClosed);
            }
        }
        Flow::On
    }

    /// Has a reply taken.
    async fn reply(&mut self, slot: &SlotHandle, delivery: Delivery, seq: u64, reply: Reply) {
        let declined = matches!(reply, Reply::Declined);
        let attended = self.attended.as_ref();
        let counts = attended.filter(|attended| attended.replies(slot, delivery, declined));
        slot.frame(Frame::Reply {
            delivery,
            seq,
            reply,
        });
        if let Some(attended) = counts {
            attended.answered().await;
        }
    }

    /// Hands a frame to Core; a reply is held against the slot's schema first, outside its lock.
    async fn frame(&mut self, slot: &SlotHandle, incoming: Incoming) {
        slot.frame(match incoming {
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
                    Answered::Value(value) => match slot.check(value) {
                        Checked::Now(reply) => reply,
                        Checked::Later(reply) => {
                            // It has the request, whatever comes of the check.
                            slot.frame(Frame::Heartbeat(Some(delivery)));
                            self.pending = Some(Pending {
                                delivery,
                                seq,
                                reply,
                            });
                            return;
                        }
                    },
                    Answered::Error(failure) => Reply::Error(failure),
                    Answered::Declined => Reply::Declined,
                };
                return self.reply(slot, delivery, seq, reply).await;
            }
            Incoming::Leave => Frame::Leave,
            Incoming::Unknown => Frame::Unknown,
            Incoming::TooLarge { bytes, limit } => Frame::TooLarge { bytes, limit },
        });
    }
}

/// Whether a half-close was the first half of a dropped call: some clients send both, and a
/// request they had is lost, not untaken.
async fn is_dropped(slot: &SlotHandle) -> bool {
    tokio::time::timeout(DROP_TIMEOUT, slot.outbox().abandoned())
        .await
        .is_ok()
}
