//! Whether the other end has ever said anything.
//!
//! Owns the stream under a connection and a note of the first byte read from it: a port that
//! accepts and stays silent is no harness, whatever timer ends the wait. Reads no frame.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tower_service::Service;

use super::Address;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What was heard, on whichever connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    Nothing,
    Something,
    /// It was closed before anything was.
    End,
}

/// What was heard over a channel. Something once heard stays heard, so that what breaks later is not
/// taken for a port that never spoke. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Hearing(Arc<watch::Sender<Heard>>);

impl Hearing {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Heard::Nothing)))
    }

    fn note(&self, heard: Heard) {
        self.0.send_if_modified(|known| {
            let news = *known != Heard::Something;
            if news {
                *known = heard;
            }
            news
        });
    }

    /// Whether anything was heard.
    pub(crate) fn any(&self) -> bool {
        *self.0.borrow() == Heard::Something
    }

    /// Whether something is heard within `patience`; at once when it was before.
    pub(crate) async fn within(&self, patience: Duration) -> bool {
        let mut heard = self.0.subscribe();
        let known = heard.wait_for(|heard| *heard != Heard::Nothing);
        let told = tokio::time::timeout(patience, known).await;
        told.is_ok_and(|heard| heard.is_ok_and(|heard| *heard == Heard::Something))
    }

    /// Ends once nothing was heard for `patience`; never when something was.
    pub(crate) async fn silence(&self, patience: Duration) {
        let mut heard = self.0.subscribe();
        let something = heard.wait_for(|heard| *heard == Heard::Something);
        if tokio::time::timeout(patience, something).await.is_ok() {
            std::future::pending().await
        }
    }
}

/// Makes the connections of a channel, and listens on each.
#[derive(Clone)]
pub(super) struct Connector {
    address: Address,
    tcp: HttpConnector,
    hearing: Hearing,
}

impl Connector {
    pub(super) fn new(address: Address, hearing: Hearing) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        Self {
            address,
            tcp,
            hearing,
        }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Heeded>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let mut tcp = self.tcp.clone();
        let (address, hearing) = (self.address.clone(), self.hearing.clone());
        Box::pin(async move {
            let stream = match address {
                Address::Tcp(_) => Stream::Tcp(tcp.call(uri).await?.into_inner()),
                Address::Unix(path) => Stream::Unix(UnixStream::connect(path).await?),
            };
            Ok(TokioIo::new(Heeded {
                stream,
                unheard: Some(hearing),
            }))
        })
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A connection whose first byte is noted.
pub(super) struct Heeded {
    stream: Stream,
    unheard: Option<Hearing>,
}

impl Drop for Heeded {
    fn drop(&mut self) {
        // A write may have failed before anything was read.
        if let Some(hearing) = self.unheard.take() {
            hearing.note(Heard::End);
        }
    }
}

impl AsyncRead for Heeded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = match &mut self.stream {
            Stream::Tcp(stream) => ready!(Pin::new(stream).poll_read(cx, buf)),
            Stream::Unix(stream) => ready!(Pin::new(stream).poll_read(cx, buf)),
        };
        if let Some(hearing) = self.unheard.take() {
            let heard = match &read {
                Ok(()) if buf.filled().len() > before => Heard::Something,
                Ok(()) | Err(_) => Heard::End,
            };
            hearing.note(heard);
        }
        Poll::Ready(read)
    }
}

impl AsyncWrite for Heeded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, data),
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, data),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, data),
            Stream::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, data),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Tcp(stream) => stream.is_write_vectored(),
            Stream::Unix(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
