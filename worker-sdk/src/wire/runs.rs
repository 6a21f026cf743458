//! Runs and journal entries as the client's plain types.
//!
//! Owns conversions only.

use std::time::{Duration, SystemTime};

use harness_proto::v1;
use prost::Message;
use v1::entry::Kind;

use super::status::error_of;
use super::{duration_in, payload_in};
use crate::client::runs::{Content, Entry, Outcome, Parent, Run, RunQuery, RunState};
use crate::context::LogLevel;

fn time(stamp: Option<prost_types::Timestamp>) -> Option<SystemTime> {
    stamp.and_then(|stamp| SystemTime::try_from(stamp).ok())
}

pub(crate) fn run(run: v1::Run) -> Run {
    let state = match run.state() {
        v1::RunState::Unspecified => RunState::Unknown,
        v1::RunState::Queued => RunState::Queued,
        v1::RunState::Running => RunState::Running,
        v1::RunState::Succeeded => RunState::Succeeded,
        v1::RunState::Failed => RunState::Failed,
        v1::RunState::Cancelled => RunState::Cancelled,
        v1::RunState::TimedOut => RunState::TimedOut,
    };
    Run {
        run_id: run.run_id,
        namespace: run.namespace,
        agent: run.agent,
        state,
        durable: run.durable,
        attempt: run.attempt,
        create_time: time(run.create_time),
        deadline: time(run.deadline),
        end_time: time(run.end_time),
        outcome: run.outcome.and_then(outcome),
        head: run.head,
        labels: run.labels.into_iter().collect(),
        idempotency_key: run.idempotency_key,
        priority: run.priority,
        start_time: time(run.start_time),
        parent: run.parent.map(|parent| Parent {
            run_id: parent.run_id,
            attempt: parent.attempt,
        }),
    }
}

pub(crate) fn stored_entry(seq: u64, attempt: u32, time: SystemTime, content: &[u8]) -> Entry {
    entry(v1::JournalEntry {
        seq,
        attempt,
        time: Some(time.into()),
        entry: v1::Entry::decode(content).ok(),
    })
}

/// A page of runs that is asked for.
pub(crate) fn query_out(query: RunQuery) -> v1::ListRunsRequest {
    let states = query.states.into_iter().map(|state| match state {
        RunState::Unknown => v1::RunState::Unspecified,
        RunState::Queued => v1::RunState::Queued,
        RunState::Running => v1::RunState::Running,
        RunState::Succeeded => v1::RunState::Succeeded,
        RunState::Failed => v1::RunState::Failed,
        RunState::Cancelled => v1::RunState::Cancelled,
        RunState::TimedOut => v1::RunState::TimedOut,
    });
    v1::ListRunsRequest {
        namespace: query.namespace,
        filter: Some(v1::RunFilter {
            agent: query.agent,
            states: states.map(Into::into).collect(),
            labels: query.labels.into_iter().collect(),
            created_from: query.created_from.map(Into::into),
            created_before: query.created_before.map(Into::into),
        }),
        page_size: query.page_size,
        page_token: query.page_token,
    }
}

fn outcome(outcome: v1::Outcome) -> Option<Outcome> {
    Some(match outcome.outcome? {
        v1::outcome::Outcome::Value(value) => Outcome::Value(payload_in(value)),
        v1::outcome::Outcome::Error(error) => Outcome::Error(error_of(error)),
    })
}

pub(crate) fn entry(entry: v1::JournalEntry) -> Entry {
    let kind = entry.entry.and_then(|entry| entry.kind);
    Entry {
        seq: entry.seq,
        attempt: entry.attempt,
        time: time(entry.time),
        content: kind.map_or(Content::Unknown, content),
    }
}

fn content(kind: Kind) -> Content {
    match kind {
        Kind::RunStarted(it) => Content::RunStarted {
            request: it.request.map(payload_in),
        },
        Kind::AttemptStarted(it) => Content::AttemptStarted {
            worker_id: it.worker_id,
            worker_name: it.worker_name,
            agent_version: it.agent_version,
        },
        Kind::AttemptEnded(it) => Content::AttemptEnded {
            error: it.error.map(error_of),
        },
        Kind::CancelRequested(it) => Content::CancelRequested {
            who: it.who,
            why: it.why,
        },
        Kind::RunEnded(it) => Content::RunEnded {
            outcome: it.outcome.and_then(outcome),
        },
        Kind::AttemptStopping(it) => Content::AttemptStopping {
            rung: bare(it.rung().as_str_name(), "STOP_RUNG_"),
        },
        Kind::AttemptStopped(it) => Content::AttemptStopped {
            how: bare(it.how().as_str_name(), "STOP_PROOF_"),
            took: it.took.map_or(Duration::ZERO, duration_in),
        },
        Kind::Output(it) => Content::Output(payload_in(it.payload.unwrap_or_default())),
        Kind::Progress(it) => Content::Progress {
            fraction: it.fraction,
            message: it.message,
        },
        Kind::Log(it) => Content::Log {
            level: match it.level() {
                v1::LogLevel::Debug => LogLevel::Debug,
                v1::LogLevel::Unspecified | v1::LogLevel::Info => LogLevel::Info,
                v1::LogLevel::Warn => LogLevel::Warn,
                v1::LogLevel::Error => LogLevel::Error,
            },
            message: it.message,
        },
        Kind::Step(it) => Content::Step {
            name: it.name,
            key: it.key,
            idempotency_key: it.idempotency_key,
            outcome: it.outcome.and_then(outcome),
        },
        Kind::Usage(it) => Content::Usage {
            input_tokens: it.input_tokens,
            cached_tokens: it.cached_tokens,
            output_tokens: it.output_tokens,
            reasoning_tokens: it.reasoning_tokens,
            model: it.model,
            cost_micros: it.cost_micros,
            currency: it.currency,
        },
    }
}

/// The name of an enum's value without that of the enum.
pub(super) fn bare(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_owned()
}
