//! Running the calls of one turn.
//!
//! Owns which run beside each other (parallel-safe ones that stand next to each other share, any
//! other runs alone, in the order of the calls), the order of their results, and what is known of
//! each when the run is to stop in the middle.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio_util::sync::CancellationToken;

use super::Run;
use super::report::{CallState, ToolReport};
use crate::agent::AgentError;
use crate::agent_loop::hook::PendingCall;
use crate::agent_loop::machine::{Abort, Planned, ToolOutcome, ToolResult};
use crate::agent_loop::message::Call;
use crate::agent_loop::record::{ToolRecord, ToolStatus, call_key, tool_step};
use crate::agent_loop::tool::Class;
use crate::agent_loop::toolbox::Entry;
use crate::journal::{StepError, StepState};

/// What came of the calls of a turn.
pub(super) struct Batch {
    /// In the order of the calls; those that never came to a result are missing.
    pub(super) results: Vec<ToolResult>,
    pub(super) reports: Vec<ToolReport>,
    /// Why the run is to stop here.
    pub(super) abort: Option<Abort>,
}

/// What is known of one call.
struct Place {
    state: CallState,
    result: Option<ToolResult>,
}

type Places = Mutex<Vec<Place>>;

/// Why no more calls of a turn are run.
enum Stop {
    /// The journal, or the step, cannot go on.
    Step(StepError),
    /// A hook failed, or ended the run, before a call of this tool.
    Hook { tool: String, error: AgentError },
}

impl Stop {
    /// Whether it is recorded, so that no attempt goes on behind it.
    fn is_the_end(&self) -> bool {
        match self {
            Self::Step(_) => false,
            Self::Hook { error, .. } => !error.is_retryable(),
        }
    }
}

