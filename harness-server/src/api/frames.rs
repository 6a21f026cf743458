//! The frames of an Attach call: relay messages to the session's own and back.

use std::collections::BTreeMap;
use std::time::Instant;

use prost::Message;
use tonic::{Code as GrpcCode, Status};
use uuid::Uuid;

use harness_proto::relay::{
    self, attach_request::Frame as In, attach_response::Frame as Out, hello, reply,
};
use harness_proto::v1::{Entry, entry::Kind};

use crate::config::Limits;
use crate::dispatch::WorkerInfo;
use crate::engine::Outgoing;
use crate::ids::{Attempt, Delivery, Lease, RunId};
use crate::session::{Answered, Hello, Incoming, Previous};
use crate::slot::EntryKind;

use super::convert::{self, CONTENT_TYPE_BYTES};

/// A worker's frame, or that the call is broken.
pub(super) fn incoming(
    message: Result<relay::AttachRequest, Status>,
    limits: &Limits,
) -> Result<Incoming, String> {
    let frame_limit = limits.frame_bytes();
    match message {
        Ok(message) => Ok(message
            .frame
            .map_or(Incoming::Unknown, |frame| decoded(frame, limits))),
        Err(status) => match status.code() {
            // tonic's own limit, which lies above ours.
            GrpcCode::OutOfRange => Ok(Incoming::TooLarge {
                bytes: largest_number(status.message()).unwrap_or(frame_limit + 1),
                limit: frame_limit,
            }),
            GrpcCode::Internal if status.message().contains("decode") => Ok(Incoming::Unknown),
            _ => Err(lost(&status)),
        },
    }
}

/// The decode limit to set on tonic, so that our own check comes first.
pub(super) fn decode_limit(limits: &Limits) -> usize {
    const MIB: u64 = 1024 * 1024;
    usize::try_from(limits.frame_bytes() + MIB).unwrap_or(usize::MAX)
}

/// A frame for a worker, its time left measured now.
pub(super) fn outgoing(frame: Outgoing, server_id: Uuid, limits: &Limits) -> relay::AttachResponse {
    let frame = match frame {
        Outgoing::Welcome(slot, resumed) => Out::Welcome(relay::Welcome {
            slot_id: slot.0,
            server_id: server_id.to_string(),
            heartbeat_interval: Some(convert::duration_to_proto(limits.heartbeat_interval)),
            limits: Some(relay::SlotLimits {
                unacked_entries: limits.unacked_entries,
                unacked_bytes: limits.unacked_bytes.as_u64(),
                payload_bytes: limits.payload_bytes.as_u64(),
                entry_bytes: limits.entry_bytes.as_u64(),
            }),
            features: Vec::new(),
            resume: resumed.map(|resumed| {
                let deadline = resumed.deadline;
                let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
                relay::Resumed {
                    last_worker_seq: resumed.last_seq,
                    time_left: left.map(convert::duration_to_proto),
                }
            }),
        }),
        Outgoing::Request {
            delivery,
            lease,
            request,
            deadline,
            window,
            replay,
        } => {
            let time_left = deadline.saturating_duration_since(Instant::now());
            Out::Request(relay::Request {
                run_id: delivery.run.to_string(),
                attempt: delivery.attempt.0,
                lease: bytes::Bytes::copy_from_slice(&lease.0),
                agent: request.agent.name.to_string(),
                payload: Some(convert::payload_to_proto(request.payload.clone())),
                durable: request.durable.is_some(),
                time_left: Some(convert::duration_to_proto(time_left)),
                reattach_window: Some(convert::duration_to_proto(window)),
                metadata: request.metadata.clone(),
                caller: Some(relay::Caller {
                    subject: request.caller.subject.to_string(),
                    namespace: request.caller.namespace.to_string(),
                }),
                parent: request.parent.map(convert::delivery_to_proto),
                depth: request.depth,
                trace: request.trace.as_ref().map(convert::trace_to_proto),
                replay_entries: replay.as_ref().map_or(0, |replay| replay.count),
                replay_bytes: replay.as_ref().map_or(0, |replay| replay.bytes),
                idempotency_key: request.durable.as_deref().unwrap_or_default().to_owned(),
                max_reply_bytes: limits.payload_bytes.as_u64(),
            })
        }
        Outgoing::Replayed(entry) => Out::Entry(convert::entry_to_proto(entry)),
        Outgoing::Appended(worker_seq) => Out::Appended(relay::Appended { worker_seq }),
        Outgoing::Drain(reason) => Out::Drain(relay::Drain {
            reason: reason.to_string(),
        }),
        Outgoing::Heartbeat => Out::Heartbeat(relay::HarnessHeartbeat {}),
    };
    relay::AttachResponse { frame: Some(frame) }
}

