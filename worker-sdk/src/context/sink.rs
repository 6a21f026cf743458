//! Where what an agent writes goes.
//!
//! Owns the two ends an entry can go to: the call the request came from, or any other journal.
//! Does not know the window; the call answers when an entry has room, or is taken.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

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
#[derive(Clone)]
pub(crate) enum Sink {
    Call(Call),
    Journal(Arc<dyn Journal>),
}

/// The journal that the harness keeps.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    // Boxed: a channel of even one makes room for a block of them, at each request.
    pub(crate) appends: mpsc::Sender<Box<Append>>,
    /// What came with the request.
    pub(crate) recorded: Vec<Recorded>,
}

impl Call {
    async fn write(&self, entry: Entry) -> Result<(), Error> {
        let (sent, outcome) = oneshot::channel();
        if self
            .appends
            .send(Box::new(Append { entry, sent }))
            .await
            .is_err()
        {
            return Err(over());
        }
        outcome.await.unwrap_or_else(|_| Err(over()))
    }
}

impl Journal for Call {
    fn replay(&self) -> Vec<Recorded> {
        self.recorded.clone()
    }

    fn append(&self, entry: Entry) -> Appending<'_> {
        Box::pin(self.write(entry))
    }
}

impl Sink {
    pub(super) fn replay(&self) -> Vec<Recorded> {
        match self {
            Self::Call(call) => call.replay(),
            Self::Journal(journal) => journal.replay(),
        }
    }

    pub(super) async fn append(&self, entry: Entry) -> Result<(), Error> {
        match self {
            Self::Call(call) => call.write(entry).await,
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
