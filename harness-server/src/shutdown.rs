//! The signals that ask this process to stop: the first one politely, the second one at once.
//!
//! Owns listening to SIGTERM and SIGINT. What leaving means is the command's affair.

use std::fmt;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// What asked the process to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// SIGTERM.
    Terminate,
    /// SIGINT, the terminal's Ctrl-C.
    Interrupt,
}

impl Stop {
    /// What a shell reports for a process that this signal ended.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::Terminate => 128 + 15,
            Self::Interrupt => 128 + 2,
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Terminate => "SIGTERM",
            Self::Interrupt => "SIGINT",
        })
    }
}

/// Listens to the two signals, which from then on no longer end the process by themselves.
#[derive(Debug)]
pub(crate) struct Stops {
    terminate: Signal,
    interrupt: Signal,
}

impl Stops {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    pub(crate) async fn next(&mut self) -> Stop {
        tokio::select! {
            _ = self.terminate.recv() => Stop::Terminate,
            _ = self.interrupt.recv() => Stop::Interrupt,
        }
    }

    /// Runs `work` to its end. The first signal cancels its token; at the second one the work is
    /// dropped where it stands.
    ///
    /// # Errors
    /// The second signal.
    pub(crate) async fn run<T>(
        mut self,
        work: impl AsyncFnOnce(CancellationToken) -> T,
    ) -> Result<T, Stop> {
        let token = CancellationToken::new();
        let mut work = std::pin::pin!(work(token.clone()));
        loop {
            tokio::select! {
                result = &mut work => return Ok(result),
                stop = self.next() => {
                    if token.is_cancelled() {
                        return Err(stop);
                    }
                    tracing::info!(signal = %stop, "asked to stop");
                    token.cancel();
                }
            }
        }
    }
}
