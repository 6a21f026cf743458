//! Between the wire's generated types and this crate's own.
//!
//! Owns every conversion; with `connect`, `client` and `worker::call` it is where tonic and prost
//! are named. Decides nothing: what a frame or an end means is `session`'s affair.

pub(crate) mod admin;
pub(crate) mod status;

use std::time::Duration;

use harness_proto::v1;
use prost::Message as _;

use crate::agent::{ErrorCode, ErrorParts};
use crate::context::LogLevel;
use crate::payload::Payload;
use crate::session::{Delivery, Entry, Held, Inbound, Lease, Limits, Outbound, Reply, Welcome};
use crate::worker::Profile;

const PROTOCOL_VERSION: u32 = 1;
const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(5);
/// A shorter interval would make heartbeats the work.
const LEAST_HEARTBEAT: Duration = Duration::from_millis(10);
const DEFAULT_UNACKED_ENTRIES: u32 = 64;
const DEFAULT_UNACKED_BYTES: u64 = 256 << 10;
const DEFAULT_PAYLOAD_BYTES: u64 = (4 << 20) - (64 << 10);
const DEFAULT_ENTRY_BYTES: u64 = 1 << 20;

pub(crate) fn payload_out(payload: Payload) -> v1::Payload {
    v1::Payload {
        content_type: payload.content_type().to_owned(),
        data: payload.into_data(),
    }
}

pub(crate) fn payload_in(payload: v1::Payload) -> Payload {
    Payload::new(payload.content_type, payload.data)
}

/// A span that is negative on the wire is none at all.
pub(crate) fn duration_in(duration: prost_types::Duration) -> Duration {
    Duration::try_from(duration).unwrap_or(Duration::ZERO)
}

/// Longer than the wire can say is the longest it can.
pub(crate) fn duration_out(duration: Duration) -> prost_types::Duration {
    const LONGEST: prost_types::Duration = prost_types::Duration {
        seconds: 315_576_000_000,
        nanos: 0,
    };
    prost_types::Duration::try_from(duration).unwrap_or(LONGEST)
}

pub(crate) fn inbound(frame: v1::AttachResponse) -> Inbound {
    use v1::attach_response::Frame;
    match frame.frame {
        Some(Frame::Welcome(welcome)) => Inbound::Welcome(welcome_in(welcome)),
        Some(Frame::Request(request)) => Inbound::Request(Box::new(delivery(request))),
        Some(Frame::Entry(_)) => Inbound::Entry,
        Some(Frame::Appended(appended)) => Inbound::Appended {
            worker_seq: appended.worker_seq,
        },
        Some(Frame::Heartbeat(_)) => Inbound::Heartbeat,
        Some(Frame::Drain(drain)) => Inbound::Drain {
            reason: drain.reason,
        },
        None => Inbound::Unknown,
    }
}

/// A limit that is not set is the protocol's default.
fn welcome_in(welcome: v1::Welcome) -> Welcome {
    let interval = welcome
        .heartbeat_interval
        .map_or(DEFAULT_HEARTBEAT, duration_in);
    let limits = welcome.limits.unwrap_or_default();
    let or = |value: u64, default: u64| if value == 0 { default } else { value };
    Welcome {
        heartbeat_interval: interval.max(LEAST_HEARTBEAT),
        limits: Limits {
            unacked_entries: match limits.unacked_entries {
                0 => DEFAULT_UNACKED_ENTRIES,
                entries => entries,
            },
            unacked_bytes: or(limits.unacked_bytes, DEFAULT_UNACKED_BYTES),
            payload_bytes: or(limits.payload_bytes, DEFAULT_PAYLOAD_BYTES),
            entry_bytes: or(limits.entry_bytes, DEFAULT_ENTRY_BYTES),
        },
    }
}

fn delivery(request: v1::Request) -> Delivery {
    let caller = request.caller.unwrap_or_default();
    let trace = request.trace.unwrap_or_default();
    Delivery {
        lease: Lease {
            held: Held {
                run_id: request.run_id,
                attempt: request.attempt,
            },
            token: request.lease,
        },
        payload: payload_in(request.payload.unwrap_or_default()),
        time_left: request.time_left.map_or(Duration::ZERO, duration_in),
        max_reply_bytes: request.max_reply_bytes,
        durable: request.durable,
        metadata: request.metadata,
        caller_subject: caller.subject,
        namespace: caller.namespace,
        depth: request.depth,
        traceparent: trace.traceparent,
        tracestate: trace.tracestate,
        idempotency_key: request.idempotency_key,
    }
}

