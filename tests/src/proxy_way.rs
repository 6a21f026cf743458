//! One way of one connection of the proxy: what comes in goes out, or not, as the test says.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, watch};

use crate::proxy_frames::{Frames, Kind};

const CHUNK: usize = 16 << 10;

/// What is done with the bytes of one way.
#[derive(Debug, Clone)]
pub(crate) enum Mode {
    /// They go on as they came.
    Faithful,
    /// So many more go on, then the connection is reset.
    Only(Arc<AtomicUsize>),
    /// They wait.
    Stalled,
    /// They go nowhere, from the next frame on, and PINGs are answered.
    Swallowing,
}

/// One way of one connection.
pub(crate) struct Carrying<'a> {
    pub(crate) frames: Frames,
    pub(crate) mode: watch::Receiver<Mode>,
    /// Frames of the proxy's own that go out between others.
    pub(crate) inject: mpsc::Receiver<Vec<u8>>,
    /// Where answers to PINGs go: into the other way.
    pub(crate) answers: mpsc::Sender<Vec<u8>>,
    pub(crate) pings: Arc<AtomicUsize>,
    /// Where the newest stream is noted, in the way of the one who opens them.
    pub(crate) newest_stream: Option<&'a AtomicU32>,
}

impl Carrying<'_> {
    /// Carries until `from` is closed.
    pub(crate) async fn run(
        mut self,
        mut from: impl AsyncReadExt + Unpin,
        mut to: impl AsyncWriteExt + Unpin,
    ) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK];
        let mut waiting: Vec<u8> = Vec::new();
        loop {
            let mode = self.mode.borrow_and_update().clone();
            let stalled = matches!(mode, Mode::Stalled);
            match mode {
                Mode::Faithful => self.forward(&mut waiting, &mut to, false).await?,
                Mode::Only(left) => forward_only(&mut waiting, &mut to, &left).await?,
                Mode::Stalled => {}
                Mode::Swallowing => {
                    self.forward(&mut waiting, &mut to, true).await?;
                    self.swallow(&mut waiting, &mut to).await?;
                }
            }
            tokio::select! {
                biased;
                changed = self.mode.changed() => if changed.is_err() {
                    return Ok(());
                },
                Some(frame) = self.inject.recv(), if !stalled && self.frames.at_boundary() => {
                    to.write_all(&frame).await?;
                }
                read = from.read(&mut buffer), if !stalled => match read? {
                    0 => return to.shutdown().await,
                    read => waiting.extend_from_slice(&buffer[..read]),
                },
            }
        }
    }

    /// Writes what waits, with frames of the proxy's own between; all of it, or up to the end of
    /// the frame it is in.
    async fn forward(
        &mut self,
        waiting: &mut Vec<u8>,
        to: &mut (impl AsyncWriteExt + Unpin),
        only_to_boundary: bool,
    ) -> io::Result<()> {
        let mut written = 0;
        while written < waiting.len() && !(only_to_boundary && self.frames.at_boundary()) {
            let rest = &waiting[written..];
            let piece = self.frames.advance(rest);
            to.write_all(&rest[..piece]).await?;
            written += piece;
            if self.frames.at_boundary()
                && let Ok(frame) = self.inject.try_recv()
            {
                to.write_all(&frame).await?;
            }
        }
        waiting.drain(..written);
        if let Some(newest) = self.newest_stream {
            newest.store(self.frames.newest_stream(), Ordering::SeqCst);
        }
        Ok(())
    }

    /// Takes the whole frames that wait: answers a PING, passes the answer to one on, drops others.
    async fn swallow(
        &mut self,
        waiting: &mut Vec<u8>,
        to: &mut (impl AsyncWriteExt + Unpin),
    ) -> io::Result<()> {
        while self.frames.at_boundary()
            && let Some(length) = Frames::length(waiting)
            && length <= waiting.len()
        {
            let frame: Vec<u8> = waiting.drain(..length).collect();
            match Frames::kind(&frame) {
                Kind::Ping(answer) => {
                    // Full when that way does not go out: then nobody waits for the answer.
                    if self.answers.try_send(answer).is_ok() {
                        self.pings.fetch_add(1, Ordering::SeqCst);
                    }
                }
                Kind::PingAnswer => to.write_all(&frame).await?,
                Kind::Other => {}
            }
        }
        Ok(())
    }
}

/// Writes as much of what waits as may still go, and breaks off when that is not all.
async fn forward_only(
    waiting: &mut Vec<u8>,
    to: &mut (impl AsyncWriteExt + Unpin),
    left: &AtomicUsize,
) -> io::Result<()> {
    let piece = waiting.len().min(left.load(Ordering::SeqCst));
    to.write_all(&waiting[..piece]).await?;
    left.fetch_sub(piece, Ordering::SeqCst);
    match piece < waiting.len() {
        true => Err(io::ErrorKind::ConnectionReset.into()),
        false => {
            waiting.clear();
            Ok(())
        }
    }
}
