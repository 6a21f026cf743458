//! One Attach call: the driver of a [`Session`].
//!
//! Owns the two halves of the call and the select between what the harness, the agent, the clock
//! and the worker say. It reads the call all the time, decides nothing, and drops both halves at
//! the end: dropping only one cancels nothing.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;

use harness_proto::v1;
use harness_proto::v1::worker_service_client::WorkerServiceClient;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::WaitForCancellationFuture;
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};
use tracing::{info, warn};

use super::Shared;
use super::alarm::Alarm;
use super::in_hand::InHand;
use super::work::Work;
use crate::connect::Credential;
use crate::context::Facts;
use crate::session::{
    Action, Delivery, Event, Lease, Next, Outbound, Previous, Session, Suspended,
};
use crate::wire;

/// Frames between the session and the transport. Small: what does not fit waits in the outbox,
/// which the session's window bounds.
const FRAMES: usize = 16;
/// The harness keeps to the limit a hello names; the transport's own is that much higher, so that
/// a welcome gets through whatever the limit is.
const DECODE_SLACK: u64 = 1 << 20;

/// What a call that was lost has left.
pub(super) struct Lost {
    pub(super) suspended: Box<Suspended>,
    pub(super) in_hand: InHand,
}

pub(super) struct Ended {
    pub(super) next: Next,
    pub(super) welcomed: bool,
    /// What goes on when `next` is to resume it.
    pub(super) in_hand: InHand,
}

/// Lives one call. When it returns, the call's work has stopped, or it goes on and is to be resumed,
/// or the worker is leaving and what follows does not claim that it has stopped.
pub(super) async fn run(
    shared: &Arc<Shared>,
    connection: u64,
    channel: Channel,
    released: Option<Lease>,
    lost: Option<Lost>,
) -> Ended {
    let (frames, received) = mpsc::channel(FRAMES);
    let mut outbox = VecDeque::new();
    let (session, in_hand, previous) = match lost {
        Some(Lost { suspended, in_hand }) => {
            let previous = Previous::Resume(suspended.lease().clone());
            (Session::resuming(now(), suspended), in_hand, Some(previous))
        }
        None => {
            let previous = released.map(Previous::Released);
            (Session::new(now()), InHand::default(), previous)
        }
    };
    outbox.push_back(wire::hello(&shared.profile, previous));
    let mut call = Call {
        shared,
        connection,
        session,
        frames: Some(frames),
        half_closing: false,
        outbox,
        incoming: Incoming::open(
            channel,
            shared.link.credential(),
            shared.profile.max_receive_bytes,
            received,
        ),
        in_hand,
        left: false,
        welcomed: false,
    };
    // Made once: each is a place in a list, and taking one costs a lock.
    let mut leaving = pin!(shared.leaving.cancelled());
    let mut alarm = Alarm::new();
    loop {
        let event = call.next_event(leaving.as_mut(), &mut alarm).await;
        let actions = call.session.apply(now(), event);
        if let Some(next) = call.act(actions).await {
            return Ended {
                next,
                welcomed: call.welcomed,
                in_hand: call.in_hand,
            };
        }
    }
}

/// Time as the session takes it, by the clock the runtime's timers go by.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}

struct Call<'a> {
    shared: &'a Arc<Shared>,
    connection: u64,
    session: Session,
    /// The request half; None when it is closed.
    frames: Option<mpsc::Sender<v1::AttachRequest>>,
    /// Close the request half once the outbox is empty.
    half_closing: bool,
    outbox: VecDeque<v1::AttachRequest>,
    incoming: Incoming,
    in_hand: InHand,
    left: bool,
    welcomed: bool,
}