fn decoded(frame: In, limits: &Limits) -> Incoming {
    match frame {
        In::Hello(hello) => Incoming::Hello(Box::new(hello_from_proto(hello))),
        In::Heartbeat(beat) if beat.run_id.is_empty() => Incoming::Heartbeat(None),
        In::Heartbeat(beat) => Incoming::Heartbeat(Some(delivery(&beat.run_id, beat.attempt))),
        In::Append(append) => {
            let bytes = append.entry.len() as u64;
            let limit = limits.entry_bytes.as_u64();
            if bytes > limit {
                return Incoming::TooLarge { bytes, limit };
            }
            Incoming::Append {
                delivery: delivery(&append.run_id, append.attempt),
                seq: append.worker_seq,
                kind: entry_kind(append.entry.clone()),
                entry: append.entry,
            }
        }
        In::Reply(reply) => {
            let answer = match reply.outcome {
                Some(reply::Outcome::Value(value)) => {
                    let sizes = [
                        (value.data.len() as u64, limits.payload_bytes.as_u64()),
                        (value.content_type.len() as u64, CONTENT_TYPE_BYTES),
                    ];
                    for (bytes, limit) in sizes {
                        if bytes > limit {
                            return Incoming::TooLarge { bytes, limit };
                        }
                    }
                    Answered::Value(convert::payload_from_proto(value))
                }
                Some(reply::Outcome::Error(error)) => {
                    let (bytes, limit) = (error.encoded_len() as u64, limits.frame_bytes());
                    if bytes > limit {
                        return Incoming::TooLarge { bytes, limit };
                    }
                    Answered::Error(convert::error_from_worker(error))
                }
                Some(reply::Outcome::Declined(_)) => Answered::Declined,
                None => return Incoming::Unknown,
            };
            let delivery = delivery(&reply.run_id, reply.attempt);
            Incoming::Reply {
                delivery,
                seq: reply.worker_seq,
                answer,
            }
        }
        In::Leave(_) => Incoming::Leave,
    }
}

fn hello_from_proto(hello: relay::Hello) -> Hello {
    let worker = hello.worker.unwrap_or_default();
    let agent = hello.agent.unwrap_or_default();
    Hello {
        protocol_version: hello.protocol_version,
        worker_id: worker.worker_id,
        info: WorkerInfo {
            name: worker.name,
            pid: worker.pid,
            host: worker.host,
            language: worker.language,
            sdk_version: worker.sdk_version,
            labels: worker.labels.into_iter().collect(),
        },
        agent: agent.name,
        namespace: hello.namespace,
        version: agent.version,
        description: agent.description,
        request_schema: agent.request_schema,
        reply_schema: agent.reply_schema,
        labels: agent.labels.into_iter().collect::<BTreeMap<_, _>>(),
        heartbeats: hello.heartbeats,
        max_receive_bytes: hello.max_receive_bytes,
        previous: match hello.previous {
            Some(hello::Previous::Released(work)) => {
                let lease = Lease(<[u8; 16]>::try_from(&*work.lease).unwrap_or_default());
                Previous::Released(delivery(&work.run_id, work.attempt), lease)
            }
            Some(hello::Previous::Resume(work)) => {
                let lease = Lease(<[u8; 16]>::try_from(&*work.lease).unwrap_or_default());
                Previous::Resume(delivery(&work.run_id, work.attempt), lease)
            }
            None => Previous::None,
        },
    }
}

/// What a frame names. A run_id that is no UUID names the nil run, which nobody holds.
fn delivery(run_id: &str, attempt: u32) -> Delivery {
    Delivery {
        run: RunId(run_id.parse().unwrap_or_default()),
        attempt: Attempt(attempt),
    }
}

fn entry_kind(entry: bytes::Bytes) -> EntryKind {
    match Entry::decode(entry).ok().and_then(|entry| entry.kind) {
        Some(Kind::Output(_) | Kind::Progress(_) | Kind::Log(_)) => EntryKind::Plain,
        Some(Kind::Usage(_)) => EntryKind::Usage,
        Some(Kind::Step(_)) => EntryKind::Step,
        Some(
            Kind::RunStarted(_)
            | Kind::AttemptStarted(_)
            | Kind::AttemptEnded(_)
            | Kind::CancelRequested(_)
            | Kind::RunEnded(_)
            | Kind::AttemptStopping(_)
            | Kind::AttemptStopped(_),
        )
        | None => EntryKind::Foreign,
    }
}

fn lost(status: &Status) -> String {
    match status.code() {
        GrpcCode::Cancelled => "it ended its call".to_owned(),
        _ => format!("its connection broke ({})", status.message()),
    }
}

/// The largest number in tonic's wording of a size error: the size that came.
fn largest_number(text: &str) -> Option<u64> {
    text.split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .max()
}
