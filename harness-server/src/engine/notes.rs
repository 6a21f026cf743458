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
                "cancelled work has stopped");
        }
        Note::ReleasedUnknown { worker, delivery } => {
            debug!(%worker, run = %delivery.run, attempt = %delivery.attempt,
                "ignoring a released for work this worker does not owe");
        }
        Note::GaveUp { worker, delivery } => {
            warn!(%worker, run = %delivery.run, attempt = %delivery.attempt,
                "no released came in time; counting cancelled work as stopped");
        }
        Note::Stale { slot } => debug!(%slot, "dropped a frame about a request that is over"),
    }
}
