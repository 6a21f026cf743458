//! A stream that watches its first bytes: whether a connection has begun, and whether it speaks
//! TLS, which this port does not.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The length of the HTTP/2 preface; a shorter HTTP/1 request does not exist either.
const PREFACE_BYTES: usize = 24;

/// The first byte of a TLS handshake record.
const TLS_HANDSHAKE: u8 = 0x16;

/// What was seen so far.
#[derive(Debug, Default)]
pub(super) struct Seen {
    bytes: AtomicUsize,
    tls: AtomicBool,
}

impl Seen {
    /// Whether as much came as the shortest beginning has.
    pub(super) fn has_begun(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) >= PREFACE_BYTES
    }

    /// Whether the first byte was that of a TLS handshake.
    pub(super) fn is_tls(&self) -> bool {
        self.tls.load(Ordering::Relaxed)
    }
}

/// The stream.
pub(super) struct FirstBytes<S> {
    inner: S,
    seen: Arc<Seen>,
    begun: bool,
}

impl<S> FirstBytes<S> {
    pub(super) fn new(inner: S, seen: Arc<Seen>) -> Self {
        Self {
            inner,
            seen,
            begun: false,
        }
    }

    fn look(&mut self, new: &[u8]) -> io::Result<()> {
        let before = self.seen.bytes.fetch_add(new.len(), Ordering::Relaxed);
        if before == 0 && new.first() == Some(&TLS_HANDSHAKE) {
            self.seen.tls.store(true, Ordering::Relaxed);
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "TLS on a plain port",
            ));
        }
        self.begun = before + new.len() >= PREFACE_BYTES;
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FirstBytes<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let start = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        if self.begun {
            return Poll::Ready(Ok(()));
        }
        Poll::Ready(self.look(&buf.filled()[start..]))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FirstBytes<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
