//! Where what an agent writes goes.
//!
//! Owns the two ends an entry can go to: the call the request came from, or a recording for
//! tests. Does not know the window; the call answers when an entry has room.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};

use crate::error::{Error, ErrorKind};
use crate::session::Entry;

/// One entry on its way to the call. `sent` is answered when it has gone out, and dropped when
/// the work is to stop.
#[derive(Debug)]
pub(crate) struct Append {
    pub(crate) entry: Entry,
    pub(crate) sent: oneshot::Sender<Result<(), Error>>,
}

#[derive(Debug, Clone)]
pub(crate) enum Sink {
    // Boxed: a channel of even one makes room for a block of them, at each request.
    Call(mpsc::Sender<Box<Append>>),
    Recording(Recording),
}

/// What an agent under test wrote, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recording(Arc<Mutex<Vec<Entry>>>);

impl Recording {
    fn push(&self, entry: Entry) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(entry);
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Sink {
    pub(super) async fn append(&self, entry: Entry) -> Result<(), Error> {
        match self {
            Self::Call(call) => {
                let (sent, outcome) = oneshot::channel();
                if call.send(Box::new(Append { entry, sent })).await.is_err() {
                    return Err(over());
                }
                outcome.await.unwrap_or_else(|_| Err(over()))
            }
            Self::Recording(recording) => {
                recording.push(entry);
                Ok(())
            }
        }
    }
}

fn over() -> Error {
    Error::new(
        ErrorKind::Cancelled,
        "the request is no longer in this worker's hands",
    )
}
