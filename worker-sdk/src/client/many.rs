//! Many asks on one call.
//!
//! Owns [`Many`], the handle; what is open on the call, and the one task that reads it, are in
//! `call`. An ask is a frame in a queue and a place to be answered at: no task, no call of its own.

mod call;

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use harness_proto::v1;
use harness_proto::v1::ask_many_request::Frame;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::ask::{self, Ask, OfMany};
use super::{Answer, Harness};
use crate::error::{Error, ErrorKind};
use crate::payload::{FromPayload, IntoPayload};
use call::{Open, Place};

/// The most asks open on one call, whatever the harness would allow.
const OPEN_MAX: usize = 1 << 16;
/// An open ask has at most its own frame and its cancel in the queue, so this is never full.
const QUEUE: usize = 2 * OPEN_MAX;
/// The longest the harness may take to open the call.
const OPEN_PATIENCE: Duration = Duration::from_secs(10);

/// One call that carries many asks, the fastest way to ask a lot. Cheap to clone; clones are the
/// same call.
///
/// An ask waits for room in the harness's window, goes out, and is answered when it is: answers
/// come in the order the runs complete. Dropping its future cancels it. The call is closed when the
/// last clone and the last ask are gone. When it breaks, every ask on it fails with `Transport` and
/// so does every later one: open another call with [`Harness::ask_many`].
///
/// ```no_run
/// use worker_sdk::Harness;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let harness = Harness::connect("http://127.0.0.1:7070").await?;
/// let many = harness.ask_many().await?;
/// let mut asking = tokio::task::JoinSet::new();
/// for chapter in 1..=100 {
///     asking.spawn(many.ask::<String>("summarize", &chapter).into_future());
/// }
/// while let Some(answer) = asking.join_next().await {
///     println!("{}", answer??.value);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Many(Arc<Call>);

#[derive(Debug)]
struct Call {
    #[expect(dead_code, reason = "keeps the reader alive")]
    harness: Harness,
    /// Dropping it half-closes the call.
    frames: mpsc::Sender<v1::AskManyRequest>,
    open: Arc<Open>,
}

impl Many {
    pub(super) async fn open(harness: &Harness) -> Result<Self, Error> {
        let (frames, queue) = mpsc::channel(QUEUE);
        let mut runs = harness.runs();
        let opening = tokio::time::timeout(OPEN_PATIENCE, async {
            let call = runs.ask_many(ReceiverStream::new(queue));
            let mut answers = harness.called(call).await?;
            let window = call::window(harness, &mut answers).await?;
            Ok((answers, window.min(OPEN_MAX)))
        });
        let opened = opening.await;
        let (answers, window) =
            opened.unwrap_or_else(|_| Err(harness.unanswered(OPEN_PATIENCE)))?;
        let open = Arc::new(Open::new(window, frames.downgrade()));
        let reader = call::read(Arc::clone(&open), answers, harness.shared.address.clone());
        harness.spawn_reader(reader);
        Ok(Self(Arc::new(Call {
            harness: harness.clone(),
            frames,
            open,
        })))
    }

    /// How many asks may be open on this call; more wait here for room.
    pub fn window(&self) -> usize {
        self.0.open.window()
    }

    /// Asks an agent; see [`Harness::ask`]. Sent when the returned [`Ask`] is awaited and there is
    /// room; waiting for room is part of its timeout. One that the harness does not answer is given
    /// up one to two seconds after its timeout.
    pub fn ask<R: FromPayload>(
        &self,
        agent: impl Into<String>,
        request: impl IntoPayload,
    ) -> Ask<R, OfMany> {
        Ask::new(OfMany(self.clone()), agent.into(), request.into_payload())
    }

    /// Waits for room, at most as long as the ask may take; what is left of its timeout.
    async fn room(&self, timeout: Duration) -> Result<Duration, Error> {
        let open = &self.0.open;
        if open.try_room()? {
            return Ok(timeout);
        }
        let start = tokio::time::Instant::now();
        let waited = tokio::time::timeout(timeout, open.room()).await;
        let left = timeout.saturating_sub(start.elapsed());
        match waited {
            Ok(room) => room.map(|()| left.max(Duration::from_millis(1))),
            Err(_) => {
                let window = self.window();
                let message = format!("no room among the {window} open asks within {timeout:?}");
                Err(Error::new(ErrorKind::DeadlineExceeded, message))
            }
        }
    }
}

impl<R: FromPayload> Ask<R, OfMany> {
    async fn send(self) -> Result<Answer<R>, Error> {
        let (OfMany(many), mut prepared) = self.prepare()?;
        let left = many.room(prepared.timeout).await?;
        if left < prepared.timeout {
            prepared.timeout = left;
            prepared.options.timeout = Some(crate::wire::duration_out(left));
        }
        let call = &*many.0;
        let Place { tag, answer } = call.open.enter(prepared.patience())?;
        let frame = Frame::Ask(v1::TaggedAsk {
            tag: tag.number(),
            agent: prepared.agent,
            payload: Some(prepared.payload),
            options: Some(prepared.options),
        });
        let frame = v1::AskManyRequest { frame: Some(frame) };
        // Never full. What the transport has dropped has an end that the reader tells.
        let _ = call.frames.try_send(frame);
        let answered = answer.await.unwrap_or_else(|_| Err(call.open.ended()));
        tag.answered();
        let (run_id, attempt, payload) = answered?;
        ask::read("the agent", run_id, attempt, Some(payload))
    }
}

impl<R: FromPayload + 'static> IntoFuture for Ask<R, OfMany> {
    type Output = Result<Answer<R>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}
