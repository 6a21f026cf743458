//! What the harness has to say to one slot and has not written yet.
//!
//! Bounded by construction: one place for each kind of frame, because a slot holds at most one
//! request and acknowledgements and heartbeats say nothing twice. The end of the call overtakes
//! everything else.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::dispatch::{Replay, Resumed};
use crate::envelope::Request;
use crate::ids::{Delivery, Lease, SlotId, WorkerId};
use crate::slot::End;
use crate::store::Entry;

use super::replaying::{Missing, Replaying};

/// A frame for a worker.
#[derive(Debug)]
pub enum Outgoing {
    /// The answer to its hello, and the work it goes on with.
    Welcome(SlotId, Option<Resumed>),
    /// A request.
    Request {
        /// Under which number.
        delivery: Delivery,
        /// The proof that comes with it.
        lease: Lease,
        /// What is asked.
        request: Arc<Request>,
        /// When the attempt ends at the latest.
        deadline: Instant,
        /// How long its worker is waited for after its call is lost.
        window: Duration,
        /// The entries that follow, if any do.
        replay: Option<Arc<Replay>>,
    },
    /// An entry that follows a request.
    Replayed(Entry),
    /// Appends up to this worker_seq are acknowledged.
    Appended(u64),
    /// The harness is there.
    Heartbeat,
    /// Finish, leave and do not come back.
    Drain(Arc<str>),
}

/// A request that has not reached its worker, and may never.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Undelivered {
    /// Whom it was for.
    pub worker: WorkerId,
    /// Under which number.
    pub delivery: Delivery,
    /// The proof that would have come with it.
    pub lease: Lease,
}

/// The frames of one call that wait to be written.
#[derive(Debug, Default)]
pub struct Outbox {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    welcome: Option<(SlotId, Option<Resumed>)>,
    welcomed: bool,
    request: Option<Outgoing>,
    /// The entries that follow it.
    replay: Option<Replaying>,
    /// Up to what the request before is acknowledged, which is written before this one.
    appended_before: Option<u64>,
    is_durable: bool,
    /// The newest request, until it is known that the transport has let go of it.
    undelivered: Option<Undelivered>,
    appended: Option<u64>,
    appended_written: u64,
    heartbeat: bool,
    drain: Option<Arc<str>>,
    newest: Option<Delivery>,
    end: Option<End>,
    /// Whether the end has been written.
    ended: bool,
    abandoned: bool,
    writer: Option<Waker>,
    session: Option<Waker>,
}

impl Outbox {
    /// Welcomes the slot, with the work it goes on with.
    pub fn welcome(&self, slot: SlotId, resumed: Option<Resumed>) {
        self.put(|waiting| {
            if let Some(resumed) = &resumed {
                waiting.newest = Some(resumed.delivery);
                waiting.is_durable = true;
                waiting.appended_written = resumed.last_seq;
            }
            waiting.welcome = Some((slot, resumed));
        });
    }

    /// Sends a request. What was still to be acknowledged of the one before is answered by it, or
    /// comes before it where that means that it is on disk.
    /// Gives the request back when the call is over: its end may come here first.
    #[must_use]
    pub fn request(
        &self,
        to: Undelivered,
        request: Arc<Request>,
        (deadline, window): (Instant, Duration),
        replay: Option<Arc<Replay>>,
    ) -> Option<Undelivered> {
        let mut late = None;
        self.put(|waiting| {
            if waiting.abandoned {
                late = Some(to);
                return;
            }
            waiting.newest = Some(to.delivery);
            if let Some(seq) = waiting.appended.take()
                && waiting.is_durable
            {
                waiting.appended_before = Some(seq);
            }
            waiting.is_durable = request.durable.is_some();
            let replaying = |replay: &Arc<Replay>| Replaying::new(to.delivery, replay);
            waiting.replay = replay.as_ref().map(replaying);
            waiting.appended_written = 0;
            waiting.undelivered = Some(to);
            waiting.request = Some(Outgoing::Request {
                delivery: to.delivery,
                lease: to.lease,
                request,
                deadline,
                window,
                replay,
            });
        });
        late
    }

    /// The entries that follow the newest request and must be read before anything else is written;
    /// told once.
    pub fn missing(&self) -> Option<Missing> {
        self.lock().replay.as_mut()?.missing()
    }

    /// The entries that were missing.
    pub fn replayed(&self, missing: Missing, entries: Vec<Entry>) {
        self.put(|waiting| {
            if let Some(replaying) = &mut waiting.replay {
                replaying.add(missing, entries);
            }
        });
    }

    /// Whether nobody reads what is put here.
    pub fn is_over(&self) -> bool {
        let waiting = self.lock();
        waiting.abandoned || waiting.end.is_some()
    }

    /// Acknowledges appends of a request up to a worker_seq.
    pub fn acknowledge(&self, delivery: Delivery, seq: u64) {
        self.put(|waiting| {
            // One that comes late says nothing of the request that has come since.
            if waiting.newest == Some(delivery) {
                waiting.appended = Some(seq);
            }
        });
    }

