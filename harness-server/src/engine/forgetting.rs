//! What the store is to forget, and what it is to keep: runs that ended long ago, and the agents that
//! are there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::store::{Stamp, Step, Written};

use super::Engine;
use super::storing::Storage;

/// Ended runs that are deleted at once.
const FORGOTTEN: usize = 256;

/// How often old runs are looked for.
pub(super) const FORGET_EVERY: Duration = Duration::from_secs(60);

impl Engine {
    /// Has the store forget what ended long ago, and keep the agents that are there.
    pub(super) async fn forget(&self, storage: &Arc<Storage>) {
        let agents: Vec<_> = self.lock().core.attached_agents().cloned().collect();
        self.keep_agents(agents);
        self.lock().tails.forget_ended();
        let now = self.stamp(Instant::now());
        let kept = i64::try_from(self.limits().retention.as_micros()).unwrap_or(i64::MAX);
        let before = Stamp(now.0.saturating_sub(kept));
        loop {
            let (told, forgotten) = tokio::sync::oneshot::channel();
            let max = FORGOTTEN;
            storage.store().write(
                Step::Forget { before, max },
                // Whoever waits may have been told to stop.
                Box::new(move |outcome| drop(told.send(outcome))),
            );
            match forgotten.await {
                Ok(Ok(Written::Forgotten(count))) if count > 0 => {}
                Ok(_) | Err(_) => return,
            }
        }
    }
}
