//! What a slot has of the agent's side: the request in work and the appends it waits for.
//!
//! Owns the answers to appends. It outlives its call when that was lost and the work goes on; while
//! there is no call the agent computes on, and what it writes or answers waits.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::work::{Step, Work};
use crate::context::CancelReason;
use crate::error::Error;
use crate::session::{Event, Reply};
use crate::wire;

/// How long a leaving worker waits for cancelled work that does not stop.
const STOP_GRACE: Duration = Duration::from_secs(5);

type Sent = oneshot::Sender<Result<(), Error>>;

/// The request in hand, if there is one.
#[derive(Default)]
pub(super) struct InHand {
    pub(super) work: Option<Work>,
    /// What the agent has answered while no call took it.
    reply: Option<Reply>,
    /// The agent's append that waits for room.
    waiting: Option<Sent>,
    /// Steps that wait until their number is acknowledged, oldest first.
    awaiting: VecDeque<(u64, Sent)>,
}

impl InHand {
    /// What the agent does next, of what its call takes. Can be dropped and called again.
    pub(super) async fn next_step(&mut self, takes_appends: bool, takes_reply: bool) -> Step {
        if let Some(work) = self.work.as_mut().filter(|_| self.reply.is_none()) {
            match work.next_step(takes_appends).await {
                Step::Done(reply) if !takes_reply => self.reply = Some(reply),
                step @ (Step::Append(_) | Step::Done(_)) => return step,
            }
        }
        match self.reply.take_if(|_| takes_reply) {
            Some(reply) => Step::Done(reply),
            None => std::future::pending().await,
        }
    }

    /// Lets the agent work while there is no call, until `until`.
    pub(super) async fn work_until(&mut self, until: Instant) {
        // It ends at the time, whatever the agent does.
        let _ = tokio::time::timeout_at(until, self.next_step(false, false)).await;
    }

    /// Takes note of what the agent did, as the session takes it.
    pub(super) fn event(&mut self, step: Step) -> Event {
        match step {
            Step::Append(append) => {
                self.waiting = Some(append.sent);
                let entry_bytes = wire::entries::entry_bytes(&append.entry);
                Event::Append {
                    entry: append.entry,
                    entry_bytes,
                }
            }
            Step::Done(reply) => {
                *self = Self::default();
                Event::Replied(reply)
            }
        }
    }

    /// The append that waited for room was sent or refused.
    pub(super) fn answer(&mut self, outcome: Result<(), Error>) {
        if let Some(waiting) = self.waiting.take() {
            // An agent that no longer waits does not want to know.
            let _ = waiting.send(outcome);
        }
    }

    /// It was sent and goes on waiting, for its acknowledgement.
    pub(super) fn keep_waiting(&mut self, worker_seq: u64) {
        let waiting = self.waiting.take();
        self.awaiting
            .extend(waiting.map(|waiting| (worker_seq, waiting)));
    }

    pub(super) fn acknowledged(&mut self, worker_seq: u64) {
        let acknowledged = self
            .awaiting
            .iter()
            .take_while(|(seq, _)| *seq <= worker_seq);
        let count = acknowledged.count();
        for (_, sent) in self.awaiting.drain(..count) {
            let _ = sent.send(Ok(()));
        }
    }

    /// Stops the work and says whether it has stopped. A worker that is leaving does not wait for
    /// ever: the end of its process is proof as well, and until then there is none.
    pub(super) async fn stop(&mut self, reason: CancelReason, leaving: &CancellationToken) -> bool {
        let Some(mut work) = std::mem::take(self).work else {
            return true;
        };
        tokio::select! {
            biased;
            () = work.stop(reason) => true,
            () = async { leaving.cancelled().await; tokio::time::sleep(STOP_GRACE).await; } => {
                warn!("leaving although cancelled work has not stopped");
                false
            }
        }
    }
}
