//! Journal entries and runs as messages. What a worker wrote goes out as the bytes that came.

use bytes::Bytes;
use prost::Message;
use uuid::Uuid;

use harness_proto::relay;
use harness_proto::v1::{self, entry::Kind};

use crate::dispatch::{RunState, RunView};
use crate::engine::Engine;
use crate::envelope::Failure;
use crate::ids::RunId;
use crate::journal;
use crate::journal::{Content, Ended, Proof};
use crate::pool::Rung;
use crate::store::{Entry, Record, State};

use super::convert;

/// An entry with its place in the journal.
pub(super) fn entry_to_proto(engine: &Engine, entry: journal::Entry) -> relay::JournalEntry {
    relay::JournalEntry {
        seq: entry.seq,
        attempt: entry.attempt.0,
        time: Some(engine.wall_clock(entry.at).into()),
        entry: encoded(engine.server_id(), &entry.content),
    }
}

/// Whether an entry of a worker is a piece of output.
pub(super) fn is_output(content: &Content) -> bool {
    match content {
        Content::Worker(encoded) => {
            let kind = v1::Entry::decode(encoded.clone())
                .ok()
                .and_then(|entry| entry.kind);
            matches!(kind, Some(Kind::Output(_)))
        }
        Content::RunStarted
        | Content::AttemptStarted(_)
        | Content::AttemptEnded(_)
        | Content::CancelRequested { .. }
        | Content::RunEnded(_)
        | Content::AttemptStopping(_)
        | Content::AttemptStopped { .. } => false,
    }
}

/// The content of an entry, as the bytes it is everywhere else.
pub(super) fn encoded(server_id: Uuid, content: &Content) -> Bytes {
    let kind = match content {
        Content::Worker(encoded) => return encoded.clone(),
        Content::RunStarted => Kind::RunStarted(v1::RunStarted { request: None }),
        Content::AttemptStarted(started) => Kind::AttemptStarted(v1::AttemptStarted {
            worker_id: started.worker.to_string(),
            worker_name: started.name.clone(),
            slot_id: started.slot.0,
            server_id: server_id.to_string(),
            agent_version: started.version.clone(),
        }),
        Content::AttemptEnded(failure) => Kind::AttemptEnded(v1::AttemptEnded {
            error: failure.as_deref().map(error),
        }),
        Content::CancelRequested { who, why } => Kind::CancelRequested(v1::CancelRequested {
            who: who.to_string(),
            why: why.clone(),
        }),
        Content::RunEnded(ended) => Kind::RunEnded(v1::RunEnded {
            outcome: Some(outcome(ended)),
        }),
        Content::AttemptStopping(rung) => Kind::AttemptStopping(v1::AttemptStopping {
            rung: match rung {
                Rung::CallEnded => v1::StopRung::CallEnded,
                Rung::Sigterm => v1::StopRung::Sigterm,
                Rung::Sigkill => v1::StopRung::Sigkill,
            }
            .into(),
        }),
        Content::AttemptStopped { proof, took } => Kind::AttemptStopped(v1::AttemptStopped {
            how: match proof {
                Proof::Released => v1::StopProof::Released,
                Proof::Exited => v1::StopProof::Exited,
                Proof::Killed => v1::StopProof::Killed,
                Proof::GaveUp => v1::StopProof::GaveUp,
            }
            .into(),
            took: Some(convert::duration_to_proto(*took)),
        }),
    };
    v1::Entry { kind: Some(kind) }.encode_to_vec().into()
}

/// The same encoding read as the other view of the same message.
pub(super) fn error(failure: &Failure) -> v1::Error {
    let encoded = convert::error_to_proto(failure).encode_to_vec();
    v1::Error::decode(&*encoded).expect("the two views of Error must have one encoding")
}

fn outcome(ended: &Ended) -> v1::Outcome {
    v1::Outcome {
        outcome: Some(match ended {
            Ended::Value(content_type) => v1::outcome::Outcome::Value(v1::Payload {
                content_type: content_type.clone().into_owned(),
                data: Bytes::new(),
            }),
            Ended::Failure(failure) => v1::outcome::Outcome::Error(error(failure)),
        }),
    }
}

