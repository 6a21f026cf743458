//! The signals that ask a process to stop.
//!
//! Owns listening to SIGTERM and SIGINT. What follows is `worker`'s affair.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::{Error, ErrorKind};

#[derive(Debug)]
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn listen() -> Result<Self, Error> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Error::new(ErrorKind::InvalidWorker, "cannot listen to signals").with_source(error)
            })
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// The name of the next one.
    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