impl Run<'_> {
    pub(super) async fn run_tools(&self, planned: Vec<Planned>) -> Result<Batch, AgentError> {
        let never = || Place {
            state: CallState::NeverStarted,
            result: None,
        };
        let places: Places = Mutex::new(planned.iter().map(|_| never()).collect());
        let mut abort = None;
        for group in self.groups(&planned) {
            let running = self.run_group(&planned, group, &places);
            let finished = tokio::select! {
                biased;
                finished = running => Some(finished),
                () = self.ctx.cancelled() => None,
            };
            match finished {
                Some(Ok(())) => {}
                Some(Err(Stop::Hook { tool, error })) if !error.is_retryable() => {
                    abort = Some(ended_by_hook(tool, &error));
                    break;
                }
                // A journal takes nothing any more once the run is to stop, and a hook may say so.
                Some(Err(Stop::Step(StepError::Journal(_)) | Stop::Hook { .. })) | None
                    if self.ctx.is_cancelled() =>
                {
                    abort = Some(Abort::Cancelled);
                    break;
                }
                Some(Err(Stop::Hook { error, .. })) => return Err(error),
                Some(Err(Stop::Step(error))) => return Err(error.into()),
                None => {}
            }
        }
        let places = places.into_inner().unwrap_or_else(PoisonError::into_inner);
        let is_whole = places.iter().all(|place| place.result.is_some());
        let reports = planned
            .iter()
            .zip(&places)
            .map(|(planned, place)| ToolReport {
                call_id: planned.call.id.clone(),
                tool: planned.call.name.clone(),
                state: place.state,
            });
        let reports = reports.collect();
        Ok(Batch {
            results: places
                .into_iter()
                .filter_map(|place| place.result)
                .collect(),
            reports,
            abort: abort.or((!is_whole).then_some(Abort::Cancelled)),
        })
    }

    /// Neighbours that may run beside each other.
    fn groups(&self, planned: &[Planned]) -> Vec<Range<usize>> {
        let shares = |planned: &Planned| {
            let entry = self.parts.toolbox.get(&planned.call.name);
            entry.is_none_or(|entry| entry.tool.parallel_safe)
        };
        let mut groups: Vec<Range<usize>> = Vec::new();
        for (place, call) in planned.iter().enumerate() {
            match groups.last_mut() {
                Some(group) if shares(call) && shares(&planned[place - 1]) => group.end += 1,
                Some(_) | None => groups.push(place..place + 1),
            }
        }
        groups
    }

    async fn run_group(
        &self,
        planned: &[Planned],
        group: Range<usize>,
        places: &Places,
    ) -> Result<(), Stop> {
        // What has begun before a hook ended the run still comes to its end; nothing else begins.
        let is_ended = planned[group.clone()]
            .iter()
            .any(|planned| self.recorded(&planned.call) == Some(StepState::Failed));
        let closing = CancellationToken::new();
        let mut waiting = group;
        let mut running = FuturesUnordered::new();
        let mut stopped = None;
        loop {
            while (stopped.is_none() || is_ended)
                && running.len() < self.parts.parallel_tools
                && !self.ctx.is_cancelled()
            {
                let Some(place) = waiting.next() else { break };
                let call = &planned[place].call;
                running.push(self.run_call(call, place, places, is_ended, &closing));
            }
            match running.next().await {
                Some(Ok(())) => {}
                // What has begun beside it comes to its end; what waits for a hook does not begin.
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

    /// What the journal has of a call. One that has failed is one before which a hook ended the run.
    fn recorded(&self, call: &Call) -> Option<StepState> {
        self.ctx
            .recorded(&tool_step(&call.name), &call_key(&call.id))
    }

    async fn run_call(
        &self,
        call: &Call,
        place: usize,
        places: &Places,
        is_ended: bool,
        closing: &CancellationToken,
    ) -> Result<(), Stop> {
        let not_run = |text: String| ToolResult {
            call_id: call.id.clone(),
            text,
            outcome: ToolOutcome::Failed,
        };
        let set = |state, result| {
            let mut places = places.lock().unwrap_or_else(PoisonError::into_inner);
            places[place] = Place { state, result };
        };
        let Some(entry) = self.parts.toolbox.get(&call.name) else {
            let told = self.parts.toolbox.unknown(&call.name);
            set(CallState::NeverStarted, Some(not_run(told)));
            return Ok(());
        };
        let arguments = match entry.arguments(&call.arguments) {
            Ok(arguments) => arguments,
            Err(rejection) => {
                let told = rejection.observation(&call.name);
                set(CallState::NeverStarted, Some(not_run(told)));
                return Ok(());
            }
        };
        if is_ended && self.recorded(call).is_none() {
            return Ok(());
        }
        let begun = || set(CallState::Unknown, None);
        let step = self.tool_step(entry, &call.id, arguments, begun, closing);
        match step.await {
            Ok(record) => {
                set(state(record.status), Some(shown(entry, &call.id, &record)));
                Ok(())
            }
            Err(StepError::OutcomeUnknown { .. }) => {
                set(CallState::Unknown, Some(not_run(UNKNOWN.to_owned())));
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
        entry: &Entry,
        call_id: &str,
        arguments: serde_json::Value,
        begun: impl Fn() + Sync,
        closing: &CancellationToken,
    ) -> Result<ToolRecord, StepError> {
        let (checked, judged) = (arguments.clone(), arguments.clone());
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
                let check = self.check_work(entry, call_id, checked, key);
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
                    arguments: judged,
                };
                let deciding = self.decide(pending, closing);
                async move { deciding.await.map(|instead| instead.map(|it| it.map(fit))) }
            });
        }
        step.await
    }
}

/// What the model is told of a call of which nobody knows whether it had its effect.
pub(super) const UNKNOWN: &str = "The outcome is unknown: the work was interrupted after it had \
     begun, and it may or may not have had its effect. It was not run again. Find out before you \
     repeat it.";

/// Whether a call with this record ran.
pub(super) fn state(status: ToolStatus) -> CallState {
    match status {
        ToolStatus::Unknown => CallState::Unknown,
        ToolStatus::Denied => CallState::NeverStarted,
        ToolStatus::Ok | ToolStatus::Error | ToolStatus::Timeout | ToolStatus::Fatal => {
            CallState::Finished
        }
    }
}

/// The end of a run that a hook has ended.
pub(super) fn ended_by_hook(tool: String, error: &AgentError) -> Abort {
    Abort::Hook {
        tool,
        error_type: error.error_type().to_owned(),
        message: error.message().to_owned(),
    }
}

/// A record as the model is shown it.
pub(super) fn shown(entry: &Entry, call_id: &str, record: &ToolRecord) -> ToolResult {
    let outcome = match record.status {
        ToolStatus::Ok => ToolOutcome::Done,
        ToolStatus::Error | ToolStatus::Timeout | ToolStatus::Unknown | ToolStatus::Denied => {
            ToolOutcome::Failed
        }
        ToolStatus::Fatal => ToolOutcome::Fatal,
    };
    ToolResult {
        call_id: call_id.to_owned(),
        text: record.shown(entry.tool.max_result_bytes),
        outcome,
    }
}
