//! Journal entries and runs as messages. What a worker wrote goes out as the bytes that came.

use bytes::Bytes;
use prost::Message;

use harness_proto::relay;
use harness_proto::v1::{self, entry::Kind};

use crate::dispatch::{RunState, RunView};
use crate::engine::Engine;
use crate::envelope::{Code, Failure};
use crate::ids::RunId;
use crate::journal::{Content, Ended, Entry, Proof};
use crate::pool::Rung;

use super::convert;

/// An entry with its place in the journal.
pub(super) fn entry_to_proto(engine: &Engine, entry: Entry) -> relay::JournalEntry {
    relay::JournalEntry {
        seq: entry.seq,
        attempt: entry.attempt.0,
        time: Some(engine.wall_clock(entry.at).into()),
        entry: encoded(engine, entry.content),
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

fn encoded(engine: &Engine, content: Content) -> Bytes {
    let kind = match content {
        Content::Worker(encoded) => return encoded,
        Content::RunStarted => Kind::RunStarted(v1::RunStarted { request: None }),
        Content::AttemptStarted(started) => Kind::AttemptStarted(v1::AttemptStarted {
            worker_id: started.worker.to_string(),
            worker_name: started.name.clone(),
            slot_id: started.slot.0,
            server_id: engine.server_id().to_string(),
            agent_version: started.version.clone(),
        }),
        Content::AttemptEnded(failure) => Kind::AttemptEnded(v1::AttemptEnded {
            error: failure.as_deref().map(error),
        }),
        Content::CancelRequested { who, why } => Kind::CancelRequested(v1::CancelRequested {
            who: who.to_string(),
            why,
        }),
        Content::RunEnded(ended) => Kind::RunEnded(v1::RunEnded {
            outcome: Some(outcome(&ended)),
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
            took: Some(convert::duration_to_proto(took)),
        }),
    };
    v1::Entry { kind: Some(kind) }.encode_to_vec().into()
}

/// The same encoding read as the other view of the same message.
fn error(failure: &Failure) -> v1::Error {
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
        (RunState::Ended, Some((_, Ended::Value(_)))) => relay::RunState::Succeeded,
        (RunState::Ended, Some((_, Ended::Failure(failure)))) => match failure.code {
            Code::Cancelled => relay::RunState::Cancelled,
            Code::DeadlineExceeded => relay::RunState::TimedOut,
            _ => relay::RunState::Failed,
        },
    }
}