/// A run.
pub(super) fn run_to_proto(engine: &Engine, id: RunId, view: RunView) -> relay::Run {
    let (end_time, outcome) = match &view.ended {
        Some((at, ended)) => (
            Some(engine.wall_clock(*at).into()),
            Some(relay_outcome(ended)),
        ),
        None => (None, None),
    };
    relay::Run {
        run_id: id.to_string(),
        namespace: view.agent.namespace.to_string(),
        agent: view.agent.name.to_string(),
        state: state(&view).into(),
        durable: false,
        attempt: view.attempt.0,
        create_time: Some(engine.wall_clock(view.created).into()),
        deadline: Some(engine.wall_clock(view.deadline).into()),
        end_time,
        outcome,
        head: view.head,
        labels: std::collections::HashMap::new(),
        idempotency_key: String::new(),
        priority: view.priority,
        start_time: None,
        parent: view.parent.map(convert::delivery_to_proto),
    }
}

/// A durable run, with what its last entry says of its end.
pub(super) fn record_to_proto(record: Record, last: Option<&Entry>) -> relay::Run {
    let run = record.run;
    let ended = last.and_then(|last| relay::Entry::decode(last.content.clone()).ok());
    let outcome = match ended.and_then(|entry| entry.kind) {
        Some(relay::entry::Kind::RunEnded(ended)) => ended.outcome,
        _ => None,
    };
    let options = relay::RunOptions::decode(run.options).unwrap_or_default();
    relay::Run {
        run_id: run.id.to_string(),
        namespace: run.agent.namespace.to_string(),
        agent: run.agent.name.to_string(),
        state: state_to_proto(record.state).into(),
        durable: true,
        attempt: record.attempt.0,
        create_time: Some(convert::stamp_to_proto(run.created)),
        deadline: Some(convert::stamp_to_proto(run.deadline)),
        end_time: record.ended.map(|(at, _)| convert::stamp_to_proto(at)),
        outcome,
        head: record.head,
        labels: run.labels.into_iter().collect(),
        idempotency_key: run.key,
        priority: run.priority,
        start_time: run.start.map(convert::stamp_to_proto),
        parent: options.parent,
    }
}

fn state_to_proto(state: State) -> relay::RunState {
    match state {
        State::Queued => relay::RunState::Queued,
        State::Running => relay::RunState::Running,
        State::Succeeded => relay::RunState::Succeeded,
        State::Failed => relay::RunState::Failed,
        State::Cancelled => relay::RunState::Cancelled,
        State::TimedOut => relay::RunState::TimedOut,
    }
}

/// The states that a filter names; none when one of them is none.
pub(super) fn states_from_proto(states: &[i32]) -> Option<Vec<State>> {
    states
        .iter()
        .map(|state| match relay::RunState::try_from(*state).ok()? {
            relay::RunState::Queued => Some(State::Queued),
            relay::RunState::Running => Some(State::Running),
            relay::RunState::Succeeded => Some(State::Succeeded),
            relay::RunState::Failed => Some(State::Failed),
            relay::RunState::Cancelled => Some(State::Cancelled),
            relay::RunState::TimedOut => Some(State::TimedOut),
            relay::RunState::Unspecified => None,
        })
        .collect()
}

fn relay_outcome(ended: &Ended) -> relay::Outcome {
    relay::Outcome {
        outcome: Some(match ended {
            Ended::Value(content_type) => relay::outcome::Outcome::Value(relay::Payload {
                content_type: content_type.clone().into_owned(),
                data: Bytes::new(),
            }),
            Ended::Failure(failure) => {
                relay::outcome::Outcome::Error(convert::error_to_proto(failure))
            }
        }),
    }
}

fn state(view: &RunView) -> relay::RunState {
    match (view.state, &view.ended) {
        (RunState::Queued, _) => relay::RunState::Queued,
        (RunState::Running, _) | (RunState::Ended, None) => relay::RunState::Running,
        (RunState::Ended, Some((_, ended))) => state_to_proto(State::ended(ended.error())),
    }
}