pub(crate) fn outbound(frame: Outbound) -> v1::AttachRequest {
    use v1::attach_request::Frame;
    let frame = match frame {
        Outbound::Heartbeat { held } => {
            let (run_id, attempt) =
                held.map_or_else(Default::default, |held| (held.run_id, held.attempt));
            Frame::Heartbeat(v1::WorkerHeartbeat { run_id, attempt })
        }
        Outbound::Append {
            held,
            worker_seq,
            entry,
        } => Frame::Append(v1::Append {
            run_id: held.run_id,
            attempt: held.attempt,
            worker_seq,
            entry: Some(entry_out(entry)),
        }),
        Outbound::Reply {
            held,
            worker_seq,
            reply,
        } => Frame::Reply(v1::Reply {
            run_id: held.run_id,
            attempt: held.attempt,
            worker_seq,
            outcome: Some(match reply {
                Reply::Value(payload) => v1::reply::Outcome::Value(payload_out(payload)),
                Reply::Error(error) => v1::reply::Outcome::Error(error_out(*error)),
            }),
        }),
        Outbound::Leave => Frame::Leave(v1::Leave {}),
    };
    v1::AttachRequest { frame: Some(frame) }
}

fn released(lease: Lease) -> v1::hello::Previous {
    v1::hello::Previous::Released(v1::Released {
        run_id: lease.held.run_id,
        attempt: lease.held.attempt,
        lease: lease.token,
    })
}

pub(crate) fn hello(profile: &Profile, previous: Option<Lease>) -> v1::AttachRequest {
    let hello = v1::Hello {
        protocol_version: PROTOCOL_VERSION,
        features: Vec::new(),
        worker: Some(v1::WorkerInfo {
            worker_id: profile.worker_id.clone(),
            name: profile.worker_name.clone(),
            pid: std::process::id(),
            host: profile.host.clone(),
            language: "rust".to_owned(),
            sdk_version: concat!("worker-sdk/", env!("CARGO_PKG_VERSION")).to_owned(),
            labels: profile.labels.clone(),
        }),
        agent: Some(v1::AgentInfo {
            name: profile.agent.clone(),
            version: profile.version.clone(),
            description: profile.description.clone(),
            request_schema: profile.request_schema.clone(),
            reply_schema: profile.reply_schema.clone(),
            labels: Default::default(),
        }),
        namespace: profile.namespace.clone(),
        heartbeats: true,
        max_receive_bytes: profile.max_receive_bytes,
        previous: previous.map(released),
    };
    v1::AttachRequest {
        frame: Some(v1::attach_request::Frame::Hello(hello)),
    }
}

fn entry_out(entry: Entry) -> v1::Entry {
    use v1::entry::Kind;
    let kind = match entry {
        Entry::Output(payload) => Kind::Output(v1::Output {
            payload: Some(payload_out(payload)),
        }),
        Entry::Progress { fraction, message } => Kind::Progress(v1::Progress { fraction, message }),
        Entry::Log { level, message } => {
            let level = match level {
                LogLevel::Debug => v1::LogLevel::Debug,
                LogLevel::Info => v1::LogLevel::Info,
                LogLevel::Warn => v1::LogLevel::Warn,
                LogLevel::Error => v1::LogLevel::Error,
            };
            Kind::Log(v1::Log {
                level: level.into(),
                message,
            })
        }
    };
    v1::Entry { kind: Some(kind) }
}

/// The encoded size of an entry, what the limits count.
pub(crate) fn entry_bytes(entry: &Entry) -> u64 {
    // The payload's bytes are shared, so the clone is cheap.
    entry_out(entry.clone()).encoded_len() as u64
}

fn error_out(error: ErrorParts) -> v1::Error {
    let cause = error.causes.into_iter().rev().fold(None, |cause, message| {
        Some(Box::new(v1::Error {
            message,
            cause,
            ..Default::default()
        }))
    });
    let code = match error.code {
        ErrorCode::Agent => v1::ErrorCode::AgentError,
        ErrorCode::InvalidRequest => v1::ErrorCode::InvalidRequest,
    };
    v1::Error {
        code: code.into(),
        r#type: error.error_type,
        message: error.message,
        retryable: error.retryable,
        retry_after: error.retry_after.map(duration_out),
        details: error.details.map(payload_out),
        cause,
        run_id: String::new(),
        attempt: 0,
        truncated: error.truncated,
    }
}
