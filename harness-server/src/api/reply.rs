//! The body of any response: what the library made, or that in the hands of one who watches it.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tonic::Status;

use super::attach_body::AttachBody;
use super::unary_body::UnaryBody;

/// A body; not one behind a pointer more, as each ask has one.
pub enum Reply {
    /// As the library made it.
    Whole(tonic::body::Body),
    /// Of a unary call.
    Once(UnaryBody),
    /// Of an Attach call.
    Attach(AttachBody),
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match &mut *self {
            Self::Whole(body) => Pin::new(body).poll_frame(cx),
            Self::Once(body) => Pin::new(body).poll_frame(cx),
            Self::Attach(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Once(body) => body.is_end_stream(),
            Self::Attach(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Once(body) => body.size_hint(),
            Self::Attach(body) => body.size_hint(),
        }
    }
}
