//! Waiting for the end of a run: how long a call may, and what it is told then.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use harness_proto::relay;

use crate::engine::Engine;
use crate::envelope::Failure;
use crate::ids::RunId;
use crate::store::Record;

use super::admission::refused;
use super::{convert, deadline, entries, starting};

/// Longer than any run may take, and no more than clocks can tell.
const LONGEST: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

/// Until when a call waits for an end: as long as it asks, and less than it may take itself. None
/// when it does not wait.
pub(super) fn until(
    asked: Option<&prost_types::Duration>,
    call: Option<Duration>,
) -> Result<Option<Instant>, Box<Failure>> {
    let Some(asked) = asked else {
        return Ok(None);
    };
    let wait = convert::duration_from_proto(asked)
        .ok_or_else(|| refused("wait_for_end must be a duration that is not negative"))?;
    Ok(Some(
        Instant::now() + deadline::within(wait, call).min(LONGEST),
    ))
}

/// A durable run as it ends, or as it stands when the time is over.
pub(super) async fn durable(
    engine: &Engine,
    record: Record,
    until: Option<Instant>,
) -> Result<relay::Run, Box<Failure>> {
    let (false, Some(until)) = (record.state.is_ended(), until) else {
        return starting::told(engine, record).await;
    };
    let id = record.run.id;
    match timeout_at(until, engine.end_of(id)).await {
        Ok(Some(end)) => Ok(entries::record_to_proto(end.over(record), Some(&end.last))),
        Ok(None) | Err(_) => {
            let record = engine.record(id).await?;
            let record = record.ok_or_else(|| starting::gone(id))?;
            starting::told(engine, record).await
        }
    }
}

/// Waits for the end of an interactive run, or until the time is over.
pub(super) async fn interactive(engine: &Engine, id: RunId, until: Instant) {
    let Some(mut watch) = engine.watch(id) else {
        return;
    };
    let ended = async {
        while watch.read(u64::MAX, 1).is_some_and(|read| !read.ended) {
            watch.grown().await;
        }
    };
    // Over or not: it is told as it stands.
    drop(timeout_at(until, ended).await);
}