    /// Asks the worker to finish, leave and not come back.
    pub fn drain(&self, reason: Arc<str>) {
        self.put(|waiting| waiting.drain = Some(reason));
    }

    /// Says that the harness is there.
    pub fn heartbeat(&self) {
        self.put(|waiting| waiting.heartbeat = true);
    }

    /// Ends the call. What waits is dropped; the first end stands.
    pub fn end(&self, end: End) {
        let mut session = None;
        self.put(|waiting| {
            if waiting.end.is_none() {
                waiting.end = Some(end);
            }
            session = waiting.session.take();
        });
        if let Some(session) = session {
            session.wake();
        }
    }

    /// Up to which worker_seq of the newest request an acknowledgement has been written.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.lock().appended_written
    }

    /// Whether nothing waits to be written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let waiting = self.lock();
        let frames = waiting.welcome.is_some()
            || waiting.request.is_some()
            || waiting.replay.is_some()
            || waiting.appended_before.is_some()
            || waiting.appended.is_some()
            || waiting.heartbeat
            || waiting.drain.is_some();
        !frames && !waiting.end_waits()
    }

    /// Whether the end of the call waits to be written; if not, the writer is woken by the next
    /// change.
    pub fn poll_has_end(&self, cx: &Context<'_>) -> bool {
        let mut waiting = self.lock();
        if !waiting.end_waits() {
            waiting.writer = Some(cx.waker().clone());
        }
        waiting.end_waits()
    }

    /// Whether the call has an end, written or not.
    #[must_use]
    pub fn has_end(&self) -> bool {
        self.lock().end.is_some()
    }

    /// Waits until the call has an end, written or not. One task may wait, for this or `abandoned`.
    pub async fn ended(&self) -> End {
        std::future::poll_fn(|cx| {
            let mut waiting = self.lock();
            if let Some(end) = &waiting.end {
                return Poll::Ready(end.clone());
            }
            waiting.session = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Says that the transport has dropped the call and writes nothing more. Gives the request the
    /// worker cannot have seen: the end overtook it, or dropped what the transport still held.
    pub fn abandon(&self) -> Option<Undelivered> {
        let (session, undelivered) = {
            let mut waiting = self.lock();
            waiting.abandoned = true;
            (waiting.session.take(), waiting.undelivered.take())
        };
        if let Some(session) = session {
            session.wake();
        }
        undelivered
    }

    /// Waits until the transport has dropped the call. One task may wait, for this or `ended`.
    pub async fn abandoned(&self) {
        std::future::poll_fn(|cx| {
            let mut waiting = self.lock();
            if waiting.abandoned {
                return Poll::Ready(());
            }
            waiting.session = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// The transport has let go of every frame handed over so far.
    pub fn let_go(&self) {
        self.lock().let_go();
    }

    /// Waits for the next frame, or the end, once; none after it. One task may wait.
    pub async fn next(&self) -> Option<Result<Outgoing, End>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The next frame, or the end, once.
    pub fn poll_next(&self, cx: &Context<'_>) -> Poll<Option<Result<Outgoing, End>>> {
        let mut waiting = self.lock();
        if waiting.ended {
            return Poll::Ready(None);
        }
        if let Some(end) = waiting.end.clone() {
            waiting.ended = true;
            waiting.let_go();
            return Poll::Ready(Some(Err(end)));
        }
        match waiting.take() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None => {
                waiting.writer = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn put(&self, change: impl FnOnce(&mut Waiting)) {
        let waker = {
            let mut waiting = self.lock();
            change(&mut waiting);
            waiting.writer.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Whether the end is still to be written.
    fn end_waits(&self) -> bool {
        self.end.is_some() && !self.ended
    }

    fn let_go(&mut self) {
        if self.request.is_none() {
            self.undelivered = None;
        }
    }

    fn take(&mut self) -> Option<Outgoing> {
        if let Some((slot, resumed)) = self.welcome.take() {
            self.welcomed = true;
            return Some(Outgoing::Welcome(slot, resumed));
        }
        // A request that another thread placed may be put here before the welcome of its slot is.
        if !self.welcomed {
            return None;
        }
        if let Some(seq) = self.appended_before.take() {
            return Some(Outgoing::Appended(seq));
        }
        if let Some(request) = self.request.take() {
            return Some(request);
        }
        if let Some(replaying) = &mut self.replay {
            let Some(entry) = replaying.take() else {
                // The next ones are being read, which may take long: we are there meanwhile.
                return std::mem::take(&mut self.heartbeat).then_some(Outgoing::Heartbeat);
            };
            if replaying.is_over() {
                self.replay = None;
            }
            // Nothing else comes between the entries that follow a request.
            return Some(Outgoing::Replayed(entry));
        }
        if let Some(seq) = self.appended.take() {
            self.appended_written = seq;
            return Some(Outgoing::Appended(seq));
        }
        if let Some(reason) = self.drain.take() {
            return Some(Outgoing::Drain(reason));
        }
        std::mem::take(&mut self.heartbeat).then_some(Outgoing::Heartbeat)
    }
}

#[cfg(test)]
#[path = "outbox_tests.rs"]
pub(super) mod tests;
