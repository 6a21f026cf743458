//! What Core notes, as lines of the log. Decides nothing.

use tracing::{debug, info, warn};

use crate::dispatch::Note;

pub(super) fn log(note: &Note) {
    match note {
        Note::Released {
            worker,
            delivery,
            took,
        } => {
            info!(%worker, run = %delivery.run, attempt = %delivery.attempt, ?took,
                "work has stopped");
        }
        Note::ReleasedUnknown { worker, delivery } => {
            debug!(%worker, run = %delivery.run, attempt = %delivery.attempt,
                "ignoring a released for work this worker does not owe");
        }
        Note::GaveUp { worker, delivery } => {
            warn!(%worker, run = %delivery.run, attempt = %delivery.attempt,
                "no released came in time; counting cancelled work as stopped");
        }
        Note::Away {
            worker,
            delivery,
            what,
        } => {
            warn!(%worker, run = %delivery.run, attempt = %delivery.attempt,
                why = &**what, "the call of a worker is lost; it may come back to its request");
        }
        Note::Resumed { worker, delivery } => {
            info!(%worker, run = %delivery.run, attempt = %delivery.attempt,
                "a worker has come back to its request");
        }
        Note::Failed {
            worker,
            delivery: Some(delivery),
            what,
        } => {
            warn!(%worker, run = %delivery.run, attempt = %delivery.attempt,
                why = &**what, "a worker failed its request");
        }
        // One line a slot, and nobody waits for it.
        Note::Failed {
            worker,
            delivery: None,
            what,
        } => debug!(%worker, why = &**what, "a worker failed without a request"),
        Note::Stale { slot } => debug!(%slot, "dropped a frame about a request that is over"),
    }
}