impl Call<'_> {
    async fn next_event(
        &mut self,
        mut leaving: Pin<&mut WaitForCancellationFuture<'_>>,
        alarm: &mut Alarm,
    ) -> Event {
        loop {
            let wake = self.session.next_wake().map(Instant::from_std);
            let takes_appends = self.session.takes_appends();
            let takes_reply = self.session.takes_reply();
            tokio::select! {
                biased;
                event = self.incoming.next() => return event,
                () = send_one(&mut self.frames, &mut self.outbox), if !self.outbox.is_empty() => {
                    if self.outbox.is_empty() && self.half_closing {
                        self.frames = None;
                    }
                }
                step = self.in_hand.next_step(takes_appends, takes_reply) => return self.in_hand.event(step),
                () = leaving.as_mut(), if !self.left => {
                    self.left = true;
                    return Event::Leave;
                }
                () = alarm.at(wake) => return Event::Tick,
            }
        }
    }

    /// Acts out; gives what follows when the call is over.
    async fn act(&mut self, actions: Vec<Action>) -> Option<Next> {
        let mut stopping = None;
        let mut over = None;
        for action in actions {
            match action {
                Action::Send(frame) => self.send(frame),
                Action::Welcomed => {
                    self.welcomed = true;
                    self.shared.welcomed(self.connection);
                }
                Action::Start(delivery) => self.start(*delivery),
                Action::Stop(reason) => stopping = Some(reason),
                Action::Admit => self.in_hand.answer(Ok(())),
                Action::Await { worker_seq } => self.in_hand.keep_waiting(worker_seq),
                Action::Acknowledged { worker_seq } => self.in_hand.acknowledged(worker_seq),
                Action::Refuse { entry_bytes, limit } => {
                    let error = wire::entries::too_large(entry_bytes, limit);
                    self.in_hand.answer(Err(error));
                }
                Action::Oversize { bytes, limit } => {
                    warn!(bytes, limit, "a reply is larger than the harness takes");
                }
                Action::Drained { reason } => {
                    info!(reason, "the harness drains this worker");
                    self.left = true;
                    self.shared.leaving.cancel();
                }
                Action::HalfClose => {
                    self.half_closing = true;
                    if self.outbox.is_empty() {
                        self.frames = None;
                    }
                }
                Action::Over(next) => over = Some(next),
            }
        }
        if over.is_some() {
            self.frames = None;
            self.incoming = Incoming::Over;
        }
        if let Some(reason) = stopping
            && !self.in_hand.stop(reason, &self.shared.leaving).await
        {
            over = over.map(Next::without_proof);
        }
        over
    }

    fn send(&mut self, frame: Outbound) {
        let frame = wire::outbound(frame);
        // A heartbeat that has not gone out yet says the same as the one before it.
        if self.outbox.back() != Some(&frame) {
            self.outbox.push_back(frame);
        }
    }

    fn start(&mut self, mut delivery: Delivery) {
        let recorded = std::mem::take(&mut delivery.recorded);
        // A call that is over by now takes no entry of any size.
        let entry_bytes_max = self.session.entry_bytes_max().unwrap_or(0);
        let (facts, payload) = Facts::of(now(), delivery, entry_bytes_max);
        let shared = self.shared;
        let (agent, harness) = (Arc::clone(&shared.agent), shared.harness.clone());
        self.in_hand.work = Some(Work::start(agent, facts, payload, recorded, harness));
    }
}

async fn send_one(
    frames: &mut Option<mpsc::Sender<v1::AttachRequest>>,
    outbox: &mut VecDeque<v1::AttachRequest>,
) {
    let permit = match frames {
        Some(frames) => frames.reserve().await.ok(),
        None => None,
    };
    match permit {
        Some(permit) => {
            if let Some(frame) = outbox.pop_front() {
                permit.send(frame);
            }
        }
        // The transport closed the request half; the end of the call is about to be read.
        None => outbox.clear(),
    }
}

type Opening =
    Pin<Box<dyn Future<Output = Result<Response<Streaming<v1::AttachResponse>>, Status>> + Send>>;

/// The response half.
enum Incoming {
    /// No response headers yet.
    Opening(Opening),
    Open(Box<Streaming<v1::AttachResponse>>),
    Over,
}

impl Incoming {
    fn open(
        channel: Channel,
        credential: Credential,
        max_receive_bytes: u64,
        frames: mpsc::Receiver<v1::AttachRequest>,
    ) -> Self {
        let bytes = max_receive_bytes.saturating_add(DECODE_SLACK);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut client = WorkerServiceClient::with_interceptor(channel, credential)
            .max_decoding_message_size(bytes);
        Self::Opening(Box::pin(async move {
            client.attach(ReceiverStream::new(frames)).await
        }))
    }

    /// The next frame or the end. Can be dropped and called again.
    async fn next(&mut self) -> Event {
        if let Self::Opening(opening) = self {
            match opening.await {
                Ok(response) => *self = Self::Open(Box::new(response.into_inner())),
                Err(status) => {
                    *self = Self::Over;
                    return Event::Ended(wire::status::end(&status));
                }
            }
        }
        let Self::Open(stream) = self else {
            return std::future::pending().await;
        };
        match stream.message().await {
            Ok(Some(frame)) => Event::Frame(wire::inbound(frame)),
            Ok(None) => {
                *self = Self::Over;
                Event::Ended(wire::status::closed())
            }
            Err(status) => {
                *self = Self::Over;
                Event::Ended(wire::status::end(&status))
            }
        }
    }
}
