//! Where what an agent writes goes.
//!
//! Owns the two ends an entry can go to: the call the request came from, or any other journal.
//! Does not know the window; the call answers when an entry has room, or is taken.

use std::collections::VecDeque;
use std::future::{pending, poll_fn};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use tokio::sync::oneshot;

use crate::error::{Error, ErrorKind};
use crate::journal::{Appending, Entry, Journal, Recorded};

/// One entry on its way to the call. `sent` is answered when it has gone out, for a step when the
/// harness has acknowledged it, and dropped when the work is to stop.
#[derive(Debug)]
pub(crate) struct Append {
    pub(crate) entry: Entry,
    pub(crate) sent: oneshot::Sender<Result<(), Error>>,
}

/// The call of a worker needs no allocation to be written to, and is what nearly all contexts have.
pub(crate) enum Sink {
    Call(Call),
    Journal(Arc<dyn Journal>),
}

/// The journal that the harness keeps.
#[derive(Debug)]
pub(crate) struct Call {
    tray: Tray,
    /// What came with the request.
    recorded: Vec<Recorded>,
}

/// What one request's agent wants to write, until its call takes it. Holds one entry for each
/// append that is awaited; takes no memory until there is one.
#[derive(Debug, Default)]
struct Tray(Mutex<Lying>);

#[derive(Debug, Default)]
struct Lying {
    appends: VecDeque<Append>,
    taker: Option<Waker>,
    closed: bool,
}

impl Tray {
    async fn append(&self, entry: Entry) -> Result<(), Error> {
        let (sent, outcome) = oneshot::channel();
        let taker = {
            let mut lying = self.lock();
            if lying.closed {
                return Err(over());
            }
            // What nobody awaits any more makes room.
            lying.appends.retain(|append| !append.sent.is_closed());
            lying.appends.push_back(Append { entry, sent });
            lying.taker.take()
        };
        if let Some(taker) = taker {
            taker.wake();
        }
        outcome.await.unwrap_or_else(|_| Err(over()))
    }

    /// Waits for the next entry. One task may wait.
    async fn next(&self) -> Append {
        poll_fn(|cx| {
            let mut lying = self.lock();
            match lying.appends.pop_front() {
                Some(append) => Poll::Ready(append),
                None => {
                    lying.taker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Takes nothing more; who waits gets an error.
    fn close(&self) {
        let mut lying = self.lock();
        lying.closed = true;
        let appends = std::mem::take(&mut lying.appends);
        drop(lying);
        drop(appends);
    }

    fn lock(&self) -> MutexGuard<'_, Lying> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Journal for Call {
    fn replay(&self) -> Vec<Recorded> {
        self.recorded.clone()
    }

    fn append(&self, entry: Entry) -> Appending<'_> {
        Box::pin(self.tray.append(entry))
    }
}

impl Sink {
    /// To a call, whose request came with what is recorded.
    pub(crate) fn call(recorded: Vec<Recorded>) -> Self {
        let tray = Tray::default();
        Self::Call(Call { tray, recorded })
    }

    /// What goes to the call next. One task may wait.
    pub(crate) async fn next(&self) -> Append {
        match self {
            Self::Call(call) => call.tray.next().await,
            Self::Journal(_) => pending().await,
        }
    }

    /// The call takes nothing more; who waits for it gets an error.
    pub(crate) fn close(&self) {
        match self {
            Self::Call(call) => call.tray.close(),
            Self::Journal(_) => {}
        }
    }

    pub(super) fn replay(&self) -> Vec<Recorded> {
        match self {
            Self::Call(call) => call.replay(),
            Self::Journal(journal) => journal.replay(),
        }
    }

    pub(super) async fn append(&self, entry: Entry) -> Result<(), Error> {
        match self {
            Self::Call(call) => call.tray.append(entry).await,
            Self::Journal(journal) => journal.append(entry).await,
        }
    }
}

fn over() -> Error {
    Error::new(
        ErrorKind::Cancelled,
        "the request is no longer in this worker's hands",
    )
}
