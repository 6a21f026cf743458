//! One slot: one Attach call after another.
//!
//! Owns when the next call is opened and what its hello says of the last one. Ends when the worker
//! has left, was drained or is refused for good.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{Shared, call};
use crate::error::Error;
use crate::retry::Backoff;
use crate::session::{Fault, Lease, Next};
use crate::wire;

/// A call that lasted this long makes the next wait a short one again.
const STEADY: Duration = Duration::from_secs(5);
/// How long a leaving worker tries to reach a harness to which it has to say that cancelled work
/// has stopped.
const LAST_WORD: Duration = Duration::from_secs(2);

pub(super) async fn run(shared: Arc<Shared>) -> Result<(), Error> {
    let mut slot = Slot {
        backoff: Backoff::new(shared.backoff_initial, shared.backoff_max),
        shared,
        released: None,
    };
    loop {
        let leaving = slot.shared.leaving.is_cancelled();
        let ended = match (leaving, slot.released.is_some()) {
            (true, false) => return Ok(()),
            // The one try to say that cancelled work has stopped.
            (true, true) => return slot.one_call().await.map(|_| ()),
            (false, _) => slot.one_call().await?,
        };
        if ended {
            return Ok(());
        }
    }
}

struct Slot {
    shared: Arc<Shared>,
    backoff: Backoff,
    /// What the next hello says has stopped. Kept until a hello that said it was welcomed.
    released: Option<Lease>,
}

impl Slot {
    /// Opens a call, lives it and waits as long as its end demands. True when the slot is done.
    async fn one_call(&mut self) -> Result<bool, Error> {
        let shared = Arc::clone(&self.shared);
        let (number, channel) = tokio::select! {
            channel = shared.link.channel() => channel?,
            () = self.left_alone() => return Ok(true),
        };
        let opened = Instant::now();
        let ended = call::run(&shared, number, channel, self.released.clone()).await;
        if ended.welcomed {
            self.released = None;
        }
        match ended.next {
            Next::AtOnce { released } => {
                self.backoff.reset();
                self.released = released;
            }
            Next::BackOff {
                released,
                least,
                why,
                fault,
            } => {
                if ended.welcomed && opened.elapsed() >= STEADY {
                    self.backoff.reset();
                }
                self.released = released.or(self.released.take());
                match fault {
                    Fault::Connection => {
                        debug!(why, "a call was lost with its connection");
                        shared.link.lost(number, &why).await;
                    }
                    Fault::Harness => shared.link.away(number, &why),
                    Fault::Call => warn!(why, "a call was lost; opening it again"),
                    Fault::Refusal => warn!(why, "the harness ended a call"),
                }
                self.wait(least).await;
            }
            Next::Left => return Ok(true),
            Next::Drained => {
                info!("this worker was drained");
                shared.leaving.cancel();
                return Ok(true);
            }
            Next::GiveUp(end) => return Err(wire::status::refusal(end)),
        }
        Ok(false)
    }

    /// Waits until this slot need not reach the harness any more.
    async fn left_alone(&self) {
        self.shared.leaving.cancelled().await;
        if self.released.is_some() {
            tokio::time::sleep(LAST_WORD).await;
        }
    }

    /// Waits before the next call, but not when the worker leaves.
    async fn wait(&mut self, least: Option<Duration>) {
        let wait = self.backoff.next_wait(least);
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = self.shared.leaving.cancelled() => {}
        }
    }
}
