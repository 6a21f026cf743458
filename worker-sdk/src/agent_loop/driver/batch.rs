//! Running the calls of one turn.
//!
//! Owns which run beside each other (parallel-safe ones that stand next to each other share, any
//! other runs alone, in the order of the calls), the order of their results, when no more of them
//! are begun, and what is known of each when the run is to stop in the middle.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio_util::sync::CancellationToken;

use super::Run;
use super::known::{Known, Open, Past, Place, UNKNOWN, ended_by_hook};
use super::report::{CallState, ToolReport};
use crate::agent::AgentError;
use crate::agent_loop::hook::PendingCall;
use crate::agent_loop::machine::{Abort, Planned, ToolResult};
use crate::agent_loop::message::Call;
use crate::agent_loop::record::{ToolRecord, ToolStatus, call_key, tool_step};
use crate::agent_loop::telemetry;
use crate::agent_loop::tool::Class;
use crate::context::Context;
use crate::journal::{Outcome, StepError};

/// What came of the calls of a turn.
pub(super) struct Batch {
    /// In the order of the calls; those that never came to a result are missing.
    pub(super) results: Vec<ToolResult>,
    pub(super) reports: Vec<ToolReport>,
    /// Why the run is to stop here.
    pub(super) abort: Option<Abort>,
}

/// The places of a turn's calls, in their order.
struct Places(Mutex<Vec<Place>>);

/// Why no more calls of a turn are run.
enum Stop {
    /// The journal, or the step, cannot go on.
    Step(StepError),
    /// A hook failed, or ended the run, before a call of this tool.
    Hook { tool: String, error: AgentError },
}

impl Stop {
    /// Whether no attempt goes on behind it.
    fn is_the_end(&self) -> bool {
        match self {
            Self::Step(_) => false,
            Self::Hook { error, .. } => !error.is_retryable(),
        }
    }
}

impl Past for Context {
    fn recorded_step(&self, name: &str, key: &str) -> Option<Option<Outcome>> {
        self.recorded(name, key)
    }
}

impl Places {
    fn set(&self, place: usize, known: Place) {
        self.lock()[place] = known;
    }

    fn has_fatal(&self) -> bool {
        self.lock().iter().any(Place::is_fatal)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn into_batch(self, planned: &[Planned], abort: Option<Abort>) -> Batch {
        let places = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        let is_over = places.iter().any(Place::is_fatal);
        let is_whole = places.iter().all(|place| place.result.is_some());
        let reports = planned.iter().zip(&places);
        let reports = reports.map(|(planned, place)| ToolReport {
            call_id: planned.call.id.clone(),
            tool: planned.call.name.clone(),
            state: place.state,
        });
        let reports = reports.collect();
        let results = places.into_iter().filter_map(|place| place.result);
        Batch {
            results: results.collect(),
            reports,
            abort: abort.or((!is_whole && !is_over).then_some(Abort::Cancelled)),
        }
    }
}

impl Run<'_> {
    /// Runs the calls of this turn that are not settled by the journal. Where the result of one, or a
    /// hook before it, has ended the run, those come to their end that had begun, and no other begins.
    pub(super) async fn run_tools(
        &self,
        turn: u32,
        planned: Vec<Planned>,
    ) -> Result<Batch, AgentError> {
        let is_past = self.ctx.is_past(turn);
        let (mut places, mut open, mut ended) = (Vec::new(), Vec::new(), None);
        for Planned { call, .. } in &planned {
            let (place, opened) = match self.parts.known(call, self.ctx, is_past)? {
                Known::Settled(place) => (place, None),
                Known::Ended(error) => {
                    ended = ended.or(Some(ended_by_hook(call.name.clone(), &error)));
                    (Place::open(CallState::NeverStarted), None)
                }
                Known::Open(open) => (Place::open(open.state()), Some(open)),
            };
            places.push(place);
            open.push(opened.map(|open| (call, open)));
        }
        if ended.is_some() {
            for open in &mut open {
                open.take_if(|(_, open)| !open.is_begun);
            }
        }
        let places = Places(Mutex::new(places));
        let abort = self.run_open(&open, &places).await?;
        Ok(places.into_batch(&planned, ended.or(abort)))
    }

