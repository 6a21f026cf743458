//! Waiting for the end of a run, and for the store: how long a call may, what it is told then, and
//! what when the store does not say.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use harness_proto::relay;

use crate::engine::Engine;
use crate::envelope::{Code, Failure};
use crate::ids::RunId;
use crate::store::Record;

use super::admission::refused;
use super::{convert, deadline, entries, starting};

/// Longer than any run may take, and no more than clocks can tell.
const LONGEST: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

/// How long after its wait, if it has one, the store may keep a call that has no deadline.
const STORE_GRACE: Duration = Duration::from_secs(5);

/// How long a call may take that may wait for an end or for the store.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// Until when it waits for one: as long as it asks, and so that it can still be told how the run
    /// stands. None when it does not wait.
    pub(super) end: Option<Instant>,
    /// When it is answered at the latest; none when it has no deadline and does not wait, and waits
    /// for the store as long as that takes.
    answer: Option<Instant>,
}

impl Patience {
    /// What a call asks that itself may take `call`.
    pub(super) fn of(
        asked: Option<&prost_types::Duration>,
        call: Option<Duration>,
    ) -> Result<Self, Box<Failure>> {
        let now = Instant::now();
        let call = call.map(|left| deadline::within(left, Some(left)).min(LONGEST));
        let wait = asked.map(|asked| {
            convert::duration_from_proto(asked)
                .ok_or_else(|| refused("wait_for_end must be a duration that is not negative"))
        });
        let end = wait.transpose()?;
        let end = end.map(|wait| now + deadline::within(wait, call).min(LONGEST));
        Ok(Self {
            end,
            answer: match call {
                Some(call) => Some(now + call),
                None => end.map(|end| end + STORE_GRACE),
            },
        })
    }

    /// The same of a call that can be made again whatever came of it: no store keeps it for ever.
    pub(super) fn bounded(self) -> Self {
        Self {
            end: self.end,
            answer: self.answer.or_else(|| Some(Instant::now() + STORE_GRACE)),
        }
    }

    /// What the call is told in time, or else that the store kept it waiting.
    pub(super) async fn keep<T, E>(
        self,
        told: impl Future<Output = Result<T, E>>,
        late: impl FnOnce() -> E,
    ) -> Result<T, E> {
        match self.answer {
            Some(answer) => timeout_at(answer, told)
                .await
                .unwrap_or_else(|_| Err(late())),
            None => told.await,
        }
    }
}

/// That the store did not say in time how a run stands.
pub(super) fn untold(id: impl Display) -> Box<Failure> {
    let message = format!(
        "the store did not say in time how run {id} stands; that changes nothing of it: ask for it \
         with GetRun"
    );
    Box::new(Failure::new(Code::StoreUnavailable, message))
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
