//! One slot: one Attach call after another.
//!
//! Owns when the next call is opened and what its hello says of the last one. Ends when the worker
//! has left, was drained or is refused for good.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::Shared;
use super::call::{self, Lost};
use crate::error::Error;
use crate::retry::Backoff;
use crate::session::{Fault, Lease, Next};
use crate::wire;

/// A call that lasted this long makes the next wait a short one again.
const STEADY: Duration = Duration::from_secs(5);
/// How long a leaving worker tries to reach a harness to which it has to say that cancelled work
/// has stopped.
const LAST_WORD: Duration = Duration::from_secs(2);
/// The longest wait between tries while an attempt may still be resumed.
const RESUME_WAIT: Duration = Duration::from_millis(500);

pub(super) async fn run(shared: Arc<Shared>) -> Result<(), Error> {
    let mut slot = Slot {
        backoff: Backoff::new(shared.backoff_initial, shared.backoff_max),
        shared,
        released: None,
        lost: None,
    };
    loop {
        // Work that goes on is seen to its end first.
        let leaving = slot.shared.leaving.is_cancelled() && slot.lost.is_none();
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
    /// What the next hello resumes.
    lost: Option<Lost>,
}

impl Slot {
    /// Opens a call, lives it and waits as long as its end demands. True when the slot is done.
    async fn one_call(&mut self) -> Result<bool, Error> {
        let shared = Arc::clone(&self.shared);
        let has_lost = self.lost.is_some();
        let hurry = has_lost.then(|| shared.link.hurry());
        let connected = tokio::select! {
            biased;
            () = window_over(&mut self.lost) => None,
            channel = shared.link.channel() => Some(channel?),
            () = left_alone(&shared, self.released.is_some()), if !has_lost => return Ok(true),
        };
        let Some((number, channel)) = connected else {
            return Ok(self.stop_lost().await);
        };
        drop(hurry);
        let opened = Instant::now();
        let lost = self.lost.take();
        let ended = call::run(&shared, number, channel, self.released.clone(), lost).await;
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
                tell(&shared, number, fault, &why).await;
                self.wait(least).await;
            }
            Next::Resume {
                suspended,
                least,
                why,
                fault,
            } => {
                if ended.welcomed {
                    self.backoff.reset();
                }
                let in_hand = ended.in_hand;
                self.lost = Some(Lost { suspended, in_hand });
                let wait = self.backoff.next_wait(None).min(RESUME_WAIT);
                let wait = wait.saturating_add(least.unwrap_or_default());
                let _hurry = shared.link.hurry();
                tokio::select! {
                    () = window_over(&mut self.lost) => {}
                    () = async {
                        tell(&shared, number, fault, &why).await;
                        tokio::time::sleep(wait).await;
                    } => {}
                }
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

    /// Stops the attempt that no call has resumed. True when the slot is done.
    async fn stop_lost(&mut self) -> bool {
        let Some(mut lost) = self.lost.take() else {
            return false;
        };
        let leaving = &self.shared.leaving;
        let stopped = lost.in_hand.stop(lost.suspended.over(), leaving).await;
        self.released = stopped.then(|| lost.suspended.lease().clone());
        !stopped
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

/// Says in the log, and to those who share the connection, why a call is no more.
async fn tell(shared: &Shared, number: u64, fault: Fault, why: &str) {
    let link = &shared.link;
    match fault {
        Fault::Connection => {
            debug!(why, "a call was lost with its connection");
            link.lost(number, why).await;
        }
        Fault::Harness => link.away(number, why),
        Fault::Call => warn!(why, "a call was lost; opening it again"),
        Fault::Refusal => warn!(why, "the harness ended a call"),
    }
}

/// Waits until a slot need not reach the harness any more.
async fn left_alone(shared: &Shared, has_a_word: bool) {
    shared.leaving.cancelled().await;
    if has_a_word {
        tokio::time::sleep(LAST_WORD).await;
    }
}

/// Lets the attempt that goes on do so until it has to stop.
async fn window_over(lost: &mut Option<Lost>) {
    match lost {
        Some(Lost { suspended, in_hand }) => in_hand.work_until(suspended.until().into()).await,
        None => std::future::pending().await,
    }
}