    /// Runs what is open, until a result says that the run cannot go on.
    async fn run_open(
        &self,
        open: &[Option<(&Call, Open<'_>)>],
        places: &Places,
    ) -> Result<Option<Abort>, AgentError> {
        for group in groups(open) {
            let running = self.run_group(open, group, places);
            let finished = tokio::select! {
                biased;
                finished = running => Some(finished),
                () = self.ctx.cancelled() => None,
            };
            match finished {
                Some(Ok(())) => {}
                Some(Err(Stop::Hook { tool, error })) if !error.is_retryable() => {
                    return Ok(Some(ended_by_hook(tool, &error)));
                }
                // A journal takes nothing any more once the run is to stop, and a hook may say so.
                Some(Err(Stop::Step(StepError::Journal(_)) | Stop::Hook { .. })) | None
                    if self.ctx.is_cancelled() =>
                {
                    return Ok((!places.has_fatal()).then_some(Abort::Cancelled));
                }
                Some(Err(Stop::Hook { error, .. })) => return Err(error),
                Some(Err(Stop::Step(error))) => return Err(error.into()),
                None => {}
            }
        }
        Ok(None)
    }

    async fn run_group(
        &self,
        open: &[Option<(&Call, Open<'_>)>],
        group: Range<usize>,
        places: &Places,
    ) -> Result<(), Stop> {
        let mut waiting = group;
        let closing = CancellationToken::new();
        let mut running = FuturesUnordered::new();
        let mut stopped = None;
        loop {
            while stopped.is_none()
                && running.len() < self.parts.parallel_tools
                && !self.ctx.is_cancelled()
            {
                let Some(place) = waiting.next() else { break };
                if let Some((call, open)) = &open[place]
                    && (open.is_begun || !places.has_fatal())
                {
                    running.push(self.run_call(call, open, place, places, &closing));
                }
            }
            match running.next().await {
                // What has begun beside it comes to its end; what waits for a hook does not begin.
                Some(Ok(())) if places.has_fatal() => closing.cancel(),
                Some(Ok(())) => {}
                Some(Err(stop @ Stop::Hook { .. })) => {
                    closing.cancel();
                    if stopped.is_none() || stop.is_the_end() {
                        stopped = Some(stop);
                    }
                }
                Some(Err(stop @ Stop::Step(_))) => return Err(stop),
                None => return stopped.map_or(Ok(()), Err),
            }
        }
    }

    async fn run_call(
        &self,
        call: &Call,
        open: &Open<'_>,
        place: usize,
        places: &Places,
        closing: &CancellationToken,
    ) -> Result<(), Stop> {
        let begun = || places.set(place, Place::open(CallState::Unknown));
        match self.tool_step(open, &call.id, begun, closing).await {
            Ok(record) => {
                let tool = Some(&open.entry.tool);
                places.set(place, Place::recorded(call, tool, &record));
                Ok(())
            }
            Err(StepError::OutcomeUnknown { .. }) => {
                let status = ToolStatus::Unknown.name();
                telemetry::tool_result(&call.name, &call.id, Duration::ZERO, status);
                let unknown = Place::failed(CallState::Unknown, call, UNKNOWN);
                places.set(place, unknown);
                Ok(())
            }
            // It does not begin: what stopped the run is its end, and is known already.
            Err(StepError::Failed(error)) if closing.is_cancelled() && error.is_retryable() => {
                Ok(())
            }
            // The work of a tool has a record for every failure of it.
            Err(StepError::Failed(error)) => Err(Stop::Hook {
                tool: call.name.clone(),
                error,
            }),
            Err(error) => Err(Stop::Step(error)),
        }
    }

    /// The call as a step of the journal: what is recorded is not run again.
    async fn tool_step(
        &self,
        open: &Open<'_>,
        call_id: &str,
        begun: impl Fn() + Sync,
        closing: &CancellationToken,
    ) -> Result<ToolRecord, StepError> {
        let Open {
            entry, arguments, ..
        } = open;
        let (name, step_key) = (tool_step(&entry.tool.name), call_key(call_id));
        let fit = |record: ToolRecord| {
            let entry_bytes_max = self.ctx.entry_bytes_max();
            record.storable(entry_bytes_max, &name, &step_key)
        };
        let (begun, fit) = (&begun, &fit);
        let mut step = self
            .ctx
            .step(name.clone(), move |key| {
                begun();
                let work = self.tool_work(entry, call_id, arguments, key);
                async move { work.await.map(fit) }
            })
            .key(step_key.clone());
        step = match entry.tool.class {
            Class::ReadOnly => step.read_only(),
            Class::Idempotent => step,
            Class::SideEffect => step.side_effect(),
            Class::Verifiable => step.verifiable(move |key| {
                let check = self.check_work(entry, call_id, arguments, key);
                async move { check.await.map(|found| found.map(fit)) }
            }),
        };
        if !self.parts.hooks.is_empty() {
            step = step.gated(move |idempotency_key| {
                let pending = PendingCall {
                    run: self.ctx.clone(),
                    tool: entry.tool.name.clone(),
                    class: entry.tool.class,
                    call_id: call_id.to_owned(),
                    idempotency_key,
                    arguments: arguments.clone(),
                };
                let deciding = self.decide(pending, closing);
                async move { deciding.await.map(|instead| instead.map(|it| it.map(fit))) }
            });
        }
        step.await
    }
}

/// Neighbours that may run beside each other. One that needs not run stands in nobody's way.
fn groups(open: &[Option<(&Call, Open<'_>)>]) -> Vec<Range<usize>> {
    let shares = |place: usize| {
        let open = open[place].as_ref();
        open.is_none_or(|(_, open)| open.entry.tool.parallel_safe)
    };
    let mut groups: Vec<Range<usize>> = Vec::new();
    for place in 0..open.len() {
        match groups.last_mut() {
            Some(group) if shares(place) && shares(place - 1) => group.end += 1,
            Some(_) | None => groups.push(place..place + 1),
        }
    }
    groups
}
