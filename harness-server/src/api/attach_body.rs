//! The response body of an Attach call: makes sure that the end of the call is never stuck behind
//! frames the worker does not read.
//!
//! A frame counts as unsent until the transport has let go of its bytes. While one is unsent no
//! other is handed over, so the end finds at most one before it; if that one does not leave in
//! time, the stream is reset, which drops it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::Sleep;
use tonic::Status;

use crate::engine::Outbox;

use super::status;
use super::unsent::Unsent;

/// How long an unsent frame may hold up the end of its call.
const UNSENT_TIMEOUT: Duration = Duration::from_millis(100);

/// Marks a response whose body is to be wrapped.
#[derive(Clone)]
pub(super) struct AttachOutbox(pub(super) Arc<Outbox>);

/// The body.
pub struct AttachBody {
    inner: tonic::body::Body,
    outbox: Arc<Outbox>,
    unsent: Arc<Unsent>,
    /// Whether the last frame was unsent when the next one was to go: if the call is over now, it
    /// was dropped and has not left.
    held_up: bool,
    patience: Option<Pin<Box<Sleep>>>,
}

impl AttachBody {
    pub(super) fn new(inner: tonic::body::Body, outbox: Arc<Outbox>) -> Self {
        Self {
            inner,
            outbox,
            unsent: Arc::default(),
            held_up: false,
            patience: None,
        }
    }
}

impl Drop for AttachBody {
    /// Before `inner` tells what was not delivered: where nothing was to follow the last frame,
    /// nobody has looked yet whether that has left.
    fn drop(&mut self) {
        if !self.held_up && self.unsent.is_gone() {
            self.outbox.let_go();
        }
    }
}

impl Body for AttachBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if !self.outbox.is_empty() {
            self.held_up = self.unsent.poll_gone(cx).is_pending();
            if self.held_up {
                if !self.outbox.poll_has_end(cx) {
                    return Poll::Pending;
                }
                let patience = self
                    .patience
                    .get_or_insert_with(|| Box::pin(tokio::time::sleep(UNSENT_TIMEOUT)));
                ready!(patience.as_mut().poll(cx));
                return Poll::Ready(Some(Err(status::reset())));
            }
            self.outbox.let_go();
        }
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        Poll::Ready(frame.map(|frame| {
            frame.map(|frame| frame.map_data(|data| Unsent::track(&self.unsent, data)))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }
}

#[cfg(test)]
#[path = "attach_body_tests.rs"]
mod tests;
