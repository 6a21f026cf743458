//! StartRun and ListRuns: what a caller may say, and what it is told.

use std::time::{Duration, Instant};

use prost::Message;

use harness_proto::relay;

use crate::dispatch::Start;
use crate::engine::Engine;
use crate::envelope::{Code, Failure, JSON};
use crate::ids::RunId;
use crate::store::{Filter, Record};

use super::admission::{Admission, Admitted, Ask, Call, Wanted, check_labels, refused};
use super::{convert, entries};

/// Longest idempotency key, in bytes.
const KEY_BYTES: usize = 256;

/// How far ahead a run may be started.
const AHEAD_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Runs of a page: when nothing is said, and at most.
const PAGE_RUNS: (u32, u32) = (100, 1000);

/// Checks a StartRun.
pub(super) fn admit(
    admission: &Admission,
    asked: relay::StartRunRequest,
    call: Call,
) -> Result<(Admitted, Start), Box<Failure>> {
    let engine = admission.engine();
    engine.needs_store("StartRun")?;
    if asked.idempotency_key.len() > KEY_BYTES {
        return Err(refused(format!(
            "idempotency_key has {} bytes, the limit is {KEY_BYTES}",
            asked.idempotency_key.len()
        )));
    }
    check_labels("labels", &asked.labels, engine.limits())?;
    let now = Instant::now();
    let begins_in = match &asked.start_time {
        Some(at) => begins_in(engine, now, at)?,
        None => Duration::ZERO,
    };
    let mut options = asked.options.unwrap_or_default();
    let ask = Ask {
        agent: asked.agent,
        payload: asked.payload,
        options: Some(options.clone()),
    };
    let mut admitted = admission.admit_as(Wanted::Run(begins_in), ask, call)?;
    // What is meant is written, so that whoever says it and whoever does not ask the same.
    let media_type = &mut admitted.request.payload.content_type;
    if media_type.is_empty() {
        JSON.clone_into(media_type);
    }
    admitted.request.durable = Some(asked.idempotency_key.into());
    options.trace = admitted.request.trace.as_ref().map(convert::trace_to_proto);
    let start = Start {
        not_before: asked.start_time.map(|_| now + begins_in),
        labels: asked.labels.into_iter().collect(),
        options: options.encode_to_vec().into(),
    };
    Ok((admitted, start))
}

fn begins_in(
    engine: &Engine,
    now: Instant,
    at: &prost_types::Timestamp,
) -> Result<Duration, Box<Failure>> {
    let at = convert::stamp_from_proto(at);
    let ahead = at.map(|at| at.0.saturating_sub(engine.stamp(now).0));
    ahead
        .map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or_default()))
        .filter(|ahead| *ahead <= AHEAD_MAX)
        .ok_or_else(|| refused("start_time must be an instant at most 366 days ahead"))
}

/// A page of runs.
pub(super) async fn list(
    engine: &Engine,
    asked: relay::ListRunsRequest,
) -> Result<relay::ListRunsResponse, Box<Failure>> {
    let max = match asked.page_size {
        0 => PAGE_RUNS.0,
        size if size <= PAGE_RUNS.1 => size,
        size => {
            return Err(refused(format!(
                "page_size is {size}, it must be at most {}",
                PAGE_RUNS.1
            )));
        }
    } as usize;
    let before = match asked.page_token.as_str() {
        "" => None,
        token => Some(token.parse().map(RunId).map_err(|_| {
            refused("page_token must be the next_page_token of the page before, or empty")
        })?),
    };
    let filter = filter(engine, &asked.namespace, asked.filter.unwrap_or_default())?;
    let listed = engine.list_runs(filter, before, max).await?;
    let last = listed.runs.last();
    let last = last.map(|(record, _)| record.run.id.to_string());
    let runs = listed.runs.into_iter();
    let runs = runs.map(|(record, last)| entries::record_to_proto(record, last.as_ref()));
    Ok(relay::ListRunsResponse {
        runs: runs.collect(),
        next_page_token: last.filter(|_| listed.more).unwrap_or_default(),
    })
}

fn filter(
    engine: &Engine,
    namespace: &str,
    asked: relay::RunFilter,
) -> Result<Filter, Box<Failure>> {
    check_labels("filter.labels", &asked.labels, engine.limits())?;
    let states = entries::states_from_proto(&asked.states)
        .ok_or_else(|| refused("filter.states must name states of runs"))?;
    let stamp = |field: &str, at: Option<prost_types::Timestamp>| match at {
        None => Ok(None),
        Some(at) => convert::stamp_from_proto(&at)
            .map(Some)
            .ok_or_else(|| refused(format!("filter.{field} is no instant"))),
    };
    Ok(Filter {
        namespace: match namespace {
            "" => "default".to_owned(),
            named => named.to_owned(),
        },
        agent: asked.agent,
        states,
        labels: asked.labels.into_iter().collect(),
        created_from: stamp("created_from", asked.created_from)?,
        created_before: stamp("created_before", asked.created_before)?,
    })
}

/// The run of an id in a namespace, with its last entry.
pub(super) async fn find(
    engine: &Engine,
    id: RunId,
    namespace: &str,
) -> Result<Option<Record>, Box<Failure>> {
    let record = engine.record(id).await?;
    Ok(record.filter(|record| *record.run.agent.namespace == *namespace))
}

/// A run with how it ended.
pub(super) async fn told(engine: &Engine, record: Record) -> Result<relay::Run, Box<Failure>> {
    let last = engine.last_entry(&record).await?;
    Ok(entries::record_to_proto(record, last.as_ref()))
}

/// That a run that was there a moment ago is not any more.
pub(super) fn gone(id: RunId) -> Box<Failure> {
    let message = format!("run {id} is not kept any longer");
    Box::new(Failure::new(Code::RunNotFound, message))
}
