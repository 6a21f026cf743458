//! The response body of a unary call: a reply that its caller does not read is not kept for ever.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::Sleep;
use tonic::Status;

use super::status;
use super::unsent::Unsent;

/// A frame of fewer bytes is not watched: any caller's window takes it.
const WATCHED_BYTES: usize = 16 * 1024;

/// The body.
pub struct UnaryBody {
    inner: tonic::body::Body,
    timeout: Duration,
    watched: Option<Watched>,
}

/// A large frame that was handed over, and how long it may take to leave.
struct Watched {
    unsent: Arc<Unsent>,
    timer: Pin<Box<Sleep>>,
}

impl UnaryBody {
    /// A body whose large frames have to leave within `timeout`.
    pub(super) fn new(inner: tonic::body::Body, timeout: Duration) -> Self {
        Self {
            inner,
            timeout,
            watched: None,
        }
    }
}

impl Body for UnaryBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(watched) = &mut self.watched
            && watched.unsent.poll_gone(cx).is_pending()
        {
            ready!(watched.timer.as_mut().poll(cx));
            return Poll::Ready(Some(Err(status::reset())));
        }
        self.watched = None;
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        let large = matches!(&frame, Some(Ok(frame)) if frame
            .data_ref()
            .is_some_and(|data| data.len() >= WATCHED_BYTES));
        if !large {
            return Poll::Ready(frame);
        }
        let unsent = Arc::<Unsent>::default();
        let tracked = unsent.clone();
        self.watched = Some(Watched {
            unsent,
            timer: Box::pin(tokio::time::sleep(self.timeout)),
        });
        Poll::Ready(
            frame.map(|frame| {
                frame.map(|frame| frame.map_data(|data| Unsent::track(&tracked, data)))
            }),
        )
    }

    fn is_end_stream(&self) -> bool {
        self.watched.is_none() && self.inner.is_end_stream()
    }
}
